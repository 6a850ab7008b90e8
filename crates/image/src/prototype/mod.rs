//! A function's parameters and return value, as its compiler recorded them, and the registers that hold them.
//!
//! In: DWARF and a function's address, or BTF and its name. Out: a [`Prototype`]. The registers follow from
//! the types ([`passing`], [`passing_aarch64`], [`go`]). Invariants: PRO-1 if it is not known for certain how a type is passed,
//! neither that parameter nor any later one has a register, but where the compiler noted one (`entry`).
//! Does not: know calling conventions other than C's and Go's.

mod btf;
mod dwarf;
mod entry;
mod go;
mod parts;
mod passing;
mod passing_aarch64;
mod rust;

pub use btf::Btf;
pub(crate) use entry::{GENERAL, GO_GENERAL};
pub use parts::{Form, LaidOut, Layout, MOST_BYTES, MOST_READ, Parts, Piece, Whereabouts};

/// Type of a value, as far as it matters for showing the value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// Nothing is returned.
    Void,
    /// An integer of 1, 2, 4 or 8 bytes.
    Integer {
        /// Width in bytes.
        bytes: u8,
        /// Whether it is signed.
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
    /// The address of a function.
    Code,
    /// The address of a character.
    Text,
    /// One of several named numbers.
    Enumeration {
        /// Width in bytes.
        bytes: u8,
        /// Whether it is signed.
        signed: bool,
        /// Each name with its value.
        names: Vec<(String, i128)>,
    },
    /// A value that fits into no register, or consists of several; the name of its type.
    Other(String),
    /// A value that the compiler may have removed, since no caller uses it.
    Unknown,
}

/// Place of a parameter at the function's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParameterPlace {
    /// In the general argument register of this number, counted from 0, by the function's own convention.
    General(u8),
    /// In the vector argument register of this number.
    Vector(u8),
    /// On the stack, at this distance from the stack pointer of the function's entry.
    Stack(i32),
    /// In several registers or words of the stack, or unknown.
    Elsewhere,
}

/// One parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredParameter {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its type.
    pub of: ValueType,
    /// Its place at the function's entry.
    pub place: ParameterPlace,
    /// Of what it consists and where that is, if it consists of several values or takes more than one register.
    pub parts: Option<Parts>,
}

/// The parameters and the return value of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prototype {
    /// The parameters, in order.
    pub parameters: Vec<DeclaredParameter>,
    /// The return value.
    pub value: ValueType,
    /// Of what that consists, and in which of the registers for values that is; as [`DeclaredParameter::parts`].
    pub value_parts: Option<Parts>,
}

/// A parameter as the source declares it.
#[derive(Clone, Debug)]
pub(crate) struct Declared<'u> {
    /// Its entry, to which the entry in a compiled copy refers.
    pub(crate) at: crate::sections::EntryId,
    pub(crate) name: String,
    pub(crate) of: crate::entries::At<'u>,
}
