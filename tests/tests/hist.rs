//! `hist`: cells and rows are those of the victim's own calls and of the kernel's fetched arguments, to the hit (LOSS-1).

use std::collections::BTreeMap;

use serde_json::Value;
use trapline_tests::fetched::Fetched;
use trapline_tests::programs::Own;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, once};
use trapline_tests::{or_skip, text, victims};

const TIMES: u64 = 300;

/// What the last object says of a function.
fn last<'a>(report: &'a Report, func: &str) -> &'a Value {
    let last = report.objects.iter().rfind(|object| object["type"] == "hist").expect("a histogram");
    let is = |probe: &&Value| probe["probe"].as_str().is_some_and(|text| text.ends_with(&format!(":{func}")));
    last["probes"].as_array().expect("probes").iter().find(is).expect("the function")
}

/// Rows by their last but one column, the hits in the last; all parts together.
fn rows(probe: &Value) -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for row in probe["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .flat_map(|part| part["rows"].as_array().expect("rows"))
    {
        let row = row.as_array().expect("a row");
        let (hits, what) = row.split_last().expect("hits");
        let what: Vec<String> =
            what.iter().map(|edge| edge.as_str().map_or_else(|| edge.to_string(), str::to_owned)).collect();
        let hits = hits.as_u64().expect("a number");
        if hits > 0 {
            *rows.entry(what.join("..")).or_default() += hits;
        }
    }
    rows
}

fn number(probe: &Value, field: &str) -> u64 {
    probe[field].as_u64().unwrap_or_else(|| panic!("no {field}: {probe}"))
}

struct Seen {
    probe: Value,
    told: BTreeMap<String, u64>,
    missed: u64,
}

fn seen(victim: &mut Running, func: &str, words: &[&str]) -> Seen {
    let pid = victim.pid().to_string();
    let before = text::signals(victim.pid());
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(words.iter().copied()).collect();
    let tracing = Tracing::start("hist", &words).expect("attaches");
    let told = victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    text::assert_clean(victim.pid(), &before);
    Seen {
        probe: last(&report, func).clone(),
        told: told.into_iter().collect(),
        missed: report.objects.last().and_then(|object| object["missed"].as_u64()).expect("missed"),
    }
}

/// What a value's row is called.
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
        let want = sorted((0..seen.told["many_args"]).map(|a| (a, name)));
        assert_eq!(rows(&seen.probe), want, "{words:?}");
        let [hits, overflow, unseen] = ["hits", "overflow", "unseen"].map(|field| number(&seen.probe, field));
        assert_eq!((hits, overflow, unseen), (seen.told["many_args"], 0, 0), "{words:?}");
    }
    let condition = ["--if", "a % 3 == 1 && b == 2", "a", MANY];
    let seen = seen(&mut victim, "many_args", &condition);
    let passed = (0..seen.told["many_args"]).filter(|a| a % 3 == 1);
    assert_eq!(rows(&seen.probe), sorted(passed.map(|a| (a, &log2 as Name<'_>))));
    assert_eq!(number(&seen.probe, "hits") + number(&seen.probe, "filtered"), seen.told["many_args"]);
}

#[test]
fn what_is_returned_is_sorted_too() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let seen = seen(&mut victim, "factorial", &["--top=100", "ret", "factorial(u64 n) -> u64"]);
    let switched = TIMES / 9;
    let want = [
        ("1", TIMES + switched),
        ("2", TIMES + switched),
        ("6", TIMES + switched),
        ("24", TIMES),
        ("120", TIMES),
    ];
    assert_eq!(rows(&seen.probe), want.map(|(value, hits)| (value.to_owned(), hits)).into());
    assert_eq!(number(&seen.probe, "hits"), seen.told["factorial"]);
    assert_eq!(number(&seen.probe, "overflow") + number(&seen.probe, "unseen"), 0);
}

/// What the target cannot add up is recorded, and added up by the reader: the same numbers.
#[test]
fn entry_and_return_together_are_added_up_by_the_reader() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let seen = seen(&mut victim, "leaf", &["--top=5", "ret - 3 * x", "leaf(u64 x) -> u64"]);
    assert_eq!(seen.missed, 0, "the reader had time");
    assert_eq!(rows(&seen.probe), BTreeMap::from([("1".to_owned(), seen.told["leaf"])]));
}

#[test]
fn threads_are_told_apart() {
    const THREADS: u64 = 4;
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &[&THREADS.to_string()]);
    victim.run(1);
    for by in ["tid", "comm"] {
        let seen = seen(&mut victim, "shared", &["--by", by, "1 + (arg0 & 0)", "shared"]);
        let parts = seen.probe["parts"].as_array().expect("parts");
        let hits: Vec<u64> = parts.iter().map(|part| number(part, "hits")).collect();
        let each = seen.told["shared"] / THREADS;
        let want = if by == "tid" { vec![each; THREADS as usize] } else { vec![each * THREADS] };
        assert_eq!(hits, want, "{parts:?}");
        assert!(parts.iter().all(|part| part["comm"] == "threads"), "{parts:?}");
    }
}

/// The kernel's own probe with a fetched argument, on the same calls in a second run.
#[test]
fn the_kernel_reads_the_same_values() {
    let path = Own::of(&or_skip!(victims::plain("counter")), "hist");
    let mut victim = Running::start(&path, &[]);
    let kernel = or_skip!(Fetched::new(&path, "leaf", victim.pid(), "%di:u64"));
    victim.run(TIMES);
    let mut want: BTreeMap<String, u64> = BTreeMap::new();
    for first in kernel.read() {
        *want.entry(first).or_default() += 1;
    }
    assert!(!want.is_empty(), "the kernel saw nothing");
    let seen = seen(&mut victim, "leaf", &["--top=10000", "x", "leaf(u64 x)"]);
    assert_eq!(rows(&seen.probe), want);
}

#[test]
fn texts_are_counted_each() {
    let path = or_skip!(victims::plain("strings"));
    let mut victim = Running::start(&path, &[]);
    let seen = seen(&mut victim, "say", &["s", "say(str s, u64 n) -> u64"]);
    let texts =
        ["", "hello, \"world\"\n", &"u".repeat(63), &"x".repeat(64), &"l".repeat(64), "grüß", "eee", "e"];
    assert_eq!(seen.missed, 0, "the reader had time");
    assert_eq!(rows(&seen.probe), texts.map(|text| (text.to_owned(), TIMES)).into());
    // Five of thirteen texts cannot be read.
    assert_eq!((number(&seen.probe, "hits"), number(&seen.probe, "unseen")), (13 * TIMES, 5 * TIMES));
}

#[test]
fn what_cannot_be_asked_is_said_in_one_line() {
    for (words, says) in [
        (&["hist", "-p", "1", "m", "leaf(u64 n)"][..], "`m` is unknown"),
        (&["hist", "-p", "1", "n", "leaf+4"], "hist takes functions"),
        (&["hist", "-p", "1", "--linear", "1:2", "n", "leaf(u64 n)"], "is no range"),
        (&["hist", "-p", "1", "--by", "cpu", "n + ret", "leaf(u64 n) -> u64"], "--by cpu is for what"),
    ] {
        let output = once(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{words:?}: {said}");
    }
}
