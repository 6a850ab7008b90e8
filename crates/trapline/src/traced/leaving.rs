//! When a process that has ended is let go.
//!
//! In: a followed process that has ended or runs another program. Out: whether anything may still be
//! counted in its segments. What is kept of it then (`crate::past`) holds none of the target's memory,
//! descriptors, or tables of the plan. Invariants: TRC-2. PAST-1 a process is let go only when its counts
//! are final: no process can count there any more, and all its records have been reported. Does not: touch
//! a process.
//!
//! # When a process is let go
//!
//! The segments are memfds, and a forked child counts in those of its parent. Which children there are is not
//! known. They may have been forked by a forked child, have another parent or session by now, or share the
//! memory (`vfork`, `CLONE_VM`). So the memory is asked, and not the processes:
//!
//! - P1 The process has ended, or runs another program (`Traced::alive`, an event of the follower's).
//! - P2 Each segment is settled ([`Attached::settle`](trapline_patch::Attached::settle)): the tracer's
//!   mapping becomes a private one, and the memfd is sealed against writes. The kernel refuses the seal while
//!   any process has a shared, writable mapping of the memfd. If it refuses, the tracer's mapping is made
//!   shared again, and P2 is tried later, each time after twice as long.
//! - P3 Where calls are recorded, three more rounds are reported. The first takes what is left in the rings.
//!   The second reports what happened before it, in the order of all processes. The third reports the calls
//!   that have not ended.
//! - P4 The report is made, and all else is dropped.
//!
//! Interleavings:
//!
//! - *A fork while the process ends*: the child's mappings are made before the parent's are gone. So one of
//!   them is there at each moment, and P2 is refused.
//! - *vfork, or a thread that outlives the main one*: the memory is there as long as one of them has it; P2
//!   is refused.
//! - *exec*: the old memory is gone before the program is held at its entry point, and children forked before
//!   have mappings of their own.
//! - *Double fork, a child of another session, a child of init*: the mapping counts, whichever process has
//!   it.
//! - *A child that ends between P2's look and its answer*: refused, and tried again.
//! - *A hit during P2*: it is a store through a mapping that exists, so P2 is refused, and the word is in the
//!   memory that is mapped again.
//! - *Another tracer or `trapline status` maps the memfd*: the same as for a child.
//! - *The tracer dies at any of these steps*: nothing of the target's has been changed.
//! - *A child is killed or traced by others*: its mapping goes when it does.

use std::time::{Duration, Instant};

use trapline_patch::Attached;

/// First pause after a refusal of P2, and the longest one.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);
/// Number of rounds of P3.
const ROUNDS: u8 = 3;

/// How far a process has been let go.
#[derive(Debug)]
pub(super) struct Leaving {
    settled: bool,
    /// P2 is not tried before this time. `pause` is how long to wait after the next refusal.
    again: Option<Instant>,
    pause: Duration,
    /// Rounds that were reported since P2.
    rounds: u8,
}

impl Default for Leaving {
    fn default() -> Self {
        Self { settled: false, again: None, pause: PAUSE, rounds: 0 }
    }
}

impl Leaving {
    /// P2; returns whether P3 has been done, if the process is gone.
    pub(super) fn is_past(&mut self, attached: &mut Attached) -> bool {
        let records = attached.segments().iter().any(|segment| !segment.rings().is_empty());
        self.is_settled(attached) && (!records || self.rounds >= ROUNDS)
    }
    fn is_settled(&mut self, attached: &mut Attached) -> bool {
        let now = Instant::now();
        if self.settled || self.again.is_some_and(|again| now < again) {
            return self.settled;
        }
        // If the kernel gives no answer, it is asked again later, and all is kept meanwhile.
        self.settled = attached.settle().unwrap_or(false);
        self.again = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
        self.settled
    }
    /// P3: whether this round of records is the last one of this process.
    pub(super) const fn is_last_round(&mut self) -> bool {
        if self.settled {
            self.rounds = self.rounds.saturating_add(1);
        }
        self.rounds >= ROUNDS
    }
}
