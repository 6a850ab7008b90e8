//! When a run reports, waits and ends: one decision for every verb.
//!
//! In: the time since the run's begin, what happened last, and the interval of reports. Out: what to do next.
//! Invariants: TICK-1 reports keep to the interval's grid, begin + n × interval: what was missed is skipped,
//! and nothing drifts. TICK-2 whatever ends a run comes before a report that is due. TICK-3 between two
//! reports there is a wait, however short the interval is. Does not: read a clock, wait, know what is
//! reported.

use std::time::Duration;

/// Shortest wait. A moment that is due sooner is waited for all the same.
const LEAST: Duration = Duration::from_millis(1);

/// What happened while a run waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing that changes its course.
    Quiet,
    /// So much came that more is likely to wait.
    Busy,
    /// All that was asked for has come.
    Enough,
    /// A signal asks it to end: Ctrl-C, SIGTERM, or a terminal that is gone.
    Interrupted,
    /// No target is left.
    TargetEnded,
}

/// What a run does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Write a report.
    Report,
    /// Wait at most so long, and take what comes.
    Wait(Duration),
    /// End.
    End,
}

/// The times of one run. All are counted from its begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// Longest wait.
    pace: Duration,
    /// When the run ends by itself.
    end: Option<Duration>,
    /// The last point of the grid that was reached.
    reached: Duration,
    /// Whether a report was the last action.
    reported: bool,
}

impl Schedule {
    /// A run that waits at most `pace` at a time, and ends after `duration`.
    pub(crate) const fn new(pace: Duration, duration: Option<Duration>) -> Self {
        Self { pace, end: duration, reached: Duration::ZERO, reported: false }
    }
    /// Decides what comes next. With another `interval` than before, the next report is due that long after
    /// the last point of the grid.
    pub(crate) fn next(&mut self, now: Duration, event: Event, interval: Option<Duration>) -> Action {
        let ends = matches!(event, Event::Enough | Event::Interrupted | Event::TargetEnded);
        if ends || self.end.is_some_and(|end| now >= end) {
            return Action::End;
        }
        let due = interval.map(|interval| self.reached.saturating_add(interval));
        if let (Some(due), Some(interval)) = (due, interval)
            && now >= due
            && !self.reported
        {
            self.reported = true;
            self.reached = now.saturating_sub(rest(now.saturating_sub(self.reached), interval));
            return Action::Report;
        }
        self.reported = false;
        if event == Event::Busy {
            return Action::Wait(Duration::ZERO);
        }
        let next = [self.end, due].into_iter().flatten().min();
        let left = next.map_or(self.pace, |at| at.saturating_sub(now));
        Action::Wait(left.min(self.pace).max(LEAST))
    }
}

/// What is left of a time after as many whole intervals as fit.
fn rest(time: Duration, interval: Duration) -> Duration {
    let rest = time.as_nanos() % interval.as_nanos().max(1);
    Duration::new((rest / 1_000_000_000) as u64, (rest % 1_000_000_000) as u32)
}

#[cfg(test)]
mod tests {
    use super::{Action, Event, Schedule};
    use std::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn whatever_ends_a_run_ends_it_at_once() {
        for event in [Event::Enough, Event::Interrupted, Event::TargetEnded] {
            // A report is due too, and is not written: the last one follows anyway.
            let mut schedule = Schedule::new(ms(50), Some(ms(900)));
            assert_eq!(schedule.next(ms(100), event, Some(ms(100))), Action::End, "{event:?}");
        }
        for event in [Event::Quiet, Event::Busy] {
            let mut schedule = Schedule::new(ms(50), Some(ms(900)));
            assert_eq!(
                schedule.next(ms(899), event, Some(ms(900))),
                match event {
                    Event::Busy => Action::Wait(ms(0)),
                    _ => Action::Wait(ms(1)),
                }
            );
            assert_eq!(schedule.next(ms(900), event, Some(ms(900))), Action::End, "{event:?}");
        }
    }

    #[test]
    fn a_wait_ends_where_something_is_due() {
        let mut schedule = Schedule::new(ms(50), Some(ms(1000)));
        for (now, interval, wait) in [
            (0, None, 50),
            (970, None, 30),
            (0, Some(20), 20),
            (0, Some(300), 50),
            // Shorter waits would only cost time.
            (19, Some(20), 1),
            (999, None, 1),
        ] {
            let action = schedule.next(ms(now), Event::Quiet, interval.map(ms));
            assert_eq!(action, Action::Wait(ms(wait)), "{now} {interval:?}");
        }
        let mut forever = Schedule::new(ms(2), None);
        assert_eq!(forever.next(Duration::MAX, Event::Quiet, None), Action::Wait(ms(2)));
        assert_eq!(forever.next(ms(1), Event::Quiet, Some(Duration::MAX)), Action::Wait(ms(2)));
        assert_eq!(forever.next(ms(1), Event::Busy, None), Action::Wait(ms(0)), "more is there");
    }

    #[test]
    fn reports_stay_on_the_grid() {
        let mut schedule = Schedule::new(ms(50), None);
        let interval = Some(ms(100));
        let mut next = |now| schedule.next(ms(now), Event::Quiet, interval);
        // Each report is late by some milliseconds. The next ones are not.
        for (now, action) in [
            (0, Action::Wait(ms(50))),
            (103, Action::Report),
            (107, Action::Wait(ms(50))),
            (199, Action::Wait(ms(1))),
            (207, Action::Report),
            (207, Action::Wait(ms(50))),
            (299, Action::Wait(ms(1))),
            // The tracer did not run for a while. What was missed is skipped, not made up for.
            (561, Action::Report),
            (562, Action::Wait(ms(38))),
            (600, Action::Report),
            (601, Action::Wait(ms(50))),
            (700, Action::Report),
        ] {
            assert_eq!(next(now), action, "{now}");
        }
    }

    #[test]
    fn between_two_reports_there_is_a_wait() {
        let mut schedule = Schedule::new(ms(50), None);
        let mut next = |now, event| schedule.next(ms(now), event, Some(Duration::from_nanos(1)));
        for now in [1, 5, 9] {
            assert_eq!(next(now, Event::Quiet), Action::Report);
            assert_eq!(next(now + 1, Event::Quiet), Action::Wait(ms(1)), "a report is due again");
        }
        assert_eq!(next(20, Event::Busy), Action::Report);
        assert_eq!(next(21, Event::Busy), Action::Wait(ms(0)), "records are taken all the same");
    }

    #[test]
    fn an_interval_may_change_and_pause() {
        let mut schedule = Schedule::new(ms(500), None);
        let mut next = |now, interval: Option<u64>| schedule.next(ms(now), Event::Quiet, interval.map(ms));
        assert_eq!(next(100, Some(100)), Action::Report);
        assert_eq!(next(130, Some(200)), Action::Wait(ms(170)), "200 ms after the last one");
        assert_eq!(next(130, Some(25)), Action::Report);
        assert_eq!(next(131, Some(25)), Action::Wait(ms(19)));
        assert_eq!(next(400, None), Action::Wait(ms(500)), "paused");
        assert_eq!(next(410, Some(100)), Action::Report, "and going on");
        assert_eq!(next(410, Some(100)), Action::Wait(ms(15)));
    }
}
