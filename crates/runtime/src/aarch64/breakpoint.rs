//! A `brk`, as a signal shows it.
//!
//! In: a signal; an address. Out: whether a `brk` was executed, and where; what stands there now. Does not: know whose it is.

use core::mem::MaybeUninit;

use trapline_insn::aarch64::encode::BRK;

use super::access::Own;
use super::context::{BREAKPOINT, Context, Info};
use crate::trap::Stands;

/// A patch is one word: no thread stands inside it, and nothing is ever led elsewhere.
pub(crate) const GUARDS: bool = false;

/// The address of the `brk` that was executed, if that is what the signal is about: the thread still stands there.
#[inline]
pub(crate) fn executed(info: &Info, context: &Context) -> Option<u64> {
    (info.code == BREAKPOINT && info.addr == context.pc()).then_some(info.addr)
}

/// What stands there now. We write `brk #0`; those with another number are somebody's (`brk #1000` a compiler's, `brk #5` the
/// kernel's).
pub(crate) fn stands(trap: u64) -> Stands {
    match Own::new(&mut MaybeUninit::uninit()).word(trap) {
        Some(BRK) => Stands::Trap,
        Some(word) if word & 0xFFE0_001F == BRK => Stands::Theirs,
        _ => Stands::None,
    }
}
