//! SAFE-1, LOSS-1: programs of Go versions that differ in how they pass arguments, where they keep the goroutine and what
//! their function tables say. From their first instruction on, all of their functions are probed.
//!
//! The toolchains come as modules, as `go` itself gets them; without a network the versions that are not here are skipped.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use trapline_tests::tracing::{self, Report};
use trapline_tests::{native, or_skip, skip, victims};

/// Arguments on the stack; then in registers, with addresses of 8 bytes in the table; then with those of 4.
const VERSIONS: [&str; 3] = ["1.16.15", "1.17.13", "1.18.10"];

/// Runs the program under a verb, from its first instruction on.
fn launched(path: &Path, verb: &[&str], functions: &str) -> (Output, Report) {
    let json = std::env::temp_dir().join(format!("trapline-go-{}.json", std::process::id()));
    let mut command = Command::new(tracing::binary());
    command.args(verb).args(["--json", "-o"]).arg(&json).arg(format!("{}:{functions}", path.display()));
    let output = command.arg("--").arg(path).output().expect("it starts");
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    std::fs::remove_file(&json).ok();
    let objects = text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let report = Report { status: output.status, errors: tracing::errors(&output), objects };
    (output, report)
}

/// `main.work`'s calls, as the program counts them itself.
fn calls_of_work(printed: &str) -> u64 {
    let calls = printed.trim_end().rsplit(' ').next().and_then(|calls| calls.parse().ok());
    calls.unwrap_or_else(|| panic!("printed: {printed}"))
}

#[test]
fn programs_of_older_versions_of_go_run_as_without() {
    if !native::KNOWS_GO {
        skip!("Go's arguments are not known on this processor");
    }
    for version in VERSIONS {
        let path = or_skip!(victims::go_of(version, &[], "go_runtime"));
        let bare = Command::new(&path).output().expect("it runs");
        let printed = tracing::out(&bare);
        let calls = calls_of_work(&printed);
        let all =
            [&["count"][..], &["lat"], &["trace"], &["stack"], &["hist", "dur"]].map(|verb| (verb, "*"));
        // Calls of all functions come faster than they are read.
        for (verb, functions) in all.into_iter().chain([(&["trace"][..], "main.work")]) {
            let (output, report) = launched(&path, verb, functions);
            let what = format!("{version}, {verb:?} {functions}: {}", report.errors);
            assert!(output.status.success(), "{what}");
            assert_eq!(tracing::out(&output), printed, "{what}");
            match verb[0] {
                "count" => {
                    assert_eq!(report.hits("main.work"), calls, "{what}");
                    let (probed, refused) = (report.probes().count(), report.refused().len());
                    assert!(refused * 10 < probed, "{refused} refused, {probed} probed; {what}");
                }
                "lat" => {
                    assert_eq!(report.field("main.work", "calls"), calls, "{what}");
                    let alone: Vec<&Value> = report.probes().filter(|one| one["unpaired"] != 0).collect();
                    assert!(alone.is_empty(), "ends without a beginning: {alone:?}; {what}");
                }
                "trace" if functions != "*" => {
                    assert_eq!(report.calls_of("main.work").len() as u64, calls, "{what}")
                }
                _ => {}
            }
        }
    }
}
