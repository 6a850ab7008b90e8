//! `hist`: rows are exactly those of the victim's own calls and of the kernel's fetched arguments (LOSS-1).

use std::collections::BTreeMap;

use serde_json::Value;
use trapline_tests::fetched::Fetched;
use trapline_tests::histograms::{Seen, TIMES, last, number, rows, seen};
use trapline_tests::programs::Own;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, once};
use trapline_tests::{or_skip, victims};

/// Maps a value to the name of its row.
type Name<'a> = &'a dyn Fn(u64) -> String;

fn sorted<'a>(values: impl IntoIterator<Item = (u64, Name<'a>)>) -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for (value, name) in values {
        *rows.entry(name(value)).or_default() += 1;
    }
    rows
}

fn log2(value: u64) -> String {
    match value {
        0 => "0..1".to_owned(),
        _ => format!("{}..{}", 1_u64 << value.ilog2(), 2_u128 << value.ilog2()),
    }
}

#[test]
fn arguments_fall_where_the_victim_says() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    const MANY: &str = "many_args(u64 a, int b, u64 c, u64 d, u64 e, u64 f) -> u64";
    let linear = |value: u64| match value {
        ..10 => "null..10".to_owned(),
        10..100 => format!("{}..{}", value / 10 * 10, value / 10 * 10 + 10),
        _ => "100..null".to_owned(),
    };
    let each = |value: u64| (value % 7).to_string();
    let cases: [(&[&str], Name<'_>); 4] = [
        (&["a", MANY], &log2),
        (&["--linear", "10:100:10", "a", MANY], &linear),
        (&["--top=100", "a % 7", MANY], &each),
        (&["--by", "cpu", "a", MANY], &log2),
    ];
    for (words, name) in cases {
        let seen = seen(&mut victim, "many_args", words);
        let expected = sorted((0..seen.reported["many_args"]).map(|a| (a, name)));
        assert_eq!(rows(&seen.probe), expected, "{words:?}");
        let [hits, overflow, unseen] = ["hits", "overflow", "unseen"].map(|field| number(&seen.probe, field));
        assert_eq!((hits, overflow, unseen), (seen.reported["many_args"], 0, 0), "{words:?}");
    }
    let condition = ["--if", "a % 3 == 1 && b == 2", "a", MANY];
    let seen = seen(&mut victim, "many_args", &condition);
    let passed = (0..seen.reported["many_args"]).filter(|a| a % 3 == 1);
    assert_eq!(rows(&seen.probe), sorted(passed.map(|a| (a, &log2 as Name<'_>))));
    assert_eq!(number(&seen.probe, "hits") + number(&seen.probe, "filtered"), seen.reported["many_args"]);
}

#[test]
fn what_is_returned_is_sorted_too() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let seen = seen(&mut victim, "factorial", &["--top=100", "ret", "factorial(u64 n) -> u64"]);
    let switched = TIMES / 9;
    let expected = [
        ("1", TIMES + switched),
        ("2", TIMES + switched),
        ("6", TIMES + switched),
        ("24", TIMES),
        ("120", TIMES),
    ];
    assert_eq!(rows(&seen.probe), expected.map(|(value, hits)| (value.to_owned(), hits)).into());
    assert_eq!(number(&seen.probe, "hits"), seen.reported["factorial"]);
    assert_eq!(number(&seen.probe, "overflow") + number(&seen.probe, "unseen"), 0);
}

/// Values of whole calls in the target, also by CPU: values that combine entry and return, and durations.
#[test]
fn entry_and_return_together_are_added_up_when_calls_return() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let probe = "leaf(u64 x) -> u64";
    let entered = seen(&mut victim, "leaf", &["--if", "x % 2 == 0", "x", probe]);
    let (all, even) = (entered.reported["leaf"], number(&entered.probe, "hits"));
    assert!(0 < even && even < all);
    let ever = "--linear=0:3600000000000:3600000000000";
    let cases: [(&[&str], &str, u64); 5] = [
        (&["--top=5", "ret - 3 * x", probe], "1", all),
        (&["--by", "cpu", "ret - 3 * x + 4", probe], "4..8", all),
        (&["--if", "x % 2 == 0 && ret % 2 == 1", "--linear=0:9:3", "ret - x * 3", probe], "0..3", even),
        (&["--if", "x % 2 == 0", ever, "dur", probe], "0..3600000000000", even),
        (&["--if", "dur < 3600s && ret", "--top", "x * 0 + (dur >= 0)", probe], "1", all),
    ];
    for (words, row, hits) in cases {
        let seen = seen(&mut victim, "leaf", words);
        assert_eq!(rows(&seen.probe), BTreeMap::from([(row.to_owned(), hits)]), "{words:?}");
        let [reported, filtered] = ["hits", "filtered"].map(|field| number(&seen.probe, field));
        assert_eq!(
            (reported, reported + filtered, seen.missed),
            (hits, seen.reported["leaf"], 0),
            "{words:?}"
        );
        assert_eq!(number(&seen.probe, "overflow") + number(&seen.probe, "unseen"), 0);
    }
}

/// Calls left by longjmp have no return; all others are aggregated.
#[test]
fn calls_that_never_return_are_not_added_up() {
    let path = or_skip!(victims::plain("jumps"));
    let mut victim = Running::start(&path, &[]);
    for (func, probe, unended) in
        [("leaver", "leaver(u64 n) -> u64", true), ("stayer", "stayer(u64 n) -> u64", false)]
    {
        let seen = seen(&mut victim, func, &["n + 0 * dur", probe]);
        let [hits, filtered] = ["hits", "filtered"].map(|field| number(&seen.probe, field));
        assert_eq!((hits + filtered, seen.missed), (seen.reported[func], 0), "{func}");
        assert_eq!((filtered > 0, hits > 0), (unended, !unended), "{func}");
    }
}

/// The same in a Go program, with and without the C library: the stack moves between entry and return.
#[test]
fn calls_of_goroutines_are_added_up() {
    for path in [or_skip!(victims::go("arguments")), or_skip!(victims::go_with_libc("arguments"))] {
        let mut victim = Running::start(&path, &[]);
        victim.run(1);
        let words = [
            "--if",
            "n % 2",
            "--top",
            "ret - n + (dur > 0)",
            "main.moved(i64 a, i64 b, i64 c, i64 n) -> i64",
        ];
        let seen = seen(&mut victim, "main.moved", &words);
        let reported = seen.reported["main.moved"];
        assert_eq!(rows(&seen.probe), BTreeMap::from([("8".to_owned(), reported / 2)]));
        assert_eq!(
            (number(&seen.probe, "hits") + number(&seen.probe, "filtered"), seen.missed),
            (reported, 0)
        );
        assert_eq!(seen.reported["wrong"], 0);
    }
}

/// Values and texts of each thread, aggregated in the target.
#[test]
fn the_most_frequent_are_added_up_by_thread() {
    const THREADS: u64 = 4;
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &[&THREADS.to_string()]);
    victim.run(1);
    for (by, value) in [("tid", "7 + (arg0 & 0)"), ("comm", "(dur < 0) + 7"), ("tid", "7 + (ret & 0 & arg0)")]
    {
        let seen = seen(&mut victim, "shared", &["--top=5", "--by", by, value, "shared"]);
        assert!(!seen.errors.contains("added up here"), "{}", seen.errors);
        let parts = seen.probe["parts"].as_array().expect("parts");
        let hits: Vec<u64> = parts.iter().map(|part| number(part, "hits")).collect();
        let each = seen.reported["shared"] / THREADS;
        let expected = if by == "tid" { vec![each; THREADS as usize] } else { vec![each * THREADS] };
        assert_eq!(hits, expected, "{parts:?}");
        assert!(parts.iter().all(|part| part["comm"] == "threads"), "{parts:?}");
        assert_eq!(rows(&seen.probe), BTreeMap::from([("7".to_owned(), seen.reported["shared"])]));
        let tids: std::collections::BTreeSet<_> = parts.iter().map(|part| part["tid"].as_u64()).collect();
        assert_eq!(tids.len(), hits.len(), "{parts:?}");
    }
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let seen = seen(&mut victim, "leaf", &["--top=5", "--by", "tid", "ret - 3 * x", "leaf(u64 x) -> u64"]);
    assert_eq!(rows(&seen.probe), BTreeMap::from([("1".to_owned(), seen.reported["leaf"])]));
    assert_eq!(number(&seen.probe["parts"][0], "tid"), u64::from(victim.pid()));
}

#[test]
fn threads_are_grouped() {
    const THREADS: u64 = 4;
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &[&THREADS.to_string()]);
    victim.run(1);
    for (by, value) in [
        ("tid", "1 + (arg0 & 0)"),
        ("comm", "1 + (arg0 & 0)"),
        ("tid", "(dur < 0) + 1"),
        ("comm", "1 + (ret & 0 & arg0)"),
    ] {
        let seen = seen(&mut victim, "shared", &["--by", by, value, "shared"]);
        let parts = seen.probe["parts"].as_array().expect("parts");
        let hits: Vec<u64> = parts.iter().map(|part| number(part, "hits")).collect();
        let each = seen.reported["shared"] / THREADS;
        let expected = if by == "tid" { vec![each; THREADS as usize] } else { vec![each * THREADS] };
        assert_eq!(hits, expected, "{parts:?}");
        assert!(parts.iter().all(|part| part["comm"] == "threads"), "{parts:?}");
    }
}

/// The kernel's own probe fetches the argument of the same calls in a second run. Both must agree.
#[test]
fn the_kernel_reads_the_same_values() {
    let path = Own::of(&or_skip!(victims::plain("counter")), "hist");
    let mut victim = Running::start(&path, &[]);
    let kernel = or_skip!(Fetched::new(&path, "leaf", victim.pid(), "%di:u64"));
    victim.run(TIMES);
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for first in kernel.read() {
        *expected.entry(first).or_default() += 1;
    }
    assert!(!expected.is_empty(), "the kernel saw nothing");
    let seen = seen(&mut victim, "leaf", &["--top=10000", "x", "leaf(u64 x)"]);
    assert_eq!(rows(&seen.probe), expected);
}

#[test]
fn texts_are_counted_each() {
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let texts =
        ["", "hello, \"world\"\n", &"u".repeat(63), &"x".repeat(64), &"l".repeat(64), "grüß", "eee", "e"];
    for words in [&["s"][..], &["s", "--by", "tid"], &["s", "--by", "comm", "--if", "dur < 3600s"]] {
        let words: Vec<&str> = words.iter().copied().chain(["say(str s, u64 n) -> u64"]).collect();
        let seen = seen(&mut victim, "say", &words);
        assert!(!seen.errors.contains("added up here"), "{}", seen.errors);
        assert_eq!(rows(&seen.probe), texts.map(|text| (text.to_owned(), TIMES)).into(), "{words:?}");
        // Five of thirteen texts cannot be read.
        assert_eq!((number(&seen.probe, "hits"), number(&seen.probe, "unseen")), (13 * TIMES, 5 * TIMES));
        let part = &seen.probe["parts"][0];
        assert_eq!(part["tid"].as_u64(), words.contains(&"tid").then(|| victim.pid().into()), "{part}");
        assert_eq!(part["comm"].as_str().is_some(), words.len() > 2, "{part}");
    }
}

/// `--by` with a value of the call itself, in the target and, where threads are chosen by name, by the
/// reader. The keys are numbers at the entry, numbers of whole calls, and texts.
#[test]
fn values_are_grouped_by_what_calls_pass() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let parts = |seen: &Seen| -> Vec<(String, u64, Value)> {
        let parts = seen.probe["parts"].as_array().expect("parts").iter();
        parts.map(|part| (part["key"].to_string(), number(part, "hits"), part["rows"].clone())).collect()
    };
    let probe = "many_args(u64 a, int b, u64 c, u64 d, u64 e, u64 f) -> u64";
    for (key, here) in
        [("a % 3", false), ("a % 3 + 0 * ret", false), ("a % 3", true), ("a % 3 + 0 * ret", true)]
    {
        let words = ["--by", key, "--top=10000", "a", probe, "--comm", "counter"];
        let seen = seen(&mut victim, "many_args", if here { &words } else { &words[..5] });
        let all = seen.reported["many_args"];
        let mut found = parts(&seen);
        found.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(found.len(), 3, "{key}");
        for (rest, (name, hits, rows)) in (0..3_u64).zip(found) {
            let mut values: Vec<u64> =
                rows.as_array().expect("rows").iter().filter_map(|row| row[0].as_u64()).collect();
            values.sort_unstable();
            let expected: Vec<u64> = (0..all).filter(|a| a % 3 == rest).collect();
            assert_eq!((name, hits, values), (rest.to_string(), expected.len() as u64, expected), "{key}");
        }
        assert_eq!((number(&seen.probe, "hits"), seen.missed, number(&seen.probe, "unseen")), (all, 0, 0));
        assert_eq!(seen.errors.contains("added up here"), here, "{}", seen.errors);
    }
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let words = ["--by", "s", "--if", "n % 2 || n > 4000", "n", "say(str s, u64 n)", "--comm", "strings"];
    for words in [&words[..6], &words] {
        let seen = seen(&mut victim, "say", words);
        assert_eq!(seen.errors.contains("added up here"), words.len() > 6, "{}", seen.errors);
        let text = |of: &str| Value::from(of).to_string();
        let part = |of: &str, low: u64, high: u64| (text(of), TIMES, serde_json::json!([[low, high, TIMES]]));
        let mut found = parts(&seen);
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let mut expected = vec![
            part("hello, \"world\"\n", 8, 16),
            part(&"u".repeat(63), 32, 64),
            part(&"l".repeat(64), 4096, 8192),
            part("eee", 2, 4),
            part("e", 1, 2),
        ];
        expected.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(found, expected);
        // Two of the texts that cannot be read are chosen; they belong to no row.
        assert_eq!((number(&seen.probe, "hits"), number(&seen.probe, "unseen")), (7 * TIMES, 2 * TIMES));
    }
}

/// Calls that are read at the very end have their threads' names, too.
#[test]
fn what_the_reader_adds_up_last_has_names() {
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for by in ["comm", "tid"] {
        let words = ["-p", &pid, "--by", by, "--comm", "strings", "s", "say(buf(len=n) s, u64 n) -> u64"];
        let mut tracing = Tracing::start("hist", &words).expect("attaches");
        // All calls from here on wait in the rings until the run ends.
        tracing.signal(libc::SIGSTOP);
        let reported = victim.run(TIMES);
        tracing.signal(libc::SIGINT);
        tracing.signal(libc::SIGCONT);
        let report = tracing.stop();
        assert!(report.errors.contains("added up here"), "{}", report.errors);
        let probe = last(&report, "say");
        let parts = probe["parts"].as_array().expect("parts");
        let names: Vec<&Value> = parts.iter().map(|part| &part["comm"]).collect();
        assert_eq!(names, ["strings"], "{parts:?}");
        assert_eq!(number(probe, "hits"), reported["say"]);
    }
}

/// The return decides which calls count, and the rows are texts of the entry: `say` returns its second
/// argument.
#[test]
fn texts_of_calls_that_pass_are_counted() {
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let probe = "say(str s, u64 n) -> u64";
    let all = seen(&mut victim, "say", &["s", "--if", "n < 64 && n", probe]);
    let passed = seen(&mut victim, "say", &["s", "--if", "ret < 64 && ret && dur < 3600s", probe]);
    assert_eq!(rows(&passed.probe), rows(&all.probe));
    assert!(!rows(&passed.probe).is_empty());
    for field in ["hits", "unseen", "filtered", "overflow"] {
        assert_eq!(number(&passed.probe, field), number(&all.probe, field), "{field}");
    }
}

#[test]
fn what_cannot_be_asked_is_an_error_of_one_line() {
    for (words, says) in [
        (&["hist", "-p", "1", "m", "leaf(u64 n)"][..], "`m` is unknown"),
        (&["hist", "-p", "1", "n", "leaf+4"], "hist takes functions"),
        (&["hist", "-p", "1", "--linear", "1:2", "n", "leaf(u64 n)"], "is no range"),
        (&["hist", "-p", "1", "--by=cpu", "data", "leaf(buf(len=n) data, u64 n)"], "--by cpu is for what"),
    ] {
        let output = once(words);
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{output_text}");
        assert!(output_text.contains(says), "{words:?}: {output_text}");
    }
}
