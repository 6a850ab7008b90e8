//! `trace`: each call with its arguments, its value and its thread. Calls that do not fit are counted
//! (LOSS-2).

use std::collections::BTreeMap;

use serde_json::Value;
use trapline_tests::fetched::Fetched;
use trapline_tests::programs::Own;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, argument, once, until_enough};
use trapline_tests::{or_skip, text, victims};

const TIMES: u64 = 300;

#[test]
fn each_call_has_its_arguments_and_its_value() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let probes = [
        "leaf(u64 x) -> u64",
        "factorial(u64 n) -> u64",
        "many_args(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) -> u64",
        "tail_caller(u64 x) -> u64",
    ];
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(probes).collect();
    let tracing = Tracing::start("trace", &words).expect("attaches");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    for func in ["leaf", "factorial", "many_args", "tail_caller"] {
        assert_eq!(report.calls_of(func).len() as u64, reported[func], "{func}: {}", report.errors);
        assert_eq!(report.hits(func), reported[func], "{func}");
    }
    for call in report.calls_of("leaf") {
        assert_eq!(call["ret"].as_u64(), Some(argument(call, 0) * 3 + 1), "{call}");
        assert_eq!((call["tid"].as_u64(), &call["how"]), (Some(u64::from(victim.pid())), &"returned".into()));
        assert!(call["dur_ns"].as_u64().is_some_and(|ns| ns < 10_000_000_000), "{call}");
    }
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for call in report.calls_of("factorial") {
        let n = argument(call, 0);
        assert_eq!(call["ret"].as_u64(), Some((1..=n).product()), "{call}");
        *seen.entry(n).or_default() += 1;
    }
    let switched = TIMES / 9;
    assert_eq!(
        seen,
        BTreeMap::from([
            (1, TIMES + switched),
            (2, TIMES + switched),
            (3, TIMES + switched),
            (4, TIMES),
            (5, TIMES)
        ])
    );
    for (nth, call) in (0..).zip(report.calls_of("many_args")) {
        let arguments: Vec<u64> = (0..6).map(|n| argument(call, n)).collect();
        assert_eq!(arguments, [nth, 2, 3, 4, 5, 6]);
    }
    // Its last callee may be inlined or jumped to; after a jump, the value is not its own.
    for call in report.calls_of("tail_caller") {
        assert!(
            call["how"] == "tail" || call["ret"].as_u64() == Some((argument(call, 0) + 1) * 3 + 1),
            "{call}"
        );
    }
    text::assert_clean(victim.pid(), &before);
    assert!(victim.run(10)["leaf"] > 0);
}

/// The kernel's own probe fetches the argument of the same calls in a second run. Both must agree.
#[test]
fn the_kernel_reads_the_same_arguments() {
    let path = Own::of(&or_skip!(victims::plain("counter")), "leaf");
    let mut victim = Running::start(&path, &[]);
    let kernel = or_skip!(Fetched::new(&path, "leaf", victim.pid(), "%di:u64"));
    victim.run(TIMES);
    let expected: Vec<u64> = kernel.read().iter().map(|first| first.parse().expect("a number")).collect();
    assert!(!expected.is_empty(), "the kernel saw nothing");
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("trace", &["--entry-only", "-p", &pid, "leaf(u64 x)"]).expect("attaches");
    victim.run(TIMES);
    let report = tracing.stop();
    let ours: Vec<u64> = report.calls_of("leaf").into_iter().map(|call| argument(call, 0)).collect();
    assert_eq!(ours, expected);
}

/// More hits than the rings hold, while the tracer is stopped. The target is not disturbed, and every hit is
/// a line or missed.
#[test]
fn a_stopped_tracer_loses_records_and_says_how_many() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let mut tracing =
        Tracing::start("trace", &["--entry-only", "-p", &pid, "leaf(u64 x)"]).expect("attaches");
    let few = victim.run(100)["leaf"];
    tracing.signal(libc::SIGSTOP);
    let many = victim.run(60_000)["leaf"];
    tracing.signal(libc::SIGCONT);
    let report = tracing.stop();
    let missed = report.number("missed");
    let lines = report.calls_of("leaf").len() as u64;
    assert_eq!(lines + missed, few + many, "{}", report.errors);
    assert_eq!(report.hits("leaf"), lines);
    assert!(missed > 0 && lines > few, "{lines} lines, {missed} missed");
}

/// Eight threads run on the CPUs of this machine, and fill all rings. Each thread's calls are reported in the
/// order in which it made them, and every hit is a line or missed.
#[test]
fn a_storm_of_eight_threads_is_reported_in_order_and_to_the_hit() {
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["8"]);
    let pid = victim.pid().to_string();
    let words = ["--entry-only", "-p", &pid, "through(u64 x)", "shared(u64 x)"];
    let tracing = Tracing::start("trace", &words).expect("attaches");
    // The first hundred calls of each thread find room. Of the later ones, all of some threads may be lost.
    let few = victim.run(100);
    let many = victim.run(20_000);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    let made = |func: &str| few[func] + many[func];
    let lines = ["through", "shared"].map(|func| report.calls_of(func).len() as u64);
    assert_eq!(lines, ["through", "shared"].map(|func| report.hits(func)));
    let missed = report.number("missed");
    assert_eq!(lines.iter().sum::<u64>() + missed, made("through") + made("shared"), "{}", report.errors);
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for call in report.calls_of("through") {
        let (tid, x) = (call["tid"].as_u64().expect("a number"), argument(call, 0));
        let before = last.insert(tid, x);
        assert!(before.is_none_or(|before| before < x || before == 99), "{before:?} before {call}");
    }
    assert_eq!(last.len(), 8, "{} calls, {missed} missed", lines[0]);
}

#[test]
fn what_is_no_signature_is_refused_by_name() {
    let many = format!("leaf({})", ["a"; 40].join(", "));
    for (probe, words) in [
        ("leaf(text path)", "`text` is no type"),
        ("leaf(int", "no `)`"),
        (&many, "40 arguments"),
        ("leaf(int) -> strn", "`strn` is no type"),
    ] {
        let output = once(&["trace", "-p", "1", probe]);
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{output_text}");
        assert!(output_text.contains(words), "{probe}: {output_text}");
    }
}

/// One call is in flight at the attach, as in any program that waits. Its exit has no entry, and every other
/// exit is paired with its own entry.
#[test]
fn calls_after_one_that_was_under_way_have_their_own_ends() {
    let path = or_skip!(victims::plain("naps"));
    let victim = Running::start(&path, &["nap"]);
    let pid = victim.pid().to_string();
    let ended = |report: &Report| -> Vec<Value> {
        report.calls_of("nap").into_iter().filter(|call| call["how"] == "returned").cloned().collect()
    };
    let words = ["-p", &pid, "nap(int n, int us) -> int"];
    let report = until_enough("trace", &words, |report| ended(report).len() > 20);
    let ended = ended(&report);
    assert!(ended.len() > 20, "{} calls: {}", ended.len(), report.errors);
    for call in &ended {
        assert_eq!(call["ret"].as_u64(), Some(argument(call, 0)), "another call's value: {call}");
        let took = call["dur_ns"].as_u64().expect("a duration");
        assert!(took >= 5_000_000, "it sleeps for 5 ms: {call}");
    }
    let of = |report: &Report, field: &str| {
        let stacks = report.objects.iter().filter(|object| object["type"] == "stack");
        stacks.map(|stack| stack[field].as_u64().expect("a number")).sum::<u64>()
    };
    let report = until_enough("stack", &["--time", "-p", &pid, "nap"], |report| of(report, "hits") > 20);
    // The last call is in flight when tracing ends, and has no duration.
    let (calls, time) = (of(&report, "hits"), of(&report, "time_ns"));
    assert!(calls > 20 && time >= (calls - 1) * 5_000_000, "{calls} calls in {time} ns: {}", report.errors);
}

/// `slow` ends by a jump to a function that sleeps for 3 ms. That is part of the call, so its duration is not
/// known at the jump, and the report says so.
#[test]
fn a_tail_call_is_reported_as_longer_than_was_seen() {
    let path = or_skip!(victims::plain("naps"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let shown = |seconds| {
        let words = ["trace", "--ret=exits", "-d", seconds, "-p", &pid, "slow(int us) -> int"];
        String::from_utf8_lossy(&once(&words).stdout).into_owned()
    };
    // On a busy machine it makes no call in half a second.
    let has_call = |text: &String| text.contains("= ? (tail call) <>= 0.0");
    let text = ["0.5", "2", "8"].into_iter().map(shown).find(has_call).unwrap_or_else(|| shown("32"));
    assert!(has_call(&text), "{text}");
    for condition in ["dur < 1ms", "dur > 1ms", "!(dur > 1ms)"] {
        let words = ["-d", "0.5", "-p", &pid, "--ret=exits", "--if", condition, "slow(int us) -> int"];
        let report = Tracing::spawn("trace", &words).end();
        assert_eq!(report.calls_of("slow"), Vec::<&Value>::new(), "{condition}: {}", report.errors);
    }
}
