//! Waits until no thread is in the middle of creating another one that began before its own events were open.
//!
//! In: threads whose events are all open. Out: those of which that is known. Does not: list threads, arm.
//!
//! Protocol. The kernel hands a maker's events on at the beginning of a creation. Only at the end of it is the new
//! thread listed, and its birth recorded. So a thread that is being created while its maker is armed may have no event
//! at all, and be in no listing. Each maker *M* is therefore looked at after its events are open:
//!
//! | *M* | so |
//! |---|---|
//! | is blocked, and not in a call that creates | it creates nothing; what it creates later inherits all |
//! | has run for [`LONGEST`] since its events were open | a creation that began before them is over |
//! | anything else | it is looked at again, for at most [`PATIENCE`] |
//!
//! When that is known of *M*, the caller reads the records and lists once more: a thread that *M* had been creating is
//! in both by then. After that every birth by *M* is whole. Of an *M* for which it does not become known (it gets no CPU,
//! or creates a process with much memory), the first birth that is recorded may lack events. That thread is armed when
//! it is reported, and counted as late.

use std::time::{Duration, Instant};

use trapline_tracee::{InCall, Process};

/// Running time after which no creation of a thread still goes on. One takes some 30 µs.
const LONGEST: Duration = Duration::from_millis(2);
/// Limit for the time that arming waits for this.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// Time between two looks.
const REST: Duration = Duration::from_micros(100);

/// A thread whose events are open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker {
    pub(crate) tid: u32,
    /// Time that it had run before.
    ran_ns: u64,
}

impl Maker {
    /// A thread of which the last event was opened a moment ago.
    pub(crate) fn opened(process: &Process, tid: u32) -> Self {
        Self { tid, ran_ns: process.run_time(tid).unwrap_or(0) }
    }
    fn is_settled(self, process: &Process) -> bool {
        match process.in_call(self.tid) {
            Ok(InCall::Running) => {
                let ran = process.run_time(self.tid).map_or(0, |ns| ns.saturating_sub(self.ran_ns));
                Duration::from_nanos(ran) >= LONGEST
            }
            Ok(blocked) => !blocked.creates(),
            // It is gone, and what it was creating is there.
            Err(_) => true,
        }
    }
}

/// Waits for all of them; returns those that are settled, and the rest.
pub(crate) fn settled(
    process: &Process,
    mut makers: Vec<Maker>,
    at_most: Duration,
) -> (Vec<u32>, Vec<Maker>) {
    let begun = Instant::now();
    let mut settled = Vec::new();
    loop {
        settled.extend(makers.extract_if(.., |maker| maker.is_settled(process)).map(|maker| maker.tid));
        if makers.is_empty() || begun.elapsed() >= at_most {
            return (settled, makers);
        }
        std::thread::sleep(REST);
    }
}
