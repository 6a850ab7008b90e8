//! `trace --if`, `--tid`, `--comm`, `--sample`: calls that pass are reported, the rest is counted, and
//! nothing is lost between (LOSS-2).

use std::time::{Duration, Instant};

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, argument, once};
use trapline_tests::{or_skip, text, victims};

const TIMES: u64 = 300;
const MANY: &str = "many_args(u64 a, int b, u64 c, u64 d, u64 e, u64 f) -> u64";

struct Filtered {
    lines: Vec<Value>,
    /// Hits that were recorded, filtered in the target, and left out by the reader; then the victim's own
    /// count.
    hits: u64,
    filtered: u64,
    left_out: u64,
    unended: u64,
    reported: u64,
}

fn traced(victim: &mut Running, func: &str, probe: &str, options: &[&str]) -> Filtered {
    let pid = victim.pid().to_string();
    let words: Vec<&str> = ["-p", &pid, probe].into_iter().chain(options.iter().copied()).collect();
    let tracing = Tracing::start("trace", &words).expect("attaches");
    let reported = victim.run(TIMES)[func];
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    assert_eq!(report.number("missed"), 0, "{}", report.errors);
    let lines = report.calls().into_iter().cloned().collect();
    // Without a filter, only the field `hits` exists.
    let field = |name: &str| last(&report, func)[name].as_u64().unwrap_or(0);
    let (hits, filtered, left_out) = (field("hits"), field("filtered"), field("left_out"));
    let unended = last(&report, func)["unended"].as_u64().unwrap_or(0);
    Filtered { lines, hits, filtered, left_out, unended, reported }
}

/// The entry of a function in the last `count` object.
fn last<'a>(report: &'a Report, func: &str) -> &'a Value {
    let last = report.objects.iter().rfind(|object| object["type"] == "count").expect("a count");
    let is = |probe: &&Value| probe["probe"].as_str().is_some_and(|text| text.ends_with(&format!(":{func}")));
    last["probes"].as_array().expect("probes").iter().find(is).expect("the function")
}

#[test]
fn what_passes_is_reported_and_the_rest_is_counted() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    for (condition, passes) in [
        ("a % 3 == 1 && b == 2", &(|a: u64| a % 3 == 1) as &dyn Fn(u64) -> bool),
        ("a >= 100 || a == 7", &|a| a >= 100 || a == 7),
        ("-b < a && !(arg0 & 1)", &|a| a & 1 == 0),
        ("c == 4", &|_| false),
    ] {
        for whole in [true, false] {
            let options: &[&str] =
                if whole { &["--if", condition] } else { &["--entry-only", "--if", condition] };
            let seen = traced(&mut victim, "many_args", MANY, options);
            let expected: Vec<u64> = (0..seen.reported).filter(|&a| passes(a)).collect();
            let got: Vec<u64> = seen.lines.iter().map(|call| argument(call, 0)).collect();
            assert_eq!(got, expected, "{condition}");
            assert_eq!(
                (seen.hits, seen.filtered, seen.left_out),
                (expected.len() as u64, seen.reported - seen.hits, 0)
            );
            assert!(!whole || seen.lines.iter().all(|call| call["how"] == "returned"), "{condition}");
        }
    }
    text::assert_clean(victim.pid(), &before);
}

#[test]
fn what_only_the_return_tells_is_decided_there() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let probe = "factorial(u64 n) -> u64";
    let seen = traced(&mut victim, "factorial", probe, &["--if", "n > 1 && ret == 24"]);
    assert!(!seen.lines.is_empty());
    assert!(seen.lines.iter().all(|call| argument(call, 0) == 4 && call["ret"] == 24));
    assert_eq!(seen.lines.len() as u64, TIMES, "factorial(4) is called in each round");
    assert_eq!(seen.hits + seen.filtered, seen.reported);
    assert_eq!((seen.hits, seen.left_out), (TIMES, 0), "nothing else was recorded");
    let seen = traced(&mut victim, "factorial", probe, &["--if", "dur > 3600s"]);
    assert_eq!((seen.lines.len(), seen.hits, seen.filtered, seen.left_out), (0, 0, seen.reported, 0));
    text::assert_clean(victim.pid(), &before);
}

/// The target decides at returns. It must select the same calls as a reader would that has all of them.
#[test]
fn returns_decide_as_a_reader_of_all_calls_would() {
    type Passes = dyn Fn(u64, u64) -> bool;
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let all = traced(&mut victim, "many_args", MANY, &["--max", "1000000"]);
    let facts = |call: &Value| (argument(call, 0), call["ret"].as_u64().expect("a value"));
    let every: Vec<(u64, u64)> = all.lines.iter().map(facts).collect();
    assert_eq!(every.len() as u64, TIMES);
    for (condition, passes, in_part) in [
        ("ret % 5 == 2", &(|_: u64, ret: u64| ret % 5 == 2) as &Passes, false),
        ("ret - a > 300 || a == 7", &|a: u64, ret: u64| ret - a > 300 || a == 7, false),
        ("a % 2 == 0 && !(ret & 4) && dur >= 0", &|a: u64, ret: u64| a & 1 == 0 && ret & 4 == 0, true),
        ("(ret ^ a) % 7 < 3 && dur < 3600s", &|a: u64, ret: u64| (ret ^ a) % 7 < 3, false),
        ("arg1 != 2 || ret == 0", &|_: u64, ret: u64| ret == 0, false),
    ] {
        let seen = traced(&mut victim, "many_args", MANY, &["--if", condition]);
        let expected: Vec<(u64, u64)> = every.iter().copied().filter(|&(a, ret)| passes(a, ret)).collect();
        assert_eq!(seen.lines.iter().map(facts).collect::<Vec<_>>(), expected, "{condition}");
        assert_eq!((seen.hits, seen.left_out, seen.unended), (expected.len() as u64, 0, 0), "{condition}");
        assert_eq!(seen.hits + seen.filtered, seen.reported, "{condition}");
        assert!(expected.len() < every.len() && seen.lines.iter().all(|call| call["how"] == "returned"));
        assert!(!in_part || seen.filtered > TIMES / 2, "{condition}");
    }
}

/// The same in a Go program, with and without the C library: goroutines' stacks move between entry and
/// return, and goroutines go on in other threads.
#[test]
fn returns_of_goroutines_decide_in_the_target() {
    for path in [or_skip!(victims::go("arguments")), or_skip!(victims::go_with_libc("arguments"))] {
        let mut victim = Running::start(&path, &[]);
        victim.run(1);
        let before = text::signals(victim.pid());
        let probe = "main.moved(i64 a, i64 b, i64 c, i64 n) -> i64";
        for (condition, passes) in [
            ("ret % 5 == 2", &(|n: u64| (n + 7) % 5 == 2) as &dyn Fn(u64) -> bool),
            ("ret - n == 7 && n & 1", &|n| n & 1 == 1),
            ("n % 3 == 1 && dur > 0 && ret", &|n| n % 3 == 1),
            ("dur > 3600s || ret < 8", &|n| n == 0),
        ] {
            let seen = traced(&mut victim, "main.moved", probe, &["--if", condition]);
            let mut got: Vec<u64> = seen.lines.iter().map(|call| argument(call, 3)).collect();
            got.sort_unstable();
            assert_eq!(got, (0..seen.reported).filter(|&n| passes(n)).collect::<Vec<_>>(), "{condition}");
            assert_eq!((seen.hits, seen.left_out, seen.unended), (got.len() as u64, 0, 0), "{condition}");
            assert_eq!(seen.hits + seen.filtered, seen.reported, "{condition}");
            let right = |call: &Value| call["how"] == "returned" && call["ret"] == argument(call, 3) + 7;
            assert!(seen.lines.iter().all(right), "{condition}");
        }
        text::assert_clean(victim.pid(), &before);
        assert_eq!(victim.run(10)["wrong"], 0);
    }
}

/// If the return decides, a text is still that of the entry, as in the example of the documentation.
#[test]
fn texts_are_those_of_the_entry() {
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let probe = "say(str text, u64 n) -> u64";
    let all = traced(&mut victim, "say", probe, &[]);
    let kept =
        |seen: &Filtered| -> Vec<Value> { seen.lines.iter().map(|call| call["args"].clone()).collect() };
    for (condition, passes) in [
        ("ret < 64 && ret", &(|n: u64| n < 64 && n != 0) as &dyn Fn(u64) -> bool),
        ("n == ret && n > 999", &|n| n > 999),
    ] {
        let seen = traced(&mut victim, "say", probe, &["--if", condition]);
        let expected: Vec<Value> =
            kept(&all).into_iter().filter(|args| passes(args[1]["value"].as_u64().expect("n"))).collect();
        assert_eq!(kept(&seen), expected, "{condition}");
        assert_eq!((seen.hits + seen.filtered, seen.left_out, seen.unended), (seen.reported, 0, 0));
    }
}

/// Calls left by longjmp, coroutines, handlers on other stacks: each call ends, or is reported as one that
/// did not.
#[test]
fn calls_that_never_return_are_counted_as_such() {
    let path = or_skip!(victims::plain("jumps"));
    let mut victim = Running::start(&path, &[]);
    for (func, probe, unended) in [
        ("leaver", "leaver(u64 n) -> u64", true),
        ("stayer", "stayer(u64 n) -> u64", false),
        ("resumer", "resumer(u64 n) -> u64", false),
        ("signalled", "signalled(u64 n) -> u64", false),
    ] {
        let seen = traced(&mut victim, func, probe, &["--if", "dur > 3600s || arg0 == 3 && ret != 0"]);
        assert_eq!(seen.hits + seen.filtered + seen.unended, seen.reported, "{func}");
        assert_eq!(seen.hits, seen.lines.len() as u64);
        assert_eq!((seen.unended > 0, seen.left_out), (unended, 0), "{func}");
        assert!(seen.lines.iter().all(|call| argument(call, 0) == 3), "{func}");
        assert!(unended || !seen.lines.is_empty(), "{func}");
    }
}

#[test]
fn threads_are_chosen_by_number_and_by_name() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for (options, passes) in [
        (["--tid", pid.as_str()], true),
        (["--if", "tid == 1"], false),
        (["--comm", "counter"], true),
        (["--comm", "kounter"], false),
    ] {
        let seen = traced(&mut victim, "leaf", "leaf(u64 x) -> u64", &options);
        let expected = if passes { (seen.reported, 0, 0) } else { (0, seen.reported, 0) };
        assert_eq!((seen.hits, seen.filtered, seen.left_out), expected, "{options:?}");
        assert_eq!(seen.lines.len() as u64, seen.hits);
    }
}

/// The target records one of four threads, by its name; and another thread when that takes the name.
#[test]
fn threads_are_passed_over_by_their_names() {
    const FIRST: u64 = 7_700_000_000;
    let path = or_skip!(victims::plain("names"));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let probe = "named(u64 worker) -> u64";
    for options in
        [&["--comm", "w1"][..], &["--comm", "w1", "--entry-only"], &["--comm", "w1", "--if", "ret > 0"]]
    {
        let seen = traced(&mut victim, "named", probe, options);
        assert_eq!((seen.hits, seen.filtered, seen.left_out), (TIMES, 3 * TIMES, 0), "{options:?}");
        assert!(
            seen.lines.len() as u64 == TIMES && seen.lines.iter().all(|call| argument(call, 0) == FIRST + 1)
        );
    }
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("trace", &["-p", &pid, probe, "--comm", "w1"]).expect("attaches");
    let mut reported = victim.run(50)["named"];
    // Calls that are still unread after the renaming belong to the new name.
    tracing.wait_for(&(FIRST + 1).to_string());
    victim.run(0);
    // Now another thread has the name. Once the tracer has read that, its calls are reported.
    let patience = Instant::now() + Duration::from_secs(120);
    while !tracing.has(&FIRST.to_string()) {
        assert!(Instant::now() < patience, "{}", tracing.output_text());
        reported += victim.run(5)["named"];
    }
    reported += victim.run(500)["named"];
    let report = tracing.stop();
    let count = |worker: u64| {
        let calls = report.calls().into_iter();
        calls.filter(|call| argument(call, 0) == FIRST + worker).count() as u64
    };
    let field = |name: &str| last(&report, "named")[name].as_u64().unwrap_or(0);
    let lines = count(0) + count(1);
    assert!(count(0) >= 500 && count(1) > 0 && count(2) + count(3) == 0, "{} {}", count(0), count(1));
    assert_eq!((report.number("missed"), field("hits") + field("filtered")), (0, reported));
    assert_eq!(field("hits") - field("left_out"), lines);
    assert!(field("filtered") >= 2 * (reported - 8) / 4, "two were passed over all the time");
    text::assert_clean(victim.pid(), &before);
}

#[test]
fn a_sample_is_one_in_so_many() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let seen = traced(&mut victim, "leaf", "leaf(u64 x) -> u64", &["--sample", "1/10"]);
    assert_eq!(seen.hits + seen.filtered, seen.reported);
    // On each CPU that the thread ran on, the first call is taken.
    let cpus = std::thread::available_parallelism().map_or(1024, |n| n.get() as u64);
    assert!(
        (seen.reported / 10..=seen.reported / 10 + cpus).contains(&seen.hits),
        "{} of {}",
        seen.hits,
        seen.reported
    );
    assert!(seen.lines.iter().all(|call| call["how"] == "returned"));
}

#[test]
fn what_is_no_condition_is_refused_by_name() {
    let open = "libc:openat(int fd, ptr path, int flags) -> int";
    for (words, output_text) in [
        (["--if", "flags & O_CREATE"], "did you mean `O_CREAT`?\n    flags & O_CREATE\n            ^^^^^^^^"),
        (["--if", "fd >"], "a value is missing here"),
        (["--sample", "3"], "write 1/100"),
    ] {
        let output = once(&["trace", "-p", "1", words[0], words[1], open]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(output_text), "{words:?}: {error}");
    }
}
