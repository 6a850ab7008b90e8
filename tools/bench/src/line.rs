//! The form in which every bench emits its rows.

use serde::Serialize;

/// A row that can be shown: JSON by its fields, or text.
pub(crate) trait Line: Serialize {
    /// One line for people.
    fn text(&self) -> String;
}
