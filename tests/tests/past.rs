//! What the tracer keeps of followed programs that have ended.

use std::path::Path;

use serde_json::Value;
use trapline_tests::tracing::once;
use trapline_tests::{or_skip, victims};

/// Programs before the first look at the tracer, and between the first and the second.
const FIRST: u64 = 24;
const MORE: u64 = 48;

/// Runs programs under a verb. Returns bytes and descriptors that the tracer holds after the first part, and
/// after all.
fn held(verb: &str) -> [(u64, u64); 2] {
    let look = "sleep 1; grep VmRSS /proc/$PPID/status; ls /proc/$PPID/fd | wc -l";
    let run = |programs: u64| format!("for i in $(seq {programs}); do /bin/true; done; {look}");
    let script = format!("{}; {}", run(FIRST), run(MORE));
    let output = once(&[verb, "-f", "-q", "-o", "/dev/null", "libc:*", "--", "sh", "-c", &script]);
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    let numbers: Vec<u64> = output_text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [kib, files, kib_later, files_later] = numbers[..] else { panic!("{verb}: {output_text}") };
    [(kib << 10, files), (kib_later << 10, files_later)]
}

#[test]
fn a_program_that_has_ended_leaves_its_counts_and_no_more() {
    if !Path::new("/bin/true").exists() {
        return println!("SKIP: no /bin/true");
    }
    for verb in ["count", "lat", "trace", "stack"] {
        let [(before, files), (after, files_later)] = held(verb);
        let each = after.saturating_sub(before) / MORE;
        println!("{verb}: {each} bytes a program, of {before}; {files} descriptors, then {files_later}");
        // The segments of programs that live at a look take tens of megabytes, sometimes more, sometimes
        // less.
        assert!(each < 1_000_000, "{verb}: {each} bytes for each program that has ended");
        assert!(files_later < files + MORE, "{verb}: {files} descriptors, then {files_later}");
    }
}

/// The parent has ended, or runs another program. Its children count in the memory that they inherited.
#[test]
fn children_count_after_all_their_parents_are_gone() {
    let path = or_skip!(victims::plain("family"));
    let program = path.display().to_string();
    let probe = format!("{program}:child_work");
    for how in [&["orphans"][..], &["orphans", "exec"]] {
        for (verb, field) in [("count", "hits"), ("lat", "calls"), ("trace", "hits")] {
            let command = [&[verb, "-f", "--json", &probe, "--", &program], how].concat();
            let output = once(&command);
            let all = [output.stdout, output.stderr].concat();
            let all = String::from_utf8_lossy(&all);
            let objects = all.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let probes = objects.filter_map(|object| object["probes"].as_array().cloned()).flatten();
            let hits: u64 = probes.filter_map(|probe| probe[field].as_u64()).sum();
            assert_eq!(hits, 20, "{verb} {how:?}: {all}");
        }
    }
}
