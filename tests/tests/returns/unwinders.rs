//! Exceptions, panics and backtraces through replaced return addresses, and programs with unwinders that cannot be
//! informed of them.

use std::time::{Duration, Instant};

use trapline_tests::running::Running;
use trapline_tests::{or_skip, victims};

use super::{attached, trampolines};

#[test]
fn panics_unwind_through_replaced_return_addresses() {
    let path = or_skip!(victims::rust("panics"));
    let mut running = Running::start(&path, &[]);
    let bare = running.run(2000);
    let tracing =
        attached(running.pid(), "stack", &["*panicker*", "*catcher*", "*collector*"]).expect("attaches");
    assert_eq!(running.run(2000), bare);
    let report = tracing.stop();
    assert_eq!(report.field("catcher", "calls"), 2000, "{:?} {}", report.refused(), report.errors);
    assert_eq!(report.field("panicker", "calls"), 0, "a panic is not a return");
    assert_eq!(
        report.field("panicker", "in_flight") + report.field("panicker", "unreturned"),
        bare["panicker"]
    );
    assert_eq!(running.run(2000), bare);
}

/// Exceptions leave more return trampolines in use than there are. Some calls are missed, and counted as
/// missed, until trampolines are given back.
#[test]
fn trampolines_left_by_exceptions_come_back() {
    let path = or_skip!(victims::cpp("unwind"));
    let mut running = Running::start(&path, &[]);
    let bare = running.run(20_000);
    let tracing = attached(running.pid(), "stack", &["*thrower*", "*catcher*"]).expect("attaches");
    const RUNS: u64 = 2;
    let half = trampolines(running.pid()).1 / 2;
    for _ in 0..RUNS {
        assert_eq!(running.run(20_000), bare);
        // More than half are in use now, or were and have been given back. However slow the tracer is, it
        // gives them back before it ends.
        while trampolines(running.pid()).0 >= half {
            assert!(running.alive());
            std::thread::yield_now();
        }
    }
    let report = tracing.stop();
    let field = |func: &str, field: &str| report.field(func, field);
    let calls = field("catcher", "calls") + field("thrower", "calls") + field("rethrower", "calls");
    let left = ["catcher", "thrower", "rethrower"].map(|f| field(f, "in_flight") + field(f, "unreturned"));
    let all = RUNS * (bare["catcher"] + bare["thrower"] + bare["rethrower"]);
    assert_eq!(calls + left.iter().sum::<u64>() + report.number("missed"), all, "{}", report.errors);
    assert!(field("thrower", "unreturned") > 0, "none was given back: {}", report.errors);
    assert_eq!(running.run(20_000), bare);
}

#[test]
fn a_program_with_an_unwinder_that_cannot_be_informed_is_refused() {
    // The program has an unwinder of its own, without the functions that register frames.
    let path = or_skip!(victims::c("counter", victims::Variant::Static));
    let stripped = path.with_file_name("counter.stripped");
    let done = std::process::Command::new("strip").arg("-o").arg(&stripped).arg(&path).status();
    if !done.is_ok_and(|status| status.success()) {
        println!("SKIP: no strip");
        return;
    }
    let mut running = Running::start(&stripped, &[]);
    running.run(1);
    let report = attached(running.pid(), "stack", &["*"]).expect_err("refused");
    assert!(report.errors.contains("unwinder"), "{}", report.errors);
    assert!(running.alive());
}

/// The only thread is in a signal handler, so no call can be made to register frames. The program is refused,
/// and what was mapped for it does no harm.
#[test]
fn a_program_with_its_only_thread_in_a_handler_is_refused_and_nothing_is_left() {
    let path = or_skip!(victims::cpp("handling"));
    let mut running = Running::start(&path, &[]);
    let bare = running.run(100);
    let report = attached(running.pid(), "stack", &["worker"]).expect_err("refused");
    assert!(report.errors.contains("in a signal handler"), "{}", report.errors);
    assert_eq!(running.run(100), bare);
    let tracing =
        attached(running.pid(), "exits", &["worker"]).unwrap_or_else(|report| panic!("{}", report.errors));
    assert_eq!(running.run(100), bare);
    let report = tracing.stop();
    assert_eq!(report.field("worker", "calls"), 100, "{}", report.errors);
    assert!(running.alive());
}

/// The only thread is in a signal handler at the detach, so what the unwinder was given cannot be taken back, and stays
/// mapped. A later session takes it back, and nothing stays.
#[test]
fn what_could_not_be_taken_back_from_an_unwinder_is_taken_back_later() {
    let path = or_skip!(victims::cpp("handling"));
    let mut running = Running::start(&path, &["visits"]);
    let pid = running.pid();
    let mapped = || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
        maps.lines().filter(|line| line.contains("/memfd:trapline")).count()
    };
    let bare = running.run(100);
    let tracing = attached(pid, "stack", &["worker"]).unwrap_or_else(|report| panic!("{}", report.errors));
    assert_eq!(running.run(100), bare);
    running.begin(7);
    assert_eq!(running.line(), "inside");
    let report = tracing.stop();
    assert_eq!(report.field("worker", "calls"), 100, "{}", report.errors);
    assert!(mapped() > 0, "its unwinder still refers to our memory");
    running.send("on");
    assert_eq!(running.reported()["worker"], 7);
    let tracing = attached(pid, "exits", &["worker"]).unwrap_or_else(|report| panic!("{}", report.errors));
    assert_eq!(running.run(100), bare);
    let report = tracing.stop();
    assert_eq!(report.field("worker", "calls"), 100, "{}", report.errors);
    assert_eq!((mapped(), running.run(100)), (0, bare), "{}", report.errors);
}

/// Static programs, with an unwinder of their own or with none: all calls are timed, and exceptions work.
#[test]
fn unwinders_of_static_programs_are_informed() {
    use victims::Variant::{Musl, Static};
    // The functions. The first always returns, and the second never.
    let cases = [
        ("static C", victims::c("counter", Static), &["leaf"][..]),
        ("static C, musl", victims::c("counter", Musl), &["leaf"]),
        ("static C++", victims::cpp_static("unwind"), &["catcher", "thrower"]),
        ("static Rust", victims::rust_static("panics"), &["catcher", "panicker"]),
    ];
    for (what, path, funcs) in cases {
        let Ok(path) = path.inspect_err(|why| println!("SKIP: {what}: {why}")) else { continue };
        let mut running = Running::start(&path, &[]);
        let bare = running.run(500);
        let globs: Vec<String> = funcs.iter().map(|func| format!("*{func}*")).collect();
        let globs: Vec<&str> = globs.iter().map(String::as_str).collect();
        let probes = if funcs.len() == 1 { funcs } else { &globs };
        let tracing = attached(running.pid(), "stack", probes)
            .unwrap_or_else(|report| panic!("{what}: {}", report.errors));
        assert_eq!(running.run(500), bare, "{what}");
        let report = tracing.stop();
        assert_eq!(report.field(funcs[0], "calls"), bare[funcs[0]], "{what}: {}", report.errors);
        for left in &funcs[1..] {
            let reported = ["calls", "in_flight", "unreturned"].map(|field| report.field(left, field));
            assert!(reported[1] + reported[2] > 0, "{what}: {reported:?}");
            assert_eq!(
                reported.iter().sum::<u64>() + report.number("missed"),
                bare[*left],
                "{what}: {reported:?}"
            );
        }
        assert!(running.alive(), "{what}");
    }
}

/// A plain C program loads an unwinder when it first asks for a backtrace. The frames are registered there a
/// moment later, and from then on it sees all callers.
#[test]
fn an_unwinder_that_is_loaded_later_is_informed() {
    let path = or_skip!(victims::plain("late"));
    let bare = Running::start(&path, &[]).run(1);
    // Each return trampoline is a frame of its own in front of the one that it returns to.
    let whole = bare["frames"] + 2;
    let mut running = Running::start(&path, &[]);
    let tracing = attached(running.pid(), "stack", &["outer", "walker"]).expect("attached");
    let patience = Instant::now() + Duration::from_secs(120);
    let (mut calls, mut short) = (1, 0);
    while running.run(1)["frames"] != whole {
        assert!(Instant::now() < patience, "not set up");
        (calls, short) = (calls + 1, short + 1);
    }
    for _ in 0..100 {
        let reported = running.run(1);
        assert_eq!((reported["frames"], reported["check"]), (whole, bare["check"]));
        calls += 1;
    }
    let report = tracing.stop();
    println!("{short} saw less");
    assert!(short > 0, "an unwinder was set up before");
    assert_eq!(["outer", "walker"].map(|name| report.field(name, "calls")), [calls; 2], "{}", report.errors);
    assert!(running.alive());
}
