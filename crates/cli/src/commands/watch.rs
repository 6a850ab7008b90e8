//! `watch`: which code accesses a variable, when, and its value before and after.
//!
//! Invariants: END-1, as for `count`: whatever ends the run, everything is disarmed before the last of it is
//! written.

use std::time::{Duration, Instant};

use trapline::watch::{Accessed, Expr, Progress, WatchEnd, WatchSession};
use trapline::{Interrupts, Target};

use super::{Failure, Outcome, intervals};
use crate::args::command::Watch;
use crate::output::{Output, OutputError, print_line};
use crate::report::number::grouped;
use crate::report::watch::{self, Tallied};
use crate::report::watch_json;

/// How often accesses are looked for.
const ROUND: Duration = Duration::from_millis(20);
/// How often to check whether the processes live.
const ALIVE: Duration = Duration::from_millis(100);
/// If arming takes longer than this, a message says so, and repeats at this interval.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs `watch`.
pub(crate) fn run(args: &Watch) -> Result<Outcome, Failure> {
    let failed = |source| OutputError::Open { file: "the signals that end a run".to_owned(), source };
    let interrupts = Interrupts::new().map_err(failed)?;
    let mut output = Output::reserve(&args.sink, matches!(args.target, Target::Launch(_)))?;
    let builder = WatchSession::builder().target(args.target.clone()).places(args.places.iter().cloned());
    let builder = builder.forks(args.forks).stack(args.stack).rotate(args.rotate);
    let mut reported = Duration::ZERO;
    let quiet = args.sink.quiet;
    let begun = builder.start(&mut |progress| {
        if !quiet && progress.elapsed >= reported + PATIENCE {
            reported = progress.elapsed;
            print_line(&arming(progress));
        }
    });
    let mut session = begun.inspect_err(|_| output.release())?;
    output.begin()?;
    let talkative = !(quiet || args.sink.json && output.is_stderr());
    if talkative {
        session.take_notices().iter().for_each(|notice| print_line(&format!("trapline: {notice}")));
    }
    let mut report = Report {
        args,
        tallied: Tallied::new(session.watched()),
        begun: Instant::now(),
        start_ns: None,
        ended: false,
    };
    let broken = report.follow(&mut session, &interrupts, &mut output).err();
    if talkative {
        session.take_notices().iter().for_each(|notice| print_line(&format!("trapline: {notice}")));
    }
    let mut end = session.finish();
    let rest = std::mem::take(&mut end.rest);
    let closed = match broken {
        None => report.close(rest, &end, &mut output, talkative),
        Some(error) => Err(error),
    };
    let outcome = match closed {
        Ok(()) | Err(OutputError::Gone) => Outcome::Done,
        Err(error) => {
            print_line(&format!("trapline: {error}"));
            Outcome::Failed
        }
    };
    Ok(match end.command {
        Some(command) if outcome == Outcome::Done => intervals::wait(command, &interrupts),
        _ => outcome,
    })
}

fn arming(progress: Progress) -> String {
    format!("trapline: armed {} of {} threads", grouped(progress.done as u64), grouped(progress.of as u64))
}

/// What is printed, and what is kept for the summary.
struct Report<'a> {
    args: &'a Watch,
    tallied: Tallied,
    begun: Instant,
    /// Time of the first event.
    start_ns: Option<u64>,
    /// Whether the condition of `--until` has held.
    ended: bool,
}

impl Report<'_> {
    /// Prints accesses until something ends the run.
    fn follow(
        &mut self,
        session: &mut WatchSession,
        interrupts: &Interrupts,
        output: &mut Output,
    ) -> Result<(), OutputError> {
        let args = self.args;
        self.start_ns = Some(session.start_ns());
        output.print(&if args.sink.json { watch_json::start(session.watched()) } else { String::new() })?;
        if !(args.sink.json || args.sink.quiet) {
            print_line(&watch::start(session.watched(), &session.tally()));
        }
        let end = args.duration.map(|duration| self.begun + duration);
        let mut next = args.interval.map(|interval| self.begun + interval);
        let mut asked = Instant::now();
        loop {
            let events = session.poll(ROUND);
            self.show(events, output)?;
            self.report_programs(session, output)?;
            let now = Instant::now();
            if let (Some(due), Some(interval)) = (next, args.interval)
                && now >= due
            {
                next = Some(now + interval);
                output.print(&if args.sink.json {
                    watch_json::summary(&self.tallied, &session.tally(), None, false)
                } else {
                    watch::table(&self.tallied)
                })?;
            }
            if self.ended || end.is_some_and(|end| now >= end) || interrupts.wait(Duration::ZERO).is_some() {
                return Ok(());
            }
            if now.duration_since(asked) >= ALIVE {
                asked = now;
                if !session.is_alive() {
                    return Ok(());
                }
            }
        }
    }
    /// Prints which programs processes have executed, and what is watched in them.
    fn report_programs(
        &mut self,
        session: &mut WatchSession,
        output: &mut Output,
    ) -> Result<(), OutputError> {
        for program in session.take_programs() {
            let new = &session.watched()[program.watched.clone()];
            self.tallied.watched.extend_from_slice(new);
            if self.args.sink.json {
                output.print(&watch_json::program(&program, new))?;
            } else if !self.args.sink.quiet {
                print_line(&watch::program(&program, new));
            }
        }
        Ok(())
    }
    /// Filters, counts and prints accesses, up to the one that ends the run.
    fn show(&mut self, events: Vec<Accessed>, output: &mut Output) -> Result<(), OutputError> {
        let mut text = String::new();
        for one in events {
            if self.ended {
                break;
            }
            let facts = self.tallied.facts(&one);
            let holds = |expr: &Expr| expr.holds(&facts);
            self.ended = self.args.until.as_ref().and_then(holds) == Some(true);
            match self.args.filter.as_ref().map_or(Some(true), holds) {
                Some(true) => {}
                Some(false) => continue,
                None => {
                    self.tallied.undecided += 1;
                    continue;
                }
            }
            self.tallied.add(&one);
            if self.args.count {
                continue;
            }
            text.push_str(&if self.args.sink.json {
                watch_json::access(&one, &self.tallied)
            } else {
                let since = one.event.time_ns.saturating_sub(self.start_ns.unwrap_or(0));
                watch::line(&one, &self.tallied, since, self.args.timestamps)
            });
        }
        if text.is_empty() { Ok(()) } else { output.print(&text) }
    }
    /// Prints the last accesses, and the summary.
    fn close(
        &mut self,
        rest: Vec<Accessed>,
        end: &WatchEnd,
        output: &mut Output,
        talkative: bool,
    ) -> Result<(), OutputError> {
        self.show(rest, output)?;
        if self.args.sink.json {
            return output.print(&watch_json::summary(&self.tallied, &end.tally, Some(end), true));
        }
        output.print(&watch::table(&self.tallied))?;
        if talkative {
            let text = watch::summary(&self.tallied, end);
            match output {
                Output::File(..) => output.print(&text)?,
                _ => print_line(text.trim_end()),
            }
        }
        Ok(())
    }
}
