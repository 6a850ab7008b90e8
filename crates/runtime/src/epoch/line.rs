//! A thread's own line: the frame of its hit, if it is in one. [`epoch`](super) describes the protocol.

use core::marker::PhantomData;

use crate::native::thread;
#[cfg(not(loom))]
use crate::native::thread::Word;
use crate::sync::{AcqRel, Acquire, AtomicU64, Relaxed, Release, WrittenWord, light_barrier};

/// Thread pointer, by which threads are distinguished; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadPointer(pub u64);

impl ThreadPointer {
    /// Thread pointer of the calling thread.
    #[must_use]
    #[inline]
    pub fn own() -> Self {
        Self(thread::thread_pointer())
    }
}

pub(crate) const TURN_BITS: u32 = 12;
/// Frames are multiples of 16, so 52 bits hold every address.
pub(crate) const FRAME_ALIGN: u32 = 4;

/// Content of `active`: a frame, or 0 for none, and a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Active(pub(super) u64);

impl Active {
    pub(super) const fn frame(self) -> u64 {
        self.0 >> TURN_BITS << FRAME_ALIGN
    }
    const fn enter(self, frame: u64) -> Self {
        Self((frame >> FRAME_ALIGN) << TURN_BITS | (self.0 + 1) & ((1 << TURN_BITS) - 1))
    }
    const fn left(self) -> Self {
        Self(self.0 & ((1 << TURN_BITS) - 1))
    }
    pub(super) const fn is_inside(self) -> bool {
        self.frame() != 0
    }
}

/// A word on the stack for as long as a hit lasts. Its content distinguishes a frame that goes on from the
/// memory of one that was left.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Seal(WrittenWord);

impl Seal {
    /// A seal to be placed on the stack of the hit.
    #[must_use]
    pub const fn new() -> Self {
        Self(WrittenWord::new())
    }
    fn frame(&self) -> u64 {
        self.0.address()
    }
    fn close(&self, active: Active) {
        self.0.write(active.0);
    }
}

/// One thread's line.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line {
    /// The thread pointer; 0 means that the line is free.
    pub(crate) owner: AtomicU64,
    pub(crate) active: AtomicU64,
    /// Number of nested hits since the last hit that was not nested.
    nested: AtomicU64,
}

/// Lives between entering and leaving; what is reachable in that time is not freed. Dropping it leaves;
/// `longjmp` forgets it.
#[derive(Debug)]
#[must_use]
pub struct Inside<'a> {
    line: &'a Line,
    active: Active,
    nested: bool,
    /// Makes it impossible to send this to another thread.
    _own: PhantomData<*const ()>,
}

impl Line {
    /// Like [`enter_from`](Self::enter_from), for a hit that does not save the registers on the stack.
    #[inline]
    pub fn enter<'a>(&'a self, seal: &'a Seal) -> Inside<'a> {
        self.enter_from(seal, seal.frame())
    }
    /// Enters, unless a hit of this thread goes on: then that hit covers this one too. `seal` is on the stack
    /// that the hit runs on. `sp` is the stack pointer of the code that hit, below which nothing is in use.
    /// It is passed because the hit itself may have saved registers below it by now, which would hide that an
    /// older frame is gone.
    #[inline]
    pub fn enter_from<'a>(&'a self, seal: &'a Seal, sp: u64) -> Inside<'a> {
        let before = Active(self.active.load(Relaxed));
        if before.is_inside() && self.goes_on(before, sp) {
            return Inside { line: self, active: before, nested: true, _own: PhantomData };
        }
        let active = before.enter(seal.frame());
        seal.close(active);
        // Release: a thread that sees this hit sees that the last one is over, with all its reads.
        self.active.store(active.0, Release);
        light_barrier();
        Inside { line: self, active, nested: false, _own: PhantomData }
    }
    pub(super) fn owner(&self) -> ThreadPointer {
        ThreadPointer(self.owner.load(Relaxed))
    }
    /// Acquire: all that the thread did before it left is over for the reader that sees that it has left.
    pub(super) fn active(&self) -> Active {
        Active(self.active.load(Acquire))
    }
    /// For the writer, about a hit that is known to have been left. If a thread enters meanwhile, it has
    /// stored its own frame, or will, or has found itself nested.
    pub(super) fn is_over(&self, active: Active) {
        // Relaxed: no thread reads under that word any more. If the line holds another word, there is nothing
        // to do.
        let _ = self.active.compare_exchange(active.0, active.left().0, Relaxed, Relaxed);
    }
    /// Whether the hit in that frame goes on, as far as this thread can determine at `here`.
    #[cold]
    #[cfg(not(loom))]
    fn goes_on(&self, active: Active, here: u64) -> bool {
        let nested = self.nested.load(Relaxed) + 1;
        self.nested.store(nested, Relaxed);
        let frame = active.frame();
        let goes_on = if here > frame {
            thread::alternate_stack().is_some_and(|stack| stack.contains(here) && !stack.contains(frame))
        } else {
            !nested.is_power_of_two() || {
                let left = thread::alternate_stack()
                    .is_some_and(|stack| stack.contains(frame) && !stack.contains(here));
                !left
                    && match thread::read_word(frame) {
                        Word::Is(word) => word == active.0,
                        Word::Gone => false,
                        Word::Unknown => true,
                    }
            }
        };
        if !goes_on {
            self.nested.store(0, Relaxed);
        }
        goes_on
    }
    /// In a model there are no stacks: a hit inside a hit is nested.
    #[cfg(loom)]
    fn goes_on(&self, _: Active, _: u64) -> bool {
        true
    }
}

impl Inside<'_> {
    /// Whether another hit of this thread goes on around this one.
    #[must_use]
    #[inline]
    pub const fn is_nested(&self) -> bool {
        self.nested
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.nested {
            // Release: all reads inside are over before this store is seen.
            self.line.active.store(self.active.left().0, Release);
        }
    }
}

/// All lines of a process.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    lines: &'static [Line],
}

/// Number of lines that are tried before a thread goes without one.
const PROBES: usize = 64;

impl Lines {
    /// Lines in memory that is zeroed, or was used before. A power of two of them is used: the largest that
    /// is not more than their number.
    #[must_use]
    pub const fn new(lines: &'static [Line]) -> Self {
        let n = lines.len();
        let used = if n == 0 || n.is_power_of_two() { n } else { n.next_power_of_two() / 2 };
        Self { lines: lines.split_at(used).0 }
    }
    /// Number of lines.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.lines.len()
    }
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
    /// A thread's line and its number; claimed if the thread has none. `None` if all lines near its place are
    /// taken.
    #[must_use]
    #[inline]
    pub fn of(&self, thread: ThreadPointer) -> Option<(usize, &'static Line)> {
        let mask = self.lines.len().wrapping_sub(1);
        let first = spread(thread.0) & mask;
        match self.lines.get(first) {
            Some(line) if line.owner.load(Relaxed) == thread.0 => Some((first, line)),
            _ => self.claim(thread, first, mask),
        }
    }
    /// If a signal's hit claims between the look and the exchange, it has the same thread pointer, so its
    /// line is ours.
    #[cold]
    fn claim(&self, thread: ThreadPointer, first: usize, mask: usize) -> Option<(usize, &'static Line)> {
        for place in (0..PROBES.min(self.lines.len())).map(|step| first.wrapping_add(step) & mask) {
            let line = self.lines.get(place)?;
            let mut owner = line.owner.load(Relaxed);
            if owner == 0 {
                owner = line.owner.compare_exchange(0, thread.0, AcqRel, Relaxed).err().unwrap_or(thread.0);
            }
            if owner == thread.0 {
                return Some((place, line));
            }
        }
        None
    }
    /// A twin of `of` that must fail: a look, then a store.
    #[cfg(all(test, loom))]
    pub(crate) fn claim_in_two_steps(&self, thread: ThreadPointer) -> Option<usize> {
        let place = self.lines.iter().position(|line| [0, thread.0].contains(&line.owner.load(Relaxed)))?;
        self.lines.get(place)?.owner.store(thread.0, Relaxed);
        Some(place)
    }
    /// Whether the calling thread is in a hit that goes on; then it must not wait for any hit. A hit that was
    /// left, by it or by the thread that had its thread pointer before, is marked as over. Otherwise a writer
    /// that waits for that hit would wait for this thread, which may be about to wait for the writer. Memory
    /// above the caller may still hold the seal of a hit that was left, so `is_live` decides about such a
    /// frame, by its address.
    #[must_use]
    pub fn inside(&self, thread: ThreadPointer, is_live: impl FnOnce(u64) -> bool) -> bool {
        let seal = Seal::new();
        self.of(thread).is_some_and(|(_, line)| {
            let active = Active(line.active.load(Relaxed));
            let goes_on = active.is_inside() && line.goes_on(active, seal.frame()) && is_live(active.frame());
            if active.is_inside() && !goes_on {
                line.active.store(active.left().0, Release);
            }
            goes_on
        })
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = &'static Line> {
        self.lines.iter()
    }
    pub(super) fn get(&self, line: usize) -> Option<&'static Line> {
        self.lines.get(line)
    }
}

/// Thread pointers are multiples of 64 or more, often of whole stacks, so their middle bits are spread
/// (Knuth, TAOCP 3, 6.4).
#[inline]
fn spread(thread: u64) -> usize {
    (thread.wrapping_mul(SPREAD) >> SPREAD_SHIFT) as usize
}
/// Fits an immediate operand.
pub(crate) const SPREAD: u64 = 0x61c8_8647;
pub(crate) const SPREAD_SHIFT: u32 = 40;
