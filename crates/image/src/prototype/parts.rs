//! Values that consist of several, or take more than one register: of what they consist, and where that is.
//!
//! In: DWARF and a type. Out: its [`Layout`], if all of it is known and it is small. Invariant: IMG-3. Does not: decide
//! how a value is passed (`passing`).

use super::{ParameterPlace, ValueType};
use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry};
use crate::types::{bits_of, member_offset};

/// Bytes of a value that is looked at: as many as a record holds of one piece of memory.
pub const MOST_BYTES: u64 = 64;
/// Bytes of one that is read in memory, by several such pieces.
pub const MOST_READ: u64 = 8 * MOST_BYTES;
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
    /// Bits of an integer: a bit-field.
    Bits {
        /// What the integer is.
        of: ValueType,
        /// Its bytes.
        bytes: u8,
        /// The lowest bit of the field.
        from: u32,
        /// How many bits it has.
        count: u32,
    },
    /// Members of a structure or union, in their order.
    Record(Vec<LaidOut>),
    /// One of several forms: Rust's enumerations with data.
    OneOf {
        /// Its bytes.
        bytes: u64,
        /// The number that says which form it has: where it is, and its bytes. None of what has one form.
        tag: Option<(u64, u8)>,
        /// The forms.
        forms: Vec<Form>,
    },
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
    /// What it is.
    pub of: Layout,
}

/// A form of a value that has one of several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Form {
    /// The number that says so; none of the form for all other numbers.
    pub tag: Option<u64>,
    /// Its name, and of what it consists.
    pub of: LaidOut,
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
            Self::Value(_, bytes) | Self::Bits { bytes, .. } => u64::from(*bytes),
            Self::Wide { .. } => 16,
            Self::OneOf { bytes, .. } => *bytes,
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
        let is_several = |layout: &Layout| {
            matches!(layout, Layout::Record(_) | Layout::Wide { .. } | Layout::OneOf { .. })
        };
        Ok(layout.filter(is_several))
    }
    /// Of what a value consists; `None` if it is large.
    pub(crate) fn layout_of_any(&self, of: At<'_>) -> gimli::Result<Option<Layout>> {
        if self.size(of)? > MOST_BYTES {
            return Ok(None);
        }
        self.laid_out(of, (DEEPEST, &mut { MOST_VALUES }))
    }
    /// Of what a structure or an array in memory consists; `None` if it is neither, or not all of it is looked at.
    pub(crate) fn layout_in_memory(&self, of: At<'_>) -> gimli::Result<Option<Layout>> {
        if self.size(of)? > MOST_READ {
            return Ok(None);
        }
        let layout = self.laid_out(of, (DEEPEST, &mut { MOST_VALUES }))?;
        Ok(layout.filter(|layout| match layout {
            Layout::Record(members) => !members.is_empty(),
            Layout::OneOf { .. } => true,
            Layout::Array(of, ..) => **of != Layout::Unknown,
            _ => false,
        }))
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
        let children = of.children()?;
        if let Some(part) = children.iter().find(|child| child.tag() == gimli::DW_TAG_variant_part) {
            return self.forms(of, part, (deep, left));
        }
        let mut members = Vec::new();
        for entry in &of.parts()? {
            let is_base = entry.tag() == gimli::DW_TAG_inheritance;
            let (Some(of), Some(offset)) = (self.type_of(entry)?, member_offset(entry)?) else {
                return Ok(None);
            };
            let Some(inner) = self.laid_out(of, (deep, left))? else { return Ok(None) };
            let (offset, inner) = match (entry.number(gimli::DW_AT_bit_size)?, inner) {
                (Some(count), Layout::Value(of, bytes)) => {
                    match bits_of(entry, bytes.into(), offset, count)? {
                        (offset, Some((from, count))) => (offset, Layout::Bits { of, bytes, from, count }),
                        (offset, None) => (offset, Layout::Unknown),
                    }
                }
                (Some(_), _) => (offset, Layout::Unknown),
                (None, inner) => (offset, inner),
            };
            let name = match is_base {
                true => format!("<{}>", self.bare(of)?.name()?.unwrap_or_default()),
                false => entry.name()?.unwrap_or_default(),
            };
            members.push(LaidOut { name, offset, of: inner });
        }
        Ok(Some(Layout::Record(members)))
    }
    /// The forms of one of Rust's enumerations: a part of the value says which one it has.
    fn forms(
        &self,
        of: &Entry<'_>,
        part: &Entry<'_>,
        (deep, left): (u32, &mut u32),
    ) -> gimli::Result<Option<Layout>> {
        let tag = match self.reference(part, gimli::DW_AT_discr)? {
            Some(member) => {
                let member = member.entry()?;
                let (Some(of), Some(at)) = (self.type_of(&member)?, member_offset(&member)?) else {
                    return Ok(None);
                };
                match u8::try_from(self.size(of)?) {
                    Ok(bytes @ (1 | 2 | 4 | 8)) => Some((at, bytes)),
                    _ => return Ok(Some(Layout::Unknown)),
                }
            }
            None => None,
        };
        let mut forms = Vec::new();
        for variant in &part.children()? {
            if variant.tag() != gimli::DW_TAG_variant {
                continue;
            }
            let is_listed = variant.has(gimli::DW_AT_discr_list)?;
            let value = variant.value(gimli::DW_AT_discr_value)?;
            let number = value.as_ref().and_then(|value| {
                value.udata_value().or_else(|| value.sdata_value().map(i64::cast_unsigned))
            });
            let [form] = &variant.parts()?[..] else { return Ok(Some(Layout::Unknown)) };
            let (Some(of), Some(offset)) = (self.type_of(form)?, member_offset(form)?) else {
                return Ok(None);
            };
            if is_listed || value.is_some() != number.is_some() {
                return Ok(Some(Layout::Unknown));
            }
            let Some(inner) = self.laid_out(of, (deep, left))? else { return Ok(None) };
            let of = LaidOut { name: form.name()?.unwrap_or_default(), offset, of: inner };
            forms.push(Form { tag: number, of });
        }
        Ok(Some(Layout::OneOf { bytes: of.number(gimli::DW_AT_byte_size)?.unwrap_or(0), tag, forms }))
    }
}
