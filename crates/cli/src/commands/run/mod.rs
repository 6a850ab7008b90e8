//! One run for every verb that follows a session: a request, a reporter and sinks.
//!
//! In: a [`Request`], how its session starts, and what the verb makes of it ([`follow::Reporter`]). Out:
//! reports in the sinks, and an exit status. Invariants:
//! - READY-1 signals are caught and the output is open before any process is touched;
//! - READY-2 signals are caught before there is another thread, which could receive them;
//! - END-1 whatever ends the run (time, Ctrl-C, SIGTERM, a terminal or reader that is gone, a full disk, the
//!   target's end), the target is detached before anything else is written or waited for.
//!
//! Does not: know what reports show.

pub(crate) mod ending;
pub(crate) mod follow;
pub(crate) mod schedule;
pub(crate) mod sinks;

use std::time::Duration;

use trapline::{Builder, Error, Finished, Interrupts, Session, Target};

use self::follow::{Following, ROUND, Reporter, TICK};
use self::schedule::Schedule;
use self::sinks::Sinks;
use super::{Failure, Outcome, list};
use crate::args::command::Ends;
use crate::args::command::Run;
use crate::output::OutputError;
use crate::progress::ProgressLine;
use crate::report::format::Format;
use crate::report::{json, summary};
use crate::serve::outlets::Outlets;

/// What a verb asks for.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    run: &'a Run,
    /// The session, as far as the plan depends on it.
    builder: Builder,
    /// Whether the ends of calls are planned too.
    timed: bool,
    /// Longest time between two turns.
    pace: Duration,
    /// Time between reports.
    interval: Option<Duration>,
    /// A notice at the start.
    notice: Option<&'static str>,
}

impl<'a> Request<'a> {
    /// What all verbs ask for.
    pub(crate) fn new(run: &'a Run) -> Self {
        let pace = if run.follow || matches!(run.target, Target::All(_)) { ROUND } else { TICK };
        Self { run, builder: run.builder(), timed: false, pace, interval: run.interval, notice: None }
    }
    /// With the ends of calls, if `timed`, seen in this way.
    pub(crate) fn ends(mut self, ends: Ends, timed: bool) -> Self {
        self.builder = ends.of(self.builder);
        self.timed = timed;
        self
    }
    /// With only the outermost of recursive calls.
    pub(crate) fn outermost(mut self, outermost: bool) -> Self {
        self.builder = self.builder.outermost(outermost);
        self
    }
    /// With rings to be emptied, or names to be read, if `often`.
    pub(crate) const fn often(mut self, often: bool) -> Self {
        if often {
            self.pace = ROUND;
        }
        self
    }
    /// With reports while it runs only if there `are` any.
    pub(crate) fn reports(mut self, are: bool) -> Self {
        self.interval = self.interval.filter(|_| are);
        self
    }
    /// With this notice at the start.
    pub(crate) const fn notice(mut self, notice: Option<&'static str>) -> Self {
        self.notice = notice;
        self
    }
    /// Runs a session from its start to its end; with `--dry-run`, shows its plan.
    pub(crate) fn run(
        self,
        start: impl FnOnce(Builder) -> Result<Session, Error>,
        reporter: &mut dyn Reporter,
    ) -> Result<Outcome, Failure> {
        let Self { run, builder, timed, pace, interval, notice } = self;
        if run.dry_run {
            return list::show(&builder, timed, &run.sink);
        }
        let interrupts = interrupts()?;
        let mut sinks = Sinks::open(&run.sink, &run.target)?;
        let mut outlets = Outlets::open(run).inspect_err(|_| sinks.output.release())?;
        let line = ProgressLine::begin(!sinks.talkative);
        let started = start(line.of(builder));
        drop(line);
        let mut session = started.inspect_err(|error| sinks.refuse(error))?;
        sinks.output.begin()?;
        sinks.notices(session.take_notices());
        sinks.notices(outlets.notices().chain(notice.map(str::to_owned)));
        let mut following = Following {
            session: &mut session,
            interrupts: &interrupts,
            output: &mut sinks.output,
            outlets: &mut outlets,
            reporter,
            interval,
        };
        let followed = following.run(Schedule::new(pace, run.duration));
        let finished = session.detach();
        let reported = followed.and_then(|()| close(&finished, reporter, &mut sinks));
        let sent = outlets.finish(&finished.reports);
        let reported = reported.map_err(Failure::from).and(sent.map_err(Failure::from));
        ending::end(finished, reported, &sinks, &interrupts)
    }
}

/// Catches the signals that end a run.
pub(crate) fn interrupts() -> Result<Interrupts, OutputError> {
    Interrupts::new().map_err(|source| OutputError::Signals { source })
}

/// The command line, for reports that show it.
pub(crate) fn typed() -> String {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ")
}

/// Writes the last reports and the summary.
fn close(finished: &Finished, reporter: &mut dyn Reporter, sinks: &mut Sinks) -> Result<(), OutputError> {
    reporter.close(finished, &mut sinks.output)?;
    if sinks.format == Format::Json {
        sinks.output.print(&json::unprobed(&finished.summary.unprobed))?;
    }
    sinks.summary(&summary::text(&finished.summary))
}
