//! The part of a recording that is read, by time.
//!
//! In: two times since the begin; ticks of blocks and of rounds. Out: whether a block may be passed over, and which ticks
//! are inside. A block says a tick behind which none of its words was written; and what is in the round behind the next one
//! happened behind the begin of a round. Invariant: SEL-2 what is handed
//! on is what a recording of that time alone would have had, whichever blocks are passed over. Does not: read.

use std::time::Duration;

use super::Ticks;

/// Between two times since the begin of the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    since: u64,
    until: u64,
    /// Nothing that comes later is inside.
    is_over: bool,
}

impl Range {
    /// All of it.
    pub(super) const ALL: Self = Self { since: 0, until: u64::MAX, is_over: false };
    /// Nothing.
    pub(super) const NONE: Self = Self { since: u64::MAX, until: 0, is_over: true };

    pub(super) fn new(since: Duration, until: Option<Duration>) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self { since: nanos(since), until: until.map_or(u64::MAX, nanos), is_over: false }
    }
    /// First and last tick that are inside.
    pub(super) fn ticks(self, clock: Ticks) -> (u64, u64) {
        // What is no number of ticks that there may be is greater than all, or 0.
        let tick = |nanos: u64| clock.start.saturating_add((nanos as f64 / clock.ns) as u64);
        let since = if self.since == 0 { 0 } else { tick(self.since) };
        (since, if self.until == u64::MAX { u64::MAX } else { tick(self.until) })
    }
    /// Whether words that were written until a tick are all outside.
    pub(super) fn is_outside(self, taken: u64, clock: Ticks) -> bool {
        self.is_over || taken < self.ticks(clock).0
    }
    /// Notes that all that comes in later rounds happened behind a tick.
    pub(super) fn pass(&mut self, tick: u64, clock: Ticks) {
        self.is_over |= tick > self.ticks(clock).1;
    }
}

#[cfg(test)]
mod tests;
