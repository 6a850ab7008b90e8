//! `trace`: a line for each call, with arguments, value and duration; or the records themselves, for later.
//!
//! Invariants: END-1, as for `count`.

use std::time::{Duration, Instant};

use trapline::{Builder, Call, Finished, ProbeSpec, Session, saved};

use super::run_output::{self, RunOutput};
use super::{Failure, Outcome, intervals};
use crate::args::command::Calls;
use crate::args::kept;
use crate::args::types::Signature;
use crate::output::{Output, OutputError};
use crate::report::calls::Shown;
use crate::report::format::Format;
use crate::report::perfetto::Timeline;
use crate::report::{json, summary};

/// How often rings are emptied.
const ROUND: Duration = Duration::from_millis(2);
/// Bytes of a CPU's ring if the reader is to keep up with millions of records a second. It holds what comes
/// while the reader does not run for 50 ms.
const SAVED_RING: u32 = 16 << 20;

/// Runs `trace`.
pub(crate) fn run(args: &Calls) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(&args.ends.of(intervals::builder(&args.run)), args.returns, &args.run.sink);
    }
    let start = |builder: Builder| {
        let builder = builder.filters(args.filters.clone()).texts(args.texts()).floats(args.floats());
        let builder = builder.ended_texts(args.ended());
        let saves = args.run.sink.format == Format::Saved;
        let builder = if saves { builder.ring(SAVED_RING) } else { builder };
        args.ends.of(builder).record(args.arguments(), args.returns)
    };
    let (mut run_output, mut session) = run_output::begin(&args.run, start)?;
    let mut report = Report::new(&args.probes, args.run.sink.format, args.run.timestamps, args.max);
    let followed = follow(args, &mut report, &mut session, &mut run_output);
    let finished = session.detach();
    let reported = followed.and_then(|()| close(args, &mut report, &finished, &mut run_output));
    let reported = reported.and_then(|()| run_output.summary(&finished));
    run_output.end(finished, reported)
}

/// A source of calls.
pub(crate) trait Source {
    /// Calls `each` for the calls that ended, one by one; returns the number of records.
    fn each(&mut self, each: &mut dyn FnMut(&Call)) -> usize;
    /// The calls that ended, together, in the order in which they ended.
    fn calls(&mut self) -> Vec<Call>;
    /// Whether no call ends after these.
    fn is_last(&self) -> bool {
        false
    }
    /// The name of a call's thread.
    fn name(&mut self, call: &Call) -> Option<String>;
}

impl Source for Session {
    fn each(&mut self, each: &mut dyn FnMut(&Call)) -> usize {
        self.each_call(each)
    }
    fn calls(&mut self) -> Vec<Call> {
        Self::calls(self)
    }
    fn name(&mut self, call: &Call) -> Option<String> {
        self.thread_name(call)
    }
}

/// What calls are turned into.
#[derive(Debug)]
enum Picture<'a> {
    Lines(Shown<'a>),
    Timeline(Timeline<'a>),
    /// Nothing: the records themselves are written.
    Records,
}

/// The number of lines that may still be printed, and their form.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    shown: Picture<'a>,
    /// Number of lines that may still be printed.
    pub(crate) left: u64,
    /// Lines that are not written yet; empty between rounds.
    buffer: Vec<u8>,
}

/// Bytes that are written at once. So many need few system calls, and are still in the cache.
const AT_ONCE: usize = 1 << 18;
/// After a round with more records than this, the next one follows at once.
const BUSY: usize = 1 << 13;

/// Prints calls until something ends the run.
fn follow(
    args: &Calls,
    report: &mut Report<'_>,
    session: &mut Session,
    RunOutput { interrupts, output, .. }: &mut RunOutput,
) -> Result<(), OutputError> {
    let end = args.run.duration.map(|duration| Instant::now() + duration);
    let interval = args.run.interval.filter(|_| args.run.sink.json);
    let mut next = interval.map(|interval| Instant::now() + interval);
    if let Picture::Records = report.shown {
        let note = kept::bytes(&kept::Begin::new(args, intervals::typed()));
        output.bytes(&session.save_begin(&note))?;
    }
    loop {
        let taken = round(report, session, output)?;
        if let (Some(due), Some(interval)) = (next, interval)
            && Instant::now() >= due
        {
            next = Some(Instant::now() + interval);
            for report in session.report() {
                output.print(&json::count(&report, None, None))?;
            }
        }
        let over = report.left == 0 || end.is_some_and(|end| Instant::now() >= end);
        let pause = if taken > BUSY { Duration::ZERO } else { ROUND };
        if over || interrupts.wait(pause).is_some() || !session.poll() {
            // One more round, while threads can still be asked for their names.
            return round(report, session, output).map(drop);
        }
    }
}

/// Prints or writes what was recorded since the last round; returns the number of records.
fn round(report: &mut Report<'_>, session: &mut Session, output: &mut Output) -> Result<usize, OutputError> {
    match report.shown {
        Picture::Records => session.save(&mut |bytes: &[u8]| output.bytes(bytes)),
        _ => report.round(session, output),
    }
}

/// Prints the last calls, and what stands behind them.
fn close(
    args: &Calls,
    report: &mut Report<'_>,
    finished: &Finished,
    run_output: &mut RunOutput,
) -> Result<(), OutputError> {
    let output = &mut run_output.output;
    if let Picture::Records = report.shown {
        output.bytes(&finished.saved)?;
        let note = kept::End {
            summary: summary::text(&finished.summary),
            reports: finished.reports.iter().map(|report| json::count(report, None, None)).collect(),
        };
        return output.bytes(&saved::end(&kept::bytes(&note)));
    }
    // On a busy machine a thread's first calls may be among these.
    let mut name = |call: &Call| finished.names.get(&(call.pid, call.tid)).cloned();
    report.print(&finished.calls, true, &mut name, output)?;
    report.names(finished.reports.iter().map(|report| (report.pid, report.name.as_str())), output)?;
    if args.run.sink.json {
        for report in &finished.reports {
            output.print(&json::count(report, None, None))?;
        }
    }
    Ok(())
}

impl<'a> Report<'a> {
    pub(crate) fn new(
        probes: &'a [(ProbeSpec, Option<Signature>)],
        format: Format,
        timestamps: bool,
        max: Option<u64>,
    ) -> Self {
        let shown = match format {
            Format::Perfetto => Picture::Timeline(Timeline::new(probes)),
            Format::Saved => Picture::Records,
            format => Picture::Lines(Shown::new(probes, format, timestamps)),
        };
        Self { shown, left: max.unwrap_or(u64::MAX), buffer: Vec::new() }
    }
    /// Prints what was recorded since the last round; returns the number of records.
    pub(crate) fn round(
        &mut self,
        source: &mut dyn Source,
        output: &mut Output,
    ) -> Result<usize, OutputError> {
        let Self { shown: Picture::Lines(lines), left, buffer } = self else {
            let calls = source.calls();
            let last = source.is_last();
            let mut name = |call: &Call| source.name(call);
            return self.print(&calls, last, &mut name, output).map(|()| calls.len());
        };
        let mut written = Ok(());
        let taken = source.each(&mut |call| {
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
    /// Prints the calls of a round; `last` is true if no more follow. `name` returns the name of a call's
    /// thread.
    pub(crate) fn print(
        &mut self,
        calls: &[Call],
        last: bool,
        name: &mut dyn FnMut(&Call) -> Option<String>,
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
            Picture::Timeline(timeline) => timeline.calls(calls, last, name),
            Picture::Records => Vec::new(),
        };
        if written.is_empty() { Ok(()) } else { output.bytes(&written) }
    }
    /// Writes the names of processes, for a timeline, which has them at its end.
    pub(crate) fn names<'n>(
        &mut self,
        names: impl Iterator<Item = (u32, &'n str)>,
        output: &mut Output,
    ) -> Result<(), OutputError> {
        let Picture::Timeline(timeline) = &mut self.shown else { return Ok(()) };
        output.bytes(&timeline.names(names))
    }
}
