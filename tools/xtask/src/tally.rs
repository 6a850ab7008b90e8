//! Counts what libtest's output says, and keeps the tests that skipped themselves and the output of those that failed.
//!
//! A test that cannot run where it is prints a line that begins with `SKIP` and says why, then returns. libtest takes
//! that for a pass; here it is moved to the skipped ones, by name.

use std::collections::BTreeMap;

use crate::outcome::Outcome;

/// State over the lines of `cargo test -- --show-output`.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    ignored: Vec<String>,
    binaries: u64,
    /// Which binary's tests these are.
    binary: String,
    /// The test of which the output is being shown.
    showing: Option<String>,
    /// In the part that shows the output of failed tests; the other part shows what passed ones did.
    failing: bool,
    skips: BTreeMap<String, String>,
    /// The output of each failed test, under its binary and its name.
    failures: Vec<String>,
    names: Vec<String>,
}

/// Lines kept of one failed test's output: the last ones, where the panic is.
const KEPT: usize = 60;

impl Tally {
    /// Takes one line; returns whether it holds anything new: names of passed tests stand there twice.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        let again = self.showing.is_none()
            && !self.failing
            && line.starts_with("    ")
            && !line.trim_start().contains(' ');
        self.take(line);
        !again
    }

    fn take(&mut self, line: &str) {
        if let Some(rest) = line.trim_start().strip_prefix("Running ") {
            self.unclosed();
            self.binary = rest.to_owned();
        } else if line == "failures:" || line == "successes:" {
            self.failing = line == "failures:";
            self.showing = None;
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----")) {
            self.showing = Some(name.to_owned());
            if self.failing {
                self.failures.push(format!("{name} of {}", self.binary));
                self.names.push(name.to_owned());
            }
        } else if line.starts_with("SKIP") {
            let name = self.showing.clone().unwrap_or_else(|| "?".to_owned());
            let why = line.trim_start_matches("SKIP").trim_start_matches([':', ' ']).to_owned();
            self.skips.entry(format!("{}/{name}", self.binaries)).or_insert(format!("{name}: {why}"));
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.closing(rest);
        } else if line.ends_with("run by the other tests") {
            // A program that tests start, not a test.
        } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ignored")) {
            self.ignored.push(format!("{}: ignored{}", name.0, name.1));
        } else if self.failing
            && self.showing.is_some()
            && !line.is_empty()
            && let Some(message) = self.failures.last_mut()
        {
            message.push('\n');
            message.push_str(line);
        }
    }

    fn closing(&mut self, rest: &str) {
        let number = |what: &str| -> u64 {
            let before = rest.split(what).next().unwrap_or_default().trim_end();
            before.rsplit([' ', ';']).next().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        self.passed += number(" passed");
        self.failed += number(" failed");
        self.binaries += 1;
        self.binary.clear();
        self.showing = None;
        self.failing = false;
    }

    /// A binary that was begun and did not come to its closing line died.
    fn unclosed(&mut self) {
        if !self.binary.is_empty() {
            self.failures.push(format!("{}: no closing line", std::mem::take(&mut self.binary)));
            self.failed += 1;
        }
    }

    /// Test binaries that came to their closing line.
    pub(crate) fn binaries(&self) -> u64 {
        self.binaries
    }

    /// Names of tests that failed, without those of binaries that died.
    pub(crate) fn failed_tests(&self) -> &[String] {
        &self.names
    }

    /// The sum.
    pub(crate) fn outcome(mut self) -> Outcome {
        self.unclosed();
        let mut skipped: Vec<String> = self.skips.into_values().collect();
        let passed = self.passed.saturating_sub(skipped.len() as u64);
        skipped.extend(self.ignored);
        let failures = self.failures.iter().map(|message| ends(message)).collect();
        Outcome { passed, failed: self.failed, skipped, failures, unsteady: Vec::new() }
    }
}

/// The first line, and the last [`KEPT`].
fn ends(message: &str) -> String {
    let lines: Vec<&str> = message.lines().collect();
    let from = lines.len().saturating_sub(KEPT).max(1);
    [&lines[..1], &lines[from..]].concat().join("\n    ")
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn what_failed_is_kept_with_its_output() {
        let text = "
     Running tests/a.rs (target/a-1)
running 2 tests
successes:

---- fine stdout ----
not kept


successes:
    fine

failures:

---- bad::one stdout ----
before
thread 'bad::one' panicked at a.rs:1:2:
because

failures:
    bad::one

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/b.rs (target/b-1)
running 1 test
     Running tests/c.rs (target/c-1)
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let mut tally = Tally::default();
        let shown = text.lines().filter(|line| tally.line(line)).count();
        assert_eq!(tally.failed_tests(), ["bad::one"]);
        let outcome = tally.outcome();
        assert_eq!((outcome.passed, outcome.failed), (2, 2));
        let message = "bad::one of tests/a.rs (target/a-1)\n    before\n    thread 'bad::one' panicked at a.rs:1:2:\n    because";
        assert_eq!(shown, text.lines().count() - 1, "the name of what passed");
        assert_eq!(outcome.failures, [message, "tests/b.rs (target/b-1): no closing line"]);
    }

    #[test]
    fn skips_are_moved_out_of_the_passes() {
        let text = "
running 3 tests
test a ... ok
test b ... ok
test slow ... ignored, takes an hour
successes:

---- b stdout ----
SKIP: no kernel uprobes here (EPERM)
SKIP: printed twice, counted once

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let mut tally = Tally::default();
        text.lines().for_each(|line| _ = tally.line(line));
        assert_eq!(tally.binaries(), 2);
        let outcome = tally.outcome();
        assert_eq!((outcome.passed, outcome.failed), (5, 2));
        assert_eq!(outcome.skipped, ["b: no kernel uprobes here (EPERM)", "slow: ignored, takes an hour"]);
    }
}
