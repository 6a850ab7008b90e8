//! `graph`: the call tree below a function, with durations.
//!
//! Invariants: END-1, as for `count`.

use std::time::{Duration, Instant};

use trapline::{Builder, Error, Finished, Session, Site, Target};

use super::run_output::{self, RunOutput};
use super::{Failure, Outcome, intervals};
use crate::args::graph::Graph;
use crate::output::{Output, OutputError};
use crate::report::calls::nearness;
use crate::report::format::Format;
use crate::report::graph::Trees;

/// How often rings are emptied.
const ROUND: Duration = Duration::from_millis(2);

/// Runs `graph`.
pub(crate) fn run(args: &Graph) -> Result<Outcome, Failure> {
    let run = &args.run;
    if run.dry_run {
        return super::list::show(&args.ends.of(intervals::builder(run)), true, &run.sink);
    }
    let (mut run_output, mut session) = run_output::begin(run, |builder: Builder| start(args, builder))?;
    let mut trees = Trees::new(&args.run.probes, args.depth, args.each && run.sink.format == Format::Text);
    let followed = follow(args, &mut trees, &mut session, &mut run_output);
    trees.note_goroutines(session.goroutines());
    let finished = session.detach();
    let reported = followed.and_then(|()| close(args, &mut trees, &finished, &mut run_output.output));
    let reported = reported.and_then(|()| run_output.summary(&finished));
    run_output.end(finished, reported)
}

/// Starts the session. The root must be probed, unless processes can still come that have it: there is no
/// tree without it.
fn start(args: &Graph, builder: Builder) -> Result<Session, Error> {
    let mut session = args.ends.of(builder).record(0, true)?;
    let reports = session.report();
    let mut sites = reports.iter().flat_map(|report| &report.counts).map(|count| &count.site);
    if let Some(misses) = sites.clone().find_map(|site| no_call(site)).map(|why| vec![why]) {
        return Err(Error::NoMatch { misses });
    }
    let later = args.run.follow || matches!(args.run.target, Target::Launch(_));
    if later || sites.any(|site| nearness(&args.root, site).is_some()) {
        return Ok(session);
    }
    let mut all = reports.iter().flat_map(|report| report.refused.iter());
    let refused = all.find(|refused| args.root.means(&refused.probe));
    Err(match refused {
        Some(refused) => {
            let example = format!("{}: {}", refused.probe, refused.reason);
            Error::AllRefused { matched: 1, example, refused: vec![refused.clone()] }
        }
        None => Error::NoMatch { misses: session.take_notices() },
    })
}

/// Why a site is no function's call: its address lies inside a function, as the offset behind its name shows.
fn no_call(site: &Site) -> Option<String> {
    let label = site.label.split(" (0x").next().unwrap_or_default();
    let (function, offset) = label.rsplit_once('+')?;
    let offset: u64 = offset.parse().ok()?;
    Some(format!(
        "{} is {offset} bytes inside {function}, where no call begins; give the function's name, or the address where it begins",
        site.probe
    ))
}

/// Prints the last calls, and the trees.
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

/// Collects calls until something ends the run.
fn follow(
    args: &Graph,
    trees: &mut Trees<'_>,
    session: &mut Session,
    RunOutput { interrupts, output, .. }: &mut RunOutput,
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
