//! FOL-1, TGT-17: programs that start and end all the time, followed from one root.

use std::process::Command;

use trapline_tests::tracing::{Tracing, binary, errors};
use trapline_tests::{or_skip, victims};

/// Each branch is held again and again, since it changes its handlers. Batches are at work in it then, in its parent
/// and in the other branches, while programs start. Judge: the program, which starts so many and checks their ends.
#[test]
fn every_program_of_a_busy_tree_is_probed() {
    let path = or_skip!(victims::plain("tree")).display().to_string();
    let probe = format!("{path}:leaf");
    // All of the C library, so that batches take their time.
    let report = Tracing::spawn("count", &["-f", &probe, "libc:*", "--", &path, "4", "3"]).end();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    assert_eq!(report.hits("leaf"), 4 * 3 * 3, "{}", report.errors);
    assert!(!report.errors.contains("not probed"), "{}", report.errors);
}

/// Each traced process takes descriptors. The limit that the tracer was started with is not the target's to pay for.
#[test]
fn a_tree_is_followed_whatever_the_limit_of_descriptors() {
    let path = or_skip!(victims::plain("tree")).display().to_string();
    let script = "ulimit -Sn 64; exec \"$0\" count -f --json \"$1:leaf\" -- \"$1\" 12 3";
    let output =
        Command::new("bash").args(["-c", script]).arg(binary()).arg(&path).output().expect("bash starts");
    // The command has standard output for itself.
    let errors = errors(&output);
    assert!(output.status.success() && !errors.contains("not probed"), "{errors}");
    let objects = errors.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let hits = objects.flat_map(|object| object["probes"].as_array().cloned().unwrap_or_default());
    assert_eq!(hits.filter_map(|probe| probe["hits"].as_u64()).sum::<u64>(), 12 * 3 * 3, "{errors}");
}

/// A library's constructors are calls like any other.
#[test]
fn constructors_of_a_launched_program_are_seen() {
    let path = or_skip!(victims::with_library("early", &[]));
    let report = Tracing::spawn("count", &["early_library:early", "--", &path.display().to_string()]).end();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    assert_eq!(report.hits("early"), 7 + 3, "{}", report.errors);
}
