//! What `count` and `lat` share: start, wait, report at intervals, detach, summary, exit status.
//!
//! Invariants: RUN-1 whatever ends the run (time, Ctrl-C, SIGTERM, a gone terminal or reader, a full disk, the target's
//! end), the target is detached before anything else is written or waited for.

use std::time::{Duration, Instant};

use trapline::{Builder, Error, Finished, Interrupts, ProcessReport, Running, Session, Target, time_of_day};

use super::{Failure, Outcome};
use crate::args::ready::Run;
use crate::output::{Output, OutputError, say};
use crate::report::summary;

/// How often new mappings and ended processes are looked for.
const TICK: Duration = Duration::from_millis(50);
/// The same when programs are followed: each executed one waits for it at its entry point.
const FOLLOW_TICK: Duration = Duration::from_millis(2);

/// Renders one process; the second argument says whether it is live, the third is the time of day, if asked for.
pub(crate) type Render<'a> = &'a dyn Fn(&ProcessReport, bool, Option<&str>) -> String;

/// The session that a command line describes.
pub(crate) fn builder(run: &Run) -> Builder {
    let builder = Session::builder().target(run.target.clone()).probes(run.probes.iter().cloned());
    builder.strict(run.strict).faults_are_fatal(run.faults_are_fatal).follow(run.follow)
}

/// Runs a session to its end.
pub(crate) fn trace(
    run: &Run,
    start: impl FnOnce(Builder) -> Result<Session, Error>,
    render: Render<'_>,
) -> Result<Outcome, Failure> {
    let failed = |source| OutputError::Open { file: "the signals that end a run".to_owned(), source };
    let interrupts = Interrupts::new().map_err(failed)?;
    let mut output = Output::open(&run.sink, matches!(run.target, Target::Launch(_)))?;
    let mut session = start(builder(run))?;
    let talkative = !(run.sink.quiet || run.sink.json && output.is_stderr());
    if talkative {
        session.take_notices().iter().for_each(|notice| say(&format!("trapline: {notice}")));
    }
    let broken = watch(run, &mut session, &interrupts, &mut output, render).err();
    let finished = session.detach();
    let ended = match broken {
        None => close(run, &finished, &mut output, render, talkative),
        Some(error) => Err(error),
    };
    let outcome = match ended {
        Ok(()) | Err(OutputError::Gone) => Outcome::Done,
        Err(error) => {
            say(&format!("trapline: {error}"));
            Outcome::Failed
        }
    };
    let outcome = match finished.command {
        Some(command) if outcome == Outcome::Done => wait(command, &interrupts),
        _ => outcome,
    };
    match finished.nothing {
        Some(nothing) if outcome != Outcome::Failed => Err(nothing.into()),
        _ => Ok(outcome),
    }
}

/// Until something ends the run.
fn watch(
    run: &Run,
    session: &mut Session,
    interrupts: &Interrupts,
    output: &mut Output,
    render: Render<'_>,
) -> Result<(), OutputError> {
    let start = Instant::now();
    let end = run.duration.map(|duration| start + duration);
    let mut next = run.interval.map(|interval| start + interval);
    loop {
        let now = Instant::now();
        if end.is_some_and(|end| now >= end) {
            return Ok(());
        }
        if let (Some(due), Some(interval)) = (next, run.interval)
            && now >= due
        {
            let time = run.timestamps.then(time_of_day);
            for report in session.report() {
                output.print(&head(run, time.as_deref()))?;
                output.print(&render(&report, true, time.as_deref()))?;
            }
            // Skip what was missed instead of catching up in a burst.
            let missed = now.duration_since(due).as_nanos() / interval.as_nanos().max(1);
            next = Some(due + interval * (u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1)));
        }
        let tick = if run.follow { FOLLOW_TICK } else { TICK };
        let until =
            [end, next].into_iter().flatten().min().map_or(tick, |at| at.saturating_duration_since(now));
        if interrupts.wait(until.clamp(Duration::from_millis(1), tick)).is_some() || !session.poll() {
            return Ok(());
        }
    }
}

/// The time of day and a blank line between reports, for people.
fn head(run: &Run, time: Option<&str>) -> String {
    match (run.sink.json, time) {
        (true, _) => String::new(),
        (false, Some(time)) => format!("\n{time}\n"),
        (false, None) => "\n".to_owned(),
    }
}

fn close(
    run: &Run,
    finished: &Finished,
    output: &mut Output,
    render: Render<'_>,
    talkative: bool,
) -> Result<(), OutputError> {
    let time = run.timestamps.then(time_of_day);
    for report in &finished.reports {
        output.print(&head(run, time.as_deref()))?;
        output.print(&render(report, false, time.as_deref()))?;
    }
    if talkative {
        let text = summary::text(&finished.summary);
        match output {
            Output::File(..) if !run.sink.json => output.print(&text)?,
            _ => say(text.trim_end()),
        }
    }
    Ok(())
}

/// Waits for the launched command, which is no longer traced. A second Ctrl-C stops waiting.
pub(crate) fn wait(mut command: Running, interrupts: &Interrupts) -> Outcome {
    loop {
        if let Some(status) = command.status() {
            return Outcome::Command(status);
        }
        if interrupts.wait(TICK).is_some() {
            return Outcome::Done;
        }
    }
}
