//! `bench` and `test` blocks: how long a block takes in the interpreter, and whether it succeeds.
//!
//! In: a program. Out: a table or lines of JSON. What the blocks themselves write is left out. Does not: run other blocks.

use std::time::Instant;

use trapline_script::{Hit, Machine, Probe, Stream, World};

use super::host::Host;
use super::stop::{Stop, said};

/// A block is repeated until it has taken so long.
const ENOUGH_NS: u128 = 1_000_000;
/// The width of the first column.
const NAMES: usize = 41;
/// The width of the second column.
const TIMES: usize = 15;

/// Runs all benchmarks or all tests; the exit status.
pub(super) fn run(
    bench: bool,
    json: bool,
    machine: &mut Machine,
    host: &mut Host,
    hit: &Hit,
) -> Result<i32, Stop> {
    machine.run_all(|probe| *probe == Probe::Begin, hit, host);
    let blocks = machine.program().blocks.iter().enumerate();
    let of_kind = |probe: &Probe| match probe {
        Probe::Bench(name) if bench => Some(name.clone()),
        Probe::Test(name) if !bench => Some(name.clone()),
        _ => None,
    };
    let named: Vec<(usize, String)> = blocks
        .flat_map(|(index, block)| block.probes.iter().filter_map(of_kind).map(move |name| (index, name)))
        .collect();
    if named.is_empty() {
        return Err(said(format!("there are no {} blocks", if bench { "bench" } else { "test" })));
    }
    let widest = named.iter().map(|(_, name)| name.len() + 1).max().unwrap_or(0).max(NAMES);
    let mut failed = false;
    for (index, (block, name)) in named.iter().enumerate() {
        let hit = Hit { probe: name.clone(), ..hit.clone() };
        if bench {
            let (average, turns) = measured(machine, host, *block, &hit);
            host.write(Stream::Output, row(json, index, name, widest, average, turns).as_bytes());
        } else {
            let passed = passes(machine, host, *block, &hit);
            failed |= !passed;
            let word = if passed { "       OK " } else { "  FAILED  " };
            host.write(Stream::Output, format!("[{word}] {name}\n").as_bytes());
        }
    }
    machine.run_all(|probe| *probe == Probe::End, hit, host);
    Ok(i32::from(failed))
}

/// Nanoseconds of one turn, and how many turns were taken.
fn measured(machine: &mut Machine, host: &mut Host, block: usize, hit: &Hit) -> (u128, u64) {
    host.silent = true;
    let mut turns = 1;
    let result = loop {
        let begun = Instant::now();
        for _ in 0..turns {
            machine.run(block, hit, host);
        }
        let took = begun.elapsed().as_nanos();
        if took >= ENOUGH_NS || machine.exit().is_some() {
            break (took / u128::from(turns), turns);
        }
        turns *= 10;
    };
    host.silent = false;
    result
}

fn passes(machine: &mut Machine, host: &mut Host, block: usize, hit: &Hit) -> bool {
    let before = host.errors;
    host.silent = true;
    machine.run(block, hit, host);
    host.silent = false;
    host.errors == before && machine.exit().is_none_or(|status| status == 0)
}

fn row(json: bool, index: usize, name: &str, widest: usize, average: u128, turns: u64) -> String {
    if json {
        return format!(
            "{{\"type\": \"benchmark_result\", \"data\": {{\"{name}\": {{\"average\": {average}, \"iters\": {turns}}}}}}}\n"
        );
    }
    let head = match index {
        0 => {
            let line = "-".repeat(widest + TIMES + "Iterations".len());
            format!("{:<widest$}{:<TIMES$}Iterations\n{line}\n", "Benchmark", "Time(ns)")
        }
        _ => String::new(),
    };
    format!("{head}{name:<widest$}{average:<TIMES$}{turns}\n")
}
