//! Scripts about mutexes, condition variables and threads. The program prints where its mutexes are, and how often it
//! used them; it holds one for at least 2.5 ms at a time, and makes its second thread wait for another for at least
//! 20 ms.

use serde_json::json;
use trapline_tests::or_skip;
use trapline_tests::running::{Printed, Running};
use trapline_tests::scripts::Copies;
use trapline_tests::twins::{Both, Twice};
use trapline_tests::victims;

const LIBC: &[(&str, &str)] = &[("libc", "/lib/x86_64-linux-gnu/libc.so.6")];
const TIMES: u64 = 8;

/// Both programs, that run a few rounds; and what ours printed.
fn ran(name: &str, words: &[&str]) -> Result<(Twice, Printed), String> {
    let path = victims::plain("mutexes")?;
    let start = |copies: Option<&Copies>| {
        let mut command = std::process::Command::new(&path);
        if let Some(copies) = copies {
            command.env("LD_LIBRARY_PATH", copies.folder());
        }
        let running = Running::spawn(command);
        assert_eq!(running.line(), "ready");
        running
    };
    let mut both = Both::start(name, words, LIBC, start);
    let printed = both.victims(TIMES);
    Ok((both.stop(), printed))
}

/// The number of a map's histogram at a mutex.
fn total(twice: &Twice, map: &str, mutex: u64) -> u64 {
    let totals = twice.ours.totals(map);
    totals.iter().find(|(key, _)| *key == mutex.to_string()).map_or(0, |(_, total)| *total)
}

/// How many values of a histogram at a mutex are less than this.
fn below(twice: &Twice, map: &str, mutex: u64, bound: u64) -> u64 {
    let buckets = twice.ours.maps[map][mutex.to_string()].as_array().expect("a histogram");
    let low = buckets.iter().filter(|bucket| bucket["max"].as_u64().is_some_and(|max| max < bound));
    low.map(|bucket| bucket["count"].as_u64().expect("a number")).sum()
}

#[test]
fn pmlock() {
    let (twice, printed) = or_skip!(ran("pmlock", &[]));
    assert_eq!(total(&twice, "@wait_ns", printed["free"]), TIMES);
    assert_eq!(total(&twice, "@wait_ns", printed["held"]), TIMES);
    // Each of two threads locks it; one of them waits.
    assert_eq!(total(&twice, "@wait_ns", printed["wanted"]), 2 * TIMES);
    assert!(below(&twice, "@wait_ns", printed["wanted"], 1 << 24) <= TIMES);
    let fixed = [printed["free"], printed["held"], printed["wanted"]].map(|mutex| mutex & 0xfff);
    or_skip!(twice.equal(|ran| of(&ran.totals("@wait_ns"), &fixed)));
}

/// Numbers by the last digits of the addresses, which the twins have in common.
fn of(totals: &[(String, u64)], fixed: &[u64]) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = totals
        .iter()
        .map(|(key, total)| (key.parse::<u64>().expect("an address") & 0xfff, *total))
        .filter(|(place, _)| fixed.contains(place))
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn pmheld() {
    let (twice, printed) = or_skip!(ran("pmheld", &[]));
    for (mutex, times) in [("free", TIMES), ("held", TIMES), ("wanted", 2 * TIMES)] {
        assert_eq!(total(&twice, "@held_ns", printed[mutex]), times, "{mutex}");
    }
    assert_eq!(below(&twice, "@held_ns", printed["held"], 1 << 21), 0);
    assert!(below(&twice, "@held_ns", printed["wanted"], 1 << 24) <= TIMES);
    let fixed = [printed["free"], printed["held"], printed["wanted"]].map(|mutex| mutex & 0xfff);
    or_skip!(twice.equal(|ran| of(&ran.totals("@held_ns"), &fixed)));
}

#[test]
fn pmcontend() {
    let (twice, printed) = or_skip!(ran("pmcontend", &["10000"]));
    let at = |map: &str, mutex: &str| twice.ours.maps[map][printed[mutex].to_string()].as_u64().unwrap_or(0);
    assert_eq!((at("@calls", "free"), at("@calls", "wanted")), (TIMES, 2 * TIMES));
    assert!((TIMES..=2 * TIMES).contains(&at("@waited", "wanted")));
    assert!(at("@waited_us", "wanted") >= TIMES * 20_000);
    assert_eq!(twice.ours.maps["@busy"], json!(TIMES));
    or_skip!(twice.equal(|ran| ran.maps["@busy"].clone()));
}

#[test]
fn condwait() {
    let (twice, printed) = or_skip!(ran("condwait", &[]));
    assert_eq!(total(&twice, "@wait_us", printed["signalled"]), printed["waits"]);
    assert_eq!(total(&twice, "@wait_us", printed["late"]), TIMES);
    let key = |name: &str| printed[name].to_string();
    assert_eq!(twice.ours.maps["@timed_out"], json!({ key("late"): TIMES }));
    assert_eq!(twice.ours.maps["@signals"], json!({ key("signalled"): TIMES }));
    // Of functions with several versions, as those that wait, bpftrace 0.17 probes the one that nothing calls.
    or_skip!(twice.equal(|ran| ran.numbers("@signals")));
}

#[test]
fn threadsnoop() {
    let (twice, _) = or_skip!(ran("threadsnoop", &[]));
    assert_eq!(twice.ours.words_from(1), ["mutexes helper"]);
    or_skip!(twice.equal(|ran| ran.words_from(1)));
}
