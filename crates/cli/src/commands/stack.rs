//! `stack`: the callers of functions, by number of hits or by time spent.
//!
//! Invariants: END-1, as for `count`.

use std::time::{Duration, Instant};

use trapline::{Builder, Finished, Session};

use super::run_output::{self, RunOutput};
use super::{Failure, Outcome, intervals};
use crate::args::stack::Stacks;
use crate::output::{Output, OutputError};
use crate::report::format::Format;
use crate::report::html::Html;
use crate::report::stacks::{self, Shown};
use crate::report::{Renderer as _, json};

/// How often rings are emptied.
const ROUND: Duration = Duration::from_millis(2);

/// Runs `stack`.
pub(crate) fn run(args: &Stacks) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(&args.ends.of(intervals::builder(&args.run)), args.time, &args.run.sink);
    }
    let start = |builder: Builder| {
        args.ends.of(builder).filters(args.filters.clone()).stacks(args.unwinding, args.time)
    };
    let (mut run_output, mut session) = run_output::begin(&args.run, start)?;
    let mut page =
        (args.run.sink.format == Format::Html).then(|| Html::new("stack", args.time, intervals::typed()));
    let followed = follow(args, &mut session, &mut run_output, page.as_mut());
    let finished = session.detach();
    let reported = followed.and_then(|()| close(args, &finished, &mut run_output.output, page));
    let reported = reported.and_then(|()| run_output.summary(&finished));
    run_output.end(finished, reported)
}

/// Collects stacks until something ends the run.
fn follow(
    args: &Stacks,
    session: &mut Session,
    RunOutput { interrupts, output, .. }: &mut RunOutput,
    mut page: Option<&mut Html>,
) -> Result<(), OutputError> {
    let end = args.run.duration.map(|duration| Instant::now() + duration);
    // The stacks themselves are shown at the end.
    let interval = args.run.interval.filter(|_| args.run.sink.json || page.is_some());
    let mut next = interval.map(|interval| Instant::now() + interval);
    loop {
        drop(session.calls());
        if let (Some(due), Some(interval)) = (next, interval)
            && Instant::now() >= due
        {
            next = Some(Instant::now() + interval);
            for report in session.report() {
                output.print(&match &mut page {
                    Some(page) => page.report(&report, true, None),
                    None => json::count(&report, None, None),
                })?;
            }
        }
        let over = end.is_some_and(|end| Instant::now() >= end);
        if over || interrupts.wait(ROUND).is_some() || !session.poll() {
            return Ok(());
        }
    }
}

/// Writes the stacks.
fn close(
    args: &Stacks,
    finished: &Finished,
    output: &mut Output,
    page: Option<Html>,
) -> Result<(), OutputError> {
    let mut shown = Shown::new(&finished.stacks, args.time);
    if let Some(mut page) = page {
        for report in &finished.reports {
            output.print(&page.report(report, false, None))?;
        }
        page.stacks(&mut shown);
        return output.print(&page.end(&finished.summary));
    }
    match args.run.sink.format {
        Format::Json => {
            for line in shown.json() {
                output.print(&line)?;
            }
            for report in &finished.reports {
                output.print(&json::count(report, None, None))?;
            }
            Ok(())
        }
        Format::Folded => output.print(&shown.folded()),
        Format::Svg => output.bytes(&stacks::flame::draw(&mut shown, &intervals::typed())),
        Format::Pprof => output.bytes(&stacks::pprof::encode(&mut shown)),
        _ => output.print(&shown.text(args.top)),
    }
}
