//! The unwind information of return trampolines, on either processor.
//!
//! In: where trampolines and their entries lie ([`Trampolines`]), and the DWARF numbers of registers. Out:
//! bytes in the format of `__register_frame`. Does not: register them.

use trapline_record::trampolines::{self, Trampolines, at};

/// DWARF's register numbers, and what a return address may carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    /// The stack pointer.
    pub(crate) sp: u8,
    /// The register that stands for the return address.
    pub(crate) link: u8,
    /// A frame's return address may have been stored signed. Then only its low bits are the address.
    pub(crate) signed: bool,
}

pub(crate) const X86_64: Registers = Registers { sp: 7, link: 16, signed: false };
/// DWARF for the Arm 64-bit Architecture (AADWARF64), 4.1: x30 is 30, sp is 31.
pub(crate) const AARCH64: Registers = Registers { sp: 31, link: 30, signed: true };

/// Code of a process' return trampolines.
#[derive(Clone, Debug, Default)]
pub struct TrampolineCode {
    /// The bytes, to lie at [`Trampolines::code`]; readable and executable.
    pub bytes: Vec<u8>,
    /// First address of the code that the trampolines share, and first address behind it. On x86-64 the
    /// trampoline's number is at the stack pointer there.
    pub shared: (u64, u64),
    /// Address to be passed to `__register_frame`.
    pub unwind: u64,
}

/// Appends the unwind information of all trampolines: one CIE, one FDE, and the end mark, in the format of
/// `__register_frame`. It may lie anywhere.
///
/// A trampoline's frame has the stack pointer of its caller (CFA = sp + 0), and returns to where the entry
/// says, through as many trampolines as there are. "S" in the augmentation makes an unwinder look up the
/// caller at exactly the given address, so one byte is subtracted. It also distinguishes the two frames,
/// which have the same CFA (libgcc, unwind-dw2.c, `uw_identify_context`).
pub(crate) fn unwind_info(out: &mut Vec<u8>, trampolines: &Trampolines, registers: Registers) {
    const DEF_CFA: u8 = 0x0C;
    const VAL_EXPRESSION: u8 = 0x16;
    let expression = return_address(trampolines, registers);
    let Registers { sp, link, .. } = registers;
    let cie = out.len();
    out.extend_from_slice(&[0; 8]); // length; 0: a CIE
    out.extend_from_slice(b"\x01zRS\0"); // version, augmentation
    out.extend_from_slice(&[1, 0x78, link, 1, 0]); // alignments 1 and -8, return register, 1 byte: absolute
    out.extend_from_slice(&[DEF_CFA, sp, 0, VAL_EXPRESSION, link, expression.len() as u8]);
    out.extend_from_slice(&expression);
    close(out, cie);
    let fde = out.len();
    out.extend_from_slice(&[0; 4]);
    let back = (out.len() - cie) as u32;
    out.extend_from_slice(&back.to_le_bytes());
    out.extend_from_slice(&trampolines.code.to_le_bytes());
    out.extend_from_slice(&trampolines.code_len().to_le_bytes());
    out.push(0);
    close(out, fde);
    out.extend_from_slice(&[0; 4]);
}

/// Pads a record with `DW_CFA_nop` and writes its length.
fn close(out: &mut Vec<u8>, start: usize) {
    out.resize(start + 4 + (out.len() - start - 4).next_multiple_of(8), 0);
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// The DWARF expression that leads from an address in a trampoline (the return address' register) to the byte
/// before the address to which its call returns.
///
/// If a function stored the register signed, the register is handed on as it was stored, while the address
/// that the unwinder uses was authenticated. So of the distance into the trampolines only those bits are kept
/// that it can have. The addresses in entries were never signed.
fn return_address(trampolines: &Trampolines, registers: Registers) -> Vec<u8> {
    const DEREF: u8 = 0x06;
    const CONST1U: u8 = 0x08;
    const CONST8U: u8 = 0x0E;
    const DUP: u8 = 0x12;
    const AND: u8 = 0x1A;
    const MINUS: u8 = 0x1C;
    const PLUS: u8 = 0x22;
    const SHL: u8 = 0x24;
    const SHR: u8 = 0x25;
    const BRA: u8 = 0x28;
    const EQ: u8 = 0x29;
    const LIT: u8 = 0x30;
    const BREG: u8 = 0x70;
    let word = |op: u8, value: u64| [&[op][..], &value.to_le_bytes()].concat();
    let mut code = vec![BREG + registers.link, 0];
    let again = code.len();
    code.extend(word(CONST8U, trampolines.code));
    code.push(MINUS);
    if registers.signed {
        code.extend(word(CONST8U, trampolines.code_len() - 1));
        code.push(AND);
    }
    code.extend([LIT + trampolines::CODE.trailing_zeros() as u8, SHR]);
    code.extend([LIT + trampolines::ENTRY.trailing_zeros() as u8, SHL]);
    code.extend(word(CONST8U, trampolines.entry(0) + at::REAL));
    code.extend([PLUS, DEREF]);
    // Once more, if the result lies in a trampoline.
    code.push(DUP);
    code.extend(word(CONST8U, trampolines.code));
    code.extend([MINUS, CONST1U, trampolines.code_len().trailing_zeros() as u8, SHR, LIT, EQ]);
    let back = again as i16 - (code.len() as i16 + 3);
    code.push(BRA);
    code.extend(back.to_le_bytes());
    code.extend([LIT + 1, MINUS]);
    code
}
