//! Several processes named by their pids, of which one ends: before the attach, at any time during it, or
//! later. The others are traced.

use std::time::{Duration, Instant};

use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, errors, once};
use trapline_tests::{or_skip, victims};

/// The pid of a process that has just ended.
fn gone() -> u32 {
    let mut child = std::process::Command::new("true").spawn().expect("it starts");
    let pid = child.id();
    child.wait().expect("it ends");
    pid
}

#[test]
fn one_that_has_ended_does_not_hinder_the_others() {
    let path = or_skip!(victims::plain("counter"));
    let (mut victim, gone) = (Running::start(&path, &[]), gone().to_string());
    let pid = victim.pid().to_string();
    for verb in ["count", "lat", "trace", "stack"] {
        let tracing = Tracing::start(verb, &["-p", &pid, "-p", &gone, "leaf"]).expect("attaches");
        let calls = victim.run(100)["leaf"];
        let report = tracing.stop();
        assert_eq!(report.status.code(), Some(0), "{verb}: {}", report.errors);
        let field = if verb == "lat" { "calls" } else { "hits" };
        assert_eq!(report.field("leaf", field), calls, "{verb}: {}", report.errors);
        let reported = format!("process {gone} is not traced, since it has ended; the others are");
        assert!(report.errors.contains(&reported), "{verb}: {}", report.errors);
    }
    let alone = once(&["count", "-d", "0.1", "-p", &gone, "leaf"]);
    assert_eq!(alone.status.code(), Some(1), "an only one must be there");
    assert!(victim.finish().success());
}

/// One of two processes is killed at some time of the attach, which takes as long as probing a whole C
/// library does.
#[test]
fn one_that_ends_during_the_attach_does_not_hinder_the_others() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let begun = Instant::now();
    drop(Tracing::start("lat", &["-p", &pid, "leaf", "libc:*"]).expect("attaches").stop());
    let (all, steps) = (begun.elapsed(), 8);
    for step in 0..steps {
        let other = Running::start(&path, &[]);
        let dies = other.pid().to_string();
        // The tracer attaches to this process first; the attach to the second one then takes as long again.
        let tracing = Tracing::spawn("lat", &["-p", &dies, "-p", &pid, "leaf", "libc:*"]);
        std::thread::sleep(all * step / steps);
        drop(other);
        let mut tracing = tracing;
        tracing.wait_for("\n");
        let calls = victim.run(100)["leaf"];
        std::thread::sleep(Duration::from_millis(50));
        let report = tracing.stop();
        // It was named, and then killed: while it was probed, or before.
        let probed = report.errors.contains("(1 killed)");
        assert_eq!(report.status.code(), Some(probed.into()), "step {step}: {}", report.errors);
        let totals = report.totals();
        let sum = |probe: &serde_json::Value| probe["calls"].as_u64().unwrap_or(0);
        let leaf =
            |probe: &&serde_json::Value| probe["probe"].as_str().is_some_and(|one| one.ends_with(":leaf"));
        let seen: u64 =
            totals.iter().filter_map(|one| one["probes"].as_array()).flatten().filter(leaf).map(sum).sum();
        assert_eq!(seen, calls, "step {step}: {}", report.errors);
    }
    assert!(victim.finish().success());
}

/// Two tracers that come and go in one process: each runs, or says that the other is there. What one removes is never a
/// fault of the other's.
#[test]
fn two_tracers_in_one_process_know_of_each_other() {
    let path = or_skip!(victims::plain("counter"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let rounds = |verb: &str| -> usize {
        let round = |_: &u32| {
            let output = once(&[verb, "-d", "0.02", "-p", &pid, "leaf"]);
            let said = errors(&output);
            // The other one's batch, its segment, or its bytes.
            let named =
                said.contains("traced by") && (said.contains("(trapline)") || said.contains("try again"));
            let is_there = named || said.contains("already patched");
            assert!(output.status.success() || is_there, "{verb}: {}: {said}", output.status);
            output.status.success()
        };
        (0..100).filter(round).count()
    };
    let (counted, timed) = std::thread::scope(|scope| {
        let other = scope.spawn(|| rounds("lat"));
        (rounds("count"), other.join().expect("each round is as it may be"))
    });
    assert!(counted > 0 && timed > 0, "{counted} and {timed} of 100 runs met nobody");
}
