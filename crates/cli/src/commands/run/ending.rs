//! How a run ends: its exit status, when everything is detached and written.
//!
//! In: what became of the reports, the session's end, a launched command. Out: an [`Outcome`]. Invariant:
//! END-2 a launched command's own status takes precedence, whatever became of the probes. Does not: detach.

use trapline::{Finished, Interrupts, Running};

use super::follow::TICK;
use super::sinks::Sinks;
use crate::commands::{Failure, Outcome};
use crate::output::{OutputError, print_line};
use crate::report::format::Format;

/// The outcome of a session's run; `reported` is the result of its reports.
pub(crate) fn end(
    finished: Finished,
    reported: Result<(), Failure>,
    sinks: &Sinks,
    interrupts: &Interrupts,
) -> Result<Outcome, Failure> {
    // The notices already name what was not undone or was killed.
    let harmed = finished.summary.undone + finished.summary.killed > 0 && finished.command.is_none();
    let outcome = match harmed {
        true => Outcome::Failed,
        false => outcome(reported, finished.command, interrupts),
    };
    match (finished.nothing, outcome) {
        (Some(nothing), Outcome::Done) => Err(nothing.into()),
        (Some(nothing), Outcome::Command(_)) => {
            // A stream of JSON must contain nothing else.
            if !(sinks.format == Format::Json && sinks.output.is_stderr()) {
                print_line(&format!("trapline: {nothing}"));
            }
            Ok(outcome)
        }
        _ => Ok(outcome),
    }
}

/// Prints why a report could not be written or sent. If all was written, it waits for a launched command and returns that command's
/// status.
pub(crate) fn outcome(
    reported: Result<(), Failure>,
    command: Option<Running>,
    interrupts: &Interrupts,
) -> Outcome {
    match (reported, command) {
        (Ok(()) | Err(Failure::Output(OutputError::Gone)), Some(command)) => wait(command, interrupts),
        (Ok(()) | Err(Failure::Output(OutputError::Gone)), None) => Outcome::Done,
        (Err(error), _) => {
            print_line(&format!("trapline: {error}"));
            Outcome::Failed
        }
    }
}

/// Waits for the launched command, which is no longer traced. A second Ctrl-C stops waiting.
fn wait(mut command: Running, interrupts: &Interrupts) -> Outcome {
    loop {
        if let Some(status) = command.status() {
            return Outcome::Command(status);
        }
        if interrupts.wait(TICK).is_some() {
            return Outcome::Done;
        }
    }
}
