//! Many threads in code that changes while they run.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::victim::{Victim, counting, counting_returns, word};

#[test]
fn eight_threads_are_counted_exactly() {
    Victim::in_both_forms(|victim| {
        const CALLS: u64 = 1000;
        let plus: fn(u64) -> u64 = |n| n + 1;
        for (name, result) in [("pushes", plus), ("moves", |n| n)] {
            let (count, function) = (word(), victim.function(name));
            let probe = victim.register(name, counting(count));
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| (0..CALLS).for_each(|n| assert_eq!(function(n, 1), result(n))));
                }
            });
            assert_eq!((count.load(Relaxed), probe.counts().hits), (8 * CALLS, 8 * CALLS), "{name}");
            assert_eq!(probe.counts().missed(), 0);
        }
    });
}

/// Ends the storm when dropped, however the test ends.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Functions on one page and on others are called all the time while probes on them come and go. No call goes
/// wrong, whichever page a thread is in when that page is exchanged. After a registration every call is seen.
#[test]
fn code_changes_under_threads_that_run_it() {
    Victim::in_both_forms(|victim| {
        const ROUNDS: u64 = 10;
        let before = victim.text();
        let cases = [("pushes", 13), ("signs", 13), ("moves", 42), ("loads", 113), ("far_a", 13)];
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        for (name, result) in cases {
                            assert_eq!(victim.function(name)(6, 7), result, "{name}");
                        }
                    }
                });
            }
            let _over = Over(&over);
            for round in 0..ROUNDS {
                let (name, result) = cases[round as usize % cases.len()];
                let (entries, returns) = (word(), word());
                let entry = victim.register(name, counting(entries));
                let both = victim.register(name, counting_returns(returns));
                let (had, back) = (entries.load(Relaxed), returns.load(Relaxed));
                assert_eq!(victim.function(name)(6, 7), result);
                assert!(entries.load(Relaxed) > had && returns.load(Relaxed) > back, "{name}, {round}");
                drop((entry, both));
            }
        });
        assert!(victim.text() == before);
    });
}
