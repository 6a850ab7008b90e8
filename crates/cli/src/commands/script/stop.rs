//! Why a run did not begin, and messages in bpftrace's form.
//!
//! In: messages. Out: errors, and lines on standard error. Does not: know what went wrong.

use std::io::{self, Write};

use crate::commands::Failure;

/// Why a run did not begin.
#[derive(Debug)]
pub(super) enum Stop {
    /// In bpftrace's words.
    Said(String),
    /// In ours.
    Failure(Failure),
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failure(error.into())
    }
}

/// A message in bpftrace's form, which needs no prefix.
pub(super) fn said(text: impl std::fmt::Display) -> Stop {
    Stop::Said(format!("ERROR: {text}\n"))
}

/// Writes messages. An error is ignored, since it could not be reported anywhere.
pub(super) fn say(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}
