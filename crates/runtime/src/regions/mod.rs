//! Address → region → (file, offset).
//!
//! In: mappings of files as they come and go, one change at a time; addresses, at any time. Out: the file and
//! offset that an address lies at, validated by the region's own sequence; or [`Retry`], if that very region
//! was changing. Invariants: RGN-1 an answer was true at one moment between call and return. RGN-2 a change
//! does not disturb lookups in a region that it does not touch. RGN-3 readers store nothing, wait for no
//! thread, and use nothing that they have not validated. RGN-4 only executable, private, file-backed mappings
//! that are neither writable nor of huge pages take breakpoints (as in the kernel). RGN-5 a picture of all
//! regions is that of one moment.
//! Does not: find out about mappings, read files, or know probes (`registry`).
//!
//! The lookup in the seeds validates by one sequence for the whole address space. One for each region was
//! proposed there (Guzik, Horn, in the discussion of the RFC's 13th patch) and never merged. Here a region
//! has a 64-bit sequence of its own, which never wraps round.
//!
//! # The words
//!
//! A *mapping entry* (`MappingEntry`) describes one region: `seq`, start, end, offset in the file, the file's
//! number and flags; birth, death, and the death of the region that was there before; device and inode.
//! Entries lie in one array for good. So a stale number still leads to an entry, although perhaps to that of
//! another region. `seq` is a generation and a state: *alive*, *dead* (fields whole), *written* (fields
//! changing).
//!
//! Addresses lead to entries through *hints*: a table (`table`) by granules of 64 KiB. Its words name an
//! entry and the entry's generation, or a leaf with such a hint for each page. A hint is no more than that:
//! the entry says whether it still has that generation, and which range it covers.
//!
//! # A lookup (reader, inside an epoch because of the table)
//!
//! | step | what |
//! |---|---|
//! | L1 | granule → word (acquire); 0: no region |
//! | L2 | if the word is a leaf: load the page's hint (acquire); 0: no region |
//! | L3 | load the entry's start, end, offset, file (relaxed): any values |
//! | L4 | fence (acquire), load `seq`: unless alive and of the hint's generation, `Retry` |
//! | L5 | the address is outside: no region; else the answer |
//!
//! Usually a sequence is loaded both before the fields and after them. Here the hint stands for the first
//! load: it was stored after the entry had been filled for that generation.
//!
//! # A change (writer): [start, end) becomes nothing, or one new region
//!
//! | step | what |
//! |---|---|
//! | C1 | a fresh entry, filled (F), for what is left of each region that the range cuts, and for the new region |
//! | C2 | store the words of all granules of the range and of the regions that it touches, as they will be; |
//! | | a leaf is filled before it is published (release) |
//! | C3 | each region that the range touched: death := version + 1; `seq` := dead (release) |
//! | C4 | version := version + 1 (release) |
//!
//! Filling an entry (the one that has been free for longest): F1 `seq` := next generation, written; fence
//! (release); F2 fields; F3 `seq` := alive (release).
//!
//! ## Interleavings
//!
//! - *a lookup in a region that the change does not touch*: its entry's words do not change. Its granule's
//!   word may become a leaf, with the same hint for its pages. So the answer is the same as without the
//!   change (RGN-2). The table may grow: `table`, G1.
//! - *L1 and L2 before C2, L4 before C3*: the old region, alive at L4: it was there at L4.
//! - *L1 and L2 before C2, L4 after C3*: dead, or of another generation, so `Retry`, once: the next lookup
//!   sees C2. The region itself changed.
//! - *L1 or L2 after C2*: the new hint; L3 sees F2 or later (release, acquire). Pages of other granules may
//!   still lead to the old region. That looks as if the mapping had changed page by page, which is what the
//!   kernel does.
//! - *the hint is old, and the entry is dead and filled again, for whatever place*: another generation, so
//!   `Retry`. So L5 answers "outside" only for the region that was the granule's only one when L1 loaded the
//!   word, and then it is true.
//! - *L3 between F1 and F3*: if L3 saw any store of F2, then F1's fence and L4's make F1 visible to L4: not
//!   the hint's generation, `Retry`. Without either fence the fields would be accepted: these are two of the
//!   model's twins. F1 after F2 is the third.
//! - *0 at L1 or L2 while C2 runs*: before the change, or after it. Our code is written into a region after
//!   its change has returned, so this misses no hit of ours.
//! - *`Retry` in a trap's handler*: the region is being changed. If the trap is still there when the thread
//!   runs on, the thread traps again, else it never does. So the handler returns, and neither waits nor
//!   locks. Other code may use the writer's own map ([`Map::find`]).
//!
//! # A picture of all regions, without stopping the writer
//!
//! P1 load version V (acquire). P2 for each entry that was ever used: load `seq`; fields; fence; `seq` again.
//! If it was being written or has changed meanwhile, start again at P1. Take the region if birth ≤ V < death.
//! If birth > V and the region before it died after V, that region's fields are lost: start again at P1.
//!
//! - *a change between P1 and the end*: the regions that it kills have death > V and are taken. Those that it
//!   fills have birth > V and are not taken. It fills the entry that has been free for longest, so the region
//!   overwritten there died long before V, unless as many changes as there are free entries came meanwhile.
//!   Then `before > V` shows it.
//! - *a change before P1*: C4's release and P1's acquire make all of it visible.

mod entry;
pub(crate) mod leaf;
mod map;
mod mapping;
mod picture;

pub use entry::MappingEntry;
pub use map::{Map, MapError, Range};
pub use mapping::{Access, FoundRegion, Mapped, Mapping, Retry};
pub use picture::PictureError;

use trapline_record::{FileId, FileOffset, RemoteAddr};

use crate::epoch::Inside;
use crate::sync::AtomicU64;
use crate::table::Table;
use leaf::{Hint, MAX_ENTRIES, Word, granule};

/// All regions of a process, for readers.
#[derive(Debug)]
pub struct Regions {
    entries: &'static [MappingEntry],
    leaves: Table,
    /// Number of changes so far.
    version: AtomicU64,
    /// Number of entries that were ever used.
    used: AtomicU64,
}

impl Regions {
    /// Regions in zeroed memory, with an entry for each region that can exist at a time, and some to spare.
    /// At most 65,536 are used.
    #[must_use]
    pub fn new(entries: &'static [MappingEntry]) -> Self {
        let entries = entries.get(..MAX_ENTRIES).unwrap_or(entries);
        Self {
            entries,
            leaves: Table::new(if cfg!(loom) { 1 } else { 64 }),
            version: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }
    }
    /// The file and offset mapped at an address; `None` if no file's code is mapped there.
    ///
    /// # Errors
    /// The region there was changing.
    #[inline]
    pub fn find(&self, inside: &Inside<'_>, addr: RemoteAddr) -> Result<Option<FoundRegion>, Retry> {
        let Some(word) = self.leaves.get(inside, granule(addr)) else { return Ok(None) };
        let Some(hint) = Word::new(word).hint(addr) else { return Ok(None) };
        let entry = self.entries.get(usize::from(hint.entry())).ok_or(Retry)?;
        entry.look(addr, hint)
    }
    /// Whether the result is still valid: the region has not changed since.
    #[must_use]
    pub fn is_still(&self, found: &FoundRegion) -> bool {
        self.entries.get(usize::from(found.entry)).is_some_and(|entry| entry.is_still(found.seq))
    }
    /// The region of a result, and its generation, as one word for [`Marks::has`]; never 0.
    #[must_use]
    pub(crate) const fn mark(&self, found: &FoundRegion) -> u64 {
        Hint::new(found.entry, found.seq / entry::GENERATION).word()
    }
    /// The view that decides by marks whether regions are alive.
    #[must_use]
    pub(crate) const fn marks(&self) -> Marks {
        Marks(self.entries)
    }
    /// Device and inode of the file mapped at an address, and the offset; used for stacks.
    ///
    /// # Errors
    /// The region there was changing.
    pub fn module(
        &self,
        inside: &Inside<'_>,
        addr: RemoteAddr,
    ) -> Result<Option<(FileId, FileOffset)>, Retry> {
        let Some(found) = self.find(inside, addr)? else { return Ok(None) };
        let entry = self.entries.get(usize::from(found.entry)).ok_or(Retry)?;
        entry.file(found.seq).map(|file| Some((file, found.offset)))
    }
}

/// Regions by their marks ([`Regions::mark`]), for hits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks(&'static [MappingEntry]);

impl Marks {
    /// Whether the region of that mark is alive and has not changed since.
    #[inline]
    pub(crate) fn has(self, mark: u64) -> bool {
        let Some(hint) = Hint::of(mark) else { return false };
        self.0.get(usize::from(hint.entry())).is_some_and(|entry| entry.has(hint))
    }
}
