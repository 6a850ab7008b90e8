//! `trace -o FILE.perfetto-trace`, checked with Perfetto's own schema: every call is a slice, nested as the
//! victim nests its calls.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use common::{Victim, program, run, text};
use serde_json::{Value, json};

/// A file of our own; removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(program().with_file_name(format!("{}-{name}", std::process::id())))
    }
    fn name(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// A tracer at work; killed when the test ends.
struct Tracer(Child);

impl Tracer {
    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
    /// Stops it until it is continued.
    fn stop(&self) {
        self.signal("-STOP");
        let stat = format!("/proc/{}/stat", self.0.id());
        while !std::fs::read_to_string(&stat).expect("it is there").contains(") T ") {
            std::thread::yield_now();
        }
    }
    /// Ends it by Ctrl-C.
    fn end(&mut self) -> ExitStatus {
        self.signal("-INT");
        self.0.wait().expect("it ends")
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A Python interpreter that has the schema: the one that `cargo xtask test` made, or the system's if it has
/// it.
fn python() -> Option<PathBuf> {
    let made = std::env::var_os("TRAPLINE_PERFETTO_PYTHON").map(PathBuf::from);
    let knows = |python: &PathBuf| {
        let mut imports = Command::new(python);
        imports.args(["-c", "import perfetto.protos.perfetto.trace.perfetto_trace_pb2"]);
        imports.output().is_ok_and(|output| output.status.success())
    };
    let found = made.into_iter().chain([PathBuf::from("python3")]).find(knows);
    if found.is_none() {
        println!(
            "SKIP: Perfetto's schema is missing (cargo xtask test installs it: Python package perfetto)"
        );
    }
    found
}

/// What the schema's reader finds in a timeline.
fn read(python: &PathBuf, file: &Scratch) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/timeline.py");
    let output = Command::new(python).arg(script).arg(&file.0).output().expect("python runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn slices<'a>(seen: &'a Value, name: &str) -> Vec<&'a Value> {
    let slices = seen["slices"].as_array().expect("slices").iter();
    slices.filter(|slice| slice["name"] == name).collect()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn calls_are_slices_on_their_threads_track() {
    let Some(python) = python() else { return };
    let (file, victim) = (Scratch::new("calls.perfetto-trace"), program().display().to_string());
    let plain = "plain(int x) -> int";
    let output = run(&["trace", "-o", file.name(), plain, "--", &victim, "3000"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let seen = read(&python, &file);
    let calls = slices(&seen, "plain");
    assert_eq!((calls.len(), &seen["open"]), (3000, &json!([])));
    for (x, call) in (0..).zip(&calls) {
        assert_eq!(call["values"], json!({"x": ["int_value", x], "return": ["int_value", x * 3 + 1]}));
        // The clock's step may be longer than such a call.
        assert!(number(&call["end"]) >= number(&call["begin"]), "{call}");
    }
    let tracks = seen["tracks"].as_object().expect("tracks");
    let process = tracks.values().find(|track| number(&track["pid"]) != 0).expect("a process");
    assert_eq!(process["process"], "trapline-victim");
    let thread = &tracks[&calls[0]["track"].to_string()];
    assert_eq!((&thread["of"], &thread["tid"]), (&process["pid"], &process["pid"]), "the main thread");
    assert!(calls.iter().all(|call| call["track"] == calls[0]["track"]));
}

/// Waits until the tracer has patched the victim and has detached from its threads. It is armed before the
/// first site is written.
fn attached(tracer: &mut Tracer, pid: &str) {
    while !text(&run(&["status", "--json", "-p", pid]).stdout).contains("\"armed\"") {
        assert_eq!(tracer.0.try_wait().expect("ours"), None, "the tracer ended");
    }
    let status = format!("/proc/{pid}/status");
    while !std::fs::read_to_string(&status).expect("it lives").contains("TracerPid:\t0\n") {
        std::thread::yield_now();
    }
}

#[test]
fn slices_nest_as_calls_do() {
    let Some(python) = python() else { return };
    let file = Scratch::new("nested.perfetto-trace");
    let mut victim = Victim::start();
    let pid = victim.pid();
    let probes = ["plain(int x) -> int", "nested(int x) -> int", "recursive(int depth) -> int"];
    let mut tracer = common::trapline();
    tracer.args(["trace", "-q", "-o", file.name(), "-p", &pid]).args(probes);
    let mut tracer = Tracer(tracer.spawn().expect("trapline starts"));
    attached(&mut tracer, &pid);
    let [plain, nested, _] = victim.rounds(100);
    assert!(tracer.end().success());
    let seen = read(&python, &file);
    assert_eq!((slices(&seen, "plain").len() as u64, slices(&seen, "nested").len() as u64), (plain, nested));
    assert!(slices(&seen, "nested").iter().all(|call| call["depth"] == 0));
    assert!(slices(&seen, "plain").iter().all(|call| call["depth"] == 1), "plain is called by nested alone");
    let mut depths: BTreeMap<i64, u64> = BTreeMap::new();
    for call in slices(&seen, "recursive") {
        assert_eq!(number(&call["depth"]), 4 - number(&call["values"]["depth"][1]), "{call}");
        *depths.entry(number(&call["depth"])).or_default() += 1;
    }
    assert_eq!(depths, (0..5).map(|depth| (depth, 10)).collect());
    let tracks = seen["tracks"].as_object().expect("tracks");
    let thread = tracks.values().find(|track| number(&track["tid"]) != 0).expect("a thread");
    assert_eq!(thread["thread"], "trapline-victim");
}

/// All calls are made while the tracer does not run, so it reads them when it ends. Their thread has a name
/// all the same.
#[test]
fn a_thread_with_few_calls_at_the_end_has_a_name() {
    let file = Scratch::new("last.perfetto-trace");
    let mut victim = Victim::start();
    let pid = victim.pid();
    let mut tracer = common::trapline();
    tracer.args(["trace", "-q", "-o", file.name(), "-p", &pid, "plain(int x) -> int"]);
    let mut tracer = Tracer(tracer.spawn().expect("trapline starts"));
    attached(&mut tracer, &pid);
    tracer.stop();
    victim.rounds(10);
    tracer.signal("-INT");
    tracer.signal("-CONT");
    assert!(tracer.0.wait().expect("it ends").success());
    let (all, name) = (std::fs::read(&file.0).expect("a timeline"), b"trapline-victim");
    let named = all.windows(name.len()).filter(|bytes| bytes == name).count();
    assert_eq!(named, 2, "the process and its thread");
}
