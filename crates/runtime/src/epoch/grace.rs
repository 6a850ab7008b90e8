//! A grace period: waiting for hits that are going on, and what is freed afterwards. [`epoch`](super)
//! describes the protocol.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::mem::ManuallyDrop;

use super::line::{Active, Lines, ThreadPointer};

/// Makes every running thread of the process execute a full memory barrier. False: it could not.
pub type Barrier = fn() -> bool;

/// A grace period: the hits that were going on when something had been unlinked, and may still see it.
#[derive(Debug, Default)]
pub struct Grace {
    noted: Vec<(usize, Active)>,
}

/// A hit that a grace period still waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Straggler {
    /// Thread pointer of the thread that owns the line.
    pub thread: ThreadPointer,
    /// Address of the hit's seal on a stack: a thread that is in the hit has its stack pointer below this.
    pub frame: u64,
    line: usize,
    active: Active,
}

impl Straggler {
    /// Content of the word at [`Self::frame`] for as long as the hit goes on. Any other content means that
    /// the hit was left.
    #[must_use]
    pub const fn seal(&self) -> u64 {
        self.active.0
    }
}

impl Grace {
    /// W2 and W3, after everything was unlinked. `None` if the barrier failed: then nothing may be freed.
    #[must_use]
    pub fn begin(lines: &Lines, barrier: Barrier) -> Option<Self> {
        barrier().then(|| {
            let noted =
                lines.iter().map(super::Line::active).enumerate().filter(|(_, active)| active.is_inside());
            Self { noted: noted.collect() }
        })
    }
    /// W4, one look: true when all those hits are over.
    pub fn poll(&mut self, lines: &Lines) -> bool {
        self.noted.retain(|&(line, active)| lines.get(line).is_some_and(|line| line.active() == active));
        self.noted.is_empty()
    }
    /// The hits that are still waited for.
    pub fn stragglers(&self, lines: &Lines) -> impl Iterator<Item = Straggler> {
        let one = |&(line, active): &(usize, Active)| {
            let thread = lines.get(line)?.owner();
            Some(Straggler { thread, frame: active.frame(), line, active })
        };
        self.noted.iter().filter_map(one)
    }
    /// Stops waiting for a hit of which the caller knows that its thread will not come back to it. The line
    /// is set to "outside", for the next thread with the same thread pointer.
    ///
    /// # Safety
    /// No thread is in that frame, and none will be: the thread has ended, or is in a call above the frame on
    /// the same stack.
    pub unsafe fn excuse(&mut self, lines: &Lines, straggler: Straggler) {
        lines.get(straggler.line).into_iter().for_each(|line| line.is_over(straggler.active));
        self.noted.retain(|&noted| noted != (straggler.line, straggler.active));
    }
}

/// Something unlinked.
type Garbage = Box<dyn Any + Send>;

/// The writer: it changes what hits read, and keeps what it unlinked until the grace periods have ended. What
/// it still keeps when it is dropped is leaked, since no code would know when to free it.
pub struct Writer {
    lines: Lines,
    barrier: Barrier,
    fresh: ManuallyDrop<Vec<Garbage>>,
    waiting: ManuallyDrop<Vec<(Grace, Vec<Garbage>)>>,
}

impl Writer {
    /// A writer that has unlinked nothing yet.
    ///
    /// # Safety
    /// No other writer changes the same things. All hits that read them enter one of these lines. `barrier`
    /// does what [`Barrier`] says.
    #[must_use]
    pub const unsafe fn new(lines: Lines, barrier: Barrier) -> Self {
        let (fresh, waiting) = (ManuallyDrop::new(Vec::new()), ManuallyDrop::new(Vec::new()));
        Self { lines, barrier, fresh, waiting }
    }
    /// Takes an object that no pointer leads to any more.
    pub fn unlinked(&mut self, garbage: Box<dyn Any + Send>) {
        self.fresh.push(garbage);
    }
    /// W2 and W3 for everything that was unlinked so far. To be polled before the owner of a consumer goes
    /// on. `None` if the barrier failed.
    #[must_use]
    pub fn grace(&self) -> Option<Grace> {
        Grace::begin(&self.lines, self.barrier)
    }
    /// The lines that grace periods look at.
    #[must_use]
    pub const fn lines(&self) -> &Lines {
        &self.lines
    }
    /// Begins a grace period for what was unlinked since the last one, and frees what has had its own. True
    /// when nothing is left.
    pub fn sweep(&mut self) -> bool {
        if !self.fresh.is_empty()
            && let Some(grace) = self.grace()
        {
            let fresh = core::mem::take(&mut *self.fresh);
            self.waiting.push((grace, fresh));
        }
        self.waiting.retain_mut(|(grace, _)| !grace.poll(&self.lines));
        self.is_clean()
    }
    /// The grace periods that garbage waits for, so that a straggler can be excused from them.
    pub fn graces(&mut self) -> impl Iterator<Item = &mut Grace> {
        self.waiting.iter_mut().map(|(grace, _)| grace)
    }
    /// Whether nothing waits to be freed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.fresh.is_empty() && self.waiting.is_empty()
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting: usize = self.waiting.iter().map(|(_, garbage)| garbage.len()).sum();
        f.debug_struct("Writer")
            .field("fresh", &self.fresh.len())
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}
