//! Where a run writes: reports to its output, notices and the summary to the user.
//!
//! In: what the command line says about output. Out: text that is written. Does not: render anything.

use trapline::{Error, Target};

use crate::args::sink::Sink;
use crate::output::{Output, OutputError, print_line};
use crate::report::format::Format;
use crate::report::json;

/// The sinks of a run.
#[derive(Debug)]
pub(crate) struct Sinks {
    /// The output for reports.
    pub(crate) output: Output,
    /// Whether notices and the summary are printed.
    pub(crate) talkative: bool,
    /// The format of reports.
    pub(crate) format: Format,
}

impl Sinks {
    /// Opens the output without changing a file; see [`Output::reserve`].
    pub(crate) fn open(sink: &Sink, target: &Target) -> Result<Self, OutputError> {
        let output = Output::reserve(sink, matches!(target, Target::Launch(_)))?;
        let talkative = !(sink.quiet || sink.json && output.is_stderr());
        Ok(Self { output, talkative, format: sink.format })
    }
    /// Gives the output up, since nothing was begun. A reader of JSON is told why.
    pub(crate) fn refuse(&mut self, error: &Error) {
        match self.format {
            Format::Json => self.output.refuse(&json::error(error)),
            _ => self.output.release(),
        }
    }
    /// Prints notices.
    pub(crate) fn notices(&self, notices: impl IntoIterator<Item = String>) {
        if self.talkative {
            notices.into_iter().for_each(|notice| print_line(&format!("trapline: {notice}")));
        }
    }
    /// Prints the closing summary; into the file if that holds text for people.
    pub(crate) fn summary(&mut self, text: &str) -> Result<(), OutputError> {
        match &mut self.output {
            _ if !self.talkative => Ok(()),
            Output::File(..) if self.format == Format::Text => self.output.print(text),
            _ => {
                print_line(text.trim_end());
                Ok(())
            }
        }
    }
}
