//! Checks of the example programs that exist in Rust and in C under the same names. Both must print the same.

use std::process::Command;

use crate::running::{Printed, Running};
use crate::victims;

/// `self_trace`: its own calls of malloc, at least the thousand that it makes on purpose.
///
/// # Panics
/// If it prints anything else.
pub fn self_trace(mut command: Command) {
    let output = command.output().expect("runs");
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
    let words: Vec<&str> = output_text.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap_or_else(|_| panic!("{output_text}"));
    assert_eq!([words[1], words[3], words[5], words[6]], ["calls,", "bytes,", "at", "most"], "{output_text}");
    assert!(number(0) >= 999 && number(2) >= 999 * 500 && number(4) >= 999, "{output_text}");
}

const FUNCTIONS: [&str; 3] = ["leaf", "framed", "looper"];
const ROUNDS: u64 = 1000;

/// Runs a program that traces a victim's functions until Enter. Returns what it printed then, without its
/// first line, and how often the victim called the functions.
fn traced(mut command: Command, first: &str) -> Result<(Vec<String>, Printed), String> {
    let mut victim = Running::start(&victims::plain("counter")?, &[]);
    let mut tracer = Running::spawn({
        command.arg(victim.pid().to_string()).args(FUNCTIONS);
        command
    });
    assert_eq!(tracer.line(), first);
    let reported = victim.run(ROUNDS);
    tracer.send("");
    let lines = FUNCTIONS.map(|_| tracer.line()).to_vec();
    assert!(tracer.finish().success());
    assert_eq!(victim.run(ROUNDS), reported, "it runs on");
    assert!(victim.finish().success());
    Ok((lines, reported))
}

/// `count`: the exact number of each function's calls.
///
/// # Errors
/// The victim cannot be built here.
///
/// # Panics
/// If it prints anything else.
pub fn count(command: Command) -> Result<(), String> {
    let (mut lines, reported) = traced(command, "counting")?;
    let mut expected = FUNCTIONS.map(|name| format!("{:>10} {name}", reported[name])).to_vec();
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected);
    Ok(())
}

/// `latency`: the exact number of each function's calls, with durations in order.
///
/// # Errors
/// The victim cannot be built here.
///
/// # Panics
/// If it prints anything else.
pub fn latency(command: Command) -> Result<(), String> {
    let (lines, reported) = traced(command, "timing")?;
    for line in &lines {
        // CALLS NAME: MIN to MAX ns, p50 MEDIAN
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap_or_else(|_| panic!("{line}"));
        let name = words[1].trim_end_matches(':');
        assert_eq!(number(0), reported[name], "{line}");
        // The median is the middle of its bucket.
        assert!(number(2) <= number(7) * 33 / 32 + 1 && number(7) <= number(4) * 33 / 32 + 1, "{line}");
    }
    let mut names: Vec<&str> = lines.iter().filter_map(|line| line.split_whitespace().nth(1)).collect();
    names.sort_unstable();
    assert_eq!(names, ["framed:", "leaf:", "looper:"]);
    Ok(())
}
