//! LOSS-2: `hist --comm` and `--by comm`: hits belong to the names that threads had, in the target and from
//! records; threads that came and went have names, too (NAM-2).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use trapline_tests::histograms::{TIMES, last, number, rows, seen};
use trapline_tests::running::Running;
use trapline_tests::tracing::Tracing;
use trapline_tests::{or_skip, victims};

/// The number that the first thread of `names` passes to name itself.
const FIRST: u64 = 7_700_000_000;

/// Hits by the name of a thread, and by the number that it passes to name itself.
fn by_name(probe: &Value) -> BTreeMap<(Option<String>, u64), u64> {
    let mut hits = BTreeMap::new();
    for part in probe["parts"].as_array().expect("parts") {
        assert!(part.get("comm").is_some(), "{part}");
        for row in part["rows"].as_array().expect("rows") {
            let [worker, many] = [0, 1].map(|nth| row[nth].as_u64().expect("a number"));
            let before = hits.insert((part["comm"].as_str().map(str::to_owned), worker - FIRST), many);
            assert_eq!(before, None, "{part}");
        }
    }
    hits
}

/// Four threads exchange their names: hits belong to the names that they had at the time.
#[test]
fn rows_are_of_the_names_that_threads_had() {
    let path = or_skip!(victims::plain("names"));
    for probe in ["named(u64 worker)", "named(u64 worker) -> u64"] {
        let mut victim = Running::start(&path, &[]);
        let pid = victim.pid().to_string();
        // The function returns three times the worker, so the second value is aggregated at the return.
        let value = if probe.contains("->") { "ret - 2 * worker" } else { "worker" };
        let words = ["-p", &pid, "--by=comm", "--top=30", value, probe];
        let tracing = Tracing::start("hist", &words).expect("attaches");
        let mut reported = victim.run(TIMES)["named"];
        victim.run(0);
        let name = |worker: u64| Some(format!("w{}", worker % 4));
        let patience = Instant::now() + Duration::from_secs(120);
        let names_known = |tracing: &Tracing| {
            let objects = tracing.objects();
            let last = objects.iter().rfind(|object| object["type"] == "hist");
            let hits = last.map(|object| by_name(&object["probes"][0])).unwrap_or_default();
            (0..4).all(|worker| hits.contains_key(&(name(worker + 1), worker)))
        };
        while !names_known(&tracing) {
            assert!(Instant::now() < patience, "{}", tracing.output_text());
            reported += victim.run(5)["named"];
        }
        reported += victim.run(500)["named"];
        let report = tracing.stop();
        assert!(!report.errors.contains("added up here"), "{}", report.errors);
        let probe = last(&report, "named");
        let hits = by_name(probe);
        assert_eq!(hits.len(), 8, "{hits:?}");
        for worker in 0..4 {
            let [old, new] = [worker, worker + 1].map(|one| hits[&(name(one), worker)]);
            assert!(old >= TIMES && new >= 500, "{hits:?}");
            assert_eq!(old + new, reported / 4, "{hits:?}");
        }
        assert_eq!((number(probe, "hits"), number(probe, "unnamed")), (reported, 0));
    }
}

/// One of four threads is chosen by its name. The others are passed over in the target, and all aggregated
/// hits are those of that thread.
#[test]
fn threads_are_chosen_by_name() {
    let path = or_skip!(victims::plain("names"));
    let mut victim = Running::start(&path, &[]);
    let (entry, whole) = ("named(u64 worker)", "named(u64 worker) -> u64");
    let cases: [(&[&str], u64); 7] = [
        (&["--top", "worker", entry], FIRST + 1),
        (&["--top", "ret", whole], 3 * (FIRST + 1)),
        (&["--top", "ret - worker + (dur < 0)", whole], 2 * (FIRST + 1)),
        (&["--top", "--by=tid", "worker", entry], FIRST + 1),
        (&["--top", "--by=cpu", "worker", entry], FIRST + 1),
        (&["--top", "--by=comm", "--comm=x", "ret - 2 * worker", whole], FIRST + 1),
        (&["--linear=0:100:10", "worker % 100 - 1", entry], 0),
    ];
    for (words, value) in cases {
        let words = [&["--comm", "w1"], words].concat();
        let seen = seen(&mut victim, "named", &words);
        assert!(!seen.errors.contains("added up here"), "{}", seen.errors);
        let row = if words.contains(&"--linear=0:100:10") { "0..10".to_owned() } else { value.to_string() };
        assert_eq!(rows(&seen.probe), BTreeMap::from([(row, TIMES)]), "{words:?}");
        let reported =
            ["hits", "filtered", "overflow", "unseen", "unnamed"].map(|field| number(&seen.probe, field));
        assert_eq!((reported, seen.missed), ([TIMES, 3 * TIMES, 0, 0, 0], 0), "{words:?}");
        let others = format!(" recorded, 0 missed, {} filtered\n", 3 * TIMES);
        assert!(seen.errors.contains(&others), "{}", seen.errors);
        let part = &seen.probe["parts"][0];
        let named = words.contains(&"--by=tid") || words.contains(&"--by=comm");
        assert_eq!(part["comm"].as_str(), named.then_some("w1"), "{part}");
        assert_eq!(part["tid"].is_null(), !words.contains(&"--by=tid"), "{part}");
    }
}

/// Another thread takes the name that was asked for. From then on its hits count.
#[test]
fn a_name_that_another_thread_takes_is_followed() {
    let path = or_skip!(victims::plain("names"));
    let mut victim = Running::start(&path, &[]);
    let words = ["-p", &victim.pid().to_string(), "--comm=w1", "--top", "worker", "named(u64 worker)"];
    let tracing = Tracing::start("hist", &words).expect("attaches");
    let mut reported = victim.run(TIMES)["named"];
    victim.run(0);
    let patience = Instant::now() + Duration::from_secs(120);
    while !tracing.has(&FIRST.to_string()) {
        assert!(Instant::now() < patience, "{}", tracing.output_text());
        reported += victim.run(5)["named"];
    }
    reported += victim.run(500)["named"];
    let report = tracing.stop();
    let probe = last(&report, "named");
    let workers: BTreeMap<u64, u64> = rows(probe)
        .into_iter()
        .map(|(row, hits)| (row.parse::<u64>().expect("a number") - FIRST, hits))
        .collect();
    assert_eq!(workers.keys().collect::<Vec<_>>(), [&0, &1], "{workers:?}");
    assert!(
        workers[&0] >= 500 && (TIMES..reported / 4 - 500).contains(&workers[&1]),
        "{workers:?} of {reported}"
    );
    assert_eq!(number(probe, "hits") + number(probe, "filtered"), reported);
}

/// Threads that end before the tracer can look have the names that the kernel reported.
#[test]
fn threads_that_came_and_went_have_names() {
    let path = or_skip!(victims::plain("names"));
    let mut victim = Running::start(&path, &["births"]);
    let pid = victim.pid().to_string();
    for named in [None, Some("--comm=brief")] {
        let words = ["-p", &pid, "--by=comm", "--top=30", "worker"].into_iter().chain(named);
        let words: Vec<&str> = words.chain(["named(u64 worker)"]).collect();
        let mut tracing = Tracing::start("hist", &words).expect("attaches");
        tracing.signal(libc::SIGSTOP);
        let reported = victim.run(100);
        tracing.signal(libc::SIGINT);
        tracing.signal(libc::SIGCONT);
        let report = tracing.stop();
        let probe = last(&report, "named");
        let (hits, all) = (by_name(probe), reported["named"] + 200);
        let brief = BTreeMap::from([((Some("brief".to_owned()), 9), 100)]);
        let unnamed = number(probe, "unnamed") + hits.get(&(None, 9)).copied().unwrap_or(0);
        // SAFETY: geteuid has no precondition.
        if unnamed > 0 && unsafe { libc::geteuid() } != 0 {
            or_skip!(Err::<(), _>("here the kernel shows nothing of threads".to_owned()));
        }
        match named {
            Some(_) => assert_eq!(hits, brief),
            None => {
                let workers = (0..4).map(|n| ((Some(format!("w{n}")), n), 100));
                let others = [((Some("names".to_owned()), 8), 100)].into_iter().chain(workers);
                assert_eq!(hits, others.chain(brief).collect());
            }
        }
        assert_eq!(number(probe, "hits") + number(probe, "filtered"), all);
        assert_eq!(unnamed, 0, "{probe}");
    }
}
