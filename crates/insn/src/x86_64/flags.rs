//! What a straight line of instructions is sure to overwrite, so that a stub need not save it.
//!
//! In: decoded instructions and their bytes. Out: a yes, or a set of registers; "no" and "none" when in doubt.
//! The line ends at the first instruction that does anything but go on to the next.

use super::decode::{Flow, Insn, decoder};
use super::gpr::Gpr;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, RflagsBits};

const STATUS: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// True when OF, SF, ZF, AF, CF and PF are each written before any is read, along the straight line `insns` (whose
/// bytes are `bytes`, the first instruction's first). Ends at the first instruction that does not simply fall
/// through. Flags left undefined count as not written, so `test`, `and`, `xor` do not write AF. False when in doubt.
#[must_use]
pub fn flags_dead_after(insns: &[Insn], bytes: &[u8]) -> bool {
    let mut pending = STATUS;
    for raw in straight_line(insns, bytes) {
        if raw.rflags_read() & pending != 0 {
            return false;
        }
        pending &= !surely_written(&raw);
        if pending == 0 {
            return true;
        }
    }
    false
}

/// The general registers that the straight line is sure to overwrite, in full, before reading any part of them: bit
/// `n` is register `n` in hardware order. Writes of 32 bits count as full (they zero-extend), of 8 or 16 do not.
/// `rsp` is never among them.
#[must_use]
pub fn overwritten_gprs(insns: &[Insn], bytes: &[u8]) -> u16 {
    let mut factory = InstructionInfoFactory::new();
    let (mut read, mut overwritten) = (Gpr::Rsp.bit(), 0);
    for raw in straight_line(insns, bytes) {
        let used = factory.info(&raw).used_registers();
        let gprs = || used.iter().filter_map(|u| Some((Gpr::of(u.register())?, u.register(), u.access())));
        for (gpr, _, access) in gprs() {
            if !matches!(
                access,
                OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess | OpAccess::None
            ) {
                read |= gpr.bit() & !overwritten;
            }
        }
        for (gpr, register, access) in gprs() {
            if access == OpAccess::Write && is_whole(register) {
                overwritten |= gpr.bit() & !read;
            }
        }
    }
    overwritten
}

/// The decoder reports a 32-bit write as one of the whole register; 32 bits are accepted for the same reason.
fn is_whole(register: Register) -> bool {
    register.is_gpr64() || register.is_gpr32()
}

/// The instructions decoded in full, up to the first that branches, traps or enters the kernel.
fn straight_line<'a>(insns: &'a [Insn], bytes: &'a [u8]) -> impl Iterator<Item = Instruction> + 'a {
    let addr = insns.first().map_or(0, |insn| insn.addr);
    let mut decoder = decoder(bytes, addr);
    insns.iter().take_while(|insn| insn.flow == Flow::Next).map_while(move |insn| {
        let raw = decoder.can_decode().then(|| decoder.decode())?;
        (raw.ip() == insn.addr && raw.len() == usize::from(insn.len)).then_some(raw)
    })
}

/// Status flags that `raw` gives a defined value whatever its operands hold.
fn surely_written(raw: &Instruction) -> u32 {
    if raw.has_rep_prefix() || raw.has_repne_prefix() || is_shift_by_cl(raw) {
        return 0;
    }
    // Processors differ on whether these clear the flags that they do not set.
    if matches!(raw.mnemonic(), Mnemonic::Fcomi | Mnemonic::Fcomip | Mnemonic::Fucomi | Mnemonic::Fucomip) {
        return raw.rflags_written();
    }
    raw.rflags_written() | raw.rflags_cleared() | raw.rflags_set()
}

/// A shift by zero leaves every flag as it was.
fn is_shift_by_cl(raw: &Instruction) -> bool {
    let shifts = matches!(
        raw.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    );
    shifts && (0..raw.op_count()).any(|operand| raw.op_register(operand) == Register::CL)
}
