//! Slots side by side: code that stands in for return addresses, each of which leads to what all share.
//!
//! In: where slots and entries lie ([`Slots`]), who appends what they share. Out: bytes, with what unwinders are told. Invariants: SLOT-1 to SLOT-3 of the twin, as far as code keeps them.
//! Does not: know what is shared: `latency::armed` lists one call's steps from outside, `landing` those of our own process.
//!
//! A `ret` leads to a slot's second word, so that an unwinder that looks a byte back finds the same slot; there x30 := its number, and a branch to what all share. A caller expects nothing of
//! x30, which its own call overwrote. A thread whose x30 has a number, whole or in part, is known by its pc until it is there. No word is a landing pad: `ret` needs none (Arm ARM C6.2, RET:
//! BTypeNext is 0), and these pages are not guarded. A guarded control stack would let nobody come here: a process under one is refused before, as no call of ours can be made in it
//! (`target`'s `aarch64::frame`; in our own, `inside`).

use trapline_insn::aarch64::encode::NOP;
use trapline_record::slots::{self, Slots};

use super::asm::{Asm, Reg};
use crate::unwind::{AARCH64, SlotCode, unwind_info};

pub(super) const LINK: Reg = 30;
/// `ret`
pub(super) const RET: u32 = 0xD65F_03C0;
/// Where a return to a slot leads to, in bytes. ([`slots::RETURN`] is that of the processor that this is built for.)
pub(super) const RETURN: u64 = 4;
#[cfg(target_arch = "aarch64")]
const _: () = assert!(RETURN == slots::RETURN);

/// Slots, and what they share, which `shared` appends: there x30 = the slot's number. `None`: there are more than a branch reaches.
pub(super) fn lay(slots: &Slots, shared: impl FnOnce(&mut Asm)) -> Option<SlotCode> {
    let common = slots.code + slots.code_len();
    let mut asm = Asm::new(slots.code);
    for slot in 0..slots.count {
        asm.align(slots::CODE);
        (0..RETURN / 4).for_each(|_| asm.word(NOP));
        asm.number(LINK, slot);
        asm.b(common);
    }
    asm.align(slots::CODE);
    debug_assert_eq!(asm.here(), common);
    shared(&mut asm);
    asm.align(64);
    let end = asm.here();
    let mut bytes: Vec<u8> = asm.words()?.into_iter().flat_map(u32::to_le_bytes).collect();
    unwind_info(&mut bytes, slots, AARCH64);
    Some(SlotCode { bytes, shared: (common, end), unwind: end })
}
