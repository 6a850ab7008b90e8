//! How a run ends: its exit status, when everything is detached and written.
//!
//! In: what became of the reports, the session's end, a launched command. Out: an [`Outcome`]. Invariant:
//! END-2 a launched command's own status takes precedence, whatever became of the probes. Does not: detach.

use trapline::{Finished, Interrupts, Running, Summary};

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
    let harm = harm(&finished.summary).filter(|_| finished.command.is_none());
    let outcome = match harm {
        Some(harm) => {
            // Notices have named the processes, if there were any notices.
            if !(sinks.talkative || sinks.format == Format::Json && sinks.output.is_stderr()) {
                print_line(&format!("trapline: {harm}"));
            }
            Outcome::Failed
        }
        None => outcome(reported, finished.command, interrupts),
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

/// What became of targets that are not as they were before; `None` if all are.
fn harm(summary: &Summary) -> Option<String> {
    let processes =
        |count| if count == 1 { "1 process was".to_owned() } else { format!("{count} processes were") };
    let killed = (summary.killed > 0).then(|| format!("{} killed while probed", processes(summary.killed)));
    let undone = (summary.undone > 0).then(|| {
        format!(
            "{} not left as before: run `trapline status`, then `trapline detach -p PID`",
            processes(summary.undone)
        )
    });
    let all: Vec<String> = killed.into_iter().chain(undone).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Prints why a report could not be written or sent. If all was written, it waits for a launched command and returns
/// that command's status.
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

#[cfg(test)]
mod tests {
    use super::harm;
    use trapline::Summary;

    #[test]
    fn what_was_harmed_is_named_without_notices_too() {
        assert_eq!(harm(&Summary::default()), None);
        let killed = Summary { killed: 1, ..Summary::default() };
        assert_eq!(harm(&killed).as_deref(), Some("1 process was killed while probed"));
        let both = Summary { undone: 2, ..killed };
        let text = harm(&both).expect("both are harm");
        assert!(
            text.starts_with("1 process was killed while probed; 2 processes were not left as before"),
            "{text}"
        );
    }
}
