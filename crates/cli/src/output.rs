//! Where reports go, and what a failed write means.
//!
//! A reader that is gone (EPIPE, a terminal that hung up) ends the run in good order; a full disk ends it
//! with an error. Both happen only after the target is restored, since the caller detaches first. A file is
//! opened before any process is touched. Invariant: OUT-1 a file's old content is removed only once there is
//! a session to report on. So a mistyped probe does not destroy yesterday's report.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::args::sink::Sink;
use crate::pager::{self, Pages};
use crate::report::visible;

/// Why nothing more can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// The reader is gone.
    #[error("the reader of our output is gone")]
    Gone,
    /// The file cannot be opened.
    #[error("cannot write to {file}: {source}; choose another file with -o")]
    Open {
        /// The file.
        file: String,
        /// The reason.
        source: io::Error,
    },
    /// Signals cannot be caught.
    #[error("cannot catch the signals that end a run: {source}{}", trapline::remedy(source))]
    Signals {
        /// The reason.
        source: io::Error,
    },
    /// A write failed.
    #[error("cannot write to {file}: {source}; make room or choose another file with -o")]
    Write {
        /// The file or stream.
        file: String,
        /// The reason.
        source: io::Error,
    },
}

/// An output for reports.
#[derive(Debug)]
pub(crate) enum Output {
    /// Standard output.
    Stdout,
    /// Standard error, because the launched command uses standard output.
    Stderr,
    /// Standard output, by a pager if the text is long.
    Pages(Pages),
    /// `-o FILE`.
    File(ReportFile),
}

/// A file for reports.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    file: File,
    /// Whether we created it.
    is_new: bool,
}

impl Output {
    /// Opens the output that `sink` names. `shared` is true when a launched command writes to our standard
    /// output.
    pub(crate) fn open(sink: &Sink, shared: bool) -> Result<Self, OutputError> {
        let mut output = Self::reserve(sink, shared)?;
        output.begin()?;
        Ok(output)
    }
    /// Opens it without changing a file. The caller then calls [`begin`](Self::begin), or
    /// [`release`](Self::release) if there is nothing to report on.
    pub(crate) fn reserve(sink: &Sink, shared: bool) -> Result<Self, OutputError> {
        match &sink.output {
            Some(path) => {
                let failed = |source| OutputError::Open { file: path.display().to_string(), source };
                ReportFile::open(path).map(Self::File).map_err(failed)
            }
            None if shared => Ok(Self::Stderr),
            None => Ok(Self::Stdout),
        }
    }
    /// Standard output for a text that may be long. The caller ends it ([`end`](Self::end)).
    pub(crate) fn pages(paged: bool) -> Self {
        if paged { Self::Pages(Pages::new()) } else { Self::Stdout }
    }
    /// Ends a text that may be long: a pager shows it until the user leaves it.
    pub(crate) fn end(&mut self) -> Result<(), OutputError> {
        let Self::Pages(pages) = self else { return Ok(()) };
        let result = pages.end();
        self.written(result)
    }
    /// Empties the file; its old content is gone from here on.
    pub(crate) fn begin(&mut self) -> Result<(), OutputError> {
        let Self::File(place) = self else { return Ok(()) };
        place.empty().map_err(|source| OutputError::Open { file: self.name(), source })
    }
    /// Says in it why nothing was begun, and gives it up. A file keeps what it holds, so only a stream says so.
    pub(crate) fn refuse(&mut self, text: &str) {
        let is_file = matches!(self, Self::File(place) if place.is_regular());
        if !is_file {
            // A reader that is gone has nothing to read.
            drop(self.print(text));
        }
        self.release();
    }
    /// Gives up an output in which nothing was begun. A file that was created for it is removed, and any
    /// other file is left unchanged.
    pub(crate) fn release(&self) {
        if let Self::File(ReportFile { path, is_new: true, .. }) = self {
            // Another process may have removed it already.
            drop(fs::remove_file(path));
        }
    }
    /// Whether reports and messages share a stream.
    pub(crate) const fn is_stderr(&self) -> bool {
        matches!(self, Self::Stderr)
    }
    /// Writes all of a text, made safe for a terminal. The escapes mean the same in JSON.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), OutputError> {
        self.bytes(visible::lines(text).as_bytes())
    }
    /// Rows and columns of the terminal, if standard output is one.
    pub(crate) fn size(&self) -> Option<(usize, usize)> {
        let output = matches!(self, Self::Stdout).then(io::stdout).filter(io::Stdout::is_terminal)?;
        let size = rustix::termios::tcgetwinsize(&output).ok()?;
        (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row.into(), size.ws_col.into()))
    }
    /// The same of a text that may be long: on a terminal, and with `paged`, by a pager.
    pub(crate) fn page(&mut self, text: &str, paged: bool) -> Result<(), OutputError> {
        let text = visible::lines(text);
        let is_shown = paged && matches!(self, Self::Stdout) && pager::show(text.as_bytes());
        if is_shown { Ok(()) } else { self.bytes(text.as_bytes()) }
    }
    /// Writes bytes that may not be text.
    pub(crate) fn bytes(&mut self, text: &[u8]) -> Result<(), OutputError> {
        let result = match self {
            Self::Stdout => write(&mut io::stdout().lock(), text),
            Self::Stderr => write(&mut io::stderr().lock(), text),
            Self::Pages(pages) => pages.write(text),
            Self::File(place) => write(&mut place.file, text),
        };
        self.written(result)
    }
    fn written(&self, result: io::Result<()>) -> Result<(), OutputError> {
        result.map_err(|source| match source.raw_os_error() {
            Some(EPIPE) => OutputError::Gone,
            // A terminal that hung up returns EIO.
            Some(EIO) if !matches!(self, Self::File(_)) => OutputError::Gone,
            _ => OutputError::Write { file: self.name(), source },
        })
    }
    fn name(&self) -> String {
        match self {
            Self::Stdout | Self::Pages(_) => "standard output".to_owned(),
            Self::Stderr => "standard error".to_owned(),
            Self::File(place) => place.path.display().to_string(),
        }
    }
}

impl ReportFile {
    fn open(path: &Path) -> io::Result<Self> {
        // It is our reader's: a program that we launch and that lives on would keep it waiting.
        if let Some(number) = inherited(path) {
            trapline::withhold(number);
        }
        let place = |file, is_new| Self { path: path.to_owned(), file, is_new };
        match File::create_new(path) {
            Ok(file) => Ok(place(file, true)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // The path may be a link to a file that does not exist yet. Then that file is created.
                let is_new = !path.exists();
                let opened = File::options().write(true).create(is_new).truncate(false).open(path);
                opened.map(|file| place(file, is_new))
            }
            Err(error) => Err(error),
        }
    }
    /// Empties a regular file. Devices and pipes have no content to remove.
    fn empty(&self) -> io::Result<()> {
        if self.is_regular() { self.file.set_len(0) } else { Ok(()) }
    }
    fn is_regular(&self) -> bool {
        self.file.metadata().is_ok_and(|data| data.is_file())
    }
}

/// The number of a descriptor that we were started with, if a path names one, beyond the standard streams.
fn inherited(path: &Path) -> Option<i32> {
    let path = path.to_str()?;
    let number = path.strip_prefix("/proc/self/fd/").or_else(|| path.strip_prefix("/dev/fd/"))?;
    number.parse().ok().filter(|number| *number > 2)
}

const EIO: i32 = 5;
const EPIPE: i32 = 32;

fn write(to: &mut impl Write, text: &[u8]) -> io::Result<()> {
    to.write_all(text)?;
    to.flush()
}

/// Prints a line for the user on standard error. An error is ignored, since it could not be reported
/// anywhere.
pub(crate) fn print_line(line: &str) {
    drop(writeln!(io::stderr().lock(), "{}", visible::lines(line)));
}

#[cfg(test)]
mod tests {
    use super::inherited;
    use std::path::Path;

    #[test]
    fn only_descriptors_beyond_the_standard_streams_are_kept_back() {
        let of = |path: &str| inherited(Path::new(path));
        assert_eq!([of("/proc/self/fd/7"), of("/dev/fd/12")], [Some(7), Some(12)]);
        for path in
            ["/proc/self/fd/1", "/dev/fd/2", "/dev/fd/", "/dev/fd/7/x", "/dev/fd/-1", "7", "/dev/stdout"]
        {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
