//! A thread's own line: where its hit is, if it is in one. The protocol stands in [`epoch`](super).

use core::cell::UnsafeCell;
use core::marker::PhantomData;

use crate::native::thread;
#[cfg(not(loom))]
use crate::native::thread::Word;
use crate::sync::{AcqRel, Acquire, AtomicU64, Relaxed, Release, light_barrier};

/// What tells threads apart: never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadPointer(pub u64);

impl ThreadPointer {
    /// Of the thread that asks.
    #[must_use]
    #[inline]
    pub fn own() -> Self {
        Self(thread::thread_pointer())
    }
}

pub(crate) const TURN_BITS: u32 = 12;
/// Frames are multiples of 16, so that 52 bits hold every address.
pub(crate) const FRAME_ALIGN: u32 = 4;

/// `active`: a frame, or none, and a turn.
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

/// Lies on the stack for as long as a hit lasts. What it holds tells a frame that goes on from the memory of one that was left.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Seal(UnsafeCell<u64>);

impl Seal {
    /// To be placed on the stack of the hit.
    #[must_use]
    pub const fn new() -> Self {
        Self(UnsafeCell::new(0))
    }
    fn frame(&self) -> u64 {
        self.0.get() as u64
    }
    fn close(&self, active: Active) {
        // SAFETY: the cell is ours alone (`Seal` is not `Sync`); volatile, since it is read through its address only.
        unsafe { self.0.get().write_volatile(active.0) };
    }
}

/// One thread's.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line {
    /// The thread pointer; 0 is free.
    pub(crate) owner: AtomicU64,
    pub(crate) active: AtomicU64,
    /// Nested hits since the last that was not.
    nested: AtomicU64,
}

/// Between entering and leaving: what is reachable stays. Dropping it leaves; forgetting it is what `longjmp` does.
#[derive(Debug)]
#[must_use]
pub struct Inside<'a> {
    line: &'a Line,
    active: Active,
    nested: bool,
    /// Not to be sent to another thread.
    _own: PhantomData<*const ()>,
}

impl Line {
    /// As [`enter_from`](Self::enter_from), by code that nothing was saved for.
    #[inline]
    pub fn enter<'a>(&'a self, seal: &'a Seal) -> Inside<'a> {
        self.enter_from(seal, seal.frame())
    }
    /// Enters, unless a hit of this thread goes on: then that one covers this. `seal` lies on the stack that the hit runs on; `sp` is the stack
    /// pointer of the code that hit, below which nothing is in use: what the hit itself has saved there by now would hide that an older frame is gone.
    #[inline]
    pub fn enter_from<'a>(&'a self, seal: &'a Seal, sp: u64) -> Inside<'a> {
        let before = Active(self.active.load(Relaxed));
        if before.is_inside() && self.goes_on(before, sp) {
            return Inside { line: self, active: before, nested: true, _own: PhantomData };
        }
        let active = before.enter(seal.frame());
        seal.close(active);
        // Release: whoever sees this hit sees that the last one is over, and what it read was read before.
        self.active.store(active.0, Release);
        light_barrier();
        Inside { line: self, active, nested: false, _own: PhantomData }
    }
    pub(super) fn owner(&self) -> ThreadPointer {
        ThreadPointer(self.owner.load(Relaxed))
    }
    /// Acquire: what its thread did before it left is over for whoever reads that it has left.
    pub(super) fn active(&self) -> Active {
        Active(self.active.load(Acquire))
    }
    /// For the writer, of a hit that is known to have been left. A thread that enters meanwhile has stored its own frame, or will, or has found itself nested.
    pub(super) fn is_over(&self, active: Active) {
        // Relaxed: nobody reads under that word any more; if another stands there, nothing is to be done.
        let _ = self.active.compare_exchange(active.0, active.left().0, Relaxed, Relaxed);
    }
    /// Whether the hit in that frame goes on, as far as this thread can tell at `here`.
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
    /// Another hit of this thread goes on around this one.
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
            // Release: all that was read inside was read before this is seen.
            self.line.active.store(self.active.left().0, Release);
        }
    }
}

/// All lines of a process.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    lines: &'static [Line],
}

/// Lines looked at before a thread goes without.
const PROBES: usize = 64;

impl Lines {
    /// Over zeroed lines, or those of before; their number is a power of two (the largest below it is used).
    #[must_use]
    pub const fn new(lines: &'static [Line]) -> Self {
        let n = lines.len();
        let used = if n == 0 || n.is_power_of_two() { n } else { n.next_power_of_two() / 2 };
        Self { lines: lines.split_at(used).0 }
    }
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.lines.len()
    }
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
    /// A thread's line and its number, claimed if it has none. `None`: all near its place are taken.
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
    /// A signal that claims between the look and the swap has the same thread pointer: its line is ours.
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
    /// Whether the thread that asks is in a hit that goes on: then it must not wait for anybody's. A hit that was left by it, or by the
    /// thread that had its place before, is over from now on: else whoever waits for that one would wait for this thread, which may
    /// be about to wait for it. Memory above the caller may still hold the seal of a hit that was left: `is_live` has the last word on
    /// such a frame, by its address.
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

/// Thread pointers are multiples of 64 or more, often of whole stacks: their middle bits, spread (Knuth, TAOCP 3, 6.4).
#[inline]
fn spread(thread: u64) -> usize {
    (thread.wrapping_mul(SPREAD) >> SPREAD_SHIFT) as usize
}
/// Fits an immediate operand.
pub(crate) const SPREAD: u64 = 0x61c8_8647;
pub(crate) const SPREAD_SHIFT: u32 = 40;
