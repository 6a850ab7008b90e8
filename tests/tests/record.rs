//! REC-3: `record`, and what `report` and `replay` show of it, beside the program's own counts and `count`. WAIT-1,
//! WAIT-2, WAIT-3, SAV-2: the tracer is stopped, interrupted or killed, and the target is killed, at any moment. The target goes
//! on within the bound, and the file can be read.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use trapline_tests::recordings::{self, Folder};
use trapline_tests::{or_skip, tracing, victims};

/// Longest wait of a target without a sign of its tracer, and what a busy machine may add.
const BOUND_US: u64 = 1_050_000;
const SLACK_US: u64 = 1_500_000;

/// `trapline record` of a command, as it runs.
struct Recording {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// The victim's.
    pid: u32,
}

impl Recording {
    fn start(folder: &Folder, options: &[&str], victim: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(tracing::binary());
        command.args(["record", "-o", folder.text()]).args(options).arg("--").arg(victim).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("trapline starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("text");
        let pid = first.trim().strip_prefix("pid=").and_then(|pid| pid.parse().ok());
        let pid = pid.unwrap_or_else(|| panic!("no pid: {first}"));
        Self { child, lines, pid }
    }
    fn signal(&self, pid: u32, signal: i32) {
        let pid = pid.cast_signed();
        // SAFETY: it takes two numbers; the process was started here and is not reaped yet.
        let sent = unsafe { libc::kill(pid, signal) };
        assert!(sent == 0 || signal == libc::SIGKILL, "{pid}: signal {signal}");
    }
    fn signal_tracer(&self, signal: i32) {
        self.signal(self.child.id(), signal);
    }
    /// What the victim printed at its end, the tracer's status and its messages.
    fn end(mut self) -> (BTreeMap<String, u64>, std::process::ExitStatus, String) {
        let (mut printed, mut errors) = (String::new(), String::new());
        self.lines.read_to_string(&mut printed).expect("text");
        self.child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        let status = self.child.wait().expect("it ends");
        let pairs = printed.split_whitespace().filter_map(|pair| pair.split_once('='));
        let printed =
            pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect();
        (printed, status, errors)
    }
}

/// Calls by function, as `report` shows them, in a table and as JSON.
fn calls(folder: &Folder) -> (BTreeMap<String, u64>, Output) {
    let output = tracing::once(&["report", "-s", "func", folder.text()]);
    let calls: BTreeMap<String, u64> = recordings::calls(&tracing::out(&output)).into_iter().collect();
    let lines = tracing::out(&tracing::once(&["report", "--json", folder.text()]));
    let of_line = |line: &str| {
        let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let own_in_total = object["self_ns"].as_u64() <= object["total_ns"].as_u64();
        assert!(object["type"] == "function" && own_in_total, "{line}");
        (object["function"].as_str().expect("a name").to_owned(), object["calls"].as_u64().expect("a number"))
    };
    assert_eq!(lines.lines().map(of_line).collect::<BTreeMap<_, _>>(), calls);
    (calls, output)
}

/// Lines of `replay` by thread: each call's end belongs to the call that began last.
fn is_nested(folder: &Folder) -> u64 {
    let text = tracing::out(&tracing::once(&["replay", folder.text()]));
    let mut open: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut calls = 0;
    for line in text.lines().skip(1) {
        let (head, rest) = line.split_once(" | ").unwrap_or_else(|| panic!("{line}"));
        let thread = head.split_once('[').expect("a thread").1;
        let (stack, call) = (open.entry(thread).or_default(), rest.trim_start());
        let depth = (rest.len() - call.len()) / 2;
        if let Some(name) = call.strip_prefix("} /* ") {
            let name = name.strip_suffix(" */").expect("an end");
            assert_eq!(stack.pop(), Some(name), "{line}");
            assert_eq!(depth, stack.len(), "{line}");
        } else {
            assert_eq!(depth, stack.len(), "{line}");
            calls += 1;
            if let Some(name) = call.strip_suffix("() {") {
                stack.push(name);
            }
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    calls
}

const PROBES: [&str; 3] = ["mid", "leaf", "handled"];

/// REC-3: with threads that move, signal handlers that interrupt, and a forked child.
#[test]
fn rec_3_the_calls_are_the_programs_own_and_those_of_count() {
    let victim = or_skip!(victims::plain("recorded"));
    let words = ["3", "20000", "signals", "forks"];
    let folder = Folder::new("own");
    let (printed, status, errors) = Recording::start(&folder, &["--lossless"], &victim, &words).end();
    assert!(status.success() && errors.contains(" 0 missed"), "{errors}");
    let (calls, output) = calls(&folder);
    assert!(output.status.success(), "{}", tracing::errors(&output));
    for name in PROBES {
        assert_eq!(calls.get(name), printed.get(name), "{name}: {calls:?} {printed:?}");
    }
    assert!(printed["handled"] > 0 && printed["mid"] == 80_000, "{printed:?}");
    assert!(is_nested(&folder) >= 240_000);

    // The same program under `count`, function by function.
    let json = std::env::temp_dir().join(format!("trapline-record-count-{}.json", std::process::id()));
    let words = ["-q", "-o", json.to_str().expect("plain"), "*", "--"];
    let counted =
        Command::new(tracing::binary()).arg("count").args(words).arg(&victim).args(["3", "20000"]).output();
    let counted = counted.expect("trapline starts");
    assert!(counted.status.success(), "{}", tracing::errors(&counted));
    let text = std::fs::read_to_string(&json).expect("written");
    std::fs::remove_file(&json).ok();
    let mut objects = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let last = objects.rfind(|object| object["type"] == "count").expect("an object");
    let folder = Folder::new("counted");
    let (_, status, errors) = Recording::start(&folder, &["--lossless"], &victim, &["3", "20000"]).end();
    assert!(status.success(), "{errors}");
    let (recorded, _) = self::calls(&folder);
    let mut compared = 0;
    for probe in last["probes"].as_array().expect("a list") {
        let (name, hits) = (probe["probe"].as_str().expect("a name"), probe["hits"].as_u64().expect("hits"));
        let name = name.rsplit_once(':').expect("a function").1;
        if hits > 0 && recorded.contains_key(name) {
            assert_eq!(recorded[name], hits, "{name}");
            compared += 1;
        }
    }
    assert!(compared > 5, "{recorded:?}");
}

/// A buffer of 4 KiB is full all the time; then threads wait, and nothing is lost.
#[test]
fn wait_1_nothing_is_lost_with_the_smallest_buffer() {
    let victim = or_skip!(victims::plain("recorded"));
    for words in [&["2", "60000", "signals", "jumps"][..], &["5", "8000", "signals", "forks"]] {
        let folder = Folder::new("small");
        let options = ["--lossless", "--buffer", "4K"];
        let (printed, status, errors) = Recording::start(&folder, &options, &victim, words).end();
        assert!(status.success() && errors.contains(" 0 missed"), "{errors}");
        let (calls, output) = calls(&folder);
        for name in PROBES {
            assert_eq!(calls.get(name), printed.get(name), "{name}: {calls:?} {printed:?}");
        }
        let jumped = printed["jumped"];
        if jumped > 0 {
            assert_eq!((calls["thrown"], calls["thrower"]), (jumped, 4 * jumped));
        }
        assert!(tracing::errors(&output).is_empty(), "{}", tracing::errors(&output));
        is_nested(&folder);
    }
}

/// Without `--lossless` no thread waits, and calls recorded and lost are all that there were.
#[test]
fn loss_2_without_waiting_records_are_dropped_and_counted() {
    let victim = or_skip!(victims::plain("recorded"));
    let folder = Folder::new("dropped");
    let options = ["--buffer", "4K", "mid"];
    let (printed, status, errors) = Recording::start(&folder, &options, &victim, &["1", "400000"]).end();
    assert!(status.success(), "{errors}");
    let (calls, output) = calls(&folder);
    let lost = tracing::errors(&output).split_whitespace().nth(1).map(|many| many.replace(',', ""));
    let lost: u64 = lost.and_then(|many| many.parse().ok()).unwrap_or(0);
    let mids = printed["mid"];
    assert!(calls["mid"] < mids && lost > 0, "{calls:?} {lost}");
    // Entries and exits were lost, each at most once a call.
    assert!(calls["mid"] + lost >= mids && lost <= 2 * mids, "{calls:?} {lost}");
    is_nested(&folder);
}

/// Numbers that look random, and are the same each time.
fn chance(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// WAIT-1, WAIT-2, SAV-2: the tracer is killed while threads wait for room. They go on, each after one bound at most.
#[test]
fn wait_1_a_killed_tracer_holds_no_thread_for_longer_than_the_bound() {
    let victim = or_skip!(victims::plain("recorded"));
    let mut seed = 7;
    for round in 0..trapline_tests::setting("TRAPLINE_KILLS", 8) {
        let folder = Folder::new("killed");
        let options = ["--lossless", "--buffer", "16K"];
        let recording = Recording::start(&folder, &options, &victim, &["2", "3000000", "signals"]);
        std::thread::sleep(Duration::from_millis(chance(&mut seed, 300)));
        recording.signal_tracer(libc::SIGKILL);
        let (printed, status, _) = recording.end();
        assert!(!status.success());
        assert_eq!(printed["mid"], 6_000_000, "round {round}: the program did all of its work");
        assert!(printed["longest_us"] < BOUND_US + SLACK_US, "round {round}: {printed:?}");
        let (calls, output) = calls(&folder);
        assert_eq!(output.status.code(), Some(1));
        let errors = tracing::errors(&output);
        assert!(errors.contains("without its end mark"), "{errors}");
        assert!(calls.get("mid").is_none_or(|mids| *mids <= 6_000_000), "{calls:?}");
        is_nested(&folder);
    }
}

/// SAV-2: the target is killed at any moment; what was recorded is whole.
#[test]
fn sav_2_a_killed_target_leaves_a_whole_recording() {
    let victim = or_skip!(victims::plain("recorded"));
    let mut seed = 11;
    for round in 0..trapline_tests::setting("TRAPLINE_KILLS", 8) {
        let folder = Folder::new("target");
        let options = ["--lossless", "--buffer", "64K"];
        let recording = Recording::start(&folder, &options, &victim, &["3", "1", "signals", "endless"]);
        std::thread::sleep(Duration::from_millis(20 + chance(&mut seed, 200)));
        recording.signal(recording.pid, libc::SIGKILL);
        let (_, status, errors) = recording.end();
        assert_eq!(status.code(), Some(128 + libc::SIGKILL), "{errors}");
        let (calls, output) = calls(&folder);
        assert!(output.status.success(), "round {round}: {}", tracing::errors(&output));
        assert!(calls["mid"] > 0 && calls["leaf"] >= calls["mid"], "{calls:?}");
        assert!(calls["leaf"] <= 2 * calls["mid"], "{calls:?}");
        is_nested(&folder);
    }
}

/// WAIT-1, WAIT-2: the tracer is stopped for longer than the bound. The target waits once, goes on unrecorded, and is recorded
/// again when the tracer goes on; the tracer says so.
#[test]
fn wait_2_a_stopped_tracer_holds_the_target_once() {
    let victim = or_skip!(victims::plain("recorded"));
    let folder = Folder::new("stopped");
    let options = ["--lossless", "--buffer", "64K"];
    let recording = Recording::start(&folder, &options, &victim, &["1", "60000000"]);
    std::thread::sleep(Duration::from_millis(300));
    recording.signal_tracer(libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(3));
    recording.signal_tracer(libc::SIGCONT);
    let (printed, status, errors) = recording.end();
    assert!(status.success(), "{errors}");
    let longest = printed["longest_us"];
    assert!((700_000..BOUND_US + SLACK_US).contains(&longest), "{longest}");
    assert!(errors.contains("went on without being recorded for a while"), "{errors}");
    let (calls, output) = calls(&folder);
    assert!(output.status.success());
    assert!(calls["mid"] < printed["mid"] && calls["mid"] > 1000, "{calls:?}");
}

/// WAIT-3: Ctrl-C while threads wait: they go on at once, unprobed.
#[test]
fn wait_3_an_interrupted_tracer_releases_the_target() {
    let victim = or_skip!(victims::plain("recorded"));
    let folder = Folder::new("interrupted");
    let options = ["--lossless", "--buffer", "16K"];
    let recording = Recording::start(&folder, &options, &victim, &["2", "100000000"]);
    std::thread::sleep(Duration::from_millis(200));
    // It is stopped, so that threads wait when it gets the other signal.
    recording.signal_tracer(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(300));
    recording.signal_tracer(libc::SIGINT);
    let begun = Instant::now();
    recording.signal_tracer(libc::SIGCONT);
    let (printed, status, errors) = recording.end();
    assert!(status.success(), "{errors}");
    assert!(printed["longest_us"] < 300_000 + SLACK_US, "{printed:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "it runs unprobed");
    let (calls, _) = calls(&folder);
    assert!(calls["mid"] < printed["mid"], "{calls:?}");
}

/// A full disk ends the run; the target is as before, and goes on.
#[test]
fn a_full_disk_ends_the_recording_and_not_the_target() {
    let victim = or_skip!(victims::plain("recorded"));
    let folder = Folder::new("full");
    std::fs::create_dir(&folder.0).expect("a folder");
    std::os::unix::fs::symlink("/dev/full", folder.0.join("calls.trapline")).expect("a link");
    let (printed, status, errors) =
        Recording::start(&folder, &["--lossless", "--buffer", "16K"], &victim, &["2", "200000"]).end();
    assert!(!status.success() && errors.contains("cannot write to"), "{errors}");
    assert_eq!(printed["mid"], 400_000);
    assert!(printed["longest_us"] < BOUND_US + SLACK_US, "{printed:?}");
}
