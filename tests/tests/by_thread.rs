//! LOSS-1: counts by thread, by thread name, and in processes in which threads have no rseq areas.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

const TIMES: u64 = 20_000;
const THREADS: u64 = 4;

/// The victim's workers: all threads but the first.
fn workers(pid: u32) -> BTreeSet<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("alive");
    let all = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|&tid| tid != u64::from(pid)).collect()
}

fn traced(victim: &mut Running, by: &str) -> Report {
    let pid = victim.pid().to_string();
    // New threads block signals for a moment; after a run no thread is new.
    victim.run(1);
    let before = text::signals(victim.pid());
    let tracing = Tracing::start("count", &["--by", by, "-p", &pid, "shared", "through"]).expect("attaches");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    for func in ["shared", "through"] {
        assert_eq!(report.hits(func), reported[func], "{func}: {}", report.errors);
    }
    text::assert_clean(victim.pid(), &before);
    report
}

fn shares<'a>(report: &'a Report, func: &str) -> &'a [Value] {
    report.probe(func).and_then(|probe| probe["by"].as_array()).expect("shares")
}

fn by_thread(path: &Path) {
    let mut victim = Running::start(path, &[&THREADS.to_string()]);
    let report = traced(&mut victim, "tid");
    for (func, calls) in [("shared", 2 * TIMES), ("through", TIMES)] {
        let shares = shares(&report, func);
        let tids: BTreeSet<u64> = shares.iter().filter_map(|share| share["tid"].as_u64()).collect();
        assert_eq!(tids, workers(victim.pid()), "{shares:?}");
        for share in shares {
            assert_eq!(share["hits"].as_u64(), Some(calls), "{func}: {shares:?}");
            assert_eq!(share["comm"].as_str(), Some("threads"), "{shares:?}");
        }
    }
    // A second session uses rows of its own.
    let report = traced(&mut victim, "comm");
    let [share] = shares(&report, "shared") else { panic!("{:?}", shares(&report, "shared")) };
    assert_eq!((share["threads"].as_u64(), share["comm"].as_str()), (Some(THREADS), Some("threads")));
    assert_eq!(share["hits"].as_u64(), Some(2 * TIMES * THREADS));
}

#[test]
fn hits_of_each_thread() {
    by_thread(&or_skip!(victims::plain("threads")));
}

#[test]
fn hits_of_each_thread_of_a_static_program() {
    by_thread(&or_skip!(victims::c("threads", Variant::Static)));
}

#[test]
fn hits_of_each_thread_where_the_c_library_is_unknown() {
    by_thread(&or_skip!(victims::c("threads", Variant::Musl)));
}

#[test]
fn more_threads_than_rows_lose_nothing() {
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["2", "endless", "births"]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["--by", "tid", "-p", &pid, "newborn"]).expect("attaches");
    let before = victim.run(1)["newborn"];
    let after = victim.run_until(300_000, |now| now["newborn"] >= before + 6000)["newborn"];
    let report = tracing.stop();
    let hits = report.hits("newborn");
    assert!(hits >= after - before, "{hits} of {} at least", after - before);
    assert!(hits <= victim.run(1)["newborn"] + 1, "{hits}");
    let shares = shares(&report, "newborn");
    let other = shares.iter().find(|share| share["tid"].is_null()).expect("some found no row");
    assert!(other["hits"].as_u64() > Some(0) && shares.len() <= 4097, "{} shares", shares.len());
    assert_eq!(shares.iter().filter_map(|share| share["hits"].as_u64()).sum::<u64>(), hits);
}

#[test]
fn threads_without_rseq_areas() {
    let path = or_skip!(victims::plain("threads"));
    let mut command = Command::new(&path);
    command.arg(THREADS.to_string()).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let mut victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    let report = traced(&mut victim, "cpu");
    let cpus = report.probe("shared").and_then(|probe| probe["cpus"].as_array()).expect("cpus");
    let (other, cpus) = cpus.split_last().expect("some");
    // No hit has a CPU, so the tunable did switch rseq off.
    assert!(cpus.iter().all(|hits| hits.as_u64() == Some(0)), "{cpus:?}");
    assert_eq!(other.as_u64(), Some(2 * TIMES * THREADS));
    traced(&mut victim, "tid");
}
