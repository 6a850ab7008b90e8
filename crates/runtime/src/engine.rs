//! What all probes of a process share: the threads' lines, their counters, hints about calls in flight.
//!
//! In: memory that is never unmapped. Out: the places in it. Invariants: PRB-3: each thread counts in a row
//! of its own. COST-2: a hit does not store to a line that another thread stores to.
//! Does not: map memory. The caller of `Engine::new` maps it: zeroed, not shared with another process, never
//! unmapped.
//!
//! A row has a group of counters for each probe: hits with a call of their consumers, missed hits, missed
//! returns, hits without an instance. A thread adds with one instruction, which neither a signal nor a
//! migration splits. The last row is for threads without a line. All their hits are missed, and are added
//! with a bus lock.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::epoch::{Line, Lines};
#[cfg(not(loom))]
use crate::instances::ThreadPlace;
use crate::instances::{KeptPlace, KeptPlaces};
use crate::native::thread::add_own;
#[cfg(not(loom))]
use crate::sync::LeakedOrNone;
#[cfg(not(loom))]
use crate::trampolines::TrampolineTable;

/// How often a probe was hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Hits at which consumers were called (those with filters that accepted the hit).
    pub hits: u64,
    /// Hits at which no consumer was called because another hit of the same thread was going on.
    pub nested: u64,
    /// Hits at which no consumer was called because there was no line for the thread.
    pub unplaced: u64,
    /// Hits at which return handlers and sessions were not called because no return instance was free
    /// (`maxactive`). Entry handlers were called.
    pub empty: u64,
    /// Returns that a return handler waited for but did not get.
    pub unreturned: u64,
}

impl Tally {
    /// Hits at which at least one consumer was not called.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.nested + self.unplaced + self.empty
    }
}

/// Counters of a probe in one row.
const GROUP: usize = 4;
const HITS: usize = 0;
const MISSED: usize = 1;
const UNRETURNED: usize = 2;
const EMPTY: usize = 3;
/// Alignment of a row in words: rows begin on lines that no prefetcher fetches as a pair. A row is a multiple
/// of a thread's line.
const ROW_ALIGN: usize = 16;
#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == ROW_ALIGN * size_of::<AtomicU64>());

/// The counters of all threads and probes.
#[derive(Clone, Copy)]
pub struct Counts {
    words: &'static [AtomicU64],
    stride: usize,
    rows: usize,
}

impl Counts {
    /// Number of words for so many lines and probes. Only rows in use are touched.
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
    /// A hit at which consumers are called.
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
    /// This thread's number of hits that found no instance.
    #[cold]
    #[cfg_attr(loom, expect(dead_code, reason = "models have no pools in memory"))]
    pub(crate) fn emptied(&self, row: usize, probe: u32) -> u64 {
        self.word(row, probe, EMPTY).map_or(0, |word| word.load(Relaxed))
    }
    /// A call; a consumer waits for its return and will not get it.
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
    places: KeptPlaces,
    rseq: Option<isize>,
    #[cfg(not(loom))]
    pub(crate) trampolines: LeakedOrNone<TrampolineTable>,
}

/// Addresses of lines and counters, in a layout that assembly code relies on (`general` of the two
/// processors).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Raw {
    pub(crate) lines: *const Line,
    /// Length of all lines but one, in bytes.
    pub(crate) mask: u64,
    pub(crate) words: *const AtomicU64,
    /// Length of a row divided by the length of a line.
    pub(crate) row: u64,
    pub(crate) places: *const KeptPlace,
    /// Length of all places but one, in bytes.
    pub(crate) place_mask: u64,
    /// Distance from a thread pointer to the thread's rseq area, in bytes; 0 if threads have none.
    pub(crate) rseq: i64,
}
// SAFETY: these are the addresses of what `Engine` also holds as shared slices.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}
/// Bytes of a probe's words in a row.
pub(crate) const GROUP_LEN: usize = GROUP * size_of::<AtomicU64>();

/// The memory of an engine: zeroed, or that of an engine before a fork.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// One line for each thread that hits; their number is a power of two. Should be wiped on fork
    /// (`MADV_WIPEONFORK`), since the child's threads have other thread pointers.
    pub lines: &'static [Line],
    /// At least [`Counts::words`] words.
    pub words: &'static [AtomicU64],
    /// Where calls are kept that need no instance, with hints about which call has which instance. Their
    /// number is a power of two; with fewer, calls are slower.
    pub places: &'static [KeptPlace],
}

impl Engine {
    /// An engine in this memory, for so many probes. `None` if the lengths do not fit together.
    #[must_use]
    pub const fn new(memory: Memory, probes: usize) -> Option<Self> {
        let lines = Lines::new(memory.lines);
        let (rows, stride) = (lines.len(), Counts::stride(probes));
        if rows == 0 || memory.words.len() < Counts::words(rows, probes) {
            return None;
        }
        let Some(places) = KeptPlaces::new(memory.places) else { return None };
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
            trampolines: LeakedOrNone::none(),
        })
    }
    /// The same engine, for threads with their rseq area at this distance from their thread pointer, in
    /// bytes.
    ///
    /// # Safety
    /// In every thread that hits, a `struct rseq` is at that distance, in the thread's control block. It is
    /// registered with the kernel under the signature 0x53053053, or its CPU number is negative, which means
    /// that it is not registered.
    #[must_use]
    pub const unsafe fn with_rseq(self, offset: isize) -> Self {
        Self { rseq: Some(offset), raw: Raw { rseq: offset as i64, ..self.raw }, ..self }
    }
    /// Distance from a thread pointer to the thread's rseq area, in bytes.
    #[must_use]
    pub const fn rseq(&self) -> Option<isize> {
        self.rseq
    }
    /// The threads' lines.
    #[must_use]
    pub const fn lines(&self) -> &Lines {
        &self.lines
    }
    /// The counters.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }
    /// What a call in flight needs to find its instance.
    #[cfg(not(loom))]
    pub(crate) fn returns(&self) -> (KeptPlaces, ThreadPlace) {
        (self.places, ThreadPlace { rseq: self.rseq, trampolines: self.trampolines() })
    }
    /// From now on, calls of probes that arm ([`Probe::set_arms`](crate::probe::Probe::set_arms)) get return
    /// addresses from these return trampolines. May be called once per engine, with trampolines that no other
    /// engine uses.
    #[cfg(not(loom))]
    pub fn lend(&'static self, trampolines: &'static TrampolineTable) {
        trampolines.raw.engine.store(core::ptr::from_ref(self).cast_mut().cast(), Relaxed);
        self.trampolines.set(trampolines);
    }
    /// The return trampolines given to [`lend`](Self::lend).
    #[cfg(not(loom))]
    #[must_use]
    #[inline]
    pub fn trampolines(&self) -> Option<&'static TrampolineTable> {
        self.trampolines.get()
    }
}
