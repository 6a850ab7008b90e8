//! `trace`: a line for each call, with arguments, value and duration; or the records themselves, for later.

use trapline::{Builder, Call, Finished, Session, saved};

use super::calls::Report;
use super::run::follow::Reporter;
use super::run::schedule::Event;
use super::run::{Request, typed};
use super::{Failure, Outcome};
use crate::args::command::Calls;
use crate::args::kept;
use crate::output::{Output, OutputError};
use crate::report::format::Format;
use crate::report::{json, summary};

/// Bytes of a CPU's ring if the reader is to keep up with millions of records a second. It holds what comes
/// while the reader does not run for 50 ms.
const SAVED_RING: u32 = 16 << 20;
/// After a round with more records than this, the next one follows at once.
const BUSY: usize = 1 << 13;

/// Runs `trace`.
pub(crate) fn run(args: &Calls) -> Result<Outcome, Failure> {
    let sink = &args.run.sink;
    let saves = sink.format == Format::Saved;
    let report = Report::new(&args.probes, sink.format, args.run.timestamps, args.max);
    let names_code = report.names_code();
    let start = |builder: Builder| {
        let builder = builder.notes_code(names_code);
        let builder = builder.filters(args.filters.clone()).texts(args.texts()).floats(args.floats());
        let builder = builder.ended_texts(args.ended());
        let builder = if saves { builder.ring(SAVED_RING) } else { builder };
        builder.record(args.arguments(), args.returns)
    };
    let request = Request::new(&args.run).ends(args.ends, args.returns).often(true).reports(sink.json);
    request.run(start, &mut Trace { args, report, saves })
}

/// Writes calls as they come.
struct Trace<'a> {
    args: &'a Calls,
    report: Report<'a>,
    /// Whether the records themselves are written.
    saves: bool,
}

impl Trace<'_> {
    /// Writes what was recorded since the last round; returns the number of records.
    fn round(&mut self, session: &mut Session, output: &mut Output) -> Result<usize, OutputError> {
        match self.saves {
            true => session.save(&mut |bytes: &[u8]| output.bytes(bytes)),
            false => self.report.round(session, output),
        }
    }
    /// Writes the end of a recording.
    fn end_recording(&self, finished: &Finished, output: &mut Output) -> Result<(), OutputError> {
        output.bytes(&finished.saved)?;
        let note = kept::End {
            summary: summary::text(&finished.summary),
            reports: finished.reports.iter().map(|report| json::count(report, None, None)).collect(),
        };
        output.bytes(&saved::end(&kept::bytes(&note)))
    }
}

impl Reporter for Trace<'_> {
    fn begin(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError> {
        if !self.saves {
            self.report.take_code(session);
            return Ok(());
        }
        let note = kept::bytes(&kept::Begin::new(self.args, typed()));
        output.bytes(&session.save_begin(&note))
    }
    fn take(&mut self, session: &mut Session, output: &mut Output) -> Result<Event, OutputError> {
        let taken = self.round(session, output)?;
        Ok(match taken {
            _ if self.report.left == 0 => Event::Enough,
            taken if taken > BUSY => Event::Busy,
            _ => Event::Quiet,
        })
    }
    fn report(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError> {
        session.report().iter().try_for_each(|report| output.print(&json::count(report, None, None)))
    }
    /// One more round, while threads can still be asked for their names.
    fn before_detach(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError> {
        self.round(session, output).map(drop)
    }
    fn close(&mut self, finished: &Finished, output: &mut Output) -> Result<(), OutputError> {
        if self.saves {
            return self.end_recording(finished, output);
        }
        // On a busy machine a thread's first calls may be among these.
        let mut name = |call: &Call| finished.names.get(&(call.pid, call.tid)).cloned();
        let reports = &finished.reports;
        self.report.print(&finished.calls, true, &mut name, output)?;
        self.report.names(reports.iter().map(|report| (report.pid, report.name.as_str())), output)?;
        if self.args.run.sink.json {
            reports.iter().try_for_each(|report| output.print(&json::count(report, None, None)))?;
        }
        Ok(())
    }
}
