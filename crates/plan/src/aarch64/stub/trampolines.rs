//! Return trampolines side by side: their addresses replace return addresses, and they lead to code that all
//! share.
//!
//! In: where trampolines and entries lie ([`Trampolines`]), the function that appends the shared code. Out:
//! bytes, with the unwind information. Invariants: SLOT-1 to SLOT-3 of the twin, as far as code keeps them.
//! Does not: know the shared code: `latency::armed` lists one call's steps from outside, `own_trampolines`
//! those of our own process.
//!
//! ```text
//!   code + CODE·n          nop                         CODE = 32
//!              + RETURN    x30 = n                     a `ret` leads here; RETURN = 4, one or two words
//!                          b common
//!   code + CODE·count      common: the shared code     sp = S, x30 = n, all others as the function left them
//! ```
//!
//! A `ret` leads to a trampoline's second word, so that an unwinder that looks a byte back finds the same
//! trampoline. A caller expects nothing of x30, which its own call overwrote. A thread with a number in x30,
//! whole or in part, is recognized by its pc until it is there. No word is a landing pad: `ret` needs none
//! (Arm ARM C6.2, RET: BTypeNext is 0), and these pages are not guarded. With a guarded control stack no
//! thread could come here. A process that has one is refused before, as no call of ours can be made in it
//! (`tracee`'s `aarch64::frame`; in our own, `inside`).

use trapline_insn::aarch64::encode::NOP;
use trapline_record::trampolines::{self, Trampolines};

use super::asm::{Asm, Reg};
use crate::unwind::{AARCH64, TrampolineCode, unwind_info};

pub(super) const LINK: Reg = 30;
/// `ret`
pub(super) const RET: u32 = 0xD65F_03C0;
/// Offset in bytes to which a return to a trampoline leads. ([`trampolines::RETURN`] is that of the processor
/// for which this is built; `host` compares both.)
pub(super) const RETURN: u64 = 4;

/// Trampolines, and the code that they share, which `shared` appends: there x30 = the trampoline's number.
/// `None` if there are more than a branch reaches.
pub(super) fn lay(trampolines: &Trampolines, shared: impl FnOnce(&mut Asm)) -> Option<TrampolineCode> {
    let common = trampolines.code + trampolines.code_len();
    let mut asm = Asm::new(trampolines.code);
    for trampoline in 0..trampolines.count {
        asm.align(trampolines::CODE);
        (0..RETURN / 4).for_each(|_| asm.word(NOP));
        asm.number(LINK, trampoline);
        asm.b(common);
    }
    asm.align(trampolines::CODE);
    debug_assert_eq!(asm.here(), common);
    shared(&mut asm);
    asm.align(64);
    let end = asm.here();
    let mut bytes: Vec<u8> = asm.words().ok()?.into_iter().flat_map(u32::to_le_bytes).collect();
    unwind_info(&mut bytes, trampolines, AARCH64);
    Some(TrampolineCode { bytes, shared: (common, end), unwind: end })
}
