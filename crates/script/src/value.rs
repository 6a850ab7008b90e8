//! Values, while a script runs.
//!
//! In: nothing. Out: plain data; the type of an expression says how its value is to be read. Invariant: an integer is
//! kept in 64 bits, extended by its type's own sign. Does not: know types.

use std::rc::Rc;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) enum Value {
    /// What has no value, or has not been assigned: zero of every type.
    #[default]
    Nothing,
    Int(i64),
    /// A text, without its end.
    Text(Rc<[u8]>),
    /// Bytes of a buffer, a structure or an array.
    Bytes(Rc<[u8]>),
    /// Parts of a tuple or a record.
    Parts(Rc<[Self]>),
    /// Return addresses, the innermost first, with the mode in which they are shown.
    Stack(Rc<[u64]>, StackMode),
    /// A text that stands for a number, which JSON and sorting keep.
    Named(Rc<str>, u64),
}

/// How a stack is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum StackMode {
    /// `name+offset`.
    #[default]
    Names,
    /// `address name+offset (file)`.
    Perf,
    /// Addresses.
    Raw,
    /// The build id of the code's file, and the offset in it.
    BuildId,
}

impl StackMode {
    pub(crate) fn of(word: &str) -> Self {
        match word {
            "perf" => Self::Perf,
            "raw" => Self::Raw,
            "build_id" => Self::BuildId,
            _ => Self::Names,
        }
    }
}

impl Value {
    /// The number; 0 of what is none.
    pub(crate) fn int(&self) -> i64 {
        match self {
            Self::Int(value) => *value,
            Self::Named(_, value) => *value as i64,
            _ => 0,
        }
    }
    pub(crate) fn is_true(&self) -> bool {
        self.int() != 0
    }
    /// The text; empty of what is none.
    pub(crate) fn text(&self) -> &[u8] {
        match self {
            Self::Text(text) | Self::Bytes(text) => text,
            Self::Named(text, _) => text.as_bytes(),
            _ => &[],
        }
    }
    pub(crate) fn of_text(text: &[u8]) -> Self {
        Self::Text(text.into())
    }
    /// A part of a tuple.
    pub(crate) fn part(&self, index: usize) -> Self {
        match self {
            Self::Parts(parts) => parts.get(index).cloned().unwrap_or_default(),
            _ => Self::Nothing,
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(i64::from(value))
    }
}
