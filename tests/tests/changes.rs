//! SAFE-2, SAFE-5: what a program changes while it is probed: its handlers of faults, its filters of system
//! calls, its right to read the clock. It lives on and computes the same. The report says what is not seen
//! from then on.

use std::process::Command;
use std::time::{Duration, Instant};

use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, binary, once};
use trapline_tests::victims::Variant;
use trapline_tests::{or_skip, victims};

const TIMES: u64 = 8;
const TEXTS: &str = "work(u64 x, str s)";
/// The change, the verb, the probe.
const CASES: [(&str, &str, &str); 11] = [
    ("segv", "count", "get"),
    ("segv", "lat", "get"),
    ("segv", "trace", "get"),
    ("tsc", "lat", "work"),
    ("tsc", "trace", "work"),
    ("tsc", "stack", "work"),
    ("filter", "trace", TEXTS),
    ("seccomp", "trace", TEXTS),
    ("dispatch", "trace", TEXTS),
    ("filter", "count", "work"),
    ("dispatch", "count", "work"),
];

/// What the program itself prints about a run.
fn expected(how: &str) -> (u64, i64) {
    if matches!(how, "segv" | "raw") { (TIMES / 4, 42 * 6 - 2) } else { (0, 42 * 8) }
}

fn assert_reported(case: (&str, &str, &str), report: &Report) {
    let (how, verb, _) = case;
    let output_text = |words: &str| report.errors.contains(words);
    match (how, verb) {
        ("segv", _) => assert!(
            output_text("had to be probed anew") || output_text("not probed any more"),
            "{case:?}: {}",
            report.errors
        ),
        ("filter" | "dispatch", "count") => assert!(!output_text("any more"), "{case:?}: {}", report.errors),
        _ => assert!(output_text("not probed any more"), "{case:?}: {}", report.errors),
    }
}

/// The program is probed, then makes the change, then calls the functions.
#[test]
fn a_program_that_changes_while_it_is_probed_lives_on() {
    let path = or_skip!(victims::plain("changes"));
    for case in CASES {
        let (how, verb, probe) = case;
        let mut victim = Running::start(&path, &[]);
        let tracing = Tracing::start(verb, &["--kernel-uprobes", "-p", &victim.pid().to_string(), probe])
            .unwrap_or_else(|report| panic!("{case:?}: {}: {}", report.status, report.errors));
        victim.run(TIMES);
        victim.send(how);
        assert_eq!(victim.line(), "done", "{case:?}: the target lives on");
        let reported = victim.run(TIMES);
        let (caught, _) = expected(how);
        assert_eq!((reported["work"], reported["caught"]), (TIMES, caught), "{case:?}");
        let report = tracing.stop();
        assert_eq!(report.status.code(), Some(0), "{case:?}: {}", report.errors);
        assert_reported(case, &report);
        if verb == "count" {
            // Where that is allowed, a kernel uprobe continues the count.
            let restricts = matches!(how, "filter" | "dispatch");
            let all = report.errors.contains("had to be probed anew") || restricts;
            let name = if restricts { "work" } else { "get" };
            assert_eq!(report.hits(name), if all { 2 * TIMES } else { TIMES }, "{case:?}: {}", report.errors);
        }
        victim.run(TIMES);
        assert!(victim.finish().success(), "{case:?}");
    }
}

/// The program is probed at its entry point, and makes the change before its first call.
#[test]
fn a_launched_program_that_changes_lives_on() {
    let path = or_skip!(victims::plain("changes"));
    for case in CASES {
        let (how, verb, probe) = case;
        let mut command = Command::new(binary());
        command.args([verb, probe, "--"]).arg(&path).args([how, &TIMES.to_string()]);
        let output = command.output().expect("runs");
        let output_text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let (caught, check) = expected(how);
        assert!(output.status.success(), "{case:?}: {}: {errors}", output.status);
        assert!(
            output_text.contains(&format!("work={TIMES} get={TIMES} caught={caught} ")),
            "{case:?}: {output_text} {errors}"
        );
        assert!(output_text.contains(&format!("check={check} ")), "{case:?}: {output_text} {errors}");
    }
}

/// A static program contains the C library's functions. It must live on, too.
#[test]
fn a_static_program_that_handles_faults_lives_on() {
    let path = or_skip!(victims::c("changes", Variant::Static));
    for verb in ["count", "lat", "trace"] {
        let mut command = Command::new(binary());
        command.args([verb, "get", "--"]).arg(&path).args(["segv", "8"]);
        let output = command.output().expect("runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb}: {}: {errors}", output.status);
    }
}

/// Without symbols, calls that install handlers cannot be held there. So instructions that may fault are not
/// displaced.
#[test]
fn a_static_program_without_symbols_that_handles_faults_lives_on() {
    let path = or_skip!(victims::c("changes", Variant::Static));
    let bare = std::env::temp_dir().join(format!("trapline-bare-{}", std::process::id()));
    let stripped = Command::new("strip").arg("-o").arg(&bare).arg(&path).status();
    assert!(stripped.is_ok_and(|status| status.success()), "strip is part of what compilers need");
    let names = Command::new("nm").arg(&path).output().expect("nm is, too");
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    let line = names.lines().find(|line| line.ends_with(" T get")).expect("a symbol");
    let address = format!("0x{}", line.split(' ').next().expect("a word").trim_start_matches('0'));
    for verb in ["count", "lat", "trace"] {
        let mut command = Command::new(binary());
        command.args([verb, &address, "--"]).arg(&bare).args(["segv", "8"]);
        let output = command.output().expect("runs");
        let (output_text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output_text.contains("work=8 get=8 caught=2 "), "{verb}: {output_text} {errors}");
        let refused = errors.contains("nothing could be probed");
        assert!(output.status.success() || refused, "{verb}: {}: {errors}", output.status);
    }
    std::fs::remove_file(bare).expect("ours");
}

/// TGT-17: the batch that answers a held call runs in the thread that follows, so an exec right after the answer is
/// followed.
#[test]
fn a_program_that_executes_another_right_after_an_answer_is_followed() {
    let path = or_skip!(victims::plain("changes")).display().to_string();
    for round in 0..3 {
        let report = Tracing::spawn("count", &["-f", "get", "--", &path, "exec", "8"]).end();
        assert_eq!(report.status.code(), Some(0), "{}", report.errors);
        assert_eq!(report.hits("get"), 8, "round {round}: {}", report.errors);
    }
}

/// A call that bypasses the C library is found a moment later, here before the first fault.
#[test]
fn a_handler_that_came_by_a_raw_call_is_found() {
    let path = or_skip!(victims::plain("changes"));
    let mut victim = Running::start(&path, &[]);
    let tracing = Tracing::start("count", &["-p", &victim.pid().to_string(), "get"])
        .unwrap_or_else(|report| panic!("{}: {}", report.status, report.errors));
    victim.send("raw");
    assert_eq!(victim.line(), "done");
    let begun = Instant::now();
    let pid = victim.pid().to_string();
    // One site of the probe, three where calls are held, and one where libraries are waited for. The first is taken out.
    while !String::from_utf8_lossy(&once(&["status", "-p", &pid]).stdout).contains("; 4 of ") {
        assert!(begun.elapsed() < Duration::from_secs(20), "not found: {}", tracing.output_text());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(victim.run(TIMES)["caught"], TIMES / 4);
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0));
    assert!(report.errors.contains("since it handles SIGSEGV or SIGBUS now"), "{}", report.errors);
    assert!(victim.finish().success());
}

/// No tracer answers the held call. The thread goes on by itself, and later calls go on at once.
#[test]
fn a_thread_of_a_tracer_that_is_gone_goes_on() {
    let path = or_skip!(victims::plain("changes"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("lat", &["-p", &pid, "work"])
        .unwrap_or_else(|report| panic!("{}: {}", report.status, report.errors));
    // Dropping kills the tracer.
    drop(tracing);
    for _ in 0..2 {
        victim.send("tsc");
        assert_eq!(victim.line(), "done");
    }
    assert!(once(&["detach", "-p", &pid]).status.success());
    victim.run(TIMES);
    assert!(victim.finish().success());
}
