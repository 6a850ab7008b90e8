//! The writer's own map of regions, and how it changes what readers see. [`regions`](super) describes the
//! protocol.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;

use trapline_record::RemoteAddr;

use super::leaf::{GRANULE, Hint, Leaf, PAGE, Word, granule, granules, pages};
use super::{FoundRegion, Mapping, Regions};
use crate::epoch::Writer;
use crate::file_site::{BadSite, FileNumber, Files};
use crate::sync::{Relaxed, Release};

/// A range of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    start: RemoteAddr,
    end: RemoteAddr,
}

impl Range {
    /// `None` unless both are multiples of a page's size, and at least one page lies between.
    #[must_use]
    pub const fn new(start: RemoteAddr, end: RemoteAddr) -> Option<Self> {
        let is_whole = start.0.is_multiple_of(PAGE) && end.0.is_multiple_of(PAGE) && start.0 < end.0;
        if is_whole { Some(Self { start, end }) } else { None }
    }
    /// The pages that both contain.
    fn common(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }
}

/// Why a mapping is not in the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// Start and end are not on page boundaries.
    NotPages {
        /// First address.
        start: RemoteAddr,
        /// First address after it.
        end: RemoteAddr,
    },
    /// No entry is free. The regions that the change touched are no longer in the map either, so nothing in
    /// it is wrong.
    Full {
        /// Number of entries.
        entries: usize,
    },
    /// Its file can get no number.
    File(BadSite),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPages { start, end } => write!(f, "{start}-{end} are no whole pages"),
            Self::Full { entries } => write!(f, "more regions than the {entries} that there is room for"),
            Self::File(bad) => bad.fmt(f),
        }
    }
}

impl core::error::Error for MapError {}

#[derive(Clone, Copy, Debug)]
struct Region {
    mapping: Mapping,
    file: FileNumber,
    hint: Hint,
}

impl Region {
    fn range(&self) -> Range {
        Range { start: self.mapping.start, end: self.mapping.end }
    }
    /// The part of a mapping that lies in a range.
    fn part(&self, start: RemoteAddr, end: RemoteAddr) -> Option<Mapping> {
        let Range { start, end } = self.range().common(Range::new(start, end)?)?;
        let offset = self.mapping.offset + (start - self.mapping.start);
        Some(Mapping { start, end, offset, ..self.mapping })
    }
}

/// All regions, for the writer.
#[derive(Debug)]
pub struct Map {
    regions: &'static Regions,
    by_start: BTreeMap<RemoteAddr, Region>,
    /// Entries that were used and are free, the one that has been free for longest first.
    free: VecDeque<u16>,
    version: u64,
}

impl Map {
    /// The map of regions that have no other map.
    #[must_use]
    pub const fn new(regions: &'static Regions) -> Self {
        Self { regions, by_start: BTreeMap::new(), free: VecDeque::new(), version: 0 }
    }
    /// Reports that a file was mapped, in place of whatever was there. Mappings that are not executable are
    /// not kept.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(&mut self, writer: &mut Writer, files: &mut Files, mapping: Mapping) -> Result<(), MapError> {
        let Mapping { start, end, .. } = mapping;
        let range = Range::new(start, end).ok_or(MapError::NotPages { start, end })?;
        if !mapping.access.exec {
            return self.change(writer, range, None);
        }
        if self.by_start.get(&start).is_some_and(|region| region.mapping == mapping) {
            return Ok(());
        }
        let file = files.number(mapping.file).map_err(MapError::File)?;
        self.change(writer, range, Some((mapping, file)))
    }
    /// Reports that nothing is mapped there any more.
    ///
    /// # Errors
    /// No entry is free for what is left of a region that was cut.
    pub fn unmap(&mut self, writer: &mut Writer, range: Range) -> Result<(), MapError> {
        self.change(writer, range, None)
    }
    /// The file and offset mapped at an address, from the writer's own map.
    #[must_use]
    pub fn find(&self, addr: RemoteAddr) -> Option<FoundRegion> {
        let region = self.region(addr)?;
        let entry = self.regions.entries.get(usize::from(region.hint.entry()))?;
        entry.look(addr, region.hint).ok()?
    }
    fn region(&self, addr: RemoteAddr) -> Option<&Region> {
        let (_, region) = self.by_start.range(..=addr).next_back()?;
        (addr < region.mapping.end).then_some(region)
    }
    /// All mappings, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.by_start.values().map(|region| &region.mapping)
    }
    /// C1 to C4.
    fn change(
        &mut self,
        writer: &mut Writer,
        range: Range,
        new: Option<(Mapping, FileNumber)>,
    ) -> Result<(), MapError> {
        let touched = self.touching(range);
        if touched.is_empty() && new.is_none() {
            return Ok(());
        }
        let left = touched.iter().flat_map(|old| {
            let parts = [old.part(old.mapping.start, range.start), old.part(range.end, old.mapping.end)];
            parts.into_iter().flatten().map(|part| (part, old.file))
        });
        let born: Vec<(Mapping, FileNumber)> = left.chain(new).collect();
        for old in &touched {
            self.by_start.remove(&old.mapping.start);
        }
        let mut result = Ok(());
        for (mapping, file) in born {
            result = result.and(self.be_born(mapping, file));
        }
        touched.iter().map(Region::range).chain([range]).for_each(|range| self.hint(writer, range));
        for old in &touched {
            if let Some(entry) = self.regions.entries.get(usize::from(old.hint.entry())) {
                entry.kill(self.version + 1);
            }
            self.free.push_back(old.hint.entry());
        }
        self.version += 1;
        self.regions.version.store(self.version, Release);
        result
    }
    /// The regions that have a page in a range.
    fn touching(&self, range: Range) -> Vec<Region> {
        let first = self.by_start.range(..range.start).next_back();
        let inside = self.by_start.range(range.start..range.end);
        let all = first.into_iter().chain(inside).map(|(_, region)| *region);
        all.filter(|region| region.range().common(range).is_some()).collect()
    }
    /// C1: an entry for a region.
    fn be_born(&mut self, mapping: Mapping, file: FileNumber) -> Result<(), MapError> {
        let entries = self.regions.entries;
        let full = MapError::Full { entries: entries.len() };
        let number = self.take_entry().ok_or(full)?;
        let entry = entries.get(usize::from(number)).ok_or(full)?;
        let hint = Hint::new(number, entry.fill(&mapping, file, self.version + 1));
        self.by_start.insert(mapping.start, Region { mapping, file, hint });
        Ok(())
    }
    /// An entry that was never used, while there is one: dead entries stay for pictures as long as possible.
    fn take_entry(&mut self) -> Option<u16> {
        let used = self.regions.used.load(Relaxed);
        if (used as usize) < self.regions.entries.len() {
            self.regions.used.store(used + 1, Release);
            return u16::try_from(used).ok();
        }
        self.free.pop_front()
    }
    /// C2: stores the words of a range's granules, as the map is now.
    fn hint(&self, writer: &mut Writer, range: Range) {
        for start in granules(range.start, range.end) {
            let whole = Range { start, end: start + GRANULE };
            let mut here = self.touching(whole).into_iter().map(|region| region.hint);
            let (first, more) = (here.next(), here.next().is_some());
            let word = self.regions.leaves.peek(writer, granule(start)).map(Word::new);
            match (word, first) {
                (Some(Word::Leaf(leaf)), _) => self.fill(leaf, start),
                (_, Some(_)) if more => {
                    let leaf: &'static Leaf = Box::leak(Box::new(Leaf::new()));
                    self.fill(leaf, start);
                    self.regions.leaves.set(writer, granule(start), core::ptr::from_ref(leaf) as u64);
                }
                (None, None) => {}
                (_, first) => self.regions.leaves.set(writer, granule(start), first.map_or(0, Hint::word)),
            }
        }
    }
    fn fill(&self, leaf: &Leaf, start: RemoteAddr) {
        pages(start).for_each(|page| leaf.set(page, self.region(page).map(|region| region.hint)));
    }
}
