//! WCH-4: what the kernel dropped is counted, also what it dropped at the very end.

use std::sync::mpsc::channel;
use std::time::Duration;

use trapline_tests::or_skip;
use trapline_tests::running::Running;
use trapline_tests::tracing::Tracing;
use trapline_tests::victims;

use super::{available, last};

/// More than the rings of two CPUs hold, 15,000 samples each.
const MANY: u64 = 60_000;
/// Time after which the tracer goes on in any case: the victim may wait for it.
const PATIENCE: Duration = Duration::from_secs(20);

fn kernel_counts_losses() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u32| major >= 6)
}

#[test]
fn accesses_that_found_no_room_are_counted_to_the_last() {
    or_skip!(available());
    let path = or_skip!(victims::plain("writers"));
    if !kernel_counts_losses() {
        println!("SKIP: this kernel does not count what finds no room (Linux 6.0)");
        return;
    }
    let mut victim = Running::start(&path, &["rotate"]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("watch", &["--count", "-p", &pid, "turn[0]"])
        .unwrap_or_else(|report| panic!("{}", report.errors));
    let tracer = tracing.pid().to_string();
    let kill = |signal: &str| {
        let sent = std::process::Command::new("kill").args([signal, &tracer]).status();
        assert!(sent.expect("kill runs").success());
    };
    kill("-STOP");
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            victim.run(MANY);
            done.send(()).expect("the other end waits");
        });
        let _late = is_done.recv_timeout(PATIENCE);
        kill("-CONT");
    });
    let report = tracing.stop();
    let summary = last(&report);
    let (seen, lost) =
        (summary["accesses"].as_u64().expect("a number"), summary["lost"].as_u64().expect("a number"));
    assert!(lost > 0, "the rings held all: {summary}");
    assert_eq!(seen + lost, MANY, "{summary}");
    assert!(victim.finish().success());
}
