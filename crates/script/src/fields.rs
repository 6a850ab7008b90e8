//! Structures as they are laid out: fields with their places.
//!
//! In: nothing. Out: plain data. Does not: lay out.

use crate::types::Type;

/// Where a field's bits are in the integer that holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    /// The lowest bit.
    pub from: u32,
    /// How many.
    pub count: u32,
}

/// A field of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Bytes before it.
    pub offset: u32,
    /// If it is a bit field.
    pub bits: Option<Bits>,
}

/// A structure or union.
#[derive(Debug, Clone, Default)]
pub struct Struct {
    /// Its fields in order.
    pub fields: Vec<Field>,
    /// Its size in bytes.
    pub size: u32,
    pub(crate) align: u32,
}

impl Struct {
    /// A structure whose fields have their places.
    pub const fn new(fields: Vec<Field>, size: u32) -> Self {
        Self { fields, size, align: 1 }
    }
    /// A field by name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}
