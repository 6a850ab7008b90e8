//! `record`: what a hit costs that leaves a record, in interleaved rounds of: bare, control, entries with three arguments, whole
//! calls (three arguments, value, duration: two records).
//!
//! The victim runs for a millisecond at a time, so that the rings hold all of it, and is read in between: what is measured is
//! writing records, not dropping them, and every round checks that none was dropped. The first bursts, which touch fresh memory,
//! are not counted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::functions::COPIES;
use crate::hits::Effort;
use crate::ours::Ours;
use crate::row::{Figures, Row, quartiles};
use crate::victim::{Load, Victim};

const CASES: [&str; 3] = ["nop", "push", "generic"];
/// How, and whether exits are recorded too.
const OURS: [(&str, bool); 2] = [("entry", false), ("call", true)];
const ARGUMENTS: u8 = 3;
/// Bursts of one figure, of a millisecond each.
const BURSTS: usize = 24;
/// Bursts before that.
const WARM: usize = 12;

/// All rows, handed out as they are ready.
pub(crate) fn run(effort: Effort, mut emit: impl FnMut(&Row) -> Result<()>) -> Result<()> {
    for case in CASES {
        let mut victim = Victim::start(true)?;
        let mut samples: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
        let threads = [1, 2].into_iter().filter(|&n| effort.threads.is_none_or(|only| only == n));
        let threads: Vec<usize> = threads.collect();
        for _ in 0..effort.rounds {
            for &threads in &threads {
                let load = Load { threads, own: false };
                for (how, control) in [("none", false), ("control", true)] {
                    let ns = bursts(&mut victim, case, load, control, &mut || Ok(()))?;
                    samples.entry((threads, how)).or_default().push(ns);
                }
                for (how, returns) in OURS {
                    let mut ours = Ours::record(victim.pid(), case, COPIES, ARGUMENTS, returns)?;
                    let ns = bursts(&mut victim, case, load, false, &mut || ours.drain())?;
                    ours.drain()?;
                    let end = ours.finish()?;
                    ensure!(
                        end.hits > 0 && end.missed == 0,
                        "{case} {how}: {} records, {} dropped",
                        end.hits,
                        end.missed
                    );
                    samples.entry((threads, how)).or_default().push(ns);
                }
            }
        }
        for (&(threads, how), list) in &samples {
            let bare = samples.get(&(threads, "none")).map_or(f64::NAN, |list| quartiles(list).1);
            let (low_ns, ns, high_ns) = quartiles(list);
            let mops = threads as f64 * 1e3 / ns;
            let figures = Figures::Hit { ns, added_ns: ns - bare, mops, low_ns, high_ns, rounds: list.len() };
            emit(&Row::new("record", case, how, threads, false, figures))?;
        }
    }
    Ok(())
}

/// Median nanoseconds per call over short runs, with `between` after each.
fn bursts(
    victim: &mut Victim,
    case: &str,
    load: Load,
    control: bool,
    between: &mut dyn FnMut() -> Result<()>,
) -> Result<f64> {
    let mut times = Vec::with_capacity(BURSTS);
    for nth in 0..WARM + BURSTS {
        let ns = victim.measure(case, load, control, Duration::from_millis(1))?;
        between()?;
        if nth >= WARM {
            times.push(ns);
        }
    }
    Ok(quartiles(&times).1)
}
