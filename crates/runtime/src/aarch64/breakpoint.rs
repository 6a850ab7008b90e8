//! Recognizes a `brk`, in a signal and in memory.
//!
//! In: a signal; an address. Out: whether a `brk` was executed, and where; what is at the address now.
//! Does not: know whether it is ours.

use core::mem::MaybeUninit;

use trapline_insn::aarch64::encode::BRK;

use super::access::Own;
use super::context::{BREAKPOINT, Context};
use crate::trap::Info;
use crate::trap::Stands;

/// A patch is one word, so no thread is inside it, and there are no guards.
pub(crate) const GUARDS: bool = false;

/// The address of the `brk` that was executed, if the signal is about one: the program counter is still
/// there.
#[inline]
pub(crate) fn executed(info: &Info, context: &Context) -> Option<u64> {
    (info.code == BREAKPOINT && info.addr == context.pc()).then_some(info.addr)
}

/// What is at that address now. We write `brk #0`; a `brk` with another number is not ours (`brk #1000` is a
/// compiler's, `brk #5` the kernel's).
pub(crate) fn stands(trap: u64) -> Stands {
    match Own::new(&mut MaybeUninit::uninit()).word(trap) {
        Some(BRK) => Stands::Trap,
        Some(word) if word & 0xFFE0_001F == BRK => Stands::Theirs,
        _ => Stands::None,
    }
}
