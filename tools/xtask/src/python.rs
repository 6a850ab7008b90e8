//! The Python package's own tests, run by pytest.
//!
//! In: the command, as tests built it; where Python's packages come from. Out: what pytest printed, and what it came to.
//! Where no Python or no pytest can be had, it says so and skips all. Does not: build the command.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::outcome::Outcome;
use crate::{tree, venv};

/// The packages, as they were when the tests were written. Without those behind the first, tests skip themselves.
const PACKAGES: &[&str] = &[
    "pytest==9.2.0",
    "numpy==2.4.6",
    "pandas==3.1.1",
    "nbclient==0.11.0",
    "nbformat==5.11.1",
    "ipykernel==7.4.0",
    "mypy==2.4.1",
];

/// Runs the tests; `args` are pytest's.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let skipped = |why: String| {
        println!("LOUD SKIP: {why}");
        Outcome { skipped: vec![why], ..Outcome::default() }
    };
    // An interpreter for pytest alone is better than none.
    let made = venv::make("pytest", PACKAGES).or_else(|_| venv::make("pytest", &PACKAGES[..1]));
    let python = match made {
        Ok(python) => python,
        Err(error) => return Ok(skipped(format!("python: all tests of the Python package: {error:#}"))),
    };
    let command = tree::target()?.join("release/trapline");
    tests(&python, &command, args)
}

fn tests(python: &Path, command: &Path, args: &[String]) -> Result<Outcome> {
    let folder = tree::root().join("python");
    let mut pytest = Command::new(python);
    pytest
        .current_dir(&folder)
        .env("TRAPLINE", command)
        .env("PYTHONPATH", &folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["-m", "pytest", "-q", "-rs", "--color=no", "-p", "no:cacheprovider"]);
    let output = pytest.args(args).output().context("pytest")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut outcome = outcome(&text);
    if !output.status.success() && outcome.failed == 0 {
        outcome.failed = 1;
    }
    Ok(outcome)
}

/// What pytest's lines say: `3 failed, 17 passed, 1 skipped in 9.8s`, and a line for each skip.
fn outcome(text: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let last = text.lines().rev().find(|line| line.contains(" in ")).unwrap_or_default();
    let words: Vec<&str> = last.split([' ', ',', '=']).filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        match (pair[0].parse::<u64>(), pair[1]) {
            (Ok(many), "passed") => outcome.passed += many,
            (Ok(many), "failed" | "error" | "errors") => outcome.failed += many,
            _ => {}
        }
    }
    let lines = |start: &'static str| text.lines().filter_map(move |line| line.strip_prefix(start));
    outcome.skipped = lines("SKIPPED ").map(|why| format!("python: {why}")).collect();
    outcome.failures = lines("FAILED ").map(|why| format!("python: {why}")).collect();
    outcome
}

#[cfg(test)]
mod tests {
    use super::outcome;

    #[test]
    fn what_pytest_prints_is_counted() {
        let text = "..s\nSKIPPED [1] tests/test_views.py:30: no numpy\nFAILED tests/a.py::b - assert 1\n\
                    1 failed, 17 passed, 1 skipped, 2 errors in 9.80s\n";
        let outcome = outcome(text);
        assert_eq!((outcome.passed, outcome.failed), (17, 3));
        assert_eq!(outcome.skipped, ["python: [1] tests/test_views.py:30: no numpy"]);
        assert_eq!(outcome.failures, ["python: tests/a.py::b - assert 1"]);
        assert_eq!(super::outcome("no tests ran in 0.01s").passed, 0);
    }
}
