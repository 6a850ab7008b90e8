//! `stack`: the callers of functions, by number of hits or by time spent.

use trapline::{Builder, Finished, Session};

use super::run::follow::Reporter;
use super::run::schedule::Event;
use super::run::{Request, typed};
use super::{Failure, Outcome};
use crate::args::stack::Stacks;
use crate::output::{Output, OutputError};
use crate::report::format::Format;
use crate::report::html::Html;
use crate::report::stacks::{self, Shown};
use crate::report::{Renderer as _, json};

/// Runs `stack`.
pub(crate) fn run(args: &Stacks) -> Result<Outcome, Failure> {
    let Stacks { run, time, .. } = args;
    let page = (run.sink.format == Format::Html).then(|| Html::new("stack", *time, typed()));
    let start = |builder: Builder| builder.filters(args.filters.clone()).stacks(args.unwinding, *time);
    // The stacks themselves are shown at the end.
    let reports = run.sink.json || page.is_some();
    let request = Request::new(run).ends(args.ends, *time).often(true).reports(reports);
    request.run(start, &mut Collector { args, page })
}

/// Collects stacks.
struct Collector<'a> {
    args: &'a Stacks,
    page: Option<Html>,
}

impl Reporter for Collector<'_> {
    fn take(&mut self, session: &mut Session, _: &mut Output) -> Result<Event, OutputError> {
        drop(session.calls());
        Ok(Event::Quiet)
    }
    fn report(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError> {
        for report in session.report() {
            output.print(&match &mut self.page {
                Some(page) => page.report(&report, true, None),
                None => json::count(&report, None, None),
            })?;
        }
        Ok(())
    }
    fn close(&mut self, finished: &Finished, output: &mut Output) -> Result<(), OutputError> {
        let mut shown = Shown::new(&finished.stacks, self.args.time);
        if let Some(page) = &mut self.page {
            for report in &finished.reports {
                output.print(&page.report(report, false, None))?;
            }
            page.stacks(&mut shown);
            return output.print(&page.end(&finished.summary));
        }
        match self.args.run.sink.format {
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
            Format::Svg => output.bytes(&stacks::flame::draw(&mut shown, &typed())),
            Format::Pprof => output.bytes(&stacks::pprof::encode(&mut shown)),
            _ => output.print(&shown.text(self.args.top)),
        }
    }
}
