//! What may be wrong with a condition's text, and where.
//!
//! In: the text, a range of it, the reason. Out: a message with a mark under the token.

use std::fmt;
use std::ops::Range;

use super::tree::MAX_NODES;

/// A range of bytes in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
}

/// What is wrong with a condition.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Why {
    #[error("`{0}` is nothing that a condition may hold")]
    Stray(char),
    #[error("this is no number; 12, 0xc, 0b1100, 014, 'c' are, and times: 5us, 2ms, 1s")]
    Number,
    #[error("this is no character; 'a' and '\\n' are")]
    Character,
    #[error("a value is missing here")]
    NoValue,
    #[error("an operator is missing here")]
    NoOperator,
    #[error("a `)` is missing here")]
    NoBracket,
    #[error("`{name}` is unknown{near}")]
    Unknown { name: String, near: String },
    #[error("{0}")]
    Path(String),
    #[error("only a constant from 0 to 63 may stand here")]
    Shift,
    #[error("only a constant from 1 on may stand here")]
    Divisor,
    #[error("this always is {0}; a condition depends on the call")]
    Constant(bool),
    #[error("a float may be compared, and no more")]
    Float,
    #[error("only a float or double can be compared with a fraction")]
    Real,
    #[error("these are floats of different widths, which cannot be compared")]
    Widths,
    #[error("a float is compared with a constant or another of its type")]
    Mixed,
    #[error("this is too long: {0} numbers and operators of at most {MAX_NODES}")]
    Long(usize),
    #[error("this is nested too deeply")]
    Deep,
}

/// Why a text is no condition. It is shown with the text, and a mark under the token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterError {
    pub(super) text: String,
    pub(super) span: Span,
    pub(super) why: Why,
}

impl FilterError {
    /// Number of characters before the token that is wrong.
    #[must_use]
    pub fn at(&self) -> usize {
        self.text[..self.span.start].chars().count()
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let token = &self.text[self.span.start..self.span.start + self.span.len];
        let (before, under) = (self.at(), token.chars().count().max(1));
        write!(f, "{}\n    {shown}\n    {}{}", self.why, " ".repeat(before), "^".repeat(under))
    }
}

impl std::error::Error for FilterError {}

/// What is wrong with a path to a field, and in which bytes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misread {
    /// Bytes of the path.
    pub at: Range<usize>,
    /// The explanation, in one line.
    pub why: String,
    /// Nothing has the name with which the path begins.
    pub is_unknown: bool,
}
