//! Entries of debug information.
//!
//! In: a unit and an offset in it ([`At`]). Out: the entry there, its attributes and children. Invariant: IMG-3: no entry has
//! more children than a stated limit. Does not: follow what an entry refers to (`references`), or know what it means
//! (`types`).

use gimli::{AttributeValue, DebuggingInformationEntry, DwLang, Operation, Reader as _, UnitOffset};
use trapline_record::Svma;

use crate::sections::{EntryId, SectionsId, Slice, UnitOf};

/// Maximum length of a chain of typedefs, qualifiers or origins; longer ones are forged.
pub(crate) const MAX_CHAIN: u32 = 64;
/// The kind of a type of Go's.
const GO_KIND: gimli::DwAt = gimli::DwAt(0x2900);
/// Children of one entry at most; more are forged.
const MAX_CHILDREN: usize = 100_000;

pub(crate) type Value = AttributeValue<Slice>;

/// Where an entry is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'u> {
    pub(crate) unit: UnitOf<'u>,
    pub(crate) offset: UnitOffset,
}

impl<'u> At<'u> {
    pub(crate) fn entry(self) -> gimli::Result<Entry<'u>> {
        Ok(Entry { unit: self.unit, die: self.unit.unit.entry(self.offset)? })
    }
    pub(crate) fn id(self) -> EntryId {
        EntryId(SectionsId::of(self.unit.dwarf), self.offset.to_unit_section_offset(self.unit.unit))
    }
}

/// An entry: a function, a parameter, a type.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'u> {
    unit: UnitOf<'u>,
    die: DebuggingInformationEntry<'u, 'u, Slice>,
}

impl<'u> Entry<'u> {
    pub(crate) const fn new(unit: UnitOf<'u>, die: DebuggingInformationEntry<'u, 'u, Slice>) -> Self {
        Self { unit, die }
    }
    /// The entry of a unit.
    pub(crate) fn of_unit(unit: UnitOf<'u>) -> gimli::Result<Option<Self>> {
        let mut entries = unit.unit.entries();
        Ok(entries.next_dfs()?.map(|(_, root)| Self::new(unit, root.clone())))
    }
    pub(crate) const fn unit(&self) -> UnitOf<'u> {
        self.unit
    }
    pub(crate) fn at(&self) -> At<'u> {
        At { unit: self.unit, offset: self.die.offset() }
    }
    pub(crate) fn tag(&self) -> gimli::DwTag {
        self.die.tag()
    }
    pub(crate) fn value(&self, which: gimli::DwAt) -> gimli::Result<Option<Value>> {
        self.die.attr_value(which)
    }
    pub(crate) fn has(&self, which: gimli::DwAt) -> gimli::Result<bool> {
        Ok(self.value(which)?.is_some())
    }
    pub(crate) fn number(&self, which: gimli::DwAt) -> gimli::Result<Option<u64>> {
        Ok(self.value(which)?.and_then(|value| value.udata_value()))
    }
    pub(crate) fn text(&self, which: gimli::DwAt) -> gimli::Result<Option<String>> {
        let Some(value) = self.value(which)? else { return Ok(None) };
        let text = self.unit.attr_string(value)?;
        Ok(text.to_string().ok().map(std::borrow::Cow::into_owned))
    }
    /// How Go spells a type: `[]int`, `*main.T`. Go's linker gives each type a kind, and a name even to pointers.
    pub(crate) fn spelled_by_go(&self) -> gimli::Result<Option<String>> {
        if self.number(GO_KIND)?.is_none() { Ok(None) } else { self.name() }
    }
    /// The same for values: `string` of each string, whatever its type is called.
    pub(crate) fn called_by_go(&self) -> gimli::Result<Option<String>> {
        const STRING: u64 = 24;
        let is_string = self.number(GO_KIND)? == Some(STRING);
        if is_string { Ok(Some("string".to_owned())) } else { self.spelled_by_go() }
    }
    /// `None`: it has no name, or one that is not UTF-8.
    pub(crate) fn name(&self) -> gimli::Result<Option<String>> {
        self.text(gimli::DW_AT_name)
    }
    /// Where its code begins.
    pub(crate) fn begins(&self) -> gimli::Result<Option<u64>> {
        Ok(self.unit.die_ranges(&self.die)?.next()?.map(|range| range.begin))
    }
    /// Whether one location is noted for all of the code that can name it.
    pub(crate) fn has_one_location(&self) -> gimli::Result<bool> {
        Ok(matches!(self.value(gimli::DW_AT_location)?, Some(AttributeValue::Exprloc(_))))
    }
    /// The address of a variable that has the same one in each thread and at each instruction.
    pub(crate) fn address(&self) -> gimli::Result<Option<Svma>> {
        let Some(AttributeValue::Exprloc(location)) = self.value(gimli::DW_AT_location)? else {
            return Ok(None);
        };
        let mut operations = location.operations(self.unit.encoding());
        Ok(match (operations.next()?, operations.next()?) {
            (Some(Operation::Address { address }), None) => Some(Svma(address)),
            (Some(Operation::AddressIndex { index }), None) => Some(Svma(self.unit.address(index)?)),
            _ => None,
        })
    }
    /// Whether an instruction is in its code.
    pub(crate) fn contains(&self, at: Svma) -> gimli::Result<bool> {
        let mut ranges = self.unit.die_ranges(&self.die)?;
        while let Some(range) = ranges.next()? {
            if (range.begin..range.end).contains(&at.0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
    pub(crate) fn children(&self) -> gimli::Result<Vec<Self>> {
        let mut tree = self.unit.unit.entries_tree(Some(self.die.offset()))?;
        let mut children = tree.root()?.children();
        let mut all = Vec::new();
        while let Some(child) = children.next()? {
            all.push(Self::new(self.unit, child.entry().clone()));
            if all.len() == MAX_CHILDREN {
                break;
            }
        }
        Ok(all)
    }
    /// Its members and base classes; members that all values share are none.
    pub(crate) fn parts(&self) -> gimli::Result<Vec<Self>> {
        let mut parts = self.children()?;
        parts.retain(|child| {
            let is_part = matches!(child.tag(), gimli::DW_TAG_member | gimli::DW_TAG_inheritance);
            is_part && !child.has(gimli::DW_AT_external).unwrap_or(true)
        });
        Ok(parts)
    }
    pub(crate) fn is_record(&self) -> bool {
        let records = [gimli::DW_TAG_structure_type, gimli::DW_TAG_class_type, gimli::DW_TAG_union_type];
        records.contains(&self.tag())
    }
    /// The entry of its unit.
    pub(crate) fn root(&self) -> gimli::Result<Option<Self>> {
        Self::of_unit(self.unit)
    }
    /// The language of its unit. Units that `dwz` made have none.
    pub(crate) fn language(&self) -> gimli::Result<Option<DwLang>> {
        let Some(root) = self.root()? else { return Ok(None) };
        Ok(match root.value(gimli::DW_AT_language)? {
            Some(AttributeValue::Language(language)) => Some(language),
            _ => None,
        })
    }
}
