//! Records of processes in which threads have no rseq areas: Go without the C library, musl, glibc with rseq
//! switched off. Records have arguments and values (VAL-1), and written + missed = hits, exactly (LOSS-2).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use trapline_tests::running::{Printed, Running};
use trapline_tests::stacks::{all, names};
use trapline_tests::tracing::{self, Report, Tracing};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

const THREADS: u64 = 4;

/// One run under trace: the report, and what the victim printed.
fn traced(victim: &mut Running, verb: &str, words: &[&str], times: u64) -> (Report, Printed) {
    let (report, reported) = tracing::traced(victim, verb, words, times);
    assert!(report.refused().is_empty(), "{}", report.errors);
    (report, reported)
}

/// The calls of a function: thread, arguments, value.
fn calls(report: &Report, func: &str) -> impl Iterator<Item = (u64, Vec<i64>, Option<i64>)> {
    report.calls_of(func).into_iter().map(|call| {
        let arguments = call["args"].as_array().expect("arguments").iter();
        let arguments = arguments.map(|one| one["value"].as_i64().expect("a number")).collect();
        (call["tid"].as_u64().unwrap_or(0), arguments, call["ret"].as_i64())
    })
}

#[test]
fn go_without_the_c_library_under_load() {
    // Both records of all calls fit into the rings of one CPU.
    const TIMES: u64 = 2000;
    let mut victim = Running::start(&or_skip!(victims::go("arguments")), &[]);
    let before = text::signals(victim.pid());
    let probe = "main.mixed(i64 a, i64 b, i64 c, i64 d, i64 e, i64 f) -> i64";
    let (report, reported) = traced(&mut victim, "trace", &[probe], TIMES);
    let hits = reported["main.mixed"];
    let mut seen = BTreeMap::new();
    for (_, arguments, returned) in calls(&report, "main.mixed") {
        let n = arguments[2];
        assert_eq!(arguments, [1, 2, n, n * 3, -n, n + 7]);
        let expected = 1 ^ 2 ^ n ^ (n * 3) ^ -n ^ (n + 7);
        assert!(returned.is_none_or(|value| value == expected), "{n}: {returned:?}");
        *seen.entry(n).or_insert(0_u64) += u64::from(returned.is_some());
    }
    assert_eq!(reported["wrong"], 0);
    let lines = calls(&report, "main.mixed").count() as u64;
    assert_eq!(seen.len() as u64, lines, "each call once");
    assert_eq!(report.hits("main.mixed"), lines);
    // Entries and exits that found no room. Each call has one of both.
    let missed = report.number("missed");
    assert!(lines <= hits && hits - lines <= missed, "{lines} lines, {missed} missed: {}", report.errors);
    assert!(seen.values().sum::<u64>() > hits / 2, "{lines} of {hits} had room: {}", report.errors);
    let (report, reported) = traced(&mut victim, "trace", &["--entry-only", probe], 10 * TIMES);
    let lines = calls(&report, "main.mixed").count() as u64;
    assert_eq!(lines + report.number("missed"), reported["main.mixed"], "{}", report.errors);
    text::assert_clean(victim.pid(), &before);
    assert_eq!(victim.run(10)["wrong"], 0);
}

/// Numbers of the process' threads.
fn threads(pid: u32) -> BTreeSet<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// A system call finds the number of a Go thread, and goroutines move between threads.
#[test]
fn go_names_its_threads() {
    const TIMES: u64 = 1000;
    let mut victim = Running::start(&or_skip!(victims::go("arguments")), &[]);
    victim.run(10);
    let probe = "main.mixed(i64 a, i64 b, i64 c, i64 d, i64 e, i64 f) -> i64";
    let (report, reported) = traced(&mut victim, "trace", &[probe], TIMES);
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    calls(&report, "main.mixed").for_each(|(tid, ..)| *seen.entry(tid).or_default() += 1);
    // Go keeps threads that it has no work for.
    let all = threads(victim.pid());
    assert!(!seen.is_empty() && seen.keys().all(|tid| all.contains(tid)), "{seen:?}, {all:?}");
    let ended = calls(&report, "main.mixed").filter(|(.., returned)| returned.is_some()).count() as u64;
    let missed = report.number("missed");
    assert!(ended + missed >= reported["main.mixed"], "{ended} ended, {missed} missed: {}", report.errors);
    let (&tid, _) = seen.iter().max_by_key(|(_, hits)| **hits).expect("some thread");
    for words in [vec!["--tid".to_owned(), tid.to_string()], vec!["--if".into(), format!("tid != {tid}")]] {
        let words = [&words[0], &words[1], "--entry-only", probe].map(str::to_owned);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (report, reported) = traced(&mut victim, "trace", &words, TIMES);
        let is_wanted = |(one, ..): (u64, Vec<i64>, Option<i64>)| (one == tid) == (words[0] == "--tid");
        assert!(calls(&report, "main.mixed").all(is_wanted), "{words:?}");
        let lines = report.hits("main.mixed") + report.number("missed");
        assert_eq!(lines + report.field("main.mixed", "filtered"), reported["main.mixed"], "{words:?}");
    }
    let (report, reported) = traced(&mut victim, "hist", &["--by", "tid", "c", probe], TIMES);
    assert_eq!(report.hits("main.mixed"), reported["main.mixed"], "{}", report.errors);
}

/// Texts are copied onto goroutines' stacks, at all depths of these.
#[test]
fn texts_on_the_stacks_of_goroutines_are_recorded() {
    const SPOKEN: &str = "what is said by goroutines";
    let mut victim = Running::start(&or_skip!(victims::go("arguments")), &[]);
    let before = text::signals(victim.pid());
    let probe = "main.said(i64 a, i64 b, i64 depth, buf(len=n) text, u64 n) -> i64";
    let (report, reported) = traced(&mut victim, "trace", &["--entry-only", probe], 10);
    let mut seen = 0;
    for call in report.calls() {
        let argument = |n: usize| &call["args"][n]["value"];
        let len = argument(2).as_u64().expect("a depth") as usize % SPOKEN.len();
        assert_eq!((argument(3).as_str(), argument(4).as_u64()), (Some(&SPOKEN[..len]), Some(len as u64)));
        seen += 1;
    }
    assert_eq!(
        (seen + report.number("missed"), reported["wrong"]),
        (reported["main.said"], 0),
        "{}",
        report.errors
    );
    assert!(seen > reported["main.said"] / 2, "{seen}");
    text::assert_clean(victim.pid(), &before);
    assert_eq!(victim.run(10)["wrong"], 0);
}

/// musl keeps its threads' numbers in another place than glibc.
#[test]
fn musl_names_its_threads() {
    const TIMES: u64 = 500;
    let path = or_skip!(victims::c("threads", Variant::Musl));
    let mut victim = Running::start(&path, &[&THREADS.to_string()]);
    let (report, reported) = traced(&mut victim, "trace", &["shared(u64 x) -> u64"], TIMES);
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    calls(&report, "shared").for_each(|(tid, ..)| *seen.entry(tid).or_default() += 1);
    let mut all = threads(victim.pid());
    all.remove(&victim.pid().into());
    assert_eq!(seen.keys().copied().collect::<BTreeSet<u64>>(), all);
    let tid = all.first().expect("a thread").to_string();
    let (report, _) = traced(&mut victim, "trace", &["--tid", &tid, "shared(u64 x)"], TIMES);
    assert!(calls(&report, "shared").all(|(one, ..)| one.to_string() == tid));
    let lines = report.hits("shared") + report.number("missed");
    assert_eq!(lines + report.field("shared", "filtered"), reported["shared"]);
}

/// Threads and a timer's handler, while the tracer is stopped and the rings fill up. Written and missed still
/// add up.
#[test]
fn musl_loses_nothing_that_is_not_counted() {
    let path = or_skip!(victims::c("threads", Variant::Musl));
    let mut victim = Running::start(&path, &[&THREADS.to_string(), "signals"]);
    let probe = "shared(u64 x) -> u64";
    let (report, _) = traced(&mut victim, "trace", &[probe], 3000);
    for (_, arguments, returned) in calls(&report, "shared") {
        assert!(returned.is_none_or(|value| value == arguments[0] * 5 + 2), "{arguments:?} {returned:?}");
    }
    let pid = victim.pid().to_string();
    let mut tracing =
        Tracing::start("trace", &["--entry-only", "-p", &pid, "shared(u64 x)"]).expect("attaches");
    let few = victim.run(100)["shared"];
    tracing.signal(libc::SIGSTOP);
    let many = victim.run(40_000)["shared"];
    tracing.signal(libc::SIGCONT);
    let report = tracing.stop();
    let (lines, missed) = (calls(&report, "shared").count() as u64, report.number("missed"));
    assert_eq!(lines + missed, few + many, "{}", report.errors);
    assert_eq!(report.hits("shared"), lines);
    assert!(missed > 0 && lines > few, "{lines} lines, {missed} missed");
    assert_eq!(victim.run(10)["wrong"], 0);
}

fn without_rseq(path: &Path) -> Running {
    let mut command = Command::new(path);
    command.arg(THREADS.to_string()).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    victim
}

#[test]
fn threads_are_distinguished_where_the_c_library_keeps_their_numbers() {
    const TIMES: u64 = 500;
    let mut victim = without_rseq(&or_skip!(victims::plain("threads")));
    let (report, reported) = traced(&mut victim, "trace", &["shared(u64 x) -> u64"], TIMES);
    let mut threads: BTreeMap<u64, u64> = BTreeMap::new();
    calls(&report, "shared").for_each(|(tid, ..)| *threads.entry(tid).or_default() += 1);
    assert_eq!(threads.len() as u64, THREADS, "{threads:?}");
    assert_eq!(threads.values().sum::<u64>() + report.number("missed"), reported["shared"]);
    let (report, reported) = traced(&mut victim, "trace", &["--if", "x % 3 == 1", "shared(u64 x)"], TIMES);
    assert!(calls(&report, "shared").all(|(_, arguments, _)| arguments[0] % 3 == 1));
    assert_eq!(report.hits("shared") + report.field("shared", "filtered"), reported["shared"]);
    let (report, reported) = traced(&mut victim, "trace", &["--sample", "1/10", "shared(u64 x)"], TIMES);
    assert_eq!(report.hits("shared") + report.field("shared", "filtered"), reported["shared"]);
    assert!(report.hits("shared") >= reported["shared"] / 10, "{}", report.hits("shared"));
}

#[test]
fn values_are_added_up() {
    const TIMES: u64 = 2000;
    let mut victim = without_rseq(&or_skip!(victims::plain("threads")));
    for words in
        [&["x", "shared(u64 x)"][..], &["x % 7", "--top=10", "shared(u64 x)"], &["ret", "shared() -> u64"]]
    {
        let (report, reported) = traced(&mut victim, "hist", words, TIMES);
        assert_eq!(report.hits("shared"), reported["shared"], "{words:?}: {}", report.errors);
    }
}

/// On a stack of musl, only the page of the stack pointer is known to be part of the stack. Callers are found
/// in it.
#[test]
fn callers_are_known_in_musl_too() {
    let path = or_skip!(victims::c("threads", Variant::Musl));
    let mut victim = Running::start(&path, &[&THREADS.to_string()]);
    let (report, reported) = traced(&mut victim, "stack", &["shared"], 1000);
    assert_eq!(report.hits("shared") + report.number("missed"), reported["shared"], "{}", report.errors);
    let callers: BTreeSet<&str> = all(&report).filter_map(|stack| names(stack).get(1).copied()).collect();
    assert!(callers.contains("calls"), "{callers:?}");
}
