//! What types consist of: for whoever computes where parts of a value are.
//!
//! In: DWARF, a function's address or the name of a structure. Out: [`Shape`]s of its parameters, the fields of a
//! structure. Invariants: IMG-3: types that contain themselves end each walk; what a pointer leads to is named, not
//! walked. Does not: know where values are.

use std::cell::Cell;

use trapline_record::Svma;

use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry, MAX_CHAIN};
use crate::prototype::ValueType;
use crate::sections::UnitOf;
use crate::types::{bits_of, member_offset};

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
        let entry = self.function(function).ok()??;
        let left = Left::new();
        let one = |of| Ok::<_, gimli::Error>((self.shape_of(of, &left)?, self.spelled(of, 0)?));
        self.parameters(&entry).ok()?.iter().map(|one| one.of).map(|of| one(of).ok()).collect()
    }
    /// How C spells the type of a function's value; `void` if it has none.
    #[must_use]
    pub fn value_spelled(&self, function: Svma) -> Option<String> {
        let entry = self.function(function).ok()??;
        if self.language(&entry).ok()? == Some(gimli::DW_LANG_Go) {
            let results = self.results(&entry).ok()?.into_iter().map(|(_, of)| self.spelled(of, 0).ok());
            let spelled = results.collect::<Option<Vec<String>>>()?;
            return Some(match &spelled[..] {
                [] => "void".to_owned(),
                [one] => one.clone(),
                all => format!("({})", all.join(", ")),
            });
        }
        match self.returned(&entry).ok()? {
            Some(of) => self.spelled(of, 0).ok(),
            None => Some("void".to_owned()),
        }
    }
    /// The structure or union of this name. If several have it, that of the function's own unit is meant.
    #[must_use]
    pub fn record_shape(&self, name: &str, function: Svma) -> Option<RecordShape> {
        let entry = self.function(function).ok()?;
        let source = entry.as_ref().and_then(|entry| self.source(entry).ok());
        let here = source.and_then(|source| self.record_in(source.unit(), name).ok()?);
        here.or_else(|| self.each_unit(|unit| self.record_in(unit, name)).ok()?)
    }
    fn record_in(&self, unit: UnitOf<'_>, name: &str) -> gimli::Result<Option<RecordShape>> {
        let mut entries = unit.unit.entries();
        while let Some((_, entry)) = entries.next_dfs()? {
            let entry = Entry::new(unit, entry.clone());
            let is_typedef = entry.tag() == gimli::DW_TAG_typedef;
            let is_named = |of: &Entry<'_>| Ok::<_, gimli::Error>(of.name()?.is_some_and(|own| own == name));
            if !(entry.is_record() || is_typedef && is_named(&entry)?) {
                continue;
            }
            // `typedef struct s s;` is followed by the structure's own name, or the structure has none. A type unit has
            // the name of its structure.
            let of = self.bare(entry.at())?;
            if of.is_record() && !of.has(gimli::DW_AT_declaration)? && (is_typedef || is_named(&of)?) {
                return self.record(&of, &Left::new()).map(Some);
            }
        }
        Ok(None)
    }
    fn shape_of(&self, of: At<'_>, left: &Left) -> gimli::Result<Shape> {
        if !left.enter() {
            return Ok(Shape::Other(self.size(of)?));
        }
        let shape = self.shape_within(of, left);
        left.leave();
        shape
    }
    fn shape_within(&self, of: At<'_>, left: &Left) -> gimli::Result<Shape> {
        let entry = self.bare(of)?;
        let bytes = self.size(of)?;
        Ok(match entry.tag() {
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type => {
                let to = self.type_of(&entry)?;
                let to = to.map_or(Ok(Shape::Void), |to| self.pointee(to, left))?;
                Shape::Pointer(Box::new(to))
            }
            gimli::DW_TAG_array_type => {
                let Some(of) = self.type_of(&entry)? else { return Ok(Shape::Other(bytes)) };
                let of = self.shape_of(of, left)?;
                let dimensions = self.dimensions(&entry)?;
                dimensions.iter().rev().fold(of, |of, count| Shape::Array(Box::new(of), *count))
            }
            _ if entry.is_record() => match entry.name()? {
                Some(name) => Shape::Record(name, bytes),
                None => match self.typedef(of)? {
                    Some(name) => Shape::Record(name, bytes),
                    None => Shape::Anonymous(self.record(&entry, left)?),
                },
            },
            _ => match self.value_type(of)? {
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
    fn typedef<'u>(&'u self, mut of: At<'u>) -> gimli::Result<Option<String>> {
        for _ in 0..MAX_CHAIN {
            let entry = of.entry()?;
            if entry.tag() == gimli::DW_TAG_typedef {
                return entry.name();
            }
            match self.type_of(&entry)? {
                Some(next) if !entry.is_record() => of = next,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
    /// What a pointer leads to. A function, or a type without definition, is nothing that has a size.
    fn pointee(&self, of: At<'_>, left: &Left) -> gimli::Result<Shape> {
        match self.bare(of) {
            Ok(entry) if entry.tag() == gimli::DW_TAG_subroutine_type => Ok(Shape::Void),
            Ok(_) => self.shape_of(of, left),
            // `const void` has no type of its own.
            Err(_) => Ok(Shape::Void),
        }
    }
    fn record(&self, of: &Entry<'_>, left: &Left) -> gimli::Result<RecordShape> {
        let size = self.size(of.at())?;
        let mut fields = Vec::new();
        for entry in &of.parts()? {
            let (Some(part), Some(offset)) = (self.type_of(entry)?, member_offset(entry)?) else { continue };
            let shape = self.shape_of(part, left)?;
            match (entry.name()?, shape) {
                (Some(name), shape) => {
                    let (offset, bits) = match entry.number(gimli::DW_AT_bit_size)? {
                        Some(count) => bits_of(entry, self.size(part)?, offset, count)?,
                        None => (offset, None),
                    };
                    let is_known = bits.is_some() || !entry.has(gimli::DW_AT_bit_size)?;
                    let of = if is_known { shape } else { Shape::Other(self.size(part)?) };
                    fields.push(FieldShape { name, of, offset, bits });
                }
                (None, Shape::Anonymous(inner)) => {
                    let moved = inner.fields.into_iter();
                    fields.extend(
                        moved
                            .map(|field| FieldShape { offset: offset.saturating_add(field.offset), ..field }),
                    );
                }
                (None, Shape::Record(..)) => {
                    let base = self.bare(part)?;
                    if base.at().id() != of.at().id() && left.enter() {
                        let moved = self.record(&base, left);
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
    fn spelled(&self, of: At<'_>, depth: u32) -> gimli::Result<String> {
        let entry = self.definition(of.entry()?)?;
        let inner = |after: &str| -> gimli::Result<String> {
            let inner = match self.type_of(&entry)? {
                Some(of) if depth < MAX_CHAIN => self.spelled(of, depth + 1)?,
                _ => "void".to_owned(),
            };
            Ok(inner + after)
        };
        let is_pointer = || -> gimli::Result<bool> {
            let Some(of) = self.type_of(&entry)? else { return Ok(false) };
            Ok(of.entry()?.tag() == gimli::DW_TAG_pointer_type)
        };
        let qualified = |word: &str| match is_pointer()? {
            true => inner(&format!(" {word}")),
            false => Ok(format!("{word} {}", inner("")?)),
        };
        if let Some(spelled) = entry.spelled_by_go()? {
            return Ok(spelled);
        }
        match entry.tag() {
            gimli::DW_TAG_pointer_type => inner("*"),
            gimli::DW_TAG_reference_type => inner("&"),
            gimli::DW_TAG_rvalue_reference_type => inner("&&"),
            gimli::DW_TAG_const_type => qualified("const"),
            gimli::DW_TAG_volatile_type => qualified("volatile"),
            gimli::DW_TAG_restrict_type => inner(" restrict"),
            gimli::DW_TAG_array_type => {
                let lens = self.dimensions(&entry)?;
                inner(&lens.iter().map(|len| format!("[{len}]")).collect::<String>())
            }
            gimli::DW_TAG_enumeration_type => Ok(format!("enum {}", self.called(&entry)?)),
            _ => self.called(&entry),
        }
    }
}
