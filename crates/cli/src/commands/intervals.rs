//! What `count` and `lat` share: reports at intervals.
//!
//! Invariants: END-1 whatever ends the run (time, Ctrl-C, SIGTERM, a terminal or reader that is gone, a full
//! disk, the target's end), the target is detached before anything else is written or waited for.

use std::time::{Duration, Instant};

use trapline::system::time_of_day;
use trapline::{Builder, Error, Finished, Interrupts, Running, Session};

use super::run_output::RunOutput;
use super::{Failure, Outcome};
use crate::args::command::Run;
use crate::output::{OutputError, print_line};
use crate::report::Renderer;
use crate::report::format::Format;
use crate::serve::outlets::Outlets;

/// How often new mappings and ended processes are looked for.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// The same interval when programs are followed: each executed program waits for it at its entry point.
pub(crate) const FOLLOW_TICK: Duration = Duration::from_millis(2);

/// The session that a command line describes.
pub(crate) fn builder(run: &Run) -> Builder {
    let builder = Session::builder().target(run.target.clone()).probes(run.probes.iter().cloned());
    builder.strict(run.strict).faults_are_fatal(run.faults_are_fatal).follow(run.follow)
}

/// The command line, for reports that show it.
pub(crate) fn typed() -> String {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ")
}

/// Runs a session to its end.
pub(crate) fn report_at_intervals(
    run: &Run,
    start: impl FnOnce(Builder) -> Result<Session, Error>,
    renderer: &mut dyn Renderer,
) -> Result<Outcome, Failure> {
    let mut run_output = RunOutput::open(run)?;
    let mut outlets = Outlets::open(run)?;
    let mut session = run_output.start(run, start)?;
    if run_output.talkative {
        outlets.notices().for_each(|notice| print_line(&format!("trapline: {notice}")));
    }
    let followed = watch(run, &mut session, &mut run_output, renderer, &mut outlets);
    let finished = session.detach();
    let reported = followed.and_then(|()| close(run, &finished, &mut run_output, renderer));
    let sent = outlets.finish(&finished.reports).map_err(OutputError::from);
    run_output.end(finished, reported.and(sent))
}

/// Prints reports until something ends the run.
fn watch(
    run: &Run,
    session: &mut Session,
    RunOutput { interrupts, output, .. }: &mut RunOutput,
    renderer: &mut dyn Renderer,
    outlets: &mut Outlets,
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
                output.print(&renderer.report(&report, true, time.as_deref()))?;
            }
            // Skip the intervals that were missed, rather than catch up in a burst.
            let missed = now.duration_since(due).as_nanos() / interval.as_nanos().max(1);
            next = Some(due + interval * (u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1)));
        }
        outlets.report_totals(|| session.totals());
        let tick = if run.follow { FOLLOW_TICK } else { TICK };
        let until =
            [end, next].into_iter().flatten().min().map_or(tick, |at| at.saturating_duration_since(now));
        let wait = until.clamp(Duration::from_millis(1), tick);
        if session.wait(interrupts, wait).is_some() || !session.poll() {
            return Ok(());
        }
    }
}

/// The time of day and a blank line between reports, for people.
fn head(run: &Run, time: Option<&str>) -> String {
    match (run.sink.format, time) {
        (Format::Text, Some(time)) => format!("\n{time}\n"),
        (Format::Text, None) => "\n".to_owned(),
        _ => String::new(),
    }
}

fn close(
    run: &Run,
    finished: &Finished,
    run_output: &mut RunOutput,
    renderer: &mut dyn Renderer,
) -> Result<(), OutputError> {
    let time = run.timestamps.then(time_of_day);
    for report in &finished.reports {
        run_output.output.print(&head(run, time.as_deref()))?;
        run_output.output.print(&renderer.report(report, false, time.as_deref()))?;
    }
    run_output.output.print(&renderer.end(&finished.summary))?;
    run_output.summary(finished)
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
