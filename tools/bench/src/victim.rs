//! The measured process: calls a case's functions, and times itself.
//!
//! In, one a line: `CASE THREADS same|own plain|control MILLISECONDS`; other lines go to the program that serves.
//! Out: nanoseconds per call and thread, and the number of all calls. Does not: probe anything.

use std::io::BufRead as _;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::functions::{Private, Work, addresses, pin};

/// The victim's `main`.
///
/// # Errors
///
/// As [`offsets`] and [`serve`].
pub fn run(words: &[String]) -> Result<()> {
    if let [name, case, limit] = words
        && name == "sites"
    {
        offsets(case, limit.parse()?)?.iter().for_each(|offset| println!("{offset}"));
        return Ok(());
    }
    serve(|_| None)
}

/// Serves the lines of standard input. What `other` answers to a line is written in place of a measurement.
///
/// # Errors
///
/// A line that nobody can read, or no such case.
pub fn serve(mut other: impl FnMut(&[&str]) -> Option<String>) -> Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        if let Some(answer) = other(&words) {
            println!("{answer}");
            continue;
        }
        let [case, threads, sharing, kind, millis] = words[..] else { anyhow::bail!("cannot read `{line}`") };
        let (threads, millis) = (threads.parse()?, Duration::from_millis(millis.parse()?));
        let (nanos, calls) = measure(case, (threads, sharing == "own"), kind == "control", millis)?;
        println!("{nanos} {calls}");
    }
    Ok(())
}

/// The offsets in this program's file of a case's first functions.
///
/// # Errors
///
/// The process' mappings cannot be read, or a function does not lie in a file.
pub fn offsets(case: &str, limit: usize) -> Result<Vec<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("own maps")?;
    let offset = |addr: u64| {
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let (start, end, offset) = (hex(start)?, hex(end)?, hex(rest.split(' ').nth(1)?)?);
            (start..end).contains(&addr).then(|| addr - start + offset)
        })
    };
    let offsets: Option<Vec<u64>> = addresses(case, limit).into_iter().map(offset).collect();
    offsets.context("functions lie in mapped files")
}

/// Nanoseconds per call, and the number of calls, of so many threads that call a function of their own each, or all
/// the same.
fn measure(case: &str, (count, own): (usize, bool), control: bool, time: Duration) -> Result<(f64, u64)> {
    let works: Option<Vec<Work>> = (0..count).map(|t| Work::of(case, if own { t } else { 0 })).collect();
    let works = works.with_context(|| format!("no case {case} for {count} threads"))?;
    let barrier = Barrier::new(count);
    let each: Vec<(f64, u64)> = std::thread::scope(|scope| {
        let run = |(thread, work): (usize, Work)| {
            let barrier = &barrier;
            scope.spawn(move || {
                pin(thread);
                if count > 1 {
                    barrier.wait();
                }
                timed(work, control, time)
            })
        };
        let threads: Vec<_> = works.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or((f64::NAN, 0))).collect()
    });
    let nanos = each.iter().map(|thread| thread.0).sum::<f64>() / each.len() as f64;
    Ok((nanos, each.iter().map(|thread| thread.1).sum()))
}

/// Nanoseconds per call in one thread, and the number of calls.
fn timed(work: Work, control: bool, time: Duration) -> (f64, u64) {
    let own = Private::default();
    let batch = || if control { work.run_counted(&own) } else { work.run() };
    batch();
    let begun = Instant::now();
    let mut calls = 0;
    loop {
        batch();
        calls += work.batch();
        let took = begun.elapsed();
        if took >= time {
            // One batch came before.
            return (took.as_secs_f64() * 1e9 / calls as f64, calls + work.batch());
        }
    }
}
