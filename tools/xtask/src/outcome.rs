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

impl Outcome {
    pub(crate) fn single(ok: bool) -> Self {
        Self { passed: u64::from(ok), failed: u64::from(!ok), ..Self::default() }
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
    fn a_skip_is_not_a_pass() {
        let mut sum = Outcome::single(true);
        sum.add(Outcome { skipped: vec!["stress: no binary".into()], ..Outcome::default() });
        sum.add(Outcome::single(false));
        assert_eq!(sum.closing_line(), "1 passed, 1 failed, 1 skipped");
    }
}
