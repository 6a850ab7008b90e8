//! Where reports go, and as what.

use std::path::PathBuf;
use std::time::Duration;

use crate::report::format::{Format, FormatError, choose};

/// What verbs write that have no table of numbers.
pub(crate) const LINES: &[Format] = &[Format::Json];
/// What verbs with numbers write.
pub(crate) const TABLES: &[Format] = &[Format::Json, Format::Csv];
/// What `trace` writes.
pub(crate) const CALLS: &[Format] = &[Format::Json, Format::Csv, Format::Perfetto, Format::Saved];
/// What it writes of a recording.
pub(crate) const READ: &[Format] = &[Format::Json, Format::Csv, Format::Perfetto];
/// What `count` and `lat` write.
pub(crate) const REPORTS: &[Format] = &[Format::Json, Format::Csv, Format::Html];

/// A page has pictures over time, so it is sampled where nobody says how often.
const SAMPLED: Duration = Duration::from_millis(250);

/// Where and how to print.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sink {
    /// What is written.
    pub(crate) format: Format,
    /// Whether that is JSON lines.
    pub(crate) json: bool,
    /// A file instead of a standard stream.
    pub(crate) output: Option<PathBuf>,
    /// No summary.
    pub(crate) quiet: bool,
}

impl Sink {
    /// From what was typed, for a verb that writes text and what is `offered`.
    pub(crate) fn new(
        json: bool,
        output: Option<PathBuf>,
        quiet: bool,
        offered: &[Format],
    ) -> Result<Self, FormatError> {
        let format = choose(json, output.as_deref(), offered)?;
        Ok(Self { format, json: format == Format::Json, output, quiet })
    }
    /// How often to report where it is not said.
    pub(crate) fn interval(&self) -> Option<Duration> {
        (self.format == Format::Html).then_some(SAMPLED)
    }
}
