//! What generated code depends on: what the process and its CPU offer, and what is dead at the site.
//!
//! In: numbers. Out: plain values for all stubs.
//! Does not: emit code, or find out what is dead.

use super::asm::Reg;
use crate::machine::Rseq;

/// What the process and its CPU offer to generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Present if the process' threads have rseq areas.
    pub rseq: Option<Rseq>,
    /// The CPU has `rdpid`.
    pub rdpid: bool,
    /// Number of counter lines. With rseq, all lines but the last belong to one CPU each; the last is for
    /// threads without an area.
    pub lines: u32,
}

/// What is known to be dead where a stub runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Liveness {
    /// OF SF ZF AF CF PF are all overwritten before they are read.
    pub flags_dead: bool,
    /// Bit `n`: general register `n` is overwritten before it is read. rsp and rbp are never used.
    pub dead: u16,
    /// The 128 bytes below rsp may hold live data; false at function entries.
    pub red_zone_live: bool,
}

impl Liveness {
    /// Whether that register is dead.
    pub(super) const fn is_dead(&self, reg: Reg) -> bool {
        self.dead >> reg.0 & 1 == 1
    }
}
