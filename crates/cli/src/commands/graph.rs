//! `graph`: the call tree below a function, with durations.

use trapline::{Error, Finished, Session, Site, Target};

use super::run::Request;
use super::run::follow::Reporter;
use super::run::schedule::Event;
use super::{Failure, Outcome};
use crate::args::graph::Graph;
use crate::output::{Output, OutputError};
use crate::report::format::Format;
use crate::report::graph::Trees;
use crate::report::site::nearness;

/// Runs `graph`.
pub(crate) fn run(args: &Graph) -> Result<Outcome, Failure> {
    let run = &args.run;
    let trees = Trees::new(&run.probes, args.depth, args.each && run.sink.format == Format::Text);
    // Trees are shown at the end.
    let request = Request::new(run).ends(args.ends, true).often(true).reports(false);
    request.run(|builder| checked(args, builder.record(0, true)?), &mut Collector { args, trees })
}

/// Checks that the root is probed, unless processes can still come that have it: there is no tree without it.
fn checked(args: &Graph, mut session: Session) -> Result<Session, Error> {
    let reports = session.report();
    let mut sites = reports.iter().flat_map(|report| &report.counts).map(|count| &count.site);
    if let Some(misses) = sites.clone().find_map(|site| no_call(site)).map(|why| vec![why]) {
        return Err(Error::NoMatch { misses });
    }
    let later = args.run.follow || matches!(args.run.target, Target::Launch(_) | Target::All(_));
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

/// Makes trees of calls.
struct Collector<'a> {
    args: &'a Graph,
    trees: Trees<'a>,
}

impl Reporter for Collector<'_> {
    fn take(&mut self, session: &mut Session, output: &mut Output) -> Result<Event, OutputError> {
        let text = self.trees.add(&session.calls());
        if !text.is_empty() {
            output.print(&text)?;
        }
        Ok(Event::Quiet)
    }
    fn report(&mut self, _: &mut Session, _: &mut Output) -> Result<(), OutputError> {
        Ok(())
    }
    fn before_detach(&mut self, session: &mut Session, _: &mut Output) -> Result<(), OutputError> {
        self.trees.note_goroutines(session.goroutines());
        Ok(())
    }
    fn close(&mut self, finished: &Finished, output: &mut Output) -> Result<(), OutputError> {
        let Self { args, trees } = self;
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
}
