//! `hist --by KEY`. The target's aggregation equals what the program itself prints, what the reader
//! aggregates from records of the same calls, and what strace saw. It is exact, hits without a row included
//! (LOSS-1).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;
use trapline_tests::histograms::{Seen, TIMES, last, number, seen};
use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::Tracing;
use trapline_tests::{or_skip, programs, victims};

/// The function has several names; reports use `pread`.
const PREAD: &str = "libc:pread64(int fd, ptr buf, u64 n, i64 at) -> ssize_t";
const ACCESS: &str = "libc:access(str path, int at) -> int";

/// Rows by key; in each, hits by what the row stands for.
type Parts = BTreeMap<String, BTreeMap<String, u64>>;

/// Starts python3 with calls of its own. Also returns the name of its thread.
fn python() -> Result<(Running, String), String> {
    let mut command = Command::new(programs::python()?);
    command.args(["-c", include_str!("../src/bykey.py")]);
    let victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", victim.pid())).expect("its name");
    Ok((victim, comm.trim().to_owned()))
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn parts(probe: &Value) -> Parts {
    let mut parts = Parts::new();
    for part in probe["parts"].as_array().expect("parts") {
        let rows = parts.entry(shown(&part["key"])).or_default();
        for row in part["rows"].as_array().expect("rows").iter().filter_map(Value::as_array) {
            let (hits, what) = row.split_last().expect("hits");
            let what: Vec<String> = what.iter().map(shown).collect();
            if hits.as_u64() > Some(0) {
                assert_eq!(rows.insert(what.join(".."), hits.as_u64().expect("a number")), None, "{part}");
            }
        }
        assert_eq!(rows.values().sum::<u64>(), number(part, "hits"), "{part}");
    }
    parts
}

/// What the program printed about calls of this name, in the form of parts.
fn reported(reported: &BTreeMap<String, u64>, name: &str) -> Parts {
    let mut parts = Parts::new();
    for (what, hits) in reported {
        if let [of, key, row] = what.split('|').collect::<Vec<_>>()[..]
            && of == name
        {
            parts.entry(key.to_owned()).or_default().insert(row.to_owned(), *hits);
        }
    }
    parts
}

fn in_target(seen: &Seen) -> bool {
    !seen.errors.contains("added up here")
}

/// Rows, overflow and unseen add up to the hits; with the filtered ones, they are all calls.
fn assert_whole(seen: &Seen, func: &str, words: &[&str]) {
    let [hits, overflow, unseen, filtered] =
        ["hits", "overflow", "unseen", "filtered"].map(|field| number(&seen.probe, field));
    let rows: u64 = parts(&seen.probe).values().flat_map(BTreeMap::values).sum();
    assert_eq!(rows + overflow + unseen, hits, "{words:?}");
    assert_eq!((hits + filtered, seen.missed), (seen.reported[func], 0), "{words:?}");
}

#[test]
fn the_target_and_the_program_say_the_same() {
    let (mut victim, _) = or_skip!(python());
    for (of, func, words) in [
        ("n", "pread", &["--by", "fd", "n", PREAD][..]),
        ("ret", "pread", &["--by", "fd", "ret", PREAD]),
        ("short", "pread", &["--by", "ret < n", "n", PREAD]),
        ("mode", "access", &["--by", "path", "at", ACCESS]),
        ("mode", "access", &["--by", "path", "at + 0 * ret", ACCESS]),
        ("path", "access", &["--by", "at", "path", ACCESS]),
        ("path", "access", &["--by", "at", "--if", "dur < 3600s", "path", ACCESS]),
    ] {
        let seen = seen(&mut victim, func, words);
        assert!(in_target(&seen), "{words:?} {}", seen.errors);
        assert_whole(&seen, func, words);
        assert_eq!(parts(&seen.probe), reported(&seen.reported, of), "{words:?}");
        let hits: Vec<u64> =
            seen.probe["parts"].as_array().expect("parts").iter().map(|part| number(part, "hits")).collect();
        assert!(hits.is_sorted_by(|one, next| one >= next), "{hits:?}");
    }
}

/// The reader aggregates where threads are chosen by name. Its rows must be those of the target.
#[test]
fn the_target_and_the_reader_say_the_same() {
    let (mut victim, comm) = or_skip!(python());
    let ever = "--linear=0:3600000000000:3600000000000";
    for (func, words) in [
        ("pread", &["--by", "fd", "n", PREAD][..]),
        ("pread", &["--by", "fd", "--linear=10:1000:70", "n - at", PREAD]),
        ("pread", &["--by", "n % 5", "--top=100000", "n * 3 - fd", PREAD]),
        ("pread", &["--by", "fd", ever, "dur", PREAD]),
        ("pread", &["--by", "fd - 5", "--top=100000", "ret - n", PREAD]),
        ("pread", &["--by", "ret % 7", "ret", PREAD]),
        ("pread", &["--by", "ret", "--if", "n % 2 && ret > 100", "fd", PREAD]),
        ("pread", &["--by", "dur > 3600s", "--if", "fd != 3", "n", PREAD]),
        ("access", &["--by", "path", ever, "dur", ACCESS]),
        ("access", &["--by", "path", "--top=9", "at * ret", ACCESS]),
        ("access", &["--by", "at % 3", "--top=9", "path", ACCESS]),
        ("access", &["--by", "ret", "path", ACCESS]),
    ] {
        let both = [&[][..], &["--comm", &comm]].map(|more: &[&str]| {
            let words: Vec<&str> = more.iter().chain(words).copied().collect();
            let seen = seen(&mut victim, func, &words);
            assert_eq!(in_target(&seen), more.is_empty(), "{words:?} {}", seen.errors);
            assert_whole(&seen, func, &words);
            let rest = ["hits", "overflow", "unseen", "filtered"].map(|field| number(&seen.probe, field));
            (parts(&seen.probe), rest)
        });
        assert_eq!(both[0], both[1], "{words:?}");
        assert!(both[0].1[0] > 100, "{words:?}");
    }
}

/// strace prints the same calls in a run of its own.
#[test]
fn strace_counts_the_same() {
    let (mut victim, _) = or_skip!(python());
    let strace = or_skip!(programs::find(&["/usr/bin/strace"]));
    let path = std::env::temp_dir().join(format!("trapline-strace-{}", victim.pid()));
    let mut tracer = Command::new(strace)
        .args(["-e", "trace=pread64", "-e", "signal=none", "-p", &victim.pid().to_string(), "-o"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace runs");
    let first = BufReader::new(tracer.stderr.take().expect("piped")).lines().next();
    let first = first.and_then(Result::ok).unwrap_or_default();
    let all: Printed = if first.contains("attached") { victim.run(TIMES) } else { Printed::new() };
    // SAFETY: a signal to our own child, which was not waited for, so the PID is its own.
    unsafe { libc::kill(tracer.id().cast_signed(), libc::SIGINT) };
    tracer.wait().expect("it ends");
    let printed = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::remove_file(&path).ok();
    if all.is_empty() {
        println!("SKIP: strace may not attach: {first}");
        return;
    }
    let (mut expected, mut calls) = (Parts::new(), 0);
    for line in printed.lines() {
        // pread64(3, "..."..., 37, 5)     = 37
        let call = line.strip_prefix("pread64(").and_then(|rest| rest.rsplit_once(')'));
        let Some((arguments, _)) = call else { continue };
        let fd = arguments.split(',').next().expect("a number");
        let n: u64 = arguments.rsplit(", ").nth(1).and_then(|n| n.parse().ok()).expect("how many");
        let row = match n {
            0 => "0..1".to_owned(),
            _ => format!("{}..{}", 1_u64 << n.ilog2(), 2_u64 << n.ilog2()),
        };
        *expected.entry(fd.to_owned()).or_default().entry(row).or_default() += 1;
        calls += 1;
    }
    assert_eq!(calls, all["pread"]);
    let seen = seen(&mut victim, "pread", &["--by", "fd", "n", PREAD]);
    assert_eq!(parts(&seen.probe), expected);
    assert!(in_target(&seen));
}

/// More keys than a table has rows, on one CPU. Keys with a row are exact, hits without one are overflow, and
/// another function's table is not affected.
#[test]
fn more_keys_than_rows_are_overflow() {
    const MANY: u64 = 5000;
    let (mut victim, _) = or_skip!(python());
    for (words, calls) in [(&["0 * at"][..], false), (&["0 * ret + (dur < 0)"], true)] {
        let pid = victim.pid().to_string();
        let words: Vec<&str> = ["-p", &pid, "--by", "at", "--top=5"]
            .iter()
            .chain(words)
            .copied()
            .chain([PREAD, ACCESS])
            .collect();
        let tracing = Tracing::start("hist", &words).expect("attaches");
        let all = victim.run(MANY);
        let report = tracing.stop();
        assert!(!report.errors.contains("added up here"), "{}", report.errors);
        let probe = last(&report, "pread");
        let [hits, overflow, unseen] = ["hits", "overflow", "unseen"].map(|field| number(probe, field));
        let found = parts(probe);
        let rows: u64 = found.values().flat_map(BTreeMap::values).sum();
        assert_eq!((hits, rows + overflow, unseen), (all["pread"], hits, 0), "{calls}");
        // Of 20,000 keys with one call each, 8192 and 16 rows hold most.
        assert!((6000..=8208).contains(&found.len()) && overflow >= 4 * MANY - 8208, "{}", found.len());
        for (key, rows) in &found {
            let key: u64 = key.parse().expect("a number");
            // Positions at the end of the file in memory: each is read MANY / 50 times, and once from another
            // descriptor.
            let most = if (951..=1000).contains(&key) { MANY / 50 + 1 } else { 1 };
            let ours = (key < 5 * MANY) && rows.len() == 1 && rows["0"] <= most;
            assert!(ours, "{key} {rows:?}");
        }
        let other = last(&report, "access");
        let expected: Parts = (0..8)
            .map(|mode: u64| (mode.to_string(), BTreeMap::from([("0".to_owned(), MANY / 8)])))
            .collect();
        assert_eq!((parts(other), number(other, "overflow")), (expected, 0), "{calls}");
    }
}

/// In a Go program the key is the entry's, however the stack has moved.
#[test]
fn calls_of_goroutines_are_grouped() {
    for path in [or_skip!(victims::go("arguments")), or_skip!(victims::go_with_libc("arguments"))] {
        let mut victim = Running::start(&path, &[]);
        victim.run(1);
        let words = [
            "--by",
            "n % 2",
            "--top",
            "ret - n + (dur > 0)",
            "main.moved(i64 a, i64 b, i64 c, i64 n) -> i64",
        ];
        let seen = seen(&mut victim, "main.moved", &words);
        assert!(in_target(&seen), "{}", seen.errors);
        assert_whole(&seen, "main.moved", &words);
        let half = BTreeMap::from([("8".to_owned(), seen.reported["main.moved"] / 2)]);
        let expected = Parts::from([("0".to_owned(), half.clone()), ("1".to_owned(), half)]);
        assert_eq!(parts(&seen.probe), expected);
    }
}
