//! What a step came to.
//!
//! In: counts, and names of tests. Out: their sum over steps, and its closing line, which `ahead` reads again.
//! Invariant: what did not run is not counted as passed.

/// What a step came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Name and reason of each test that did not run.
    pub(crate) skipped: Vec<String>,
    /// Name of each test that failed, and what it printed.
    pub(crate) failures: Vec<String>,
    /// The same of those that passed when they were run alone; they count as passed.
    pub(crate) unsteady: Vec<String>,
}

/// Lines that are shown of a step that failed.
const SHOWN: usize = 25;

impl Outcome {
    pub(crate) fn single(ok: bool) -> Self {
        Self { passed: u64::from(ok), failed: u64::from(!ok), ..Self::default() }
    }
    /// Names the step where it failed without a test that did: else the summary would count a failure that it does not
    /// name. `text` is what the step printed; its end is shown.
    pub(crate) fn named(mut self, step: &str, text: &str) -> Self {
        if self.failed > self.failures.len() as u64 {
            let lines: Vec<&str> = text.lines().collect();
            let shown = lines[lines.len().saturating_sub(SHOWN)..].iter().map(|line| format!("\n{line}"));
            self.failures.push(format!("the step `{step}`{}", shown.collect::<String>()));
        }
        self
    }
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
        self.unsteady.extend(other.unsteady);
    }
    pub(crate) fn closing_line(&self) -> String {
        let unsteady = match self.unsteady.len() {
            0 => String::new(),
            count => format!(" ({count} unsteady)"),
        };
        format!("{} passed{unsteady}, {} failed, {} skipped", self.passed, self.failed, self.skipped.len())
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn a_step_that_fails_is_named_with_the_end_of_its_output() {
        let text: String = (0..30).map(|n| format!("line {n}\n")).collect();
        let named = Outcome::single(false).named("doc", &text).failures;
        assert!(
            named[0].starts_with("the step `doc`\nline 5\n") && named[0].ends_with("\nline 29"),
            "{named:?}"
        );
        assert_eq!(Outcome::single(true).named("doc", &text).failures, [""; 0]);
        let test = Outcome { failed: 1, failures: vec!["a of b".into()], ..Outcome::default() };
        assert_eq!(test.named("test", &text).failures, ["a of b"]);
    }

    #[test]
    fn a_skip_is_not_a_pass() {
        let mut sum = Outcome::single(true);
        sum.add(Outcome { skipped: vec!["stress: no binary".into()], ..Outcome::default() });
        sum.add(Outcome::single(false));
        assert_eq!(sum.closing_line(), "1 passed, 1 failed, 1 skipped");
    }
}
