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
//! Addresses lead to slots through *hints*: a table by 2 MiB granule (`table`) of leaves, each with one word for each page: a slot's number + 1,
//! or 0. A hint is only that; the slot says what it covers.
//!
//! # A look (reader, inside an epoch for the table's sake)
//!
//! | step | what |
//! |---|---|
//! | L1 | granule → leaf; none: no region |
//! | L2 | load the page's hint (acquire); 0: no region |
//! | L3 | load `seq` (acquire); unless alive: `Retry` |
//! | L4 | load start, end, offset, file (relaxed): anything |
//! | L5 | fence (acquire), load `seq` again: unless the same, `Retry` |
//! | L6 | the address lies outside: `Retry` (the hint was stale); else the answer |
//!
//! # A change (writer): [start, end) becomes nothing, or one new region
//!
//! | step | what |
//! |---|---|
//! | C1 | for what is left of each region that the range cuts: a fresh slot, written and alive (F below), then hints of its pages |
//! | C2 | the same for the new region |
//! | C3 | each region that the range touched: death := version + 1; `seq` := dead (release) |
//! | C4 | hints of pages that no region has any more := 0 |
//! | C5 | version := version + 1 (release) |
//!
//! Filling a slot, the one that has been free for longest: F1 `seq` := next generation, written; fence (release); F2 fields; F3 `seq` :=
//! alive (release).
//!
//! ## Interleavings
//!
//! - *a look at a region that the change does not touch*: none of the words of L2 to L6 change, and the granule's leaf stays: the
//!   same answer as alone, whatever happens elsewhere (RGN-2). The table may grow: `table`, G1.
//! - *L2 before C1 or C2, L3 before C3*: the old region, alive at L5: it was there at L5.
//! - *L2 before, L3 or L5 after C3*: dead, so `Retry`, once: the hint leads elsewhere next time. The region itself changed.
//! - *L2 after C1, C3 still to come*: two slots cover what is left; both say the same of it.
//! - *L2 after C2, before C3*: the new region, while pages of it behind may still lead to the old one: as if the mapping had
//!   changed page by page, which is what the kernel does.
//! - *L2 loads a hint; the slot dies, is filled again (F1 to F3), and L3 to L6 see the new region*: whole, by L5; if it covers the address
//!   the answer is true, else `Retry`.
//! - *L4 between F1 and F3*: L3 saw the old `seq` (else: written, `Retry`). If L4 saw any store of F2, then F1's fence and L5's make F1
//!   visible to L5: another `seq`, `Retry`. Without either fence it would be believed: the model's twins. F3 before F2 is the third.
//! - *L2 sees a hint of C1, C2*: release and acquire, so L3 sees F3 or later.
//! - *0 at L1 or L2 while C2 runs*: before the change. Code of ours is written into a region after its change has returned, so no hit of ours
//!   is missed by that.
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
//! - *a change before P1*: C5's release and P1's acquire make all of it visible.

mod leaf;
mod map;
mod picture;
mod slot;

pub use map::{Map, MapError, Range};
pub use picture::{Mapped, PictureError};
pub use slot::Slot;

use core::num::NonZeroU64;

use trapline_record::{FileId, FileOffset, RemoteAddr};

use crate::epoch::Inside;
use crate::registry::{FileNumber, Site};
use crate::sync::AtomicU64;
use crate::table::Table;
use leaf::Leaf;

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
    region: u32,
    seq: u64,
}

impl Found {
    /// The site, if a probe can be there.
    #[must_use]
    #[inline]
    pub fn site(&self) -> Option<Site> {
        if self.takes_breakpoints { Site::new(self.file, self.offset).ok() } else { None }
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
    /// Over zeroed memory, one slot for each region that there can be at a time, and some to spare.
    #[must_use]
    pub fn new(slots: &'static [Slot]) -> Self {
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
        let Some(leaf) = self.leaf(inside, addr) else { return Ok(None) };
        let Some(region) = leaf.hint(addr) else { return Ok(None) };
        let slot = self.slots.get(region as usize).ok_or(Retry)?;
        slot.look(addr, region).map(Some)
    }
    /// Whether what was found is still so: the region has not changed since.
    #[must_use]
    pub fn is_still(&self, found: &Found) -> bool {
        self.slots.get(found.region as usize).is_some_and(|slot| slot.is_still(found.seq))
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
        let slot = self.slots.get(found.region as usize).ok_or(Retry)?;
        slot.file(found.seq).map(|file| Some((file, found.offset)))
    }
    #[inline]
    fn leaf<'a>(&self, inside: &'a Inside<'_>, addr: RemoteAddr) -> Option<&'a Leaf> {
        let leaf = self.leaves.get(inside, granule(addr))?;
        // SAFETY: the table's values are leaves that `Map` leaked: they stay for as long as the regions.
        Some(unsafe { &*(leaf.get() as *const Leaf) })
    }
}

/// The number of an address's granule, + 1.
#[inline]
const fn granule(addr: RemoteAddr) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(addr.0 >> leaf::GRANULE_BITS)
}
