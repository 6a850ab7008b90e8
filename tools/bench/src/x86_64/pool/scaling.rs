//! What more threads give: one thread and as many as there are CPUs, measured one behind the other in every round, so that a host that
//! slows down for a while slows both.
//!
//! In: `maxactive`, rounds. Out: for each kind, how much threads give together by what one gives, divided by the same of the control
//! in the same round, times the threads: 2.0 is what two threads that share nothing give. Does not: measure what a pair costs (see
//! `rows`).

use anyhow::Result;
use serde::Serialize;

use super::drive::{Load, cpus};
use super::how::How;
use crate::x86_64::row::{Line, quartiles};

/// Ours, what it is measured by, its bound, and the baselines that share objects and do not collapse.
const KINDS: [How; 7] =
    [How::Control, How::Ours, How::OursApart, How::SharedArray, How::Line, How::Zigzag, How::PerThread];

/// One kind's.
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
    /// Throughput of all threads by that of one; median over rounds.
    times: f64,
    /// The same relative to the control, in threads; median and quartiles.
    of_control: f64,
    low: f64,
    high: f64,
    rounds: usize,
}

/// The block of one `maxactive`.
pub(super) fn rows(maxactive: u32, time: std::time::Duration, rounds: usize) -> Result<Vec<ScalingRow>> {
    let threads = cpus() as usize;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); KINDS.len()];
    for round in 0..rounds {
        for (how, list) in KINDS.into_iter().zip(&mut times) {
            let mops = |threads| {
                let sample = how.make(cpus(), threads, maxactive, &Load { threads, held_tsc: 0, time })?;
                anyhow::Ok(sample.hits as f64 / sample.seconds)
            };
            // Who is first changes from round to round.
            let (one, all) = if round % 2 == 0 {
                let one = mops(1)?;
                (one, mops(threads)?)
            } else {
                let all = mops(threads)?;
                (mops(1)?, all)
            };
            list.push(all / one);
        }
    }
    let control = times[0].clone();
    Ok(KINDS
        .into_iter()
        .zip(&times)
        .map(|(how, times)| row(how, threads, maxactive, times, &control))
        .collect())
}

fn row(how: How, threads: usize, maxactive: u32, times: &[f64], control: &[f64]) -> ScalingRow {
    let relative: Vec<f64> =
        times.iter().zip(control).map(|(ours, its)| ours / its * threads as f64).collect();
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
        times: quartiles(times).1,
        of_control,
        low,
        high,
        rounds: times.len(),
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
    use super::{How, row};

    #[test]
    fn a_round_is_compared_with_the_control_of_the_same_round() {
        let (ours, control) = ([2.0, 1.0, 1.8], [2.0, 1.0, 1.8]);
        let row = row(How::Ours, 2, 10, &ours, &control);
        assert_eq!((row.of_control, row.low, row.high, row.times), (2.0, 2.0, 2.0, 1.8));
    }
}
