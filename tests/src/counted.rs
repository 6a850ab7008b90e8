//! The test that most victims need. It runs the same work before, under, and after tracing; compares counts
//! to the hit; and checks that nothing of ours is left.

use std::path::Path;

use crate::running::{Printed, Running};
use crate::text;
use crate::tracing::{Report, Tracing};

/// Names in a victim's answer that are no functions.
const NOT_FUNCTIONS: [&str; 7] = ["check", "wrong", "checked", "wide", "failed", "rounds", "each"];

/// Results of the traced run.
#[derive(Debug)]
pub struct Seen {
    /// What the victim printed about the traced run.
    pub reported: Printed,
    /// What the tracer reported.
    pub report: Report,
}

/// The functions in a victim's answer, and how often it called each.
pub fn functions(reported: &Printed) -> impl Iterator<Item = (&str, u64)> {
    reported
        .iter()
        .filter(|(name, _)| !NOT_FUNCTIONS.contains(&name.as_str()))
        .map(|(name, n)| (name.as_str(), *n))
}

/// Runs `times` rounds without a tracer, a second time counted under `probes`, then without again, and
/// compares all of that.
///
/// # Panics
/// If anything differs.
#[must_use]
pub fn counted(path: &Path, args: &[&str], probes: &[&str], times: u64) -> Seen {
    let mut victim = Running::start(path, args);
    let bare = victim.run(times);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(probes.iter().copied()).collect();
    let tracing = Tracing::start("count", &words)
        .unwrap_or_else(|report| panic!("the tracer ended: {}\n{}", report.status, report.errors));
    let reported = victim.run(times);
    let report = tracing.stop();
    assert_eq!(reported, bare, "the victim behaves differently under tracing");
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    text::assert_clean(victim.pid(), &before);
    assert_eq!(victim.run(times), bare, "the victim behaves differently after tracing");
    assert!(victim.finish().success());
    assert_hits(&report, &reported);
    Seen { reported, report }
}

/// Asserts that every function's hits are the number that the victim printed.
///
/// # Panics
/// If a number differs, or the tracer missed something.
pub fn assert_hits(report: &Report, reported: &Printed) {
    let refused = report.refused();
    for (name, calls) in functions(reported) {
        if let Some((_, why)) = refused.iter().find(|(probe, _)| probe.ends_with(&format!(":{name}"))) {
            println!("refused: {name}: {why}");
            continue;
        }
        if calls == 0 && report.probe(name).is_none() {
            continue;
        }
        assert_eq!(report.hits(name), calls, "hits of {name}; {}", report.errors);
    }
    assert_eq!(report.number("missed"), 0, "missed hits; {}", report.errors);
}

/// The tactic by which a function was probed.
#[must_use]
pub fn tactic<'a>(report: &'a Report, func: &str) -> &'a str {
    report.probe(func).and_then(|probe| probe["tactic"].as_str()).unwrap_or("none")
}
