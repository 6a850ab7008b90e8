//! SAFE-4: patching under fire: full attach/detach cycles by separate processes, with new stubs each time, of
//! functions that eight threads run, during signals and thread creation. `cargo xtask stress` runs more of
//! them.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::Tracing;
use trapline_tests::{or_skip, setting, text, tracing, victims};

fn cycle(pid: u32, probes: &[&str], verb: &str) {
    let mut command = std::process::Command::new(tracing::binary());
    command.args([verb, "-d", "0.01", "-p", &pid.to_string()]).args(probes);
    let output = command.stdin(Stdio::null()).output().expect("trapline starts");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn cycles() {
    let path = or_skip!(victims::plain("threads"));
    let cycles = setting("TRAPLINE_STRESS_CYCLES", 40);
    let mut victim = Running::start(&path, &["8", "endless", "signals", "births"]);
    let main =
        |pid: u32| text::signals(pid).into_iter().find(|line| line.starts_with(&format!("Pid:\t{pid} ")));
    let before = main(victim.pid());
    let mut rounds = 0;
    for done in 0..cycles {
        let verb = if done % 4 == 3 { "lat" } else { "count" };
        cycle(victim.pid(), &["shared", "through", "handled", "newborn", "calls"], verb);
        if done % 20 == 19 {
            let reported = victim.run(2000);
            assert_eq!(reported["wrong"], 0, "after {done} cycles");
            assert!(reported["rounds"] > rounds, "the threads have stopped after {done} cycles");
            rounds = reported["rounds"];
        }
    }
    assert!(victim.alive());
    assert_eq!(victim.run(2000)["wrong"], 0);
    assert_eq!(text::differences(victim.pid()), [""; 0], "text as on disk");
    assert_eq!(main(victim.pid()), before);
    println!("{cycles} attach/detach cycles, 0 failures");
}

/// The victim's two modes for SIGTRAP: with a handler of its own, and without.
const OWNERS: [&[&str]; 2] = [&[], &["own"]];

/// Traps outside any seizure. At many of them a signal is pending beside the trap's own, and its handler
/// begins where ours was about to begin.
#[test]
fn a_signal_that_comes_with_a_trap_may_meet_another_trap() {
    let path = or_skip!(victims::plain("meeting"));
    for args in OWNERS {
        let mut victim = Running::start(&path, args);
        let pid = victim.pid();
        let before = text::signals(pid);
        let tracing = Tracing::start("count", &["-p", &pid.to_string(), "handled"]).expect("attaches");
        let first = victim.run(1000);
        let has_met =
            |now: &Printed| now["alarms"] > first["alarms"] + 100 && now["rounds"] > first["rounds"];
        let reported = victim.run_until(500_000, has_met);
        assert_eq!((reported["wrong"], reported["traps"]), (0, 0), "{args:?}");
        let report = tracing.stop();
        assert!(report.status.success(), "{}", report.errors);
        let traps = report.errors.contains(" traps\n") && !report.errors.contains(", 0 traps");
        assert!(traps, "each call is one: {}", report.errors);
        text::assert_clean(pid, &before);
        assert_eq!(victim.run(1000)["wrong"], 0);
    }
}

/// Windows that change in steps contain traps meanwhile. A handler that blocks all signals meets them, and
/// the kernel resets the action of SIGTRAP then.
#[test]
fn a_trap_in_a_handler_that_blocks_all_leaves_the_programs_action() {
    let path = or_skip!(victims::plain("meeting"));
    for args in OWNERS {
        let args = [args, &["masks"]].concat();
        let mut victim = Running::start(&path, &args);
        let pid = victim.pid();
        let before = text::signals(pid);
        for _ in 0..20 {
            let words = ["-d", "0.01", "-p", &pid.to_string(), "handled"];
            let mut tracing = Tracing::spawn_with("count", &words, &[("TRAPLINE_UNPROVEN", "1")]);
            let report = tracing.end();
            assert!(report.status.success(), "{}", report.errors);
            text::assert_clean(pid, &before);
        }
        let reported = victim.run_until(1000, |now| now["alarms"] > 0);
        assert_eq!((reported["wrong"], reported["traps"]), (0, 0), "{args:?}");
    }
}

#[test]
fn two_tracers_at_once() {
    // Another Trapline works in the same target. The second one joins it or says so, and leaves nothing
    // behind either way.
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["4", "endless"]);
    let pid = victim.pid();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for func in ["shared", "through"] {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let pid = pid.to_string();
                    let output = tracing::once(&["count", "-q", "-d", "0.02", "-p", &pid, func]);
                    let output_text = String::from_utf8_lossy(&output.stderr);
                    assert!(
                        output.status.code().is_some_and(|code| code <= 3),
                        "{}: {output_text}",
                        output.status
                    );
                    assert!(!output_text.contains("panicked"), "{output_text}");
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_secs(3));
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(victim.run(2000)["wrong"], 0);
    assert_eq!(text::differences(pid), [""; 0], "text as on disk");
}
