//! Units of debug information by what refers to them: an offset in a section, the signature of a type.
//!
//! In: sections. Out: the entry at an offset ([`Units::at`]), or of a type ([`Units::typed`]). The headers of all units of a
//! section are read when the first reference into it is followed; a unit is parsed when one leads to it. Invariant:
//! PRO-6. Does not: open files.

use std::cell::OnceCell;
use std::collections::HashMap;

use gimli::{DebugInfoOffset, DebugTypeSignature, Dwarf, Unit, UnitHeader, UnitOffset, UnitType};

use crate::entries::At;
use crate::sections::{SectionsId, Slice, UnitOf};

/// A unit, as soon as something led to it; `None` if it is malformed.
struct Lazy {
    header: UnitHeader<Slice>,
    unit: OnceCell<Option<Unit<Slice>>>,
}

/// The units of one file's sections.
pub(crate) struct Units {
    dwarf: Dwarf<Slice>,
    /// Units of `.debug_info` by their offsets, then those of `.debug_types`.
    all: Vec<Lazy>,
    /// How many are in `.debug_info`.
    sorted: usize,
    /// For each type's signature, which unit has it, and where in it.
    types: HashMap<u64, (usize, UnitOffset)>,
}

impl Units {
    fn read(dwarf: &Dwarf<Slice>) -> Self {
        let dwarf = owned(dwarf);
        let mut headers = Vec::new();
        let mut units = dwarf.units();
        // What comes behind a malformed header is not found, and so unknown.
        while let Ok(Some(header)) = units.next() {
            headers.push(header);
        }
        let sorted = headers.len();
        let mut units = dwarf.type_units();
        while let Ok(Some(header)) = units.next() {
            headers.push(header);
        }
        let signed = headers.iter().enumerate().filter_map(|(nth, header)| match header.type_() {
            UnitType::Type { type_signature, type_offset }
            | UnitType::SplitType { type_signature, type_offset } => {
                Some((type_signature.0, (nth, type_offset)))
            }
            _ => None,
        });
        let types = signed.collect();
        let all = headers.into_iter().map(|header| Lazy { header, unit: OnceCell::new() }).collect();
        Self { dwarf, all, sorted, types }
    }
    fn unit(&self, nth: usize) -> gimli::Result<UnitOf<'_>> {
        let lazy = self.all.get(nth).ok_or(gimli::Error::UnexpectedNull)?;
        let unit = lazy.unit.get_or_init(|| self.dwarf.unit(lazy.header.clone()).ok());
        Ok(UnitOf::new(&self.dwarf, unit.as_ref().ok_or(gimli::Error::UnexpectedNull)?))
    }
    /// The entry at an offset of the section.
    ///
    /// # Errors
    /// No unit has it, or a malformed one.
    pub(crate) fn at(&self, at: DebugInfoOffset) -> gimli::Result<At<'_>> {
        let begins_behind = |lazy: &Lazy| lazy.header.offset().as_debug_info_offset() <= Some(at);
        let behind = self.all[..self.sorted].partition_point(begins_behind);
        let nth = behind.checked_sub(1).ok_or(gimli::Error::UnexpectedNull)?;
        let offset = at.to_unit_offset(&self.all[nth].header).ok_or(gimli::Error::UnexpectedNull)?;
        Ok(At { unit: self.unit(nth)?, offset })
    }
    /// The type with a signature, if a unit of the file has it.
    pub(crate) fn typed(&self, signature: DebugTypeSignature) -> Option<At<'_>> {
        let (nth, offset) = *self.types.get(&signature.0)?;
        Some(At { unit: self.unit(nth).ok()?, offset })
    }
}

/// The same sections with another owner.
#[expect(deprecated, reason = "what replaces it begins with sections, which are not given back")]
fn owned(dwarf: &Dwarf<Slice>) -> Dwarf<Slice> {
    dwarf.borrow(Slice::clone)
}

/// [`Units`] of all sections that something referred to: a list that only grows, so what it lends stays.
#[derive(Default)]
pub(crate) struct AllUnits(OnceCell<Box<(Units, Self)>>);

impl AllUnits {
    /// The units of these sections.
    pub(crate) fn of(&self, dwarf: &Dwarf<Slice>) -> &Units {
        let mut list = self;
        loop {
            let (units, rest) = &**list.0.get_or_init(|| Box::new((Units::read(dwarf), Self::default())));
            if SectionsId::of(&units.dwarf) == SectionsId::of(dwarf) {
                return units;
            }
            list = rest;
        }
    }
}
