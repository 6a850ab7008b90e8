//! What all probes of a process share: the threads' lines, the words where they count, hints at calls in flight.
//!
//! In: memory, for good. Out: places. Invariants: PRB-3 a thread counts in a row of its own; COST-2 a hit stores to no line that another
//! thread stores to. Does not: map memory (whoever makes an engine does; zeroed, shared with nobody, never unmapped).
//!
//! A row has a group of words for each probe: hits whose consumers were called, hits that were missed, returns that were, hits without an instance. A thread adds with one
//! instruction, which neither a signal nor migration splits. The last row is for threads that found no line: their hits are all
//! missed, and are added with a bus lock.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

use crate::epoch::{Line, Lines};
use crate::instances::{Place, Places};
use crate::native::thread::add_own;

/// How often a probe was hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Its consumers were called (those whose filters agreed).
    pub hits: u64,
    /// Nobody was called, as a hit of the same thread was going on.
    pub nested: u64,
    /// Nobody was called, as there was no line for the thread.
    pub unplaced: u64,
    /// Return handlers and sessions were not called, as no return instance was free (`maxactive`). Entry handlers were.
    pub empty: u64,
    /// Returns that a return handler waited for and was not told of.
    pub unreturned: u64,
}

impl Tally {
    /// Hits for which somebody was not called.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.nested + self.unplaced + self.empty
    }
}

/// Words of a row for each probe.
const GROUP: usize = 4;
const HITS: usize = 0;
const MISSED: usize = 1;
const UNRETURNED: usize = 2;
const EMPTY: usize = 3;
/// Rows begin on lines that no prefetcher pairs, and are so many times as long as a thread's line.
const ROW_ALIGN: usize = 16;
#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == ROW_ALIGN * size_of::<AtomicU64>());

/// Counting words.
#[derive(Clone, Copy)]
pub struct Counts {
    words: &'static [AtomicU64],
    stride: usize,
    rows: usize,
}

impl Counts {
    /// Words needed for so many lines and probes. Only rows in use are touched.
    #[must_use]
    pub const fn words(lines: usize, probes: usize) -> usize {
        (lines + 1) * Self::stride(probes)
    }
    const fn stride(probes: usize) -> usize {
        (probes * GROUP).next_multiple_of(ROW_ALIGN)
    }
    fn word(&self, row: usize, probe: u32, which: usize) -> Option<&'static AtomicU64> {
        let at = probe as usize * GROUP + which;
        if at < self.stride { self.words.get(row * self.stride + at) } else { None }
    }
    /// A hit whose consumers are called.
    #[inline]
    pub(crate) fn hit(&self, row: usize, probe: u32) {
        self.word(row, probe, HITS).into_iter().for_each(add_own);
    }
    /// A hit during a hit.
    #[cold]
    pub(crate) fn nested(&self, row: usize, probe: u32) {
        self.word(row, probe, MISSED).into_iter().for_each(add_own);
    }
    /// A hit that found no return instance.
    #[cold]
    pub(crate) fn empty(&self, row: usize, probe: u32) {
        self.word(row, probe, EMPTY).into_iter().for_each(add_own);
    }
    /// How often this thread had that.
    #[cold]
    #[cfg_attr(loom, expect(dead_code, reason = "models have no pools in memory"))]
    pub(crate) fn emptied(&self, row: usize, probe: u32) -> u64 {
        self.word(row, probe, EMPTY).map_or(0, |word| word.load(Relaxed))
    }
    /// A call whose return somebody waits for, and will not be told of.
    #[cold]
    pub(crate) fn unreturned(&self, row: usize, probe: u32) {
        self.word(row, probe, UNRETURNED).into_iter().for_each(add_own);
    }
    /// A hit of a thread without a row.
    #[cold]
    pub(crate) fn unplaced(&self, probe: u32) {
        if let Some(missed) = self.word(self.rows, probe, MISSED) {
            missed.fetch_add(1, Relaxed);
        }
    }
    /// Sums over all rows.
    #[must_use]
    pub fn of(&self, probe: u32) -> Tally {
        let read = |row, which| self.word(row, probe, which).map_or(0, |word| word.load(Relaxed));
        let sum = |which| (0..self.rows).map(|row| read(row, which)).sum();
        Tally {
            hits: sum(HITS),
            nested: sum(MISSED),
            unplaced: read(self.rows, MISSED),
            empty: sum(EMPTY),
            unreturned: sum(UNRETURNED),
        }
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts")
            .field("rows", &self.rows)
            .field("stride", &self.stride)
            .finish_non_exhaustive()
    }
}

/// What all probes of a process share.
#[derive(Debug)]
pub struct Engine {
    pub(crate) raw: Raw,
    lines: Lines,
    counts: Counts,
    places: Places,
    rseq: Option<isize>,
    #[cfg(not(loom))]
    pub(crate) slots: AtomicPtr<crate::slots::Table>,
}

/// Where lines and words lie, in a layout that code in assembly knows (`general` of the twins).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Raw {
    pub(crate) lines: *const Line,
    /// Bytes of all but one.
    pub(crate) mask: u64,
    pub(crate) words: *const AtomicU64,
    /// Bytes of a row for each byte of a line.
    pub(crate) row: u64,
    pub(crate) places: *const Place,
    /// Bytes of all but one.
    pub(crate) place_mask: u64,
    /// From thread pointers to rseq areas; 0: threads have none.
    pub(crate) rseq: i64,
}
// SAFETY: the addresses of what `Engine` has as shared slices.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}
/// Bytes of a probe's words in a row.
pub(crate) const GROUP_LEN: usize = GROUP * size_of::<AtomicU64>();

/// Zeroed memory, or that of an engine before a fork.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// One for each thread that hits; a power of two. To be wiped on fork (`MADV_WIPEONFORK`): the child's threads have other numbers.
    pub lines: &'static [Line],
    /// As many as [`Counts::words`] says, or more.
    pub words: &'static [AtomicU64],
    /// Where calls are kept that need no instance, and guesses at which call has which; a power of two. Fewer make calls slower.
    pub places: &'static [Place],
}

impl Engine {
    /// Over this memory. `None` if a length does not fit the others, for so many probes.
    #[must_use]
    pub const fn new(memory: Memory, probes: usize) -> Option<Self> {
        let lines = Lines::new(memory.lines);
        let (rows, stride) = (lines.len(), Counts::stride(probes));
        if rows == 0 || memory.words.len() < Counts::words(rows, probes) {
            return None;
        }
        let Some(places) = Places::new(memory.places) else { return None };
        Some(Self {
            raw: Raw {
                lines: memory.lines.as_ptr(),
                mask: ((rows - 1) * size_of::<Line>()) as u64,
                words: memory.words.as_ptr(),
                row: (stride * size_of::<AtomicU64>() / size_of::<Line>()) as u64,
                places: memory.places.as_ptr(),
                place_mask: places.mask(),
                rseq: 0,
            },
            lines,
            counts: Counts { words: memory.words, stride, rows },
            places,
            rseq: None,
            #[cfg(not(loom))]
            slots: AtomicPtr::new(core::ptr::null_mut()),
        })
    }
    /// The same, for threads that have their rseq areas at this distance from their thread pointers.
    ///
    /// # Safety
    /// Every thread that hits has there, in its control block, what `struct rseq` says; it is registered with the kernel under the signature
    /// 0x53053053, or its CPU number says that it is not (negative).
    #[must_use]
    pub const unsafe fn with_rseq(self, offset: isize) -> Self {
        Self { rseq: Some(offset), raw: Raw { rseq: offset as i64, ..self.raw }, ..self }
    }
    /// Where threads have their rseq areas.
    #[must_use]
    pub const fn rseq(&self) -> Option<isize> {
        self.rseq
    }
    /// The threads' lines.
    #[must_use]
    pub const fn lines(&self) -> &Lines {
        &self.lines
    }
    /// The counting words.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }
    /// What calls in flight need to find their instances.
    #[cfg(not(loom))]
    pub(crate) fn returns(&self) -> (Places, crate::instances::Here) {
        (self.places, crate::instances::Here { rseq: self.rseq, slots: self.slots() })
    }
    /// From now on calls of probes that want it ([`Probe::set_arms`](crate::probe::Probe::set_arms)) have their return addresses replaced by
    /// these slots. Once an engine, and of slots that are no other engine's.
    #[cfg(not(loom))]
    pub fn lend(&'static self, slots: &'static crate::slots::Table) {
        slots.raw.engine.store(core::ptr::from_ref(self).cast_mut(), Relaxed);
        self.slots.store(core::ptr::from_ref(slots).cast_mut(), Release);
    }
    /// What [`lend`](Self::lend) was told.
    #[cfg(not(loom))]
    #[must_use]
    #[inline]
    pub fn slots(&self) -> Option<&'static crate::slots::Table> {
        // SAFETY: null, or a reference that lives for good (`lend`).
        unsafe { self.slots.load(Acquire).as_ref() }
    }
}
