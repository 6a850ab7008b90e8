//! Address → region → (file, offset).
//!
//! In: mappings of files as they come and go, one change at a time; addresses, at any time. Out: where in which file an address lies,
//! validated by the region's own sequence; or [`Retry`], if that very region was changing. Invariants: RGN-1 an answer was true at one
//! moment between call and return; RGN-2 a change disturbs no look at a region that it does not touch; RGN-3 readers store nothing,
//! wait for nobody, and believe nothing that they have not validated; RGN-4 only executable, private, file-backed mappings that are
//! neither writable nor of huge pages take breakpoints (as in the kernel); RGN-5 a picture of all regions is that of one moment.
//! Does not: learn of mappings, read files, or know probes (`registry`).
//!
//! The seeds' lookup validates by one sequence for the whole address space; one for each region was proposed there (Guzik, Horn, in the
//! discussion of the RFC's 13th patch) and never merged. Here a region has 64 bits of its own, which never come round.
//!
//! # The words
//!
//! A *slot* describes one region: `seq`, start, end, offset in the file, the file's number and flags; birth, death and the death of the one
//! before; device and inode. Slots lie in one array for good, so a stale number leads to a slot all the same, if to
//! another region. `seq` is a generation and a state: *alive*, *dead* (fields whole), *written* (fields changing).
//!
//! Addresses lead to slots through *hints*: a table (`table`) by granules of 64 KiB, whose words name a slot and its generation, or a leaf with such a
//! hint for each page. A hint is only that: the slot says whether it still has that generation, and what it covers.
//!
//! # A look (reader, inside an epoch for the table's sake)
//!
//! | step | what |
//! |---|---|
//! | L1 | granule → word (acquire); 0: no region |
//! | L2 | if the word is a leaf: load the page's hint (acquire); 0: no region |
//! | L3 | load the slot's start, end, offset, file (relaxed): anything |
//! | L4 | fence (acquire), load `seq`: unless alive and of the hint's generation, `Retry` |
//! | L5 | the address lies outside: no region; else the answer |
//!
//! A sequence is usually loaded before the fields and behind them. Here the hint is the first look at it: it was stored after the slot
//! had been filled for that generation.
//!
//! # A change (writer): [start, end) becomes nothing, or one new region
//!
//! | step | what |
//! |---|---|
//! | C1 | a fresh slot, filled (F), for what is left of each region that the range cuts, and for the new region |
//! | C2 | the words of all granules of the range and of the regions that it touches, as they are to be; a leaf is filled before it is shown (release) |
//! | C3 | each region that the range touched: death := version + 1; `seq` := dead (release) |
//! | C4 | version := version + 1 (release) |
//!
//! Filling a slot, the one that has been free for longest: F1 `seq` := next generation, written; fence (release); F2 fields; F3 `seq` :=
//! alive (release).
//!
//! ## Interleavings
//!
//! - *a look at a region that the change does not touch*: its slot's words do not change. Its granule's word may become a leaf, with the
//!   same hint for its pages: the same answer as alone, whatever happens elsewhere (RGN-2). The table may grow: `table`, G1.
//! - *L1 and L2 before C2, L4 before C3*: the old region, alive at L4: it was there at L4.
//! - *L1 and L2 before C2, L4 after C3*: dead, or of another generation, so `Retry`, once: the next look sees C2. The region itself changed.
//! - *L1 or L2 after C2*: the new hint; L3 sees F2 or later (release, acquire). Pages of other granules may still lead to the old region: as if the
//!   mapping had changed page by page, which is what the kernel does.
//! - *the hint is old, the slot dead and filled again, for whatever place*: another generation: `Retry`. So "outside" at L5 is said only by the region that was
//!   the granule's only one when L1 loaded the word, and then it is true.
//! - *L3 between F1 and F3*: if L3 saw any store of F2, then F1's fence and L4's make F1 visible to L4: not the hint's generation, `Retry`. Without
//!   either fence it would be believed: the model's twins. F1 behind F2 is the third.
//! - *0 at L1 or L2 while C2 runs*: before the change, or after it. Code of ours is written into a region after its change has returned, so no hit of
//!   ours is missed by that.
//! - *`Retry` in a trap's handler*: the region is being changed; if the trap is still there when the thread runs on, it traps again, else
//!   it never does. So the handler returns, and neither waits nor locks. Others may ask the writer's own map ([`Map::find`]).
//!
//! # A picture of all regions, without stopping the writer
//!
//! P1 load version V (acquire). P2 each slot that was ever used: load `seq`; fields; fence; `seq` again. Written, or changed meanwhile: from P1
//! again. Take it if birth ≤ V < death; if birth > V and the one before died after V, it is gone: from P1 again.
//!
//! - *a change between P1 and the end*: what it kills has death > V: taken. What it fills has birth > V: not taken; it lies in the slot that
//!   has been free for longest, so what it overwrites died long before V, unless as many changes as there are free slots came
//!   meanwhile: then `before > V` tells.
//! - *a change before P1*: C4's release and P1's acquire make all of it visible.

pub(crate) mod leaf;
mod map;
mod picture;
mod slot;

pub use map::{Map, MapError, Range};
pub use picture::{Mapped, PictureError};
pub use slot::Slot;

use trapline_record::{FileId, FileOffset, RemoteAddr};

use crate::epoch::Inside;
use crate::registry::{FileNumber, Site};
use crate::sync::AtomicU64;
use crate::table::Table;
use leaf::{Hint, MAX_SLOTS, Word, granule};

/// A mapping of a file, as the system states it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: RemoteAddr,
    /// First address after it.
    pub end: RemoteAddr,
    /// Where in the file it begins.
    pub offset: FileOffset,
    /// The file.
    pub file: FileId,
    /// What it allows.
    pub access: Access,
}

/// What a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Executable.
    pub exec: bool,
    /// Writable.
    pub write: bool,
    /// MAP_SHARED.
    pub shared: bool,
    /// Of huge pages (hugetlbfs).
    pub huge: bool,
}

impl Access {
    /// RGN-4.
    #[must_use]
    pub const fn takes_breakpoints(self) -> bool {
        self.exec && !self.write && !self.shared && !self.huge
    }
}

/// The region was changing: ask again, or ask the writer's own map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry;

/// Where an address lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The file.
    pub file: FileNumber,
    /// The place in it.
    pub offset: FileOffset,
    /// Whether the region takes breakpoints.
    pub takes_breakpoints: bool,
    /// Which region, and its sequence.
    slot: u16,
    seq: u64,
}

impl Found {
    /// The site, if a probe can be there.
    #[must_use]
    #[inline]
    pub fn site(&self) -> Option<Site> {
        if self.takes_breakpoints { self.place() } else { None }
    }
    /// The same whether or not a probe can be put there now: one that is there may have been put there before the mapping changed.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Option<Site> {
        Site::new(self.file, self.offset).ok()
    }
}

/// All regions of a process, for readers.
#[derive(Debug)]
pub struct Regions {
    slots: &'static [Slot],
    leaves: Table,
    /// Changes so far.
    version: AtomicU64,
    /// Slots that were ever used.
    used: AtomicU64,
}

impl Regions {
    /// Over zeroed memory, one slot for each region that there can be at a time, and some to spare; 65,536 at most are used.
    #[must_use]
    pub fn new(slots: &'static [Slot]) -> Self {
        let slots = slots.get(..MAX_SLOTS).unwrap_or(slots);
        Self {
            slots,
            leaves: Table::new(if cfg!(loom) { 1 } else { 64 }),
            version: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }
    }
    /// Where an address lies; `None` if no file's code is mapped there.
    ///
    /// # Errors
    /// The region there was changing.
    #[inline]
    pub fn find(&self, inside: &Inside<'_>, addr: RemoteAddr) -> Result<Option<Found>, Retry> {
        let Some(word) = self.leaves.get(inside, granule(addr)) else { return Ok(None) };
        let Some(hint) = Word::new(word).hint(addr) else { return Ok(None) };
        let slot = self.slots.get(usize::from(hint.slot())).ok_or(Retry)?;
        slot.look(addr, hint)
    }
    /// Whether what was found is still so: the region has not changed since.
    #[must_use]
    pub fn is_still(&self, found: &Found) -> bool {
        self.slots.get(usize::from(found.slot)).is_some_and(|slot| slot.is_still(found.seq))
    }
    /// The region of what was found, and its generation, as one word for [`Marks::has`]; never 0.
    #[must_use]
    pub(crate) const fn mark(&self, found: &Found) -> u64 {
        Hint::new(found.slot, found.seq / slot::GENERATION).word()
    }
    /// What says whether regions are alive by their marks.
    #[must_use]
    pub(crate) const fn marks(&self) -> Marks {
        Marks(self.slots)
    }
    /// Device and inode of the file at an address, and the offset: for stacks.
    ///
    /// # Errors
    /// The region there was changing.
    pub fn module(
        &self,
        inside: &Inside<'_>,
        addr: RemoteAddr,
    ) -> Result<Option<(FileId, FileOffset)>, Retry> {
        let Some(found) = self.find(inside, addr)? else { return Ok(None) };
        let slot = self.slots.get(usize::from(found.slot)).ok_or(Retry)?;
        slot.file(found.seq).map(|file| Some((file, found.offset)))
    }
}

/// Regions by their marks ([`Regions::mark`]): what a hit asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks(&'static [Slot]);

impl Marks {
    /// Whether that region is alive, and has not changed since.
    #[inline]
    pub(crate) fn has(self, mark: u64) -> bool {
        let Some(hint) = Hint::of(mark) else { return false };
        self.0.get(usize::from(hint.slot())).is_some_and(|slot| slot.has(hint))
    }
}
