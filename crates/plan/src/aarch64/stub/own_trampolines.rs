//! Return trampolines of our own process: a call that returns to one calls a consumer,
//! as an exit does.
//!
//! In: where trampolines lie ([`Trampolines`]), the gate's address (`trapline_runtime::aarch64::gate`), the
//! argument for it. Out: the trampolines' code, and the unwind information. Invariants: SLOT-1 to SLOT-3 of
//! the twin's `stub::trampolines`; SAFE-2: when the caller goes on, all registers but x30 are as the function
//! left them, and x30 holds the address where it goes on, as behind any `ret x30`; CALL-1, as in
//! `stub::call`.
//! Does not: take trampolines or give them back (`trapline_runtime::trampolines`).
//!
//! | step | what | what code sees that looks then |
//! |---|---|---|
//! | B1 | `ret` leads to the trampoline's second word, and that | a signal handler finds the thread in the trampoline, |
//! | | to the shared code (`trampolines`): x30 is its number | or in the shared code, sp as at the entry |
//! | B2 | as a stub does (C1, C2 of `stub::call`): room, x0, x1 and x30 into it; the gate calls the consumers that wait | |
//! | B4 | x30 := what the gate left there, the real address; the room is given back | |
//! | B6 | `ret` | |
//!
//! ```text
//!   B1   sp = S              x30 = the trampoline's number; the others are as the function left them
//!   B2   sp = S - FRAME      x0 = argument, x1 = gate, x30 = B4, [sp + X30] = the number
//!   B4   sp = S - FRAME      [sp + X30] = the real address, from the gate; the others are as the consumers left them
//!   B6   sp = S              x30 = the real address
//! ```
//!
//! The frame is that of `call`: 288 bytes. S is as the function left it, wherever the function began. The
//! CPU's return predictor sees neither B1 nor B6 as a pair with the caller's `bl`. B1 is a return to another
//! place than predicted, and B6 uses up the entry of the caller's caller.

use trapline_insn::aarch64::FRAME;
use trapline_record::trampolines::Trampolines;

use super::asm::SP;
use super::trampolines::{LINK, RET, lay};
use crate::unwind::TrampolineCode;

/// Offset of x30 in the frame.
const X30: u32 = 30 * 8;

/// Upper bound of the bytes that [`own_trampoline_code`] makes.
#[must_use]
pub const fn own_trampoline_code_len(trampolines: &Trampolines) -> u64 {
    trampolines.code_len() + 4096
}

/// The code of a process' return trampolines, to lie at `trampolines.code`. The code that they share begins
/// right behind them, at [`common_return`]. `None` if there are more than a branch reaches.
#[must_use]
pub fn own_trampoline_code(
    trampolines: &Trampolines,
    (gate, argument): (u64, u64),
) -> Option<TrampolineCode> {
    let made = lay(trampolines, |asm| {
        asm.add_imm(SP, SP, -(FRAME as i32));
        asm.store_pair(0, 1, 0);
        asm.store(LINK, SP, X30);
        let what = asm.literal_later(0);
        let way = asm.literal_later(1);
        asm.call(1);
        asm.load_from_stack(LINK, X30);
        asm.add_imm(SP, SP, FRAME as i32);
        asm.word(RET);
        asm.align(8);
        for (fix, value) in [(what, argument), (way, gate)] {
            asm.bind(fix);
            asm.double(value);
        }
    })?;
    debug_assert!(made.bytes.len() as u64 <= own_trampoline_code_len(trampolines), "as long as was promised");
    Some(made)
}

/// Address of the code that all trampolines share.
#[must_use]
pub const fn common_return(trampolines: &Trampolines) -> u64 {
    trampolines.code + trampolines.code_len()
}

#[cfg(test)]
mod tests {
    use super::super::trampolines::RETURN;
    use super::{RET, Trampolines, common_return, own_trampoline_code};
    use trapline_insn::aarch64::encode;
    use trapline_record::trampolines::CODE;

    const TRAMPOLINES: Trampolines = Trampolines { code: 0x7000_0000, table: 0x7800_0000, count: 64 };

    #[test]
    fn each_slot_says_its_number_and_goes_to_what_all_share() {
        let made = own_trampoline_code(&TRAMPOLINES, (0x1234, 0x5678)).expect("in reach");
        let words: Vec<u32> =
            made.bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        for trampoline in 0..64 {
            let at = TRAMPOLINES.code + trampoline * CODE + RETURN;
            let from = ((at - TRAMPOLINES.code) / 4) as usize;
            // movz x30, #trampoline
            assert_eq!(words[from], 0xD280_001E | (trampoline as u32) << 5);
            assert_eq!(Some(words[from + 1]), encode::b(at + 4, common_return(&TRAMPOLINES)));
        }
        // sub sp, sp, #288; stp x0, x1, [sp]; str x30, [sp, #240]; ldr x0, +28; ldr x1, +32; blr x1; ldr x30,
        // [sp, #240]; add sp, sp, #288; ret.
        let common = ((common_return(&TRAMPOLINES) - TRAMPOLINES.code) / 4) as usize;
        let expected = [
            0xD104_83FF,
            0xA900_07E0,
            0xF900_7BFE,
            0x5800_00E0,
            0x5800_0101,
            0xD63F_0020,
            0xF940_7BFE,
            0x9104_83FF,
            RET,
        ];
        assert_eq!(words[common..common + 9], expected);
        assert_eq!(words[common + 10..common + 14], [0x5678, 0, 0x1234, 0]);
        assert!(
            made.shared == (common_return(&TRAMPOLINES), made.unwind)
                && made.unwind < TRAMPOLINES.code + made.bytes.len() as u64
        );
    }

    #[test]
    fn numbers_of_more_than_sixteen_bits_are_whole() {
        let large = Trampolines { count: 1 << 17, ..TRAMPOLINES };
        let made = own_trampoline_code(&large, (0, 0)).expect("in reach");
        let at = ((1 << 17) - 1) * CODE as usize + RETURN as usize;
        // movz x30, #0xffff; movk x30, #1, lsl #16
        assert_eq!(made.bytes[at..at + 8], [0xFE, 0xFF, 0x9F, 0xD2, 0x3E, 0x00, 0xA0, 0xF2]);
    }
}
