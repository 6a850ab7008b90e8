//! Ticks of the time-stamp counter against CLOCK_MONOTONIC.
//!
//! Output: nanoseconds per tick, more exact the longer a [`TickClock`] lives. Both clocks are read together
//! at its start and at each query. The pair is read three times, and the one with the shortest gap between
//! the tick reads is taken, so a preemption between the two has no effect. After a second the error is below
//! a millionth.

use std::time::Instant;

use crate::sys::{native, own};

/// Measures how long a tick is.
#[derive(Clone, Copy, Debug)]
pub struct TickClock {
    start: (u64, Instant),
}

fn pair() -> (u64, Instant) {
    let one = || {
        let before = native::ticks();
        let now = Instant::now();
        let after = native::ticks();
        (after - before, (before + (after - before) / 2, now))
    };
    let reads = [one(), one(), one()];
    reads.into_iter().min_by_key(|read| read.0).map_or_else(|| one().1, |read| read.1)
}

impl TickClock {
    /// Starts measuring.
    #[must_use]
    pub fn start() -> Self {
        Self { start: pair() }
    }
    /// The counter's value at the start.
    #[must_use]
    pub const fn started(&self) -> u64 {
        self.start.0
    }
    /// Nanoseconds per tick so far. Waits until at least 10 ms have passed since the start.
    #[must_use]
    pub fn ns_per_tick(&self) -> f64 {
        let enough = std::time::Duration::from_millis(10);
        if let Some(rest) = enough.checked_sub(self.start.1.elapsed()) {
            std::thread::sleep(rest);
        }
        let (ticks, now) = pair();
        now.duration_since(self.start.1).as_nanos() as f64 / (ticks - self.start.0).max(1) as f64
    }
    /// The counter's value, and CLOCK_BOOTTIME in nanoseconds, at one moment.
    #[must_use]
    pub fn with_boot() -> (u64, u64) {
        let (ticks, now) = pair();
        let then = own::boot_time().saturating_sub(now.elapsed());
        (ticks, u64::try_from(then.as_nanos()).unwrap_or(u64::MAX))
    }
    /// The counter's value now.
    #[must_use]
    pub fn ticks() -> u64 {
        native::ticks()
    }
}

/// The local time of day, as `12:34:56`.
#[must_use]
pub fn time_of_day() -> String {
    let (hour, minute, second) = own::local_time();
    format!("{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::TickClock;

    #[test]
    fn a_tick_is_a_fraction_of_a_nanosecond() {
        let clock = TickClock::start();
        let first = clock.ns_per_tick();
        assert!((0.1..2.0).contains(&first), "{first}");
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!((clock.ns_per_tick() / first - 1.0).abs() < 1e-3);
    }
}
