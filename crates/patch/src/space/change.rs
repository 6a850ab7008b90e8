//! The change of one window: what it holds, what it is to hold, and what may be written.
//!
//! In: a journal's entry, a direction, and the bytes that the window holds now. Out: the result of the change, and
//! from which byte on the window is to be written. Invariants: PATCH-11.
//! Does not: read or write.

use trapline_record::journal::{Entry, MAX_PATCH};

use crate::native::traps::{is_staged, is_trap};
use crate::space::{CodeSpace, SpaceError};

/// In which direction sites change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From old to new.
    Publish,
    /// From old to new, where a write may have been begun by the process from which this one was forked.
    Complete,
    /// From new to old.
    Remove,
    /// From new to old, where a write may not have been finished: its writer died, or a fork happened
    /// meanwhile.
    Recover,
}

impl Direction {
    /// Whether it leads to *new*.
    pub(crate) const fn installs(self) -> bool {
        matches!(self, Self::Publish | Self::Complete)
    }
}

/// Result of one change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It was written.
    Done,
    /// It already held the bytes to be written; nothing was written.
    Already,
    /// It held other bytes than *old* and *new*; nothing was written.
    Differs {
        /// The bytes that it held; the first `len` are valid.
        found: [u8; MAX_PATCH],
    },
    /// A breakpoint of another tool (a kernel uprobe) stands at the head. The bytes behind it were written;
    /// the breakpoint was kept.
    KeptBreakpoint,
    /// It could not be read or written, for example because it is not mapped any more.
    Unreachable,
}

impl Outcome {
    /// Turns the failure of one place into that place's outcome; the others go on.
    pub(crate) fn of(result: Result<Self, SpaceError>) -> Result<Self, SpaceError> {
        match result {
            Err(SpaceError::Place(_)) => Ok(Self::Unreachable),
            other => other,
        }
    }
    /// Whether it holds the bytes that were to be written.
    pub(crate) const fn is_in_place(self) -> bool {
        matches!(self, Self::Done | Self::Already | Self::KeptBreakpoint)
    }
}

/// What a window holds now, compared with what is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Present {
    /// The bytes that are to be replaced.
    Before,
    /// The bytes that are to be written.
    After,
    /// One of our own intermediate states, or one with another tool's breakpoint put on it or taken off it.
    Between,
    /// Something else.
    Foreign,
}

/// The window of an entry; the direction decides which bytes are `before` and `after`.
pub(crate) struct Change<'e> {
    entry: &'e Entry,
    before: &'e [u8],
    after: &'e [u8],
}

impl<'e> Change<'e> {
    pub(crate) fn new(entry: &'e Entry, way: Direction) -> Self {
        let len = usize::from(entry.len).min(MAX_PATCH);
        let (old, new) = (&entry.old[..len], &entry.new[..len]);
        let (before, after) = if way.installs() { (old, new) } else { (new, old) };
        Self { entry, before, after }
    }
    pub(crate) fn addr(&self) -> u64 {
        self.entry.addr.0
    }
    /// The bytes that the window is to hold.
    pub(crate) fn after(&self) -> &'e [u8] {
        self.after
    }
    fn classify(&self, present: &[u8], way: Direction) -> Present {
        if present == self.after {
            return Present::After;
        }
        if present == self.before {
            return Present::Before;
        }
        let (old, new) = (&self.entry.old, &self.entry.new);
        let traps = |i: usize| (self.entry.starts | 1) & 1 << i != 0 && is_trap(present[i]);
        let ours = |i: usize| [old[i], new[i]].contains(&present[i]) || traps(i);
        if way != Direction::Publish && (0..present.len()).all(ours) {
            Present::Between
        } else {
            Present::Foreign
        }
    }
    /// What the window holds, with traps of ours replaced by the bytes that they stand for.
    fn seen<'w>(&self, space: &impl CodeSpace, present: &[u8], window: &'w mut [u8; MAX_PATCH]) -> &'w [u8] {
        let window = &mut window[..present.len()];
        window.copy_from_slice(present);
        space.look_past_traps(self.entry.addr, window);
        window
    }
    /// Whether another tool put an int3 at the head: a writer that came to its end leaves none of ours there.
    fn is_foreign_trap(&self, space: &impl CodeSpace, present: &[u8], way: Direction) -> bool {
        let staged = is_staged(self.entry, space.proves_words());
        let finished = way == Direction::Remove || (way == Direction::Recover && !staged);
        finished && is_trap(present[0]) && !is_trap(self.before[0])
    }
    /// The result for a window that holds `present`, and from which of its bytes on it is to be written, if
    /// at all.
    pub(crate) fn decide(
        &self,
        space: &impl CodeSpace,
        present: &[u8],
        way: Direction,
    ) -> (Outcome, Option<usize>) {
        let mut window = [0; MAX_PATCH];
        let present = self.seen(space, present, &mut window);
        match self.classify(present, way) {
            Present::After => (Outcome::Already, None),
            Present::Foreign => {
                let mut found = [0; MAX_PATCH];
                found[..present.len()].copy_from_slice(present);
                (Outcome::Differs { found }, None)
            }
            Present::Before => (Outcome::Done, Some(0)),
            Present::Between if self.is_foreign_trap(space, present, way) => {
                (Outcome::KeptBreakpoint, Some(1))
            }
            Present::Between => (Outcome::Done, Some(0)),
        }
    }
}
