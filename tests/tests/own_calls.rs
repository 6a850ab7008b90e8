//! SAFE-5: a program changes what its probes rely on, by calls that are not its C library's `sigaction`, `prctl`
//! and `syscall`: its own system calls, Go's, another C library's, a static C library's without names. It lives
//! on, and the report says what is not seen from then on. The same for what it does to SIGTRAP.
#![cfg(target_arch = "x86_64")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, binary, once};
use trapline_tests::victims::Variant;
use trapline_tests::{or_skip, text, victims};

const TIMES: u64 = 8;
/// How `own_calls` makes a call.
const HOWS: [&str; 4] = ["inline", "wrapped", "stack", "hidden"];
/// What it changes, the verb, the probe.
const CHANGES: [(&str, &str, &str); 4] = [
    ("tsc", "lat", "work"),
    ("tsc", "trace", "work"),
    ("filter", "trace", "work(u64 x, str s)"),
    ("segv", "count", "get"),
];

fn attach(victim: &Running, verb: &str, probe: &str) -> Tracing {
    Tracing::start(verb, &["-p", &victim.pid().to_string(), probe])
        .unwrap_or_else(|report| panic!("{verb} {probe}: {}: {}", report.status, report.errors))
}

fn send(victim: &mut Running, line: &str) {
    victim.send(line);
    assert_eq!(victim.line(), "done", "{line}: the target lives on");
}

fn assert_closed(case: &str, report: &Report) {
    assert_eq!(report.status.code(), Some(0), "{case}: {}", report.errors);
    let reported =
        report.errors.contains("had to be probed anew") || report.errors.contains("not probed any more");
    // A call that is found late might have been fatal.
    let late = report.errors.contains("in the moment before");
    assert!(reported && !late, "{case}: {}", report.errors);
}

fn changes(path: &Path, what: (&str, &str, &str), how: &str) {
    let (change, verb, probe) = what;
    let case = format!("{} {verb} {change}-{how}", path.display());
    let mut victim = Running::start(path, &[]);
    let tracing = attach(&victim, verb, probe);
    assert_eq!(victim.run(TIMES)["work"], TIMES, "{case}");
    send(&mut victim, &format!("{change}-{how}"));
    let caught = if change == "segv" { TIMES / 4 } else { 0 };
    assert_eq!(victim.run(TIMES)["caught"], caught, "{case}");
    let report = tracing.stop();
    assert_closed(&case, &report);
    victim.run(TIMES);
    assert!(victim.finish().success(), "{case}");
}

#[test]
fn a_program_that_changes_by_its_own_calls_lives_on() {
    let path = or_skip!(victims::plain("own_calls"));
    for what in CHANGES {
        for how in HOWS {
            changes(&path, what, how);
        }
    }
}

/// Compilers place numbers and arguments in other ways.
#[test]
fn own_calls_are_held_however_they_are_compiled() {
    for variant in [Variant::O0, Variant::O3, Variant::Cet, Variant::NonPie, Variant::Static] {
        let path = or_skip!(victims::c("own_calls", variant));
        for how in ["inline", "wrapped"] {
            changes(&path, CHANGES[0], how);
        }
    }
}

/// The number is held before the first call of a launched program.
#[test]
fn a_launched_program_that_changes_by_its_own_calls_lives_on() {
    let path = or_skip!(victims::plain("own_calls"));
    for (change, verb, probe) in CHANGES {
        let mut command = Command::new(binary());
        command.args([verb, probe, "--"]).arg(&path).args([&format!("{change}-inline"), "8"]);
        let output = command.output().expect("runs");
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success() && text.contains("work=8 get=8 "),
            "{change} {verb}: {text} {errors}"
        );
    }
}

/// Without symbols, its C library's calls are a program's own.
#[test]
fn a_static_program_without_symbols_is_held_too() {
    let path = or_skip!(victims::c("changes", Variant::Static));
    let bare = std::env::temp_dir().join(format!("trapline-own-{}", std::process::id()));
    let stripped = Command::new("strip").arg("-o").arg(&bare).arg(&path).status();
    assert!(stripped.is_ok_and(|status| status.success()), "strip is part of what compilers need");
    let names = Command::new("nm").arg(&path).output().expect("nm is, too");
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    let line = names.lines().find(|line| line.to_lowercase().ends_with(" t work")).expect("a symbol");
    let address = format!("0x{}", line.split(' ').next().expect("a word").trim_start_matches('0'));
    for (how, verb) in [("tsc", "lat"), ("tsc", "trace")] {
        let mut victim = Running::start(&bare, &[]);
        let tracing = attach(&victim, verb, &address);
        victim.run(TIMES);
        send(&mut victim, how);
        assert_eq!(victim.run(TIMES)["work"], TIMES, "{how} {verb}");
        assert_closed(&format!("bare {how} {verb}"), &tracing.stop());
    }
    std::fs::remove_file(bare).expect("ours");
}

/// A C library that was mapped before anything was probed, and one that is mapped later.
#[test]
fn calls_of_each_c_library_are_held() {
    let plugin = or_skip!(victims::shared("plugin"));
    let path = or_skip!(victims::plain("late_change"));
    let probe = format!("{}:plugin_work", plugin.display());
    for how in ["tsc", "other-tsc"] {
        let mut victim = Running::start(&path, &[]);
        let tracing = Tracing::start("lat", &["-f", "-p", &victim.pid().to_string(), &probe])
            .unwrap_or_else(|report| panic!("{how}: {}: {}", report.status, report.errors));
        send(&mut victim, "load");
        std::thread::sleep(Duration::from_secs(1));
        victim.run(TIMES);
        if how == "other-tsc" {
            send(&mut victim, "other");
            // A second library is probed when something else is, too.
            std::thread::sleep(Duration::from_secs(1));
        }
        send(&mut victim, how);
        assert_eq!(victim.run(TIMES)["plugin_work"], TIMES, "{how}");
        let report = tracing.stop();
        assert_closed(how, &report);
        assert!(victim.finish().success(), "{how}");
    }
}

#[test]
fn a_program_of_gos_that_changes_lives_on() {
    let path = or_skip!(victims::go("raw_calls"));
    let texts = "main.Work(buf(len=n) s, u64 n)";
    for (how, verb, probe) in
        [("tsc", "lat", "main.Work"), ("tsc", "trace", "main.Work"), ("filter", "trace", texts)]
    {
        let mut victim = Running::start(&path, &[]);
        let tracing = attach(&victim, verb, probe);
        for line in ["run 8", how, "run 8"] {
            send(&mut victim, line);
        }
        assert_closed(&format!("{how} {verb}"), &tracing.stop());
        send(&mut victim, "run 8");
        assert!(victim.finish().success(), "{how} {verb}");
    }
}

#[test]
fn the_c_library_of_a_program_of_gos_is_held() {
    let path = or_skip!(victims::go_with_libc("raw_calls_cgo"));
    let mut victim = Running::start(&path, &[]);
    let tracing = attach(&victim, "lat", "c_work");
    send(&mut victim, "tsc");
    assert_closed("cgo", &tracing.stop());
    send(&mut victim, "tsc");
    assert!(victim.finish().success());
}

/// The default action of SIGTRAP is set, which no held call asks for. It is found by /proc, and a context that a
/// signal left inside a window meets no trap, which would end the program.
#[test]
fn a_program_that_sets_the_default_action_of_sigtrap_lives_on() {
    let path = or_skip!(victims::plain("own_actions"));
    for how in ["default", "ignore"] {
        let mut victim = Running::start(&path, &[]);
        // The window begins at the second instruction; the third is inside.
        victim.send("save 5");
        assert_eq!(victim.line(), "saved", "{how}");
        let tracing = attach(&victim, "count", "spot");
        let pid = victim.pid();
        let mut say = |line: &str, spots: u64| {
            victim.send(line);
            assert_eq!(victim.line(), format!("traps=0 spots={spots}"), "{how}: {line}");
        };
        say("run 3", 3);
        let (begun, probed) = (Instant::now(), text::differences(pid));
        say(how, 3);
        while text::differences(pid) == probed {
            assert!(begun.elapsed() < Duration::from_secs(20), "{how}: not found: {}", tracing.output_text());
            std::thread::sleep(Duration::from_millis(2));
        }
        say("resume", 4);
        say("run 3", 7);
        let report = tracing.stop();
        assert_eq!(report.status.code(), Some(0), "{how}: {}", report.errors);
        let why = "has set the default action of SIGTRAP or SIGILL";
        assert!(report.errors.contains(why), "{how}: {}", report.errors);
        say("run 3", 10);
        assert!(victim.finish().success(), "{how}");
    }
}

/// A context that a signal left inside a window stays in the program. Its trap would meet the program's own
/// handler.
#[test]
fn a_program_that_takes_sigtrap_meets_no_trap_of_ours() {
    let path = or_skip!(victims::plain("own_actions"));
    // The windows of `spot` begin at its first instruction or at its second.
    for inside in [1, 5] {
        for how in ["signal", "inline"] {
            let case = format!("{inside} {how}");
            let mut victim = Running::start(&path, &[]);
            victim.send(&format!("save {inside}"));
            assert_eq!(victim.line(), "saved", "{case}");
            let tracing = attach(&victim, "count", "spot");
            let mut say = |line: &str, traps: u64, spots: u64| {
                victim.send(line);
                assert_eq!(victim.line(), format!("traps={traps} spots={spots}"), "{case}: {line}");
            };
            say("run 3", 0, 3);
            say(how, 0, 3);
            say("resume", 0, 4);
            say("run 3", 0, 7);
            say("trap", 1, 7);
            let report = tracing.stop();
            assert_eq!(report.status.code(), Some(0), "{case}: {}", report.errors);
            say("run 3", 1, 10);
            say("trap", 2, 10);
            let status = once(&["status", "-p", &victim.pid().to_string()]);
            assert!(!String::from_utf8_lossy(&status.stdout).contains("; 1 of "), "{case}");
            assert!(victim.finish().success(), "{case}");
        }
    }
}
