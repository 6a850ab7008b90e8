//! `watch`: which code accesses a variable, when, and its value before and after.
//!
//! Invariants: END-1, as for every run: whatever ends it, everything is disarmed before the last of it is
//! written.

use std::time::{Duration, Instant};

use trapline::watch::{Accessed, Expr, Progress, WatchEnd, WatchSession};
use trapline::{Interrupts, Target};

use super::run::follow::{Turns, follow};
use super::run::schedule::{Event, Schedule};
use super::run::sinks::Sinks;
use super::run::{ending, interrupts};
use super::{Failure, Outcome};
use crate::args::command::Watch;
use crate::output::{Output, OutputError, print_line};
use crate::progress::ProgressLine;
use crate::report::number::grouped;
use crate::report::watch::tally::Tallied;
use crate::report::watch::{json, lines, summary};

/// How often accesses are looked for.
const ROUND: Duration = Duration::from_millis(20);
/// How often to check whether the processes live.
const ALIVE: Duration = Duration::from_millis(100);
/// If arming takes longer than this, a message says so, and repeats at this interval.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs `watch`.
pub(crate) fn run(args: &Watch) -> Result<Outcome, Failure> {
    let interrupts = interrupts()?;
    let mut sinks = Sinks::open(&args.sink, &args.target)?;
    let mut session = start(args).inspect_err(|_| sinks.output.release())?;
    sinks.output.begin()?;
    sinks.notices(session.take_notices());
    let start_ns = session.start_ns();
    let mut report = Report { args, tallied: Tallied::new(session.watched()), start_ns, ended: false };
    let mut watching = Watching {
        report: &mut report,
        session: &mut session,
        interrupts: &interrupts,
        output: &mut sinks.output,
        asked: Instant::now(),
    };
    let followed = watching.run();
    sinks.notices(session.take_notices());
    let mut end = session.finish();
    let rest = std::mem::take(&mut end.rest);
    let reported = followed.and_then(|()| report.close(rest, &end, &mut sinks));
    Ok(ending::outcome(reported.map_err(Failure::from), end.command, &interrupts))
}

/// Arms everything, and reports how far that is if it takes long.
fn start(args: &Watch) -> Result<WatchSession, trapline::Error> {
    let builder = WatchSession::builder().target(args.target.clone()).places(args.places.iter().cloned());
    let builder = builder.forks(args.forks).stack(args.stack).rotate(args.rotate).shield(args.shield);
    let mut reported = Duration::ZERO;
    // A launched command has the terminal for itself.
    let line = ProgressLine::begin(args.sink.quiet || matches!(args.target, Target::Launch(_)));
    builder.start(&mut |progress| {
        if line.say(arming(progress)) {
            return;
        }
        if !args.sink.quiet && progress.elapsed >= reported + PATIENCE {
            reported = progress.elapsed;
            print_line(&format!("trapline: {}", arming(progress)));
        }
    })
}

fn arming(progress: Progress) -> String {
    format!("armed {} of {} threads", grouped(progress.done as u64), grouped(progress.of as u64))
}

/// A session with all that its turns need.
struct Watching<'a, 'r> {
    report: &'a mut Report<'r>,
    session: &'a mut WatchSession,
    interrupts: &'a Interrupts,
    output: &'a mut Output,
    /// When it was last checked whether the processes live.
    asked: Instant,
}

impl Watching<'_, '_> {
    /// Prints accesses until something ends the run.
    fn run(&mut self) -> Result<(), OutputError> {
        let args = self.report.args;
        if args.sink.json {
            self.output.print(&json::start(self.session.watched()))?;
        } else if !args.sink.quiet {
            print_line(&lines::start(self.session.watched(), &self.session.tally()));
        }
        follow(Schedule::new(ROUND, args.duration), self)
    }
    /// Whether a process is left to watch, checked now and then.
    fn is_alive(&mut self) -> bool {
        if self.asked.elapsed() < ALIVE {
            return true;
        }
        self.asked = Instant::now();
        self.session.is_alive()
    }
}

impl Turns for Watching<'_, '_> {
    fn turn(&mut self, at_most: Duration) -> Result<Event, OutputError> {
        let events = self.session.poll(at_most);
        self.report.show(events, self.output)?;
        self.report.report_programs(self.session, self.output)?;
        if self.report.ended {
            return Ok(Event::Enough);
        }
        if self.interrupts.wait(Duration::ZERO).is_some() {
            return Ok(Event::Interrupted);
        }
        Ok(if self.is_alive() { Event::Quiet } else { Event::TargetEnded })
    }
    fn report(&mut self) -> Result<(), OutputError> {
        let tallied = &self.report.tallied;
        self.output.print(&match self.report.args.sink.json {
            true => json::summary(tallied, &self.session.tally(), None, false),
            false => lines::table(tallied),
        })
    }
    fn interval(&self) -> Option<Duration> {
        self.report.args.interval
    }
}

/// What is printed, and what is kept for the summary.
struct Report<'a> {
    args: &'a Watch,
    tallied: Tallied,
    /// Time of the session's start.
    start_ns: u64,
    /// Whether the condition of `--until` has held.
    ended: bool,
}

impl Report<'_> {
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
                output.print(&json::program(&program, new))?;
            } else if !self.args.sink.quiet {
                print_line(&lines::program(&program, new));
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
                json::access(&one, &self.tallied)
            } else {
                let since = one.event.time_ns.saturating_sub(self.start_ns);
                lines::line(&one, &self.tallied, since, self.args.timestamps)
            });
        }
        if text.is_empty() { Ok(()) } else { output.print(&text) }
    }
    /// Prints the last accesses, and the summary.
    fn close(&mut self, rest: Vec<Accessed>, end: &WatchEnd, sinks: &mut Sinks) -> Result<(), OutputError> {
        self.show(rest, &mut sinks.output)?;
        if self.args.sink.json {
            return sinks.output.print(&json::summary(&self.tallied, &end.tally, Some(end), true));
        }
        sinks.output.print(&lines::table(&self.tallied))?;
        sinks.summary(&summary::text(&self.tallied, end))
    }
}
