//! Where reports go, and in which format.
//!
//! In: `--json`, `-o` and `-q`. Out: [`Sink`], or why the format cannot be written. Does not: open a file.

use std::path::PathBuf;
use std::time::Duration;

use crate::report::format::{Format, FormatError, choose};

/// Formats of verbs that have no table of numbers.
pub(crate) const LINES: &[Format] = &[Format::Json];
/// Formats of verbs that have numbers.
pub(crate) const TABLES: &[Format] = &[Format::Json, Format::Csv];
/// Formats of `trace`.
pub(crate) const CALLS: &[Format] = &[Format::Json, Format::Csv, Format::Perfetto, Format::Saved];
/// Formats of `trace --from`.
pub(crate) const READ: &[Format] = &[Format::Json, Format::Csv, Format::Perfetto];
/// Formats of `stack`.
pub(crate) const PICTURES: &[Format] =
    &[Format::Json, Format::Html, Format::Folded, Format::Svg, Format::Pprof];
/// Formats of `count` and `lat`.
pub(crate) const REPORTS: &[Format] = &[Format::Json, Format::Csv, Format::Html];

/// Interval of a page's samples if none was typed. A page needs one because it has pictures over time.
const SAMPLED: Duration = Duration::from_millis(250);

/// Where to print, and in which format.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sink {
    /// The format.
    pub(crate) format: Format,
    /// Whether the format is JSON lines.
    pub(crate) json: bool,
    /// The file, if it is not a standard stream.
    pub(crate) output: Option<PathBuf>,
    /// Whether to leave out the summary.
    pub(crate) quiet: bool,
}

impl Sink {
    /// Makes it from what was typed, for a verb that writes text and the formats in `offered`.
    pub(crate) fn new(
        json: bool,
        output: Option<PathBuf>,
        quiet: bool,
        offered: &[Format],
    ) -> Result<Self, FormatError> {
        let format = choose(json, output.as_deref(), offered)?;
        Ok(Self { format, json: format == Format::Json, output, quiet })
    }
    /// The interval of reports if none was typed.
    pub(crate) fn interval(&self) -> Option<Duration> {
        (self.format == Format::Html).then_some(SAMPLED)
    }
}
