//! Waiting for those inside, and what waits with it. The protocol stands in [`epoch`](super).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::mem::ManuallyDrop;

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

impl Straggler {
    /// What the word at [`Self::frame`] is for as long as its hit goes on. Any other says that the hit was left.
    #[must_use]
    pub const fn seal(&self) -> u64 {
        self.active.0
    }
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
    /// Waits no longer for one of whom the caller knows that it is not coming back; its line says so from now on, for whoever has its place.
    ///
    /// # Safety
    /// No thread stands in that frame, and none will: the thread has ended, or is in a call above it on the same stack.
    pub unsafe fn excuse(&mut self, lines: &Lines, straggler: Straggler) {
        lines.get(straggler.line).into_iter().for_each(|line| line.is_over(straggler.active));
        self.noted.retain(|&noted| noted != (straggler.line, straggler.active));
    }
}

/// Something unlinked.
type Garbage = Box<dyn Any + Send>;

/// The one that changes what hits read; with what it unlinked, until the graces have passed. What is left when it is dropped
/// is leaked: nobody would know when to free it.
pub struct Writer {
    lines: Lines,
    barrier: Barrier,
    fresh: ManuallyDrop<Vec<Garbage>>,
    waiting: ManuallyDrop<Vec<(Grace, Vec<Garbage>)>>,
}

impl Writer {
    /// Nothing unlinked yet.
    ///
    /// # Safety
    /// No other writer changes the same things; all hits that read them enter one of these lines; `barrier` does what
    /// [`Barrier`] says.
    #[must_use]
    pub const unsafe fn new(lines: Lines, barrier: Barrier) -> Self {
        let (fresh, waiting) = (ManuallyDrop::new(Vec::new()), ManuallyDrop::new(Vec::new()));
        Self { lines, barrier, fresh, waiting }
    }
    /// Takes what no pointer leads to any more.
    pub fn unlinked(&mut self, garbage: Box<dyn Any + Send>) {
        self.fresh.push(garbage);
    }
    /// W2 and W3 for all that was unlinked so far: to be polled before a consumer's owner goes on. `None`: no barrier.
    #[must_use]
    pub fn grace(&self) -> Option<Grace> {
        Grace::begin(&self.lines, self.barrier)
    }
    /// The lines that graces look at.
    #[must_use]
    pub const fn lines(&self) -> &Lines {
        &self.lines
    }
    /// Begins a grace for what came since the last time, and frees what has had its own. True when nothing is left.
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
    /// The graces that garbage waits for: where a straggler can be excused.
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
