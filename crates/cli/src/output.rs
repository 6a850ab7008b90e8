//! Where reports go, and what a failed write means.
//!
//! A reader that went away (EPIPE, a terminal that hung up) ends the run in good order; a full disk ends it with an
//! error. Both only after the target is itself again: the caller detaches first. A file is opened before any process is touched, and what it held
//! is gone only once there is a session to report of (OUT-1), so that a mistyped probe costs nobody yesterday's report.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::args::sink::Sink;
use crate::report::visible;
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
    File(Place),
}

/// A file for reports.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    file: File,
    /// It was not there before.
    is_new: bool,
}

impl Output {
    /// Opens the place that `sink` names; `shared` when a launched command writes to our standard output.
    pub(crate) fn open(sink: &Sink, shared: bool) -> Result<Self, OutputError> {
        let mut output = Self::reserve(sink, shared)?;
        output.begin()?;
        Ok(output)
    }
    /// The same for who may find that there is nothing to report of: then [`release`](Self::release), else [`begin`](Self::begin).
    pub(crate) fn reserve(sink: &Sink, shared: bool) -> Result<Self, OutputError> {
        match &sink.output {
            Some(path) => {
                let failed = |source| OutputError::Open { file: path.display().to_string(), source };
                Place::open(path).map(Self::File).map_err(failed)
            }
            None if shared => Ok(Self::Stderr),
            None => Ok(Self::Stdout),
        }
    }
    /// What a file held is gone from here on.
    pub(crate) fn begin(&mut self) -> Result<(), OutputError> {
        let Self::File(place) = self else { return Ok(()) };
        place.empty().map_err(|source| OutputError::Open { file: self.name(), source })
    }
    /// Nothing was begun: a file that was made for it goes, and another one is as it was.
    pub(crate) fn release(&self) {
        if let Self::File(Place { path, is_new: true, .. }) = self {
            // Who took it away meanwhile was quicker.
            drop(fs::remove_file(path));
        }
    }
    /// Whether reports and messages share a stream.
    pub(crate) const fn is_stderr(&self) -> bool {
        matches!(self, Self::Stderr)
    }
    /// Writes all of a text, harmless to a terminal. What is escaped so means the same in JSON.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), OutputError> {
        self.bytes(visible::lines(text).as_bytes())
    }
    /// Writes all of what may be no text.
    pub(crate) fn bytes(&mut self, text: &[u8]) -> Result<(), OutputError> {
        let result = match self {
            Self::Stdout => write(&mut io::stdout().lock(), text),
            Self::Stderr => write(&mut io::stderr().lock(), text),
            Self::File(place) => write(&mut place.file, text),
        };
        result.map_err(|source| match source.raw_os_error() {
            Some(EPIPE) => OutputError::Gone,
            // A terminal that hung up says EIO.
            Some(EIO) if !matches!(self, Self::File(_)) => OutputError::Gone,
            _ => OutputError::Write { file: self.name(), source },
        })
    }
    fn name(&self) -> String {
        match self {
            Self::Stdout => "standard output".to_owned(),
            Self::Stderr => "standard error".to_owned(),
            Self::File(place) => place.path.display().to_string(),
        }
    }
}

impl Place {
    fn open(path: &Path) -> io::Result<Self> {
        let place = |file, is_new| Self { path: path.to_owned(), file, is_new };
        match File::create_new(path) {
            Ok(file) => Ok(place(file, true)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // A name that leads nowhere yet is made where it leads.
                let is_new = !path.exists();
                let opened = File::options().write(true).create(is_new).truncate(false).open(path);
                opened.map(|file| place(file, is_new))
            }
            Err(error) => Err(error),
        }
    }
    /// Devices and pipes hold nothing.
    fn empty(&self) -> io::Result<()> {
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
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
    drop(writeln!(io::stderr().lock(), "{}", visible::lines(line)));
}
