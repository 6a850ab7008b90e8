//! TGT-19, WCH-6: on a machine that may lose a trap's reason, watched threads are traced, and such a trap does not end
//! their program. Everything else that reaches them reaches them as ever.

use trapline_tests::or_skip;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, once};
use trapline_tests::victims;

use super::{available, last};

/// Whether this is a guest on an Intel processor, as the kernel shows it.
fn may_lose_traps() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.contains("GenuineIntel") && text.contains(" hypervisor")
}

fn tracer_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.expect("the kernel shows it").trim().parse().expect("a number")
}

/// Checks that a watched process is traced only where that is needed, and by the shield alone.
pub(crate) fn check_tracer(pid: u32) {
    let tracer = tracer_of(pid);
    if !may_lose_traps() {
        assert_eq!(tracer, 0, "it is traced");
        return;
    }
    let name = std::fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
    assert_eq!(name.trim(), "trapline-shield", "traced by {tracer}");
}

/// What the victim's own handler got, and the victim's number of stops.
fn trapped(args: &[&str]) -> (trapline_tests::running::Printed, trapline_tests::tracing::Report) {
    let path = victims::plain("trapped").unwrap_or_else(|why| panic!("{why}"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(args.iter().copied()).collect();
    let tracing = Tracing::start("watch", &words)
        .unwrap_or_else(|report| panic!("the tracer ended: {}\n{}", report.status, report.errors));
    let printed = victim.run(10);
    let report = tracing.stop();
    assert_eq!(tracer_of(victim.pid()), 0, "it is let go");
    assert!(victim.finish().success());
    (printed, report)
}

#[test]
fn a_trap_without_a_reason_does_not_reach_the_program_and_all_others_do() {
    or_skip!(available());
    or_skip!(victims::plain("trapped").map(drop));
    if !may_lose_traps() {
        println!("SKIP: this machine loses no reason of a trap, as far as a program can know");
        return;
    }
    let (printed, report) = trapped(&["cell"]);
    // Each round: one by `int3`, one by `int1`, one by raise(); a trap without a reason; SIGUSR1; an exit of a thread.
    assert_eq!(
        (printed["int3"], printed["int1"], printed["raised"], printed["reasonless"], printed["usr1"]),
        (10, 10, 10, 0, 10),
        "{}",
        report.errors
    );
    let summary = last(&report);
    assert_eq!((&summary["lost_traps"], &summary["unexplained"]), (&10.into(), &10.into()), "{summary}");
    assert_eq!(summary["accesses"], 20, "one write by each of two threads: {summary}");

    let (printed, report) = trapped(&["--no-shield", "cell"]);
    assert_eq!(printed["reasonless"], 10, "{}", report.errors);
    assert_eq!(last(&report)["lost_traps"], 0);
}

#[test]
fn a_shielded_process_stops_and_goes_on_and_says_who_traces_it() {
    or_skip!(available());
    let path = or_skip!(victims::plain("trapped"));
    if !may_lose_traps() {
        println!("SKIP: this machine loses no reason of a trap, as far as a program can know");
        return;
    }
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing =
        Tracing::start("watch", &["-p", &pid, "cell"]).unwrap_or_else(|report| panic!("{}", report.errors));
    let kill = |signal: &str| {
        let sent = std::process::Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill runs").success());
    };
    let state = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        status.lines().find_map(|line| line.strip_prefix("State:")).expect("shown").trim().to_owned()
    };
    let wait_for = |what: &str, holds: &dyn Fn(&str) -> bool| {
        let begun = std::time::Instant::now();
        while !holds(&state()) {
            assert!(begun.elapsed().as_secs() < 20, "it is not {what}: {}", state());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    kill("-STOP");
    wait_for("stopped", &|state| state.starts_with(['T', 't']));
    kill("-CONT");
    wait_for("running", &|state| state.starts_with(['S', 'R']));
    let out = once(&["count", "-p", &pid, "-d", "1ms", "main"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("--no-shield"), "{said}");
    assert_eq!(victim.run(3)["usr1"], 3);
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    assert!(victim.finish().success());
}
