//! What our handlers need: the code that looks up traps, and the dispositions that were there before.
//!
//! In: a [`Block`], once handlers are installed. Out: the same, for handlers.
//! Does not: install handlers (`install`).

use super::chain::Saved;
use super::copies::Copies;
use super::traps::Traps;
use crate::sync::LeakedOrNone;

/// What handlers need. It is never freed: a handler may still run after `uninstall`.
pub struct Block {
    /// Looks up our traps.
    pub traps: &'static dyn Traps,
    /// Copies that threads may be in.
    pub copies: Copies,
}

impl Block {
    /// If `pc` is in a copy: where the thread would be without it.
    pub(crate) fn original(&self, pc: u64) -> Option<u64> {
        self.copies.original(pc).or_else(|| self.traps.original(pc))
    }
}

impl core::fmt::Debug for Block {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Block").field("copies", &self.copies).finish_non_exhaustive()
    }
}

/// Signals for which our handlers may be installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Signal {
    /// Traps, and guards that are traps.
    Trap = 5,
    /// Guards that are no instruction; copies that are not valid at their place.
    Ill = 4,
    /// Copies that divide by zero.
    Fpe = 8,
    /// Copies and simulated instructions that access memory.
    Segv = 11,
    /// Copies and simulated instructions that access memory.
    Bus = 7,
}

/// In the order of installation: when traps are handled, the faults of what their handler does are handled
/// already.
pub(crate) const ALL: [Signal; 5] = [Signal::Segv, Signal::Bus, Signal::Fpe, Signal::Ill, Signal::Trap];

pub(super) static BLOCK: LeakedOrNone<Block> = LeakedOrNone::none();
pub(super) static SAVED: [Saved; ALL.len()] = [const { Saved::new() }; ALL.len()];

pub(crate) fn block() -> Option<&'static Block> {
    BLOCK.get()
}

pub(super) fn saved(signal: i32) -> Option<&'static Saved> {
    ALL.iter().zip(&SAVED).find_map(|(of, saved)| (*of as i32 == signal).then_some(saved))
}
