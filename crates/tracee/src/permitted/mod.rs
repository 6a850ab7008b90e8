//! What this machine permits a tracer: each finding is a try, not a guess.
//!
//! In: nothing. Out: findings, each with what came of it and what would help. Invariant: what was made for a try is
//! gone when its finding is there. Does not: touch a process that is not ours, other than by opening its memory.

mod kernel;
mod processes;

use std::fmt::Display;

pub use processes::{attach, launch};

/// What came of a try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was tried, and works.
    Yes,
    /// It was tried, and does not work.
    No,
    /// Nothing to try: a fact that decides about others.
    Fact,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its name, for scripts: lower case, with dashes.
    pub name: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// Whether nothing can be traced without it.
    pub needed: bool,
    /// What was seen, in a few words.
    pub detail: String,
    /// What it is good for, and how to get it, if it does not work.
    pub remedy: Option<String>,
}

impl Finding {
    fn yes(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Yes, needed: false, detail: detail.into(), remedy: None }
    }
    fn no(name: &'static str, why: impl Display, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name, verdict: Verdict::No, needed: false, detail: why.to_string(), remedy }
    }
    fn fact(name: &'static str, detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fact, ..Self::yes(name, detail) }
    }
    /// The same, of something without which nothing can be traced.
    fn needed(self) -> Self {
        Self { needed: true, ..self }
    }
    /// Whether it prevents all tracing.
    #[must_use]
    pub fn prevents(&self) -> bool {
        self.needed && self.verdict == Verdict::No
    }
}

/// Tries everything; call it before any thread is started. Takes some milliseconds.
#[must_use]
pub fn findings() -> Vec<Finding> {
    vec![
        kernel::release().needed(),
        kernel::processor(),
        processes::own_folder().needed(),
        processes::namespace(),
        processes::rights(),
        processes::restrictions(),
        processes::launch().needed(),
        processes::attach(),
        processes::strangers(),
        kernel::shared_code().needed(),
        kernel::rseq(),
        kernel::barriers(),
        kernel::breakpoints(),
        kernel::records(),
        kernel::bpf(),
        kernel::fanotify(),
        kernel::tracefs(),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Finding, Verdict, findings};

    #[test]
    fn what_fails_says_what_would_help_and_names_are_distinct() {
        let mut findings = findings();
        for finding in &findings {
            assert_eq!(finding.verdict == Verdict::No, finding.remedy.is_some(), "{finding:?}");
            assert!(!finding.detail.is_empty(), "{finding:?}");
        }
        let all = findings.len();
        findings.sort_by_key(|finding| finding.name);
        findings.dedup_by_key(|finding| finding.name);
        assert_eq!(findings.len(), all);
    }

    #[test]
    fn only_what_is_needed_prevents() {
        let no = Finding::no("x", "y", "z");
        assert!(!no.prevents() && no.needed().prevents());
        assert!(!Finding::yes("x", "y").needed().prevents());
    }
}
