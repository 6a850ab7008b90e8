//! A function's parameters and value, as its compiler noted them, and the registers that hold them.
//!
//! In: DWARF and a function's address, or BTF and its name. Out: a [`Prototype`]. The registers follow from the types ([`passing`]).
//! Invariants: PRO-1 from a type on whose way of passing is not known for certain, no parameter has a register.
//! Does not: know calling conventions but C's.

mod btf;
mod dwarf;
mod entry;
mod passing;

pub use btf::Btf;
pub(crate) use dwarf::Declared;

/// How a value is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// Nothing is returned.
    Void,
    /// An integer of 1, 2, 4 or 8 bytes.
    Integer {
        /// How wide.
        bytes: u8,
        /// With a sign.
        signed: bool,
    },
    /// A character of one byte.
    Char,
    /// True or false.
    Bool,
    /// A float of 4 or 8 bytes.
    Float(u8),
    /// An address.
    Pointer,
    /// The address of a character.
    Text,
    /// One of named numbers.
    Enumeration {
        /// How wide.
        bytes: u8,
        /// With a sign.
        signed: bool,
        /// Each with its value.
        names: Vec<(String, i128)>,
    },
    /// What fits into no register, or is no single value; what it is called.
    Other(String),
    /// A value that the compiler may have removed, since no caller asks for it.
    Unknown,
}

/// Where a parameter lies at the function's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParameterPlace {
    /// In the general register for arguments of this number, from 0 on.
    General(u8),
    /// In the vector register for arguments of this number.
    Vector(u8),
    /// In several registers, on the stack, or nobody knows.
    Elsewhere,
}

/// One parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredParameter {
    /// Its name; empty if it has none.
    pub name: String,
    /// What it is.
    pub of: ValueType,
    /// Where.
    pub place: ParameterPlace,
}

/// What a function takes and returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prototype {
    /// In their order.
    pub parameters: Vec<DeclaredParameter>,
    /// What it returns.
    pub value: ValueType,
}
