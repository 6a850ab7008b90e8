//! Which functions are taken out of a recording while it runs, so that it costs no more than its budget.
//!
//! In: windows of a process' run: its time of processors, how often each function was called, what a record took. Out: functions
//! that are to be taken out. docs/design/thinning.md says why so. Invariants: THIN-1 only functions within whose calls no recorded
//! call began are taken out, and those that were called most come first; THIN-2 nothing is taken out unless the cost was above
//! the budget in two windows, one after the other. Does not: read clocks, or take anything out.

use std::collections::HashSet;
use std::time::Duration;
use trapline_order::Order as _;

/// Least time of processors in a window: the kernel tells it in steps of 10 ms.
const LEAST: Duration = Duration::from_millis(200);
/// Windows in a row that are above the budget before something is taken out.
const WINDOWS: u32 = 2;
/// What is taken out brings the cost to this share of the budget, so that it does not rise above it at once.
const LOW: f64 = 0.8;

/// A function, by segment and probe.
pub(super) type Probe = (usize, u32);

/// What a process did in a window.
#[derive(Debug)]
pub(super) struct Window {
    /// Its time of processors.
    pub(super) cpu: Duration,
    /// What a record took.
    pub(super) record: Duration,
    /// Calls of each function, and whether it is one that may be taken out.
    pub(super) calls: Vec<(Probe, u64, bool)>,
}

impl Window {
    /// The share of the process' time that these calls cost: two records each.
    fn share(&self, calls: u64) -> f64 {
        2.0 * calls as f64 * self.record.as_secs_f64() / self.cpu.as_secs_f64().max(f64::MIN_POSITIVE)
    }
    fn all(&self) -> u64 {
        self.calls.iter().map(|(_, calls, _)| calls).sum()
    }
}

/// What was decided about a window.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Decision {
    /// The share of time that recording cost.
    pub(super) share: f64,
    /// Functions to take out, those that were called most first.
    pub(super) out: Vec<Probe>,
}

/// The state of one process.
#[derive(Debug)]
pub(super) struct Thinning {
    /// The budget, as a share.
    budget: f64,
    /// Windows in a row above it.
    above: u32,
    /// What was there when the window began.
    began: Option<(Duration, Vec<Vec<u64>>)>,
    /// What was taken out.
    pub(super) out: HashSet<Probe>,
    /// The share of the last window.
    last: Option<f64>,
    /// At the last decision nothing was left that may be taken out.
    is_stuck: bool,
}

impl Thinning {
    pub(super) fn new(budget: f64) -> Self {
        Self { budget, above: 0, began: None, out: HashSet::new(), last: None, is_stuck: false }
    }
    /// The share of the last window, if that was still above the budget and there was time to bring it down.
    pub(super) fn still_above(&self) -> Option<f64> {
        self.last.filter(|share| *share > self.budget && self.is_stuck)
    }
    /// Ends the window, if it is long enough: time of processors and calls so far. Returns the window's.
    pub(super) fn window(
        &mut self,
        cpu: Duration,
        calls: &[Vec<u64>],
    ) -> Option<(Duration, Vec<(Probe, u64)>)> {
        let Some((began, before)) = &self.began else {
            self.began = Some((cpu, calls.to_vec()));
            return None;
        };
        let took = cpu.saturating_sub(*began);
        if took < LEAST {
            return None;
        }
        let mut all = Vec::new();
        for (segment, of) in calls.iter().enumerate() {
            let before = before.get(segment);
            for (probe, now) in of.iter().enumerate() {
                let then = before.and_then(|of| of.get(probe)).copied().unwrap_or(0);
                if *now > then {
                    all.push(((segment, probe as u32), now - then));
                }
            }
        }
        self.began = Some((cpu, calls.to_vec()));
        Some((took, all))
    }
    /// Decides about a window.
    pub(super) fn decide(&mut self, window: &Window) -> Decision {
        let share = window.share(window.all());
        self.last = Some(share);
        self.above = if share > self.budget { self.above + 1 } else { 0 };
        let mut decision = Decision { share, out: Vec::new() };
        if self.above < WINDOWS {
            return decision;
        }
        self.above = 0;
        let mut may: Vec<_> = window.calls.iter().filter(|(_, _, may)| *may).collect();
        may.order_by_key(|(probe, calls, _)| (std::cmp::Reverse(*calls), *probe));
        let mut left = window.all();
        for (probe, calls, _) in may {
            if window.share(left) <= LOW * self.budget {
                break;
            }
            left -= calls;
            decision.out.push(*probe);
        }
        self.is_stuck = window.share(left) > self.budget;
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::{Thinning, Window};
    use std::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// One second, records of 50 ns: a million calls cost a tenth.
    fn window(calls: &[(u32, u64, bool)]) -> Window {
        let calls = calls.iter().map(|&(probe, calls, may)| ((0, probe), calls, may)).collect();
        Window { cpu: ms(1000), record: Duration::from_nanos(50), calls }
    }

    /// THIN-1: the fewest functions that bring the cost down to four fifths of the budget.
    #[test]
    fn thin_1_leaves_that_are_called_most_go_first() {
        let busy =
            window(&[(1, 5_000_000, false), (2, 90_000, true), (3, 4_000_000, true), (4, 300_000, true)]);
        let mut thinning = Thinning::new(0.7);
        thinning.decide(&busy);
        assert_eq!(thinning.decide(&busy).out, [(0, 3)]);
        // Nothing but leaves goes, though that is not enough.
        let mut thinning = Thinning::new(0.01);
        thinning.decide(&busy);
        assert_eq!(thinning.decide(&busy).out, [(0, 3), (0, 4), (0, 2)]);
    }

    /// THIN-2
    #[test]
    fn thin_2_one_window_above_the_budget_is_not_enough() {
        let (busy, idle) = (window(&[(1, 1_000_000, true)]), window(&[(1, 400_000, true)]));
        let mut thinning = Thinning::new(0.05);
        let windows = [(&busy, 0.1, 0), (&idle, 0.04, 0), (&busy, 0.1, 0), (&busy, 0.1, 1), (&busy, 0.1, 0)];
        for (window, share, out) in windows {
            let decision = thinning.decide(window);
            assert!((decision.share - share).abs() < 1e-9, "{decision:?}");
            assert_eq!(decision.out, [(0, 1)][..out]);
        }
    }

    #[test]
    fn a_window_is_as_long_as_the_process_runs() {
        let mut thinning = Thinning::new(0.05);
        assert_eq!(thinning.window(ms(100), &[vec![7, 9]]), None);
        assert_eq!(thinning.window(ms(290), &[vec![8, 9]]), None, "too short");
        let calls = [vec![10, 9], vec![4]];
        assert_eq!(thinning.window(ms(350), &calls), Some((ms(250), vec![((0, 0), 3), ((1, 0), 4)])));
        assert_eq!(thinning.window(ms(540), &calls), None);
        assert_eq!(thinning.window(ms(560), &calls), Some((ms(210), vec![])));
    }
}
