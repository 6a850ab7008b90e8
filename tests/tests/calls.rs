//! `trace`: each call with its arguments, its value and its thread; what does not fit is counted (LOSS-2).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, once};
use trapline_tests::{or_skip, oracle, text, victims};

const TIMES: u64 = 300;

/// The calls of one function, in the order in which they ended.
fn calls<'a>(report: &'a Report, func: &str) -> Vec<&'a Value> {
    let of = |object: &&Value| {
        let probe = object["probe"].as_str().unwrap_or_default();
        object["type"] == "call" && probe.rsplit(':').next() == Some(func)
    };
    report.objects.iter().filter(of).collect()
}

fn argument(call: &Value, nth: usize) -> u64 {
    call["args"][nth]["value"].as_u64().unwrap_or_else(|| panic!("no argument {nth}: {call}"))
}

#[test]
fn each_call_has_its_arguments_and_its_value() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let probes = [
        "leaf(u64 x) -> u64",
        "factorial(u64 n) -> u64",
        "many_args(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) -> u64",
        "tail_caller(u64 x) -> u64",
    ];
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(probes).collect();
    let tracing = Tracing::start("trace", &words).expect("attaches");
    let told = victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    for func in ["leaf", "factorial", "many_args", "tail_caller"] {
        assert_eq!(calls(&report, func).len() as u64, told[func], "{func}: {}", report.errors);
        assert_eq!(report.hits(func), told[func], "{func}");
    }
    for call in calls(&report, "leaf") {
        assert_eq!(call["ret"].as_u64(), Some(argument(call, 0) * 3 + 1), "{call}");
        assert_eq!((call["tid"].as_u64(), &call["how"]), (Some(u64::from(victim.pid())), &"returned".into()));
        assert!(call["dur_ns"].as_u64().is_some_and(|ns| ns < 10_000_000_000), "{call}");
    }
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for call in calls(&report, "factorial") {
        let n = argument(call, 0);
        assert_eq!(call["ret"].as_u64(), Some((1..=n).product()), "{call}");
        *seen.entry(n).or_default() += 1;
    }
    let switched = TIMES / 9;
    assert_eq!(
        seen,
        BTreeMap::from([
            (1, TIMES + switched),
            (2, TIMES + switched),
            (3, TIMES + switched),
            (4, TIMES),
            (5, TIMES)
        ])
    );
    for (nth, call) in (0..).zip(calls(&report, "many_args")) {
        let arguments: Vec<u64> = (0..6).map(|n| argument(call, n)).collect();
        assert_eq!(arguments, [nth, 2, 3, 4, 5, 6]);
    }
    // What it calls last may be inlined or jumped to: then its value is not its own.
    for call in calls(&report, "tail_caller") {
        assert!(
            call["how"] == "tail" || call["ret"].as_u64() == Some((argument(call, 0) + 1) * 3 + 1),
            "{call}"
        );
    }
    text::assert_clean(victim.pid(), &before);
    assert!(victim.run(10)["leaf"] > 0);
}

/// The kernel's own probe with a fetched argument, on the same calls in a second run.
#[test]
fn the_kernel_reads_the_same_arguments() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let kernel = or_skip!(KernelArguments::new(&path, "leaf", victim.pid()));
    victim.run(TIMES);
    let want = kernel.read();
    assert!(!want.is_empty(), "the kernel saw nothing");
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("trace", &["--entry-only", "-p", &pid, "leaf(u64 x)"]).expect("attaches");
    victim.run(TIMES);
    let report = tracing.stop();
    let ours: Vec<u64> = calls(&report, "leaf").into_iter().map(|call| argument(call, 0)).collect();
    assert_eq!(ours, want);
}

/// Where the kernel's trace files are: where they are usually mounted, or mounted for this test.
struct Tracefs(PathBuf);

impl Tracefs {
    const USUAL: &str = "/sys/kernel/tracing";

    fn find() -> Result<Self, String> {
        let usual = Path::new(Self::USUAL);
        if usual.join("uprobe_events").exists() {
            return Ok(Self(usual.to_owned()));
        }
        let own = std::env::temp_dir().join(format!("trapline-tracefs-{}", std::process::id()));
        std::fs::create_dir_all(&own).map_err(|error| format!("{}: {error}", own.display()))?;
        let output = Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(&own).output();
        match output {
            Ok(output) if output.status.success() => Ok(Self(own)),
            _ => Err("the kernel's trace files cannot be mounted".to_owned()),
        }
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.0 != Path::new(Self::USUAL) {
            Command::new("umount").arg("-l").arg(&self.0).status().ok();
            std::fs::remove_dir(&self.0).ok();
        }
    }
}

/// An event of the kernel's with the first argument, in an instance of the trace buffer of its own.
struct KernelArguments {
    root: Tracefs,
    instance: PathBuf,
    name: String,
}

impl KernelArguments {
    fn new(path: &Path, func: &str, pid: u32) -> Result<Self, String> {
        let tracefs = Tracefs::find()?;
        let root = tracefs.0.clone();
        let name = format!("trapline_{}", std::process::id());
        let instance = root.join("instances").join(&name);
        let offset = oracle::offsets(path, &[func])[0];
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let append = |text: String| {
            let mut file = std::fs::File::options().append(true).open(root.join("uprobe_events"))?;
            std::io::Write::write_all(&mut file, text.as_bytes())
        };
        append(format!("p:{name}/hit {}:{offset:#x} first=%di:u64\n", path.display()))
            .map_err(|error| failed("no uprobe events here", error))?;
        std::fs::create_dir(&instance).map_err(|error| failed("no trace instances here", error))?;
        let kernel = Self { root: tracefs, instance, name };
        let set = |file: &str, text: String| std::fs::write(kernel.instance.join(file), text);
        set("set_event_pid", pid.to_string())
            .and_then(|()| set(&format!("events/{}/hit/enable", kernel.name), "1".to_owned()))
            .map_err(|error| failed("enabling", error))?;
        Ok(kernel)
    }
    fn read(self) -> Vec<u64> {
        let text = std::fs::read_to_string(self.instance.join("trace")).expect("the trace");
        text.lines().filter_map(|line| line.split_once("first=")?.1.trim().parse().ok()).collect()
    }
}

impl Drop for KernelArguments {
    fn drop(&mut self) {
        std::fs::write(self.instance.join(format!("events/{}/hit/enable", self.name)), "0").ok();
        std::fs::remove_dir(&self.instance).ok();
        let events = self.root.0.join("uprobe_events");
        if let Ok(mut file) = std::fs::File::options().append(true).open(events) {
            std::io::Write::write_all(&mut file, format!("-:{}/hit\n", self.name).as_bytes()).ok();
        }
    }
}

/// More hits than rings hold, while nobody reads: the target does not notice, and every hit is a line or missed.
#[test]
fn a_stopped_tracer_loses_records_and_says_how_many() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let mut tracing =
        Tracing::start("trace", &["--entry-only", "-p", &pid, "leaf(u64 x)"]).expect("attaches");
    let few = victim.run(100)["leaf"];
    tracing.signal(libc::SIGSTOP);
    let many = victim.run(60_000)["leaf"];
    tracing.signal(libc::SIGCONT);
    let report = tracing.stop();
    let missed = report.number("missed");
    let lines = calls(&report, "leaf").len() as u64;
    assert_eq!(lines + missed, few + many, "{}", report.errors);
    assert_eq!(report.hits("leaf"), lines);
    assert!(missed > 0 && lines > few, "{lines} lines, {missed} missed");
}

#[test]
fn what_is_no_signature_is_said() {
    for (probe, words) in [
        ("leaf(str path)", "`str` is no type"),
        ("leaf(int", "no `)`"),
        ("leaf(a, b, c, d, e, f, g)", "7 arguments"),
        ("leaf(int) -> str", "`str` is no type"),
    ] {
        let output = once(&["trace", "-p", "1", probe]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{probe}: {said}");
    }
}
