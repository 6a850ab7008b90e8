//! The loop that every verb runs in.
//!
//! In: a [`Schedule`] and a run to drive, such as a session with its [`Reporter`]. Out: reports, until
//! something ends the run. Does not: decide when ([`super::schedule`] does), begin or end a session.

use std::time::{Duration, Instant};

use trapline::{Finished, Interrupts, Session};

use super::schedule::{Action, Event, Schedule};
use crate::output::{Output, OutputError};
use crate::serve::outlets::Outlets;

/// How often new mappings and ended processes are looked for.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// How often they are looked for where more waits for it: rings are emptied, threads' names are read, and
/// each program that a followed process executes is held at its entry point.
pub(crate) const ROUND: Duration = Duration::from_millis(2);

/// A run as the loop sees it.
pub(crate) trait Turns {
    /// Waits at most so long, takes what has come, and returns what that was.
    fn turn(&mut self, at_most: Duration) -> Result<Event, OutputError>;
    /// Writes a report while the run goes on.
    fn report(&mut self) -> Result<(), OutputError>;
    /// The present time between reports; `None` if there are none.
    fn interval(&self) -> Option<Duration>;
}

/// Drives a run until something ends it.
pub(crate) fn follow(mut schedule: Schedule, run: &mut dyn Turns) -> Result<(), OutputError> {
    let begun = Instant::now();
    let mut event = Event::Quiet;
    loop {
        match schedule.next(begun.elapsed(), event, run.interval()) {
            Action::Report => run.report()?,
            Action::Wait(at_most) => event = run.turn(at_most)?,
            Action::End => return Ok(()),
        }
    }
}

/// What a verb makes of its session.
pub(crate) trait Reporter {
    /// Writes what comes before everything else.
    fn begin(&mut self, _: &mut Session, _: &mut Output) -> Result<(), OutputError> {
        Ok(())
    }
    /// Takes what was recorded since the last turn.
    fn take(&mut self, _: &mut Session, _: &mut Output) -> Result<Event, OutputError> {
        Ok(Event::Quiet)
    }
    /// Writes a report while the run goes on.
    fn report(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError>;
    /// Takes what can only be asked for while processes are still traced.
    fn before_detach(&mut self, _: &mut Session, _: &mut Output) -> Result<(), OutputError> {
        Ok(())
    }
    /// Writes the rest, when everything is detached.
    fn close(&mut self, finished: &Finished, output: &mut Output) -> Result<(), OutputError>;
}

/// A session with all that its turns need.
pub(super) struct Following<'a> {
    pub(super) session: &'a mut Session,
    pub(super) interrupts: &'a Interrupts,
    pub(super) output: &'a mut Output,
    pub(super) outlets: &'a mut Outlets,
    pub(super) reporter: &'a mut dyn Reporter,
    pub(super) interval: Option<Duration>,
}

impl Following<'_> {
    /// Follows the session from its first turn to its last one.
    pub(super) fn run(&mut self, schedule: Schedule) -> Result<(), OutputError> {
        self.reporter.begin(self.session, self.output)?;
        follow(schedule, self)?;
        self.reporter.before_detach(self.session, self.output)
    }
}

impl Turns for Following<'_> {
    fn turn(&mut self, at_most: Duration) -> Result<Event, OutputError> {
        if self.session.wait(self.interrupts, at_most).is_some() {
            return Ok(Event::Interrupted);
        }
        if !self.session.poll() {
            return Ok(Event::TargetEnded);
        }
        self.outlets.report_totals(|| self.session.totals());
        self.reporter.take(self.session, self.output)
    }
    fn report(&mut self) -> Result<(), OutputError> {
        self.reporter.report(self.session, self.output)
    }
    fn interval(&self) -> Option<Duration> {
        self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::{Turns, follow};
    use crate::commands::run::schedule::{Event, Schedule};
    use crate::output::OutputError;
    use std::time::Duration;

    /// A run in which these events happen, the last one first.
    struct Script {
        events: Vec<Event>,
        waits: Vec<Duration>,
        reports: usize,
        interval: Option<Duration>,
    }

    impl Turns for Script {
        fn turn(&mut self, at_most: Duration) -> Result<Event, OutputError> {
            self.waits.push(at_most);
            self.events.pop().ok_or(OutputError::Gone)
        }
        fn report(&mut self) -> Result<(), OutputError> {
            self.reports += 1;
            Ok(())
        }
        fn interval(&self) -> Option<Duration> {
            self.interval
        }
    }

    #[test]
    fn turns_follow_each_other_until_something_ends_them() {
        let ms = Duration::from_millis;
        for (last, interval, reports) in [
            (Event::Enough, None, 0),
            (Event::Interrupted, Some(Duration::from_secs(3600)), 0),
            (Event::TargetEnded, Some(Duration::from_nanos(1)), 4),
        ] {
            let events = vec![last, Event::Quiet, Event::Busy, Event::Quiet];
            let mut script = Script { events, waits: Vec::new(), reports: 0, interval };
            follow(Schedule::new(ms(2), None), &mut script).expect("an end");
            let least = if reports > 0 { ms(1) } else { ms(2) };
            assert_eq!((script.waits, script.reports), (vec![least, least, ms(0), least], reports));
        }
    }

    #[test]
    fn an_error_ends_the_turns() {
        let mut script = Script { events: Vec::new(), waits: Vec::new(), reports: 0, interval: None };
        let ended = follow(Schedule::new(Duration::ZERO, None), &mut script);
        assert!(matches!(ended, Err(OutputError::Gone)));
    }
}
