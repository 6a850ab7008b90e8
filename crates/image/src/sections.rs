//! Sections with debug information, and what tells places in them apart.
//!
//! In: bytes. Out: the types by which gimli reads them, and ids of sections and entries. Invariant: IMG-3: sections larger than a
//! stated limit are not read. Does not: read entries.

use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, LittleEndian, Section as _, UnitSectionOffset};

/// Maximum size of debug information that is read, in bytes of `.debug_info`.
pub(crate) const MAX_INFO: u64 = 512 << 20;

pub(crate) type Slice = EndianArcSlice<LittleEndian>;
/// A unit, and the sections that it is in.
pub(crate) type UnitOf<'a> = gimli::UnitRef<'a, Slice>;

pub(crate) fn slice(bytes: &[u8]) -> Slice {
    EndianArcSlice::new(Arc::from(bytes), LittleEndian)
}

/// What tells sections from others: where the bytes with the entries are. As long as `Units` of them live, no others
/// can be there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SectionsId {
    /// Where a section begins, and its length.
    info: (usize, usize),
    types: (usize, usize),
}

impl SectionsId {
    #[cfg(test)]
    pub(crate) const MADE_UP: Self = Self { info: (0, 0), types: (0, 0) };
    pub(crate) fn of(dwarf: &Dwarf<Slice>) -> Self {
        let at = |section: &Slice| (section.bytes().as_ptr().addr(), section.bytes().len());
        Self { info: at(dwarf.debug_info.reader()), types: at(dwarf.debug_types.reader()) }
    }
}

/// The same for each way to an entry: its sections, and the offset in them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EntryId(pub(crate) SectionsId, pub(crate) UnitSectionOffset);

#[cfg(test)]
impl EntryId {
    /// An entry of one section that a test makes up.
    pub(crate) const fn made_up(offset: usize) -> Self {
        Self(SectionsId::MADE_UP, UnitSectionOffset::DebugInfoOffset(gimli::DebugInfoOffset(offset)))
    }
}
