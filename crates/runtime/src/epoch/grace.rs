//! A grace period: waiting for hits that are going on, and what is freed afterwards; pointers that a writer
//! replaces while hits follow them. [`epoch`](super) describes the protocol.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::mem::ManuallyDrop;

use super::line::{Active, Inside, Lines, ThreadPointer};
use crate::sync::{Acquire, AtomicPtr, Relaxed, Release};

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

/// A pointer that a writer replaces while hits follow it. It is null, or leads to an object that is freed
/// after the grace period of every hit that could load it.
#[repr(transparent)]
pub(crate) struct Published<T>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> Published<T> {
    pub(crate) fn new(object: Option<Box<T>>) -> Self {
        Self(AtomicPtr::new(object.map_or(core::ptr::null_mut(), Box::into_raw)))
    }
    /// The object of this moment, for a hit. Acquire: what was stored in it before it was published is
    /// visible.
    #[inline]
    pub(crate) fn get<'a>(&'a self, _inside: &'a Inside<'_>) -> Option<&'a T> {
        // SAFETY: null, or an object from `new` or `replace`, which is freed after the grace period of every
        // hit that could load it (EPO-1); this hit is inside for 'a.
        unsafe { self.0.load(Acquire).as_ref() }
    }
    /// The present object, for the writer.
    pub(crate) fn current<'a>(&'a self, _writer: &'a Writer) -> Option<&'a T> {
        // SAFETY: null or alive: only the writer retires objects, and it is borrowed for 'a.
        unsafe { self.0.load(Relaxed).as_ref() }
    }
    /// Publishes another object (release), and hands the old one to the writer.
    pub(crate) fn replace(&self, writer: &mut Writer, object: Option<Box<T>>) {
        let old = self.0.load(Relaxed);
        self.0.store(object.map_or(core::ptr::null_mut(), Box::into_raw), Release);
        if !old.is_null() {
            // SAFETY: it came from `Box::into_raw`, here or in `new`, and no pointer leads to it any more.
            writer.unlinked(unsafe { Box::from_raw(old) });
        }
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        let object = self.0.load(Relaxed);
        if !object.is_null() {
            // SAFETY: it came from `Box::into_raw`. The code that drops this is its only user: no hit leads
            // here any more.
            drop(unsafe { Box::from_raw(object) });
        }
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Like [`Published`], and never null.
#[derive(Debug)]
pub(crate) struct AlwaysPublished<T>(Published<T>);

impl<T: Send + Sync + 'static> AlwaysPublished<T> {
    pub(crate) fn new(object: Box<T>) -> Self {
        Self(Published::new(Some(object)))
    }
    /// As [`Published::get`].
    #[inline]
    pub(crate) fn get<'a>(&'a self, _inside: &'a Inside<'_>) -> &'a T {
        // SAFETY: as in `Published::get`; it is never null (`new`, `replace`).
        unsafe { &*self.0.0.load(Acquire) }
    }
    /// As [`Published::current`].
    pub(crate) fn current<'a>(&'a self, _writer: &'a Writer) -> &'a T {
        // SAFETY: as in `Published::current`; it is never null.
        unsafe { &*self.0.0.load(Relaxed) }
    }
    /// As [`Published::replace`].
    pub(crate) fn replace(&self, writer: &mut Writer, object: Box<T>) {
        self.0.replace(writer, Some(object));
    }
}
