//! What conditions know of a probe's values.
//!
//! In: a parameter, with its place and type. Out: where the target finds the number; none of what is no number. Does not: read
//! conditions.

use trapline::filter::Known;

use super::types::{ArgumentPlace, Parameter, Type};

impl Parameter {
    /// What a condition knows of it, if it is a number.
    pub(crate) fn known(&self) -> Option<Known> {
        Some(match (self.place, self.shown.int(), &self.shown) {
            (ArgumentPlace::General(n), Some(int), _) => Known::Argument(n, int),
            (ArgumentPlace::General(n), _, Type::Float(float)) => Known::FloatArgument(n, *float),
            (ArgumentPlace::Kept { argument, .. }, Some(int), _) => Known::Argument(argument, int),
            // The field of a text is the text.
            (ArgumentPlace::Field(_), _, Type::Str | Type::Buf(_) | Type::BufField(_)) => return None,
            (ArgumentPlace::Field(n), Some(int), _) => Known::Field(n, int),
            (ArgumentPlace::Field(n), _, Type::Float(float)) => Known::FloatField(n, *float),
            (ArgumentPlace::Vector(n), _, Type::Float(float)) => Known::Float(n, *float),
            _ => return None,
        })
    }
}
