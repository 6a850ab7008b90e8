//! What a hit costs here, estimated for the closing summary.
//!
//! The real stubs are not run here: their memory accesses are, at start, on memory of our own. For a count, a load, an add and
//! a store to a line that only this CPU uses; for a duration, two reads of the time-stamp counter and four such updates.
//! What the stubs' other instructions and the way to them add is left out, so this is an estimate and is called one.
//! `trapline demo` measures a function of its own, `trapline-bench uprobe` and `uretprobe` the stubs in all their forms.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use trapline_target::TickClock;

use crate::traced::Aim;

/// A kernel uprobe that counts through BPF: a trap and a program run. An order of magnitude, not measured here.
pub(crate) const KERNEL_NS: f64 = 600.0;
/// Updates that a duration takes: sum, bucket, number of calls, stamp.
const UPDATES: f64 = 4.0;

/// Words of a record.
const RECORD_WORDS: f64 = 8.0;

/// Nanoseconds per hit, estimated; `of_calls`: what is tallied waits for the call's return.
pub(crate) fn per_hit(aim: Aim, of_calls: bool) -> f64 {
    let update = best_of(|cell| cell.store(cell.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
    if matches!(aim, Aim::Count | Aim::Tally { .. }) && !of_calls {
        return update;
    }
    let clock = best_of(|cell| cell.store(TickClock::ticks(), Ordering::Relaxed));
    if aim.is_timed() { 2.0 * clock + UPDATES * update } else { clock + RECORD_WORDS * update }
}

/// Nanoseconds per hit counted by thread: a locked addition, and a call where the process' C library is not known to keep
/// thread numbers.
pub(crate) fn per_hit_by_thread(call: bool) -> f64 {
    let update = best_of(|cell| {
        cell.fetch_add(1, Ordering::Relaxed);
    });
    // As short a call as gettid.
    let asks = |_: &AtomicU64| {
        black_box(std::process::id());
    };
    update + if call { best_of(asks) } else { 0.0 }
}

/// The least time of one `work`, over a few rounds short enough to miss most preemptions.
fn best_of(work: impl Fn(&AtomicU64)) -> f64 {
    const ROUND: u32 = 2000;
    let cell = AtomicU64::new(0);
    let round = || {
        let start = Instant::now();
        for _ in 0..ROUND {
            work(black_box(&cell));
        }
        start.elapsed().as_nanos() as f64 / f64::from(ROUND)
    };
    (0..20).map(|_| round()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::{Aim, per_hit, per_hit_by_thread};
    use crate::traced::Returns;

    #[test]
    fn a_call_costs_more_than_a_word() {
        let (word, call) = (per_hit_by_thread(false), per_hit_by_thread(true));
        assert!(word > 0.0 && call > 2.0 * word && call < 100_000.0, "{word} {call}");
    }

    #[test]
    fn a_duration_costs_more_than_a_count() {
        let (count, time) = (per_hit(Aim::Count, false), per_hit(Aim::Time(Returns::Exits), false));
        assert!(count > 0.0 && time > count && time < 10_000.0, "{count} {time}");
    }
}
