//! Feeds hostile bytes to every pure entry point, with a small deterministic mutator on the stable compiler.
//!
//! Input: `all` or a target's name, `--seconds N`, `--seed N`. Output: the number of inputs for each target.
//! A panic ends the run, with the seed that reproduces it. Invariant: no input makes a parser panic or hang
//! (SAFE-5).
//! Does not: measure coverage. Each target is one function over bytes, so a coverage-guided driver can take
//! its place.
#![forbid(unsafe_code)]

mod mutate;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mutate::Mutator;
use targets::{TARGETS, Target};

/// An input that takes longer than this counts as a finding, too.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(seconds), Some(seed)) = (number(&args, "--seconds", 60), number(&args, "--seed", 1)) else {
        return ExitCode::from(2);
    };
    let wanted = args.first().map_or("all", String::as_str);
    let chosen: Vec<&Target> = TARGETS.iter().filter(|t| wanted == "all" || t.name == wanted).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("trapline-fuzz all|{} [--seconds N] [--seed N]", names.join("|"));
        return ExitCode::from(2);
    }
    let share = Duration::from_secs(seconds) / u32::try_from(chosen.len()).unwrap_or(1);
    let ok = chosen.iter().filter(|target| fuzz(target, share, seed)).count();
    println!("fuzz: {ok} of {} targets held", chosen.len());
    ExitCode::from(u8::from(ok != chosen.len()))
}

/// The number behind an option. `None`, with a message, if there is none.
fn number(args: &[String], name: &str, default: u64) -> Option<u64> {
    let Some(at) = args.iter().position(|arg| arg == name) else { return Some(default) };
    let number = args.get(at + 1).and_then(|text| text.parse().ok());
    if number.is_none() {
        eprintln!(
            "trapline-fuzz: {name} takes a number, and not `{}`",
            args.get(at + 1).map_or("", |text| text)
        );
    }
    number
}

/// Runs one target for `time`, beginning with `seed`; each input has a seed of its own.
fn fuzz(target: &Target, time: Duration, mut seed: u64) -> bool {
    let corpus = (target.corpus)();
    let (begun, mut inputs) = (Instant::now(), 0_u64);
    while begun.elapsed() < time {
        let input = Mutator::new(seed).input(&corpus);
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
        let took = started.elapsed();
        if outcome.is_err() || took > PATIENCE {
            println!(
                "{}: {} after {took:?}; again with --seed {seed}",
                target.name,
                if outcome.is_err() { "PANIC" } else { "SLOW" }
            );
            return false;
        }
        inputs += 1;
        seed += 1;
    }
    println!("{:14} {inputs} inputs, last seed {}", target.name, seed - 1);
    true
}
