//! Waiting for those inside, and what waits with it. The protocol stands in [`epoch`](super).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

use super::line::{Active, Lines, ThreadPointer};

/// Makes every running thread of the process execute a full memory barrier. False: it could not.
pub type Barrier = fn() -> bool;

/// Threads that were inside when something had been unlinked, and may still see it.
#[derive(Debug, Default)]
pub struct Grace {
    noted: Vec<(usize, Active)>,
}

/// A thread that has not gone on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Straggler {
    /// Whose line it is.
    pub thread: ThreadPointer,
    /// Where on a stack its hit is: a thread in it has its stack pointer below this.
    pub frame: u64,
    line: usize,
    active: Active,
}

impl Grace {
    /// W2 and W3, after everything was unlinked. `None` if there was no barrier: nothing may be freed.
    #[must_use]
    pub fn begin(lines: &Lines, barrier: Barrier) -> Option<Self> {
        barrier().then(|| {
            let noted =
                lines.iter().map(super::Line::active).enumerate().filter(|(_, active)| active.is_inside());
            Self { noted: noted.collect() }
        })
    }
    /// W4, one look: true when all have gone on.
    pub fn poll(&mut self, lines: &Lines) -> bool {
        self.noted.retain(|&(line, active)| lines.get(line).is_some_and(|line| line.active() == active));
        self.noted.is_empty()
    }
    /// Who is waited for.
    pub fn stragglers(&self, lines: &Lines) -> impl Iterator<Item = Straggler> {
        let one = |&(line, active): &(usize, Active)| {
            let thread = lines.get(line)?.owner();
            Some(Straggler { thread, frame: active.frame(), line, active })
        };
        self.noted.iter().filter_map(one)
    }
    /// Waits no longer for one of whom the caller knows that no thread stands in its frame.
    pub fn excuse(&mut self, straggler: Straggler) {
        self.noted.retain(|&noted| noted != (straggler.line, straggler.active));
    }
}

/// Something unlinked.
pub type Garbage = Box<dyn Any + Send>;

/// Garbage, and the graces that it waits for. For writers.
#[derive(Default)]
pub struct Limbo {
    fresh: Vec<Garbage>,
    waiting: Vec<(Grace, Vec<Garbage>)>,
}

impl Limbo {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { fresh: Vec::new(), waiting: Vec::new() }
    }
    /// Takes what no pointer leads to any more.
    pub fn put(&mut self, garbage: Garbage) {
        self.fresh.push(garbage);
    }
    /// Begins a grace for what came since the last time, and frees what has had its own. True when nothing is left.
    pub fn sweep(&mut self, lines: &Lines, barrier: Barrier) -> bool {
        if !self.fresh.is_empty()
            && let Some(grace) = Grace::begin(lines, barrier)
        {
            self.waiting.push((grace, core::mem::take(&mut self.fresh)));
        }
        self.waiting.retain_mut(|(grace, _)| !grace.poll(lines));
        self.waiting.is_empty() && self.fresh.is_empty()
    }
    /// How many things wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fresh.len() + self.waiting.iter().map(|(_, garbage)| garbage.len()).sum::<usize>()
    }
    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Limbo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limbo").field("len", &self.len()).finish_non_exhaustive()
    }
}
