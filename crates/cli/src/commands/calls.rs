//! `trace`: a line for each call, with arguments, value and duration.
//!
//! Invariants: RUN-1 as for `count`.

use std::time::{Duration, Instant};

use trapline::{Builder, Call, Finished, Session};

use super::stage::{self, Stage};
use super::{Failure, Outcome, trace};
use crate::args::command::Calls;
use crate::output::{Output, OutputError};
use crate::report::calls::Shown;
use crate::report::format::Format;
use crate::report::json;
use crate::report::perfetto::Timeline;

/// How often rings are emptied.
const ROUND: Duration = Duration::from_millis(2);

/// Runs it.
pub(crate) fn run(args: &Calls) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(&trace::builder(&args.run), false, &args.run.sink);
    }
    let start = |builder: Builder| {
        let builder = builder.filters(args.filters.clone()).texts(args.texts()).floats(args.floats());
        builder.record(args.arguments(), args.returns)
    };
    let (mut stage, mut session) = stage::begin(&args.run, start)?;
    let mut report = Report {
        args,
        shown: match args.run.sink.format {
            Format::Perfetto => Picture::Timeline(Timeline::new(&args.probes)),
            format => Picture::Lines(Shown::new(&args.probes, format, args.run.timestamps)),
        },
        left: args.max.unwrap_or(u64::MAX),
        buffer: Vec::new(),
    };
    let followed = report.follow(&mut session, &mut stage);
    let finished = session.detach();
    let told = followed.and_then(|()| report.close(&finished, &mut stage.output));
    let told = told.and_then(|()| stage.summary(&finished));
    stage.end(finished, told)
}

/// What calls become.
enum Picture<'a> {
    Lines(Shown<'a>),
    Timeline(Timeline<'a>),
}

/// What is still to be printed, and how.
struct Report<'a> {
    args: &'a Calls,
    shown: Picture<'a>,
    /// Lines that may still be printed.
    left: u64,
    /// Lines that are not written yet; empty between rounds.
    buffer: Vec<u8>,
}

/// Bytes that are written at once: few calls of the system, and still in the cache.
const AT_ONCE: usize = 1 << 18;
/// A round with more records than this is followed by the next at once.
const BUSY: usize = 1 << 13;

impl Report<'_> {
    /// Until something ends the run.
    fn follow(
        &mut self,
        session: &mut Session,
        Stage { interrupts, output, .. }: &mut Stage,
    ) -> Result<(), OutputError> {
        let end = self.args.run.duration.map(|duration| Instant::now() + duration);
        let interval = self.args.run.interval.filter(|_| self.args.run.sink.json);
        let mut next = interval.map(|interval| Instant::now() + interval);
        loop {
            let taken = self.round(session, output)?;
            if let (Some(due), Some(interval)) = (next, interval)
                && Instant::now() >= due
            {
                next = Some(Instant::now() + interval);
                for report in session.report() {
                    output.print(&json::count(&report, None, None))?;
                }
            }
            let over = self.left == 0 || end.is_some_and(|end| Instant::now() >= end);
            let pause = if taken > BUSY { Duration::ZERO } else { ROUND };
            if over || interrupts.wait(pause).is_some() || !session.poll() {
                // Once more while threads can be asked for their names.
                return self.round(session, output).map(drop);
            }
        }
    }
    /// What was recorded meanwhile, printed. How many records that were.
    fn round(&mut self, session: &mut Session, output: &mut Output) -> Result<usize, OutputError> {
        if matches!(self.shown, Picture::Timeline(_)) {
            let calls = session.calls();
            return self.print(&calls, Some(session), output).map(|()| calls.len());
        }
        let Self { shown: Picture::Lines(lines), left, buffer, .. } = self else { return Ok(0) };
        let mut written = Ok(());
        let taken = session.each_call(|call| {
            if *left == 0 || written.is_err() {
                return;
            }
            *left -= 1;
            lines.line(call, buffer);
            if buffer.len() >= AT_ONCE {
                written = output.bytes(buffer);
                buffer.clear();
            }
        });
        if !buffer.is_empty() {
            written = written.and_then(|()| output.bytes(buffer));
            buffer.clear();
        }
        written.map(|()| taken)
    }
    /// The calls of a round; without a session, the last ones.
    fn print(
        &mut self,
        calls: &[Call],
        mut session: Option<&mut Session>,
        output: &mut Output,
    ) -> Result<(), OutputError> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let calls = &calls[..calls.len().min(most)];
        self.left -= calls.len() as u64;
        let written = match &mut self.shown {
            Picture::Lines(lines) => {
                let mut out = std::mem::take(&mut self.buffer);
                calls.iter().for_each(|call| lines.line(call, &mut out));
                out
            }
            Picture::Timeline(timeline) => {
                let last = session.is_none();
                let comm = |call: &Call| session.as_mut().and_then(|session| session.thread_name(call));
                timeline.calls(calls, last, comm)
            }
        };
        if written.is_empty() { Ok(()) } else { output.bytes(&written) }
    }
    /// The last calls.
    fn close(&mut self, finished: &Finished, output: &mut Output) -> Result<(), OutputError> {
        self.print(&finished.calls, None, output)?;
        if let Picture::Timeline(timeline) = &mut self.shown {
            output.bytes(&timeline.names(&finished.reports))?;
        }
        if self.args.run.sink.json {
            for report in &finished.reports {
                output.print(&json::count(report, None, None))?;
            }
        }
        Ok(())
    }
}
