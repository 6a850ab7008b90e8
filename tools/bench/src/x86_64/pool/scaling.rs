//! How throughput grows with the threads. One thread, and as many as there are CPUs, are measured one after
//! the other in every round. The control is measured on either side, so a host that slows down for a while
//! slows all four.
//!
//! In: `maxactive`, rounds. Out, for each kind: the throughput of all threads divided by that of one thread,
//! divided by the same ratio of the control beside it, times the number of threads. (Two threads that share
//! nothing reach 2.0.) Does not: measure the cost of a pair (see `rows`).

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::drive::{Load, cpus};
use super::kind::PoolKind;
use crate::x86_64::row::{Line, quartiles};

/// The bare loop, ours, its bound, and those baselines that share objects and do not collapse.
const KINDS: [PoolKind; 7] = [
    PoolKind::Control,
    PoolKind::Ours,
    PoolKind::OursApart,
    PoolKind::SharedArray,
    PoolKind::Line,
    PoolKind::Zigzag,
    PoolKind::PerThread,
];

/// The row of one kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScalingRow {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    bench: &'static str,
    case: &'static str,
    how: &'static str,
    sharing: &'static str,
    threads: usize,
    maxactive: u32,
    /// Throughput of all threads divided by that of one; median over rounds.
    times: f64,
    /// The same relative to the control, in threads; median and quartiles.
    of_control: f64,
    low: f64,
    high: f64,
    rounds: usize,
}

/// Measures the rows of one `maxactive`.
pub(super) fn rows(maxactive: u32, time: Duration, rounds: usize) -> Result<Vec<ScalingRow>> {
    let threads = cpus() as usize;
    let mut pairs = vec![Vec::new(); KINDS.len()];
    for round in 0..rounds {
        for (how, list) in KINDS.into_iter().zip(&mut pairs) {
            let load = |threads| Load { threads, held_tsc: 0, time };
            let mops = |how: PoolKind, threads| {
                let sample = how.make(cpus(), threads, maxactive, &load(threads))?;
                anyhow::Ok(sample.hits as f64 / sample.seconds)
            };
            // The order changes from round to round; the control is measured on either side.
            let [first, last] = if round % 2 == 0 { [1, threads] } else { [threads, 1] };
            let (control, its) = (mops(PoolKind::Control, first)?, mops(how, first)?);
            let (its_last, control_last) = (mops(how, last)?, mops(PoolKind::Control, last)?);
            let gain = |first: f64, last: f64| if round % 2 == 0 { last / first } else { first / last };
            list.push([gain(its, its_last), gain(control, control_last)]);
        }
    }
    Ok(KINDS.into_iter().zip(&pairs).map(|(how, pairs)| row(how, threads, maxactive, pairs)).collect())
}

/// Makes a row from the ratios of each round: the throughput of all threads by that of one, and the same of
/// the control.
fn row(how: PoolKind, threads: usize, maxactive: u32, pairs: &[[f64; 2]]) -> ScalingRow {
    let relative: Vec<f64> = pairs.iter().map(|[its, control]| its / control * threads as f64).collect();
    let times: Vec<f64> = pairs.iter().map(|[its, _]| *its).collect();
    let (low, of_control, high) = quartiles(&relative);
    ScalingRow {
        kind: "bench",
        schema: 1,
        bench: "pool",
        case: "scaling",
        how: how.name(),
        sharing: how.sharing(),
        threads,
        maxactive,
        times: quartiles(&times).1,
        of_control,
        low,
        high,
        rounds: pairs.len(),
    }
}

impl Line for ScalingRow {
    fn text(&self) -> String {
        let name =
            format!("pool-scaling {}:max={} {}T {}", self.how, self.maxactive, self.threads, self.sharing);
        format!(
            "{name:44} {:5.2} times one thread's, {:5.2} where the control's is {}  ({:.2} .. {:.2}, {} rounds)",
            self.times, self.of_control, self.threads, self.low, self.high, self.rounds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{PoolKind, row};

    #[test]
    fn a_round_is_compared_with_the_control_of_the_same_round() {
        let pairs = [[2.0, 2.0], [1.0, 1.0], [1.8, 1.8]];
        let row = row(PoolKind::Ours, 2, 10, &pairs);
        assert_eq!((row.of_control, row.low, row.high, row.times), (2.0, 2.0, 2.0, 1.8));
    }
}
