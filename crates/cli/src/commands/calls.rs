//! `trace`: a line for each call, with arguments, value and duration.
//!
//! Invariants: RUN-1 as for `count`.

use std::time::{Duration, Instant};

use trapline::{Call, Finished, Interrupts, Session, Target};

use super::{Failure, Outcome, trace};
use crate::args::ready::Calls;
use crate::output::{Output, OutputError, say};
use crate::report::calls::Shown;
use crate::report::{json, summary};

/// How often rings are emptied.
const ROUND: Duration = Duration::from_millis(2);

/// Runs it.
pub(crate) fn run(args: &Calls) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(&trace::builder(&args.run), false, &args.run.sink);
    }
    let failed = |source| OutputError::Open { file: "the signals that end a run".to_owned(), source };
    let interrupts = Interrupts::new().map_err(failed)?;
    let sink = &args.run.sink;
    let mut output = Output::open(sink, matches!(args.run.target, Target::Launch(_)))?;
    let mut session = trace::builder(&args.run).record(args.arguments(), args.returns)?;
    let talkative = !(sink.quiet || sink.json && output.is_stderr());
    if talkative {
        session.take_notices().iter().for_each(|notice| say(&format!("trapline: {notice}")));
    }
    let mut report = Report {
        args,
        shown: Shown::new(&args.probes, sink.json, args.run.timestamps),
        left: args.max.unwrap_or(u64::MAX),
    };
    let broken = report.follow(&mut session, &interrupts, &mut output).err();
    let finished = session.detach();
    let closed = match broken {
        None => report.close(&finished, &mut output, talkative),
        Some(error) => Err(error),
    };
    let outcome = match closed {
        Ok(()) | Err(OutputError::Gone) => Outcome::Done,
        Err(error) => {
            say(&format!("trapline: {error}"));
            Outcome::Failed
        }
    };
    let outcome = match finished.command {
        Some(command) if outcome == Outcome::Done => trace::wait(command, &interrupts),
        _ => outcome,
    };
    match finished.nothing {
        Some(nothing) if outcome != Outcome::Failed => Err(nothing.into()),
        _ => Ok(outcome),
    }
}

/// What is still to be printed, and how.
struct Report<'a> {
    args: &'a Calls,
    shown: Shown<'a>,
    /// Lines that may still be printed.
    left: u64,
}

impl Report<'_> {
    /// Until something ends the run.
    fn follow(
        &mut self,
        session: &mut Session,
        interrupts: &Interrupts,
        output: &mut Output,
    ) -> Result<(), OutputError> {
        let end = self.args.run.duration.map(|duration| Instant::now() + duration);
        let interval = self.args.run.interval.filter(|_| self.args.run.sink.json);
        let mut next = interval.map(|interval| Instant::now() + interval);
        loop {
            let calls = session.calls();
            self.print(&calls, output)?;
            if let (Some(due), Some(interval)) = (next, interval)
                && Instant::now() >= due
            {
                next = Some(Instant::now() + interval);
                for report in session.report() {
                    output.print(&json::count(&report, None, None))?;
                }
            }
            let over = self.left == 0 || end.is_some_and(|end| Instant::now() >= end);
            if over || interrupts.wait(ROUND).is_some() || !session.poll() {
                return Ok(());
            }
        }
    }
    fn print(&mut self, calls: &[Call], output: &mut Output) -> Result<(), OutputError> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let text: String = calls.iter().take(most).map(|call| self.shown.line(call)).collect();
        self.left = self.left.saturating_sub(calls.len() as u64);
        if text.is_empty() { Ok(()) } else { output.print(&text) }
    }
    /// The last calls, and the summary.
    fn close(
        &mut self,
        finished: &Finished,
        output: &mut Output,
        talkative: bool,
    ) -> Result<(), OutputError> {
        self.print(&finished.calls, output)?;
        if self.args.run.sink.json {
            for report in &finished.reports {
                output.print(&json::count(report, None, None))?;
            }
        }
        if talkative {
            let text = summary::text(&finished.summary);
            match output {
                Output::File(..) if !self.args.run.sink.json => output.print(&text)?,
                _ => say(text.trim_end()),
            }
        }
        Ok(())
    }
}
