//! Where reports go, and what a failed write means.
//!
//! A reader that went away (EPIPE, a terminal that hung up) ends the run in good order; a full disk ends it with an
//! error. Both only after the target is itself again: the caller detaches first.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::args::sink::Sink;
use crate::serve::outlets::OutletError;

/// Why nothing more can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// Nobody reads any more.
    #[error("the reader of our output is gone")]
    Gone,
    /// The file cannot be made.
    #[error("cannot write to {file}: {source}; choose another file with -o")]
    Open {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Metrics were not taken.
    #[error(transparent)]
    Outlet(#[from] OutletError),
    /// A write failed.
    #[error("cannot write to {file}: {source}; make room or choose another file with -o")]
    Write {
        /// The file or stream.
        file: String,
        /// Why.
        source: io::Error,
    },
}

/// A place for reports.
#[derive(Debug)]
pub(crate) enum Output {
    /// Standard output.
    Stdout,
    /// Standard error: the launched command owns standard output.
    Stderr,
    /// `-o FILE`.
    File(String, File),
}

impl Output {
    /// Opens the place that `sink` names; `shared` when a launched command writes to our standard output.
    pub(crate) fn open(sink: &Sink, shared: bool) -> Result<Self, OutputError> {
        match &sink.output {
            Some(path) => Self::create(path),
            None if shared => Ok(Self::Stderr),
            None => Ok(Self::Stdout),
        }
    }
    fn create(path: &Path) -> Result<Self, OutputError> {
        let file = path.display().to_string();
        match File::create(path) {
            Ok(opened) => Ok(Self::File(file, opened)),
            Err(source) => Err(OutputError::Open { file, source }),
        }
    }
    /// Whether reports and messages share a stream.
    pub(crate) const fn is_stderr(&self) -> bool {
        matches!(self, Self::Stderr)
    }
    /// Writes all of a text.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), OutputError> {
        self.bytes(text.as_bytes())
    }
    /// Writes all of what may be no text.
    pub(crate) fn bytes(&mut self, text: &[u8]) -> Result<(), OutputError> {
        let (result, file, is_stream) = match self {
            Self::Stdout => (write(&mut io::stdout().lock(), text), "standard output", true),
            Self::Stderr => (write(&mut io::stderr().lock(), text), "standard error", true),
            Self::File(name, file) => (write(file, text), name.as_str(), false),
        };
        result.map_err(|source| match source.raw_os_error() {
            Some(EPIPE) => OutputError::Gone,
            // A terminal that hung up says EIO.
            Some(EIO) if is_stream => OutputError::Gone,
            _ => OutputError::Write { file: file.to_owned(), source },
        })
    }
}

const EIO: i32 = 5;
const EPIPE: i32 = 32;

fn write(to: &mut impl Write, text: &[u8]) -> io::Result<()> {
    to.write_all(text)?;
    to.flush()
}

/// A line for the user, on standard error. If nobody reads that, there is nobody to tell.
pub(crate) fn say(line: &str) {
    drop(writeln!(io::stderr().lock(), "{line}"));
}
