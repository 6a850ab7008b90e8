//! Counts what libtest's output says, and the tests that skipped themselves.
//!
//! A test that cannot run where it is prints a line that begins with `SKIP` and says why, then returns. libtest takes
//! that for a pass; here it is moved to the skipped ones, by name.

use std::collections::BTreeMap;

use crate::Outcome;

/// State over the lines of `cargo test -- --show-output`.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    ignored: Vec<String>,
    binaries: u64,
    /// Which binary's tests these are.
    binary: String,
    /// Whose output is being shown.
    showing: Option<String>,
    skips: BTreeMap<String, String>,
}

impl Tally {
    /// Takes one line.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(rest) = line.trim_start().strip_prefix("Running ") {
            self.binary = rest.to_owned();
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----")) {
            self.showing = Some(name.to_owned());
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
        self.showing = None;
    }

    /// Test binaries that came to their closing line.
    pub(crate) fn binaries(&self) -> u64 {
        self.binaries
    }

    /// The sum.
    pub(crate) fn outcome(self) -> Outcome {
        let mut skipped: Vec<String> = self.skips.into_values().collect();
        let passed = self.passed.saturating_sub(skipped.len() as u64);
        skipped.extend(self.ignored);
        Outcome { passed, failed: self.failed, skipped }
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

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
SKIP: said twice, counted once

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.line(line));
        assert_eq!(tally.binaries(), 2);
        let outcome = tally.outcome();
        assert_eq!((outcome.passed, outcome.failed), (5, 2));
        assert_eq!(outcome.skipped, ["b: no kernel uprobes here (EPERM)", "slow: ignored, takes an hour"]);
    }
}
