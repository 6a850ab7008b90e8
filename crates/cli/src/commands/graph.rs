//! `graph`: the call tree below a function, with durations.
//!
//! Invariants: RUN-1 as for `count`.

use std::time::{Duration, Instant};

use trapline::{Builder, Finished, Session};

use super::stage::{self, Stage};
use super::{Failure, Outcome, trace};
use crate::args::graph::Graph;
use crate::output::{Output, OutputError};
use crate::report::format::Format;
use crate::report::graph::Trees;

/// How often rings are emptied.
const ROUND: Duration = Duration::from_millis(2);

/// Runs it.
pub(crate) fn run(args: &Graph) -> Result<Outcome, Failure> {
    let run = &args.run;
    if run.dry_run {
        return super::list::show(&trace::builder(run), false, &run.sink);
    }
    let (mut stage, mut session) = stage::begin(run, |builder: Builder| builder.record(0, true))?;
    let mut trees = Trees::new(&args.root, args.depth, args.each && run.sink.format == Format::Text);
    let followed = follow(args, &mut trees, &mut session, &mut stage);
    trees.note_goroutines(session.goroutines());
    let finished = session.detach();
    let told = followed.and_then(|()| close(args, &mut trees, &finished, &mut stage.output));
    let told = told.and_then(|()| stage.summary(&finished));
    stage.end(finished, told)
}

/// The last calls, and the trees.
fn close(
    args: &Graph,
    trees: &mut Trees<'_>,
    finished: &Finished,
    output: &mut Output,
) -> Result<(), OutputError> {
    let mut rest = trees.add(&finished.calls);
    rest.push_str(&trees.end());
    output.print(&rest)?;
    for report in &finished.reports {
        match args.run.sink.format {
            Format::Json => output.print(&trees.object(report.pid))?,
            _ if args.each => {}
            _ => output.print(&trees.text(report.pid, &report.name))?,
        }
    }
    Ok(())
}

/// Until something ends the run.
fn follow(
    args: &Graph,
    trees: &mut Trees<'_>,
    session: &mut Session,
    Stage { interrupts, output, .. }: &mut Stage,
) -> Result<(), OutputError> {
    let end = args.run.duration.map(|duration| Instant::now() + duration);
    loop {
        let text = trees.add(&session.calls());
        if !text.is_empty() {
            output.print(&text)?;
        }
        let over = end.is_some_and(|end| Instant::now() >= end);
        if over || interrupts.wait(ROUND).is_some() || !session.poll() {
            return Ok(());
        }
    }
}
