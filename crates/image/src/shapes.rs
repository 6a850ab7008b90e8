//! What types consist of: for whoever computes where parts of a value are.
//!
//! In: DWARF, a function's address or the name of a structure. Out: [`Shape`]s of its parameters, the fields of a
//! structure. Invariants: IMG-3: types that contain themselves end each walk; what a pointer leads to is named, not
//! walked. Does not: know where values are.

use std::cell::Cell;

use gimli::{AttributeValue, UnitOffset};
use trapline_record::Svma;

use crate::debuginfo::{DebugInfo, Slice, UnitOf};
use crate::prototype::ValueType;
use crate::types::{Entry, MAX_CHAIN, member_offset};

/// Fields of a structure, those of anonymous members included; more are forged.
const MAX_FIELDS: usize = 10_000;
/// Types that are looked at for one answer; more are forged.
const MOST_SHAPES: u32 = 20_000;

/// What a value of a type consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Nothing.
    Void,
    /// True or false.
    Bool,
    /// `char`.
    Char,
    /// An integer, or a value of an enumeration.
    Integer {
        /// Width in bytes.
        bytes: u8,
        /// Whether it is signed.
        signed: bool,
    },
    /// An address of a value.
    Pointer(Box<Self>),
    /// So many of one type.
    Array(Box<Self>, u64),
    /// A structure or union of this name, and its size.
    Record(String, u64),
    /// A structure or union without a name.
    Anonymous(RecordShape),
    /// Something else of so many bytes.
    Other(u64),
}

/// A structure or union.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordShape {
    /// Its fields in order; those of members without names are among them.
    pub fields: Vec<FieldShape>,
    /// Size in bytes.
    pub size: u64,
}

/// A field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldShape {
    /// Its name.
    pub name: String,
    /// Its type.
    pub of: Shape,
    /// Bytes before it; of a bit-field, before the unit that holds it.
    pub offset: u64,
    /// The lowest bit in that unit, and how many, if it is a bit-field.
    pub bits: Option<(u32, u32)>,
}

/// How much a walk through types may still visit, and how deep it is.
struct Left {
    shapes: Cell<u32>,
    depth: Cell<u32>,
}

impl Left {
    const fn new() -> Self {
        Self { shapes: Cell::new(MOST_SHAPES), depth: Cell::new(0) }
    }
    /// Goes into a type, unless that is too much.
    fn enter(&self) -> bool {
        let may = self.shapes.get() > 0 && self.depth.get() < MAX_CHAIN;
        if may {
            self.shapes.update(|shapes| shapes - 1);
            self.depth.update(|depth| depth + 1);
        }
        may
    }
    /// Out of it again.
    fn leave(&self) {
        self.depth.update(|depth| depth - 1);
    }
}

impl DebugInfo {
    /// The types of a function's parameters, in their order, and how C spells them.
    #[must_use]
    pub fn parameter_shapes(&self, function: Svma) -> Option<Vec<(Shape, String)>> {
        let found = self.with_function(function, |unit, entry| {
            let declared = self.parameters(unit, entry)?;
            let left = Left::new();
            let one = |of| Ok((self.shape_of(unit, of, &left)?, self.spelled(unit, of, 0)?));
            declared.iter().map(|one| one.of).map(one).collect::<gimli::Result<Vec<_>>>().map(Some)
        });
        found.ok()?
    }
    /// The structure or union of this name. If several have it, that of the function's own unit is meant.
    #[must_use]
    pub fn record_shape(&self, name: &str, function: Svma) -> Option<RecordShape> {
        let here = self.with_function(function, |unit, _| self.record_in(unit, name)).ok()?;
        here.or_else(|| self.each_unit(|unit| self.record_in(unit, name)).ok()?)
    }
    fn record_in(&self, unit: UnitOf<'_>, name: &str) -> gimli::Result<Option<RecordShape>> {
        let mut entries = unit.entries();
        while let Some((_, entry)) = entries.next_dfs()? {
            let named = (is_record(entry) || entry.tag() == gimli::DW_TAG_typedef)
                && entry.attr_value(gimli::DW_AT_declaration)?.is_none()
                && self.text(unit, entry, gimli::DW_AT_name)?.is_some_and(|own| own == name);
            if named && entry.tag() == gimli::DW_TAG_typedef {
                let of = self.bare(unit, entry.offset())?;
                // `typedef struct s s;` is followed by the structure's own name, or the structure has none.
                if is_record(&of) && of.attr_value(gimli::DW_AT_declaration)?.is_none() {
                    return self.record(unit, of.offset(), &Left::new()).map(Some);
                }
            } else if named {
                return self.record(unit, entry.offset(), &Left::new()).map(Some);
            }
        }
        Ok(None)
    }
    fn shape_of(&self, unit: UnitOf<'_>, of: UnitOffset, left: &Left) -> gimli::Result<Shape> {
        if !left.enter() {
            return Ok(Shape::Other(self.size(unit, of)?));
        }
        let shape = self.shape_within(unit, of, left);
        left.leave();
        shape
    }
    fn shape_within(&self, unit: UnitOf<'_>, of: UnitOffset, left: &Left) -> gimli::Result<Shape> {
        let entry = self.bare(unit, of)?;
        let bytes = self.size(unit, of)?;
        Ok(match entry.tag() {
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type => {
                let to = Self::type_of(&entry)?;
                let to = to.map_or(Ok(Shape::Void), |to| self.pointee(unit, to, left))?;
                Shape::Pointer(Box::new(to))
            }
            gimli::DW_TAG_array_type => {
                let Some(of) = Self::type_of(&entry)? else { return Ok(Shape::Other(bytes)) };
                let of = self.shape_of(unit, of, left)?;
                let dimensions = self.dimensions(unit, entry.offset())?;
                dimensions.iter().rev().fold(of, |of, count| Shape::Array(Box::new(of), *count))
            }
            _ if is_record(&entry) => match self.text(unit, &entry, gimli::DW_AT_name)? {
                Some(name) => Shape::Record(name, bytes),
                None => match self.typedef(unit, of)? {
                    Some(name) => Shape::Record(name, bytes),
                    None => Shape::Anonymous(self.record(unit, entry.offset(), left)?),
                },
            },
            _ => match self.value_type(unit, of)? {
                ValueType::Bool => Shape::Bool,
                ValueType::Char => Shape::Char,
                ValueType::Integer { bytes, signed } => Shape::Integer { bytes, signed },
                ValueType::Enumeration { bytes, signed, .. } => Shape::Integer { bytes, signed },
                ValueType::Void => Shape::Void,
                _ => Shape::Other(bytes),
            },
        })
    }
    /// The name that a typedef gives to a structure without one.
    fn typedef(&self, unit: UnitOf<'_>, mut of: UnitOffset) -> gimli::Result<Option<String>> {
        for _ in 0..MAX_CHAIN {
            let entry = unit.entry(of)?;
            if entry.tag() == gimli::DW_TAG_typedef {
                return self.text(unit, &entry, gimli::DW_AT_name);
            }
            match Self::type_of(&entry)? {
                Some(next) if !is_record(&entry) => of = next,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
    /// What a pointer leads to. A function, or a type without definition, is nothing that has a size.
    fn pointee(&self, unit: UnitOf<'_>, of: UnitOffset, left: &Left) -> gimli::Result<Shape> {
        match self.bare(unit, of) {
            Ok(entry) if entry.tag() == gimli::DW_TAG_subroutine_type => Ok(Shape::Void),
            Ok(_) => self.shape_of(unit, of, left),
            // `const void` has no type of its own.
            Err(_) => Ok(Shape::Void),
        }
    }
    fn record(&self, unit: UnitOf<'_>, at: UnitOffset, left: &Left) -> gimli::Result<RecordShape> {
        let size = self.size(unit, at)?;
        let mut fields = Vec::new();
        let mut tree = unit.entries_tree(Some(at))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            let is_field = matches!(entry.tag(), gimli::DW_TAG_member | gimli::DW_TAG_inheritance);
            if !is_field || entry.attr_value(gimli::DW_AT_external)?.is_some() {
                continue;
            }
            let (Some(of), Some(offset)) = (Self::type_of(entry)?, member_offset(entry)?) else { continue };
            let shape = self.shape_of(unit, of, left)?;
            match (self.text(unit, entry, gimli::DW_AT_name)?, shape) {
                (Some(name), shape) => {
                    let (offset, bits) = match number(entry, gimli::DW_AT_bit_size)? {
                        Some(count) => bits_of(entry, self.size(unit, of)?, offset, count)?,
                        None => (offset, None),
                    };
                    fields.push(FieldShape { name, of: shape, offset, bits });
                }
                (None, Shape::Anonymous(inner)) => {
                    let moved = inner.fields.into_iter();
                    fields.extend(
                        moved
                            .map(|field| FieldShape { offset: offset.saturating_add(field.offset), ..field }),
                    );
                }
                (None, Shape::Record(..)) => {
                    let base = self.bare(unit, of)?.offset();
                    if base != at && left.enter() {
                        let moved = self.record(unit, base, left);
                        left.leave();
                        let moved = moved?.fields.into_iter();
                        fields.extend(moved.map(|field| FieldShape {
                            offset: offset.saturating_add(field.offset),
                            ..field
                        }));
                    }
                }
                _ => {}
            }
            if fields.len() > MAX_FIELDS {
                break;
            }
        }
        fields.truncate(MAX_FIELDS);
        Ok(RecordShape { fields, size })
    }
    /// A type as C spells it, the stars behind it: `const char* const`.
    fn spelled(&self, unit: UnitOf<'_>, of: UnitOffset, depth: u32) -> gimli::Result<String> {
        let entry = unit.entry(of)?;
        let inner = |after: &str| -> gimli::Result<String> {
            let inner = match Self::type_of(&entry)? {
                Some(of) if depth < MAX_CHAIN => self.spelled(unit, of, depth + 1)?,
                _ => "void".to_owned(),
            };
            Ok(inner + after)
        };
        let is_pointer = || -> gimli::Result<bool> {
            let Some(of) = Self::type_of(&entry)? else { return Ok(false) };
            Ok(unit.entry(of)?.tag() == gimli::DW_TAG_pointer_type)
        };
        let qualified = |word: &str| match is_pointer()? {
            true => inner(&format!(" {word}")),
            false => Ok(format!("{word} {}", inner("")?)),
        };
        match entry.tag() {
            gimli::DW_TAG_pointer_type => inner("*"),
            gimli::DW_TAG_reference_type => inner("&"),
            gimli::DW_TAG_rvalue_reference_type => inner("&&"),
            gimli::DW_TAG_const_type => qualified("const"),
            gimli::DW_TAG_volatile_type => qualified("volatile"),
            gimli::DW_TAG_restrict_type => inner(" restrict"),
            gimli::DW_TAG_array_type => {
                let lens = self.dimensions(unit, of)?;
                inner(&lens.iter().map(|len| format!("[{len}]")).collect::<String>())
            }
            gimli::DW_TAG_enumeration_type => Ok(format!("enum {}", self.called(unit, &entry)?)),
            _ => self.called(unit, &entry),
        }
    }
}

fn is_record(entry: &Entry<'_>) -> bool {
    let records = [gimli::DW_TAG_structure_type, gimli::DW_TAG_class_type, gimli::DW_TAG_union_type];
    records.contains(&entry.tag())
}

pub(crate) fn number(entry: &Entry<'_>, which: gimli::DwAt) -> gimli::Result<Option<u64>> {
    Ok(entry.attr_value(which)?.and_then(|value: AttributeValue<Slice>| value.udata_value()))
}

/// The unit that holds a bit-field, and its bits in it. Older DWARF counts from the unit's highest bit.
pub(crate) fn bits_of(
    entry: &Entry<'_>,
    unit: u64,
    offset: u64,
    count: u64,
) -> gimli::Result<(u64, Option<(u32, u32)>)> {
    let bits = unit.saturating_mul(8);
    let nothing = (offset, None);
    if bits == 0 || count > bits {
        return Ok(nothing);
    }
    let (base, from) = match number(entry, gimli::DW_AT_data_bit_offset)? {
        Some(at) => (at / bits * unit, at % bits),
        None => match number(entry, gimli::DW_AT_bit_offset)? {
            Some(above) => (offset, bits.saturating_sub(above.saturating_add(count))),
            None => (offset, 0),
        },
    };
    Ok(match (u32::try_from(from), u32::try_from(count)) {
        (Ok(from), Ok(count)) => (base, Some((from, count))),
        _ => nothing,
    })
}
