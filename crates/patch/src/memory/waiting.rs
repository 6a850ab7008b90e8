//! The reader's side of waiting (`--lossless`): threads that found their compact ring full are let wait, and are woken.
//!
//! In: a segment. Out: its words `MAY_WAIT` and `BEAT`, and wakes. Steps R1 to R5 of docs/design/recording.md; the other side
//! is `plan`'s `stub/wait.rs`. Invariant: WAIT-3 whatever ends a session, or removes patches because threads are about to
//! filter their calls, releases all waiting threads first. Does not: take records.

use trapline_record::calls::SEQUENCE;
use trapline_record::control::{at, fact};
use trapline_tracee::TickClock;

use crate::memory::segment::Segment;

/// What threads of a segment were allowed when the reader looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// They may wait, as before.
    Allowed,
    /// They may wait again: one had waited as long as the bound, without a beat.
    Again,
    /// None may wait: they are about to filter their system calls.
    Never,
}

impl Segment {
    /// R1: the reader is at work.
    pub fn beat(&self) {
        self.view().set(at::BEAT, TickClock::ticks());
    }
    /// Lets threads wait from the first hit on.
    pub(crate) fn begin_waiting(&self) {
        self.beat();
        self.view().set(at::MAY_WAIT, 1);
    }
    /// Lets threads wait, if one has given up.
    pub fn allow_waiting(&self) -> Waiting {
        let view = self.view();
        if (view.get(at::ASKED) | view.get(at::CLOSED)) & fact::FILTER != 0 {
            self.release();
            return Waiting::Never;
        }
        if view.get(at::MAY_WAIT) != 0 {
            return Waiting::Allowed;
        }
        view.set(at::MAY_WAIT, 1);
        Waiting::Again
    }
    /// Whether a thread has given up since threads were allowed to wait.
    pub fn has_given_up(&self) -> bool {
        let view = self.view();
        view.get(at::MAY_WAIT) == 0 && (view.get(at::ASKED) | view.get(at::CLOSED)) & fact::FILTER == 0
    }
    /// R4: wakes the threads that wait for room in a ring.
    pub fn wake(&self, ring: u32) {
        self.map.wake(self.rings().ring(ring) + SEQUENCE);
    }
    /// R5: no thread waits any more.
    pub fn release(&self) {
        let (view, rings) = (self.view(), self.rings());
        if !rings.is_compact() || !view.set(at::MAY_WAIT, 0) {
            return;
        }
        for ring in 0..rings.rings {
            rings.release(view, ring);
            self.wake(ring);
        }
    }
}
