//! Copies of displaced instructions, and the address of the original of each.
//!
//! In: for writers, the original's address; for handlers, an address. Out: memory for the copy; the
//! original's address. Invariants: COPY-1 a copy is one instruction and a way back, so a fault in it is that
//! instruction's, and nothing has happened yet. COPY-2 readers take no lock, and what they read about a copy
//! in use stays true while a thread can be in it.
//! Does not: make a copy's bytes (`copies` of the processors does), map or write memory (`patch` does),
//! decide which instructions are copied, or when a copy is free.
//!
//! This is for code that makes copies one by one, without a planner: the tests of both processors' trap paths
//! and the measured trap. `trapline::inside` has no arenas: [`windows`](super::windows) contains what it
//! knows of its stubs, and on arm64 of its copies.
//!
//! An [`Arena`] is a stretch of executable memory, divided into parts of equal size (`SLOT` bytes), so that
//! the table of originals is indexed by division. Arenas are added at the front of a list and stay.
//!
//! | writer | handler |
//! |---|---|
//! | C1 claim a part, store its original (release) | H1 a thread traps at the site, goes on in the copy |
//! | C2 write the bytes | H2 a fault, or a signal: look up the original (acquire) |
//! | C3 publish the site's trap | |
//! | C4 remove the trap; wait until no thread is in the part, nor a frame that leads there | |
//! | C5 give the part back | |
//!
//! H1 happens after C3, which is after C1; H2 happens before C4 ends. So H2 finds what C1 stored.

use alloc::boxed::Box;
use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Bytes for one copy: what an instruction becomes, and the longest way back, with room to spare.
pub const PART_LEN: u64 = 64;

/// One copy, before it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The bytes of its part of the arena.
    pub bytes: [u8; PART_LEN as usize],
    /// Length of the original in bytes.
    pub(crate) len: u8,
    /// Length of the copy up to the way back, in bytes.
    pub(crate) done: u8,
}

impl Copy {
    /// For [`Windows`](super::Windows): pairs of an address, and where a thread from there on in the copy at
    /// `to` of the instruction at `original` would be without us. The last pair is behind the way back.
    #[must_use]
    pub fn originals(&self, to: u64, original: u64) -> [(u64, u64); 3] {
        let (len, done) = (u64::from(self.len), u64::from(self.done));
        [(to, original), (to + done, original + len), (to + PART_LEN - 1, 0)]
    }
}

#[derive(Debug, Default)]
struct Part {
    /// Address of the original; 0 means free.
    original: AtomicU64,
    /// Length of the original (bits 0 to 7), and of the copy up to the way back (from bit 8), in bytes.
    lens: AtomicU32,
}

/// A stretch of executable memory for copies.
#[derive(Debug)]
pub struct Arena {
    start: u64,
    parts: Box<[Part]>,
    next: AtomicPtr<Self>,
}

impl Arena {
    /// An arena of the `len` bytes at `start`, which stay mapped.
    #[must_use]
    pub fn new(start: u64, len: u64) -> Self {
        let parts = (0..len / PART_LEN).map(|_| Part::default()).collect();
        Self { start, parts, next: AtomicPtr::new(ptr::null_mut()) }
    }
    /// C1: the address of a free part, which is now taken for the instruction at `original`. For the writer.
    /// `None` if all are taken.
    #[must_use]
    pub fn claim(&self, original: u64) -> Option<u64> {
        let index = self.parts.iter().position(|part| part.original.load(Relaxed) == 0)?;
        self.parts[index].original.store(original, Release);
        Some(self.start + index as u64 * PART_LEN)
    }
    /// C1: stores the lengths of the copy that was made for that part. For the writer.
    pub fn describe(&self, at: u64, copy: &Copy) {
        if let Some(part) = self.part(at) {
            part.lens.store(u32::from(copy.len) | u32::from(copy.done) << 8, Release);
        }
    }
    /// C5. For the writer, when no thread is in it.
    pub fn release(&self, at: u64) {
        if let Some(part) = self.part(at) {
            part.lens.store(0, Relaxed);
            part.original.store(0, Relaxed);
        }
    }
    #[inline]
    fn part(&self, at: u64) -> Option<&Part> {
        self.parts.get((at.wrapping_sub(self.start) / PART_LEN) as usize)
    }
    /// Where a thread at `pc` in a copy would be without the copy.
    fn original(&self, pc: u64) -> Option<u64> {
        let part = self.part(pc)?;
        let (original, lens) = (part.original.load(Acquire), part.lens.load(Acquire));
        let (len, done) = (u64::from(lens & 0xFF), u64::from(lens >> 8));
        let into = pc.wrapping_sub(self.start) % PART_LEN;
        (original != 0).then(|| original.wrapping_add(if into < done { 0 } else { len }))
    }
}

/// All arenas of a process.
#[derive(Debug, Default)]
pub struct Copies(AtomicPtr<Arena>);

impl Copies {
    /// No arenas yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
    /// Adds an arena. For the writer.
    pub fn add(&self, arena: &'static Arena) {
        arena.next.store(self.0.load(Relaxed), Relaxed);
        self.0.store(ptr::from_ref(arena).cast_mut(), Release);
    }
    /// If `pc` is in a copy: the address where the thread would be without it. That is the original
    /// instruction, or the one behind it if the copy has run and only the way back is left.
    #[must_use]
    pub fn original(&self, pc: u64) -> Option<u64> {
        let mut at = self.0.load(Acquire);
        loop {
            // SAFETY: null, or an arena that was added, which is 'static. Acquire pairs with the release in
            // `add`.
            let arena = unsafe { at.as_ref() }?;
            if let Some(original) = arena.original(pc) {
                return Some(original);
            }
            at = arena.next.load(Acquire);
        }
    }
}
