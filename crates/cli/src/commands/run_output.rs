//! What every run of a session shares: its begin, and what is reported and waited for when everything is
//! detached.
//!
//! In: a command line's run, and a function that starts its session. Out: the session, with the signals that
//! end it and the output for its reports; at its end an exit status. Invariants: READY-1 signals are caught
//! and the output is open before any process is touched; READY-2 signals are caught before there is another
//! thread, which could receive them. Does not: follow the session.

use trapline::{Builder, Error, Finished, Interrupts, Session, Target};

use super::intervals::{builder, wait};
use super::{Failure, Outcome};
use crate::args::command::Run;
use crate::output::{Output, OutputError, print_line};
use crate::report::format::Format;
use crate::report::{json, summary};

/// What a run has besides its session.
#[derive(Debug)]
pub(crate) struct RunOutput {
    /// Signals that end it.
    pub(crate) interrupts: Interrupts,
    /// The output for reports.
    pub(crate) output: Output,
    /// Whether notices and the summary are printed.
    pub(crate) talkative: bool,
    /// The format of reports.
    format: Format,
}

/// Begins a run.
pub(crate) fn begin(
    run: &Run,
    start: impl FnOnce(Builder) -> Result<Session, Error>,
) -> Result<(RunOutput, Session), Failure> {
    let mut run_output = RunOutput::open(run)?;
    let session = run_output.start(run, start)?;
    Ok((run_output, session))
}

impl RunOutput {
    /// Opens what a run needs; touches no process.
    pub(crate) fn open(run: &Run) -> Result<Self, Failure> {
        let failed = |source| OutputError::Open { file: "the signals that end a run".to_owned(), source };
        let interrupts = Interrupts::new().map_err(failed)?;
        let sink = &run.sink;
        let output = Output::reserve(sink, matches!(run.target, Target::Launch(_)))?;
        let talkative = !(sink.quiet || sink.json && output.is_stderr());
        Ok(Self { interrupts, output, talkative, format: sink.format })
    }
    /// Starts the session, and prints its notices.
    pub(crate) fn start(
        &mut self,
        run: &Run,
        start: impl FnOnce(Builder) -> Result<Session, Error>,
    ) -> Result<Session, Failure> {
        let mut session = start(builder(run)).inspect_err(|_| self.output.release())?;
        self.output.begin()?;
        if self.talkative {
            session.take_notices().iter().for_each(|notice| print_line(&format!("trapline: {notice}")));
        }
        Ok(session)
    }
    /// Prints the summary; into the file if that holds text for people.
    pub(crate) fn summary(&mut self, finished: &Finished) -> Result<(), OutputError> {
        if self.format == Format::Json {
            self.output.print(&json::unprobed(&finished.summary.unprobed))?;
        }
        if !self.talkative {
            return Ok(());
        }
        let text = summary::text(&finished.summary);
        match &mut self.output {
            Output::File(..) if self.format == Format::Text => self.output.print(&text)?,
            _ => print_line(text.trim_end()),
        }
        Ok(())
    }
    /// Returns the outcome of the run; `reported` is the result of its reports. If they were written, it
    /// waits for a launched command and returns that command's status, whatever became of the probes.
    pub(crate) fn end(
        self,
        finished: Finished,
        reported: Result<(), OutputError>,
    ) -> Result<Outcome, Failure> {
        let outcome = match reported {
            // The notices already name what was not undone or was killed. A launched command's status takes
            // precedence.
            _ if finished.summary.undone + finished.summary.killed > 0 && finished.command.is_none() => {
                Outcome::Failed
            }
            Ok(()) | Err(OutputError::Gone) => Outcome::Done,
            Err(error) => {
                print_line(&format!("trapline: {error}"));
                Outcome::Failed
            }
        };
        let outcome = match finished.command {
            Some(command) if outcome == Outcome::Done => wait(command, &self.interrupts),
            _ => outcome,
        };
        match (finished.nothing, outcome) {
            (Some(nothing), Outcome::Done) => Err(nothing.into()),
            (Some(nothing), Outcome::Command(_)) => {
                // A stream of JSON must contain nothing else.
                if !(self.format == Format::Json && self.output.is_stderr()) {
                    print_line(&format!("trapline: {nothing}"));
                }
                Ok(outcome)
            }
            _ => Ok(outcome),
        }
    }
}
