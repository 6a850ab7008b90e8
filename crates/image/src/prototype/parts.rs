//! Values that consist of several, or take more than one register: of what they consist, and where that is.
//!
//! In: DWARF and a type. Out: its [`Layout`], if all of it is known and it is small. Invariant: IMG-3. Does not: decide
//! how a value is passed (`passing`).

use super::{ParameterPlace, ValueType};
use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry};
use crate::shapes::bits_of;
use crate::types::member_offset;

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
    pub(super) fn layout(&self, of: At<'_>) -> gimli::Result<Option<Layout>> {
        let layout = self.layout_of_any(of)?;
        Ok(layout.filter(|layout| matches!(layout, Layout::Record(_) | Layout::Wide { .. })))
    }
    /// Of what a value consists; `None` if it is large.
    pub(super) fn layout_of_any(&self, of: At<'_>) -> gimli::Result<Option<Layout>> {
        if self.size(of)? > MOST_BYTES {
            return Ok(None);
        }
        self.laid_out(of, (DEEPEST, &mut { MOST_VALUES }))
    }
    /// `None` if there is more in it than is looked at.
    fn laid_out(&self, of: At<'_>, (deep, left): (u32, &mut u32)) -> gimli::Result<Option<Layout>> {
        let (Some(rest), Some(deep)) = (left.checked_sub(1), deep.checked_sub(1)) else { return Ok(None) };
        *left = rest;
        let entry = self.bare(of)?;
        let bytes = self.size(of)?;
        let one = match (self.value_type(of)?, u8::try_from(bytes)) {
            (ValueType::Other(_), _) | (_, Err(_)) => None,
            (value, Ok(bytes)) => Some(Layout::Value(value, bytes)),
        };
        if one.is_some() {
            return Ok(one);
        }
        match entry.tag() {
            _ if entry.is_record() => self.members_of(&entry, (deep, left)),
            gimli::DW_TAG_array_type if !entry.has(gimli::DW_AT_GNU_vector)? => {
                let Some(element) = self.type_of(&entry)? else { return Ok(None) };
                let [count] = self.dimensions(&entry)?[..] else {
                    return Ok(Some(Layout::Unknown));
                };
                if self.value_type(element)? == ValueType::Char {
                    return Ok(Some(Layout::Text(count)));
                }
                if count > u64::from(MOST_VALUES) {
                    return Ok(None);
                }
                let (size, inner) = (self.size(element)?, self.laid_out(element, (deep, left))?);
                Ok(inner.map(|inner| Layout::Array(Box::new(inner), size, count)))
            }
            gimli::DW_TAG_base_type if bytes == 16 => Ok(Some(match entry.value(gimli::DW_AT_encoding)? {
                Some(gimli::AttributeValue::Encoding(gimli::DW_ATE_signed)) => Layout::Wide { signed: true },
                Some(gimli::AttributeValue::Encoding(gimli::DW_ATE_unsigned)) => {
                    Layout::Wide { signed: false }
                }
                _ => Layout::Unknown,
            })),
            _ => Ok(Some(Layout::Unknown)),
        }
    }
    fn members_of(&self, of: &Entry<'_>, (deep, left): (u32, &mut u32)) -> gimli::Result<Option<Layout>> {
        // Which of several forms a value has, a part of it decides (Rust's enumerations).
        if of.children()?.iter().any(|child| child.tag() == gimli::DW_TAG_variant_part) {
            return Ok(Some(Layout::Unknown));
        }
        let mut members = Vec::new();
        for entry in &of.parts()? {
            let is_base = entry.tag() == gimli::DW_TAG_inheritance;
            let (Some(of), Some(offset)) = (self.type_of(entry)?, member_offset(entry)?) else {
                return Ok(None);
            };
            let Some(inner) = self.laid_out(of, (deep, left))? else { return Ok(None) };
            let (offset, bits) = match entry.number(gimli::DW_AT_bit_size)? {
                Some(count) => bits_of(entry, self.size(of)?, offset, count)?,
                None => (offset, None),
            };
            let name = match is_base {
                true => format!("<{}>", self.bare(of)?.name()?.unwrap_or_default()),
                false => entry.name()?.unwrap_or_default(),
            };
            members.push(LaidOut { name, offset, bits, of: inner });
        }
        Ok(Some(Layout::Record(members)))
    }
}
