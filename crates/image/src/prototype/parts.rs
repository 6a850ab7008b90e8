//! Values that consist of several, or take more than one register: of what they consist, and where that is.
//!
//! In: DWARF and a type. Out: its [`Layout`], if all of it is known and it is small. Invariant: IMG-3. Does not: decide
//! how a value is passed (`passing`).

use gimli::UnitOffset;

use super::{ParameterPlace, ValueType};
use crate::debuginfo::{DebugInfo, UnitOf};
use crate::shapes::{bits_of, number};
use crate::types::{Entry, member_offset};

/// Bytes of a value that is looked at: as many as a record holds of one piece of memory.
pub const MOST_BYTES: u64 = 64;
/// Single values in it at most.
const MOST_VALUES: u32 = 64;
/// How deep structures are within each other at most.
const DEEPEST: u32 = 8;

/// Of what a value consists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One value of so many bytes.
    Value(ValueType, u8),
    /// An integer of 16 bytes.
    Wide {
        /// Whether it is signed.
        signed: bool,
    },
    /// Members of a structure or union, in their order.
    Record(Vec<LaidOut>),
    /// So many of one kind, so many bytes from each other.
    Array(Box<Self>, u64, u64),
    /// A text that fills so many bytes at most.
    Text(u64),
    /// Something that is not shown.
    Unknown,
}

/// A member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaidOut {
    /// Its name; in angle brackets that of a base class; none of a member without a name.
    pub name: String,
    /// Bytes before it.
    pub offset: u64,
    /// The lowest bit of a bit-field in its integer, and how many there are.
    pub bits: Option<(u32, u32)>,
    /// What it is.
    pub of: Layout,
}

/// Bytes of a value in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The register.
    pub place: ParameterPlace,
    /// Where they are in the value.
    pub offset: u8,
    /// How many there are at most.
    pub bytes: u8,
}

/// Where the bytes of a value are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// In these registers.
    Registers(Vec<Piece>),
    /// On the stack, at this distance from the stack pointer of the function's entry.
    Stack(i32),
    /// Where the general argument register of this number points to.
    Behind(u8),
    /// Not known.
    Unknown,
}

/// A value that consists of several, or takes more than one register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts {
    /// Of what it consists.
    pub layout: Layout,
    /// Where it is.
    pub at: Whereabouts,
}

impl Layout {
    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Value(_, bytes) => u64::from(*bytes),
            Self::Wide { .. } => 16,
            Self::Record(members) => {
                members.iter().map(|one| one.offset.saturating_add(one.of.bytes())).max().unwrap_or(0)
            }
            Self::Array(_, stride, count) => stride.saturating_mul(*count),
            Self::Text(bytes) => *bytes,
            Self::Unknown => 0,
        }
    }
}

impl DebugInfo {
    /// Of what a value consists that no single register holds; `None` if it is a single value, or large.
    pub(super) fn layout(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<Option<Layout>> {
        if self.size(unit, of)? > MOST_BYTES {
            return Ok(None);
        }
        let layout = self.laid_out(unit, of, (DEEPEST, &mut { MOST_VALUES }))?;
        Ok(layout.filter(|layout| matches!(layout, Layout::Record(_) | Layout::Wide { .. })))
    }
    /// `None` if there is more in it than is looked at.
    fn laid_out(
        &self,
        unit: UnitOf<'_>,
        of: UnitOffset,
        (deep, left): (u32, &mut u32),
    ) -> gimli::Result<Option<Layout>> {
        let (Some(rest), Some(deep)) = (left.checked_sub(1), deep.checked_sub(1)) else { return Ok(None) };
        *left = rest;
        let entry = self.bare(unit, of)?;
        let bytes = self.size(unit, of)?;
        let one = match (self.value_type(unit, of)?, u8::try_from(bytes)) {
            (ValueType::Other(_), _) | (_, Err(_)) => None,
            (value, Ok(bytes)) => Some(Layout::Value(value, bytes)),
        };
        if one.is_some() {
            return Ok(one);
        }
        match entry.tag() {
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                self.members_of(unit, &entry, (deep, left))
            }
            gimli::DW_TAG_array_type if entry.attr_value(gimli::DW_AT_GNU_vector)?.is_none() => {
                let Some(element) = Self::type_of(&entry)? else { return Ok(None) };
                let [count] = self.dimensions(unit, entry.offset())?[..] else {
                    return Ok(Some(Layout::Unknown));
                };
                if self.value_type(unit, element)? == ValueType::Char {
                    return Ok(Some(Layout::Text(count)));
                }
                if count > u64::from(MOST_VALUES) {
                    return Ok(None);
                }
                let (size, inner) = (self.size(unit, element)?, self.laid_out(unit, element, (deep, left))?);
                Ok(inner.map(|inner| Layout::Array(Box::new(inner), size, count)))
            }
            gimli::DW_TAG_base_type if bytes == 16 => {
                Ok(Some(match entry.attr_value(gimli::DW_AT_encoding)? {
                    Some(gimli::AttributeValue::Encoding(gimli::DW_ATE_signed)) => {
                        Layout::Wide { signed: true }
                    }
                    Some(gimli::AttributeValue::Encoding(gimli::DW_ATE_unsigned)) => {
                        Layout::Wide { signed: false }
                    }
                    _ => Layout::Unknown,
                }))
            }
            _ => Ok(Some(Layout::Unknown)),
        }
    }
    fn members_of(
        &self,
        unit: UnitOf<'_>,
        of: &Entry<'_>,
        (deep, left): (u32, &mut u32),
    ) -> gimli::Result<Option<Layout>> {
        let mut members = Vec::new();
        let mut tree = unit.entries_tree(Some(of.offset()))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            let is_base = entry.tag() == gimli::DW_TAG_inheritance;
            let is_member = is_base || entry.tag() == gimli::DW_TAG_member;
            if !is_member || entry.attr_value(gimli::DW_AT_external)?.is_some() {
                continue;
            }
            let (Some(of), Some(offset)) = (Self::type_of(entry)?, member_offset(entry)?) else {
                return Ok(None);
            };
            let Some(inner) = self.laid_out(unit, of, (deep, left))? else { return Ok(None) };
            let (offset, bits) = match number(entry, gimli::DW_AT_bit_size)? {
                Some(count) => bits_of(entry, self.size(unit, of)?, offset, count)?,
                None => (offset, None),
            };
            let name = match is_base {
                true => format!(
                    "<{}>",
                    self.text(unit, &self.bare(unit, of)?, gimli::DW_AT_name)?.unwrap_or_default()
                ),
                false => self.text(unit, entry, gimli::DW_AT_name)?.unwrap_or_default(),
            };
            members.push(LaidOut { name, offset, bits, of: inner });
        }
        Ok(Some(Layout::Record(members)))
    }
}
