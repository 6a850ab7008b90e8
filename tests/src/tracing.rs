//! Runs the trapline command as a user does, and reads its report.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::running::{Printed, Running};

/// Longest wait for the tracer to attach or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Path of the command, where cargo put it.
///
/// # Panics
/// If it was not built; `cargo xtask test` builds it first.
#[must_use]
pub fn binary() -> PathBuf {
    let path = crate::target_dir().join("release/trapline");
    assert!(path.exists(), "{} is missing: run `cargo build --release --workspace --bins`", path.display());
    path
}

/// Runs trapline to its end.
///
/// # Panics
/// If it does not start.
#[must_use]
pub fn once(args: &[&str]) -> Output {
    Command::new(binary()).args(args).stdin(Stdio::null()).output().expect("trapline starts")
}

/// Runs trapline for a while. Where the report is not enough, runs it again for four times as long: on a busy
/// machine a victim that sleeps gets few turns.
///
/// # Panics
/// If it neither starts nor ends in time.
#[must_use]
pub fn until_enough(verb: &str, args: &[&str], is_enough: impl Fn(&Report) -> bool) -> Report {
    let run = |seconds| Tracing::spawn(verb, &[&["-d", seconds], args].concat()).end();
    let short = ["0.5", "2", "8"].into_iter().map(run).find(|report| is_enough(report));
    short.unwrap_or_else(|| run("32"))
}

/// Runs the victim's rounds under a verb. Returns the report, and what the victim printed.
///
/// # Panics
/// If the tracer does not attach, or fails.
#[must_use]
pub fn traced(victim: &mut Running, verb: &str, words: &[&str], times: u64) -> (Report, Printed) {
    let pid = victim.pid().to_string();
    let all: Vec<&str> = ["-p", &pid].into_iter().chain(words.iter().copied()).collect();
    let tracing = Tracing::start(verb, &all).unwrap_or_else(|report| panic!("{words:?}: {}", report.errors));
    let reported = victim.run(times);
    let report = tracing.stop();
    assert!(report.status.success(), "{words:?}: {}", report.errors);
    (report, reported)
}

/// The same, where nothing is refused and the victim prints what it prints without a tracer.
///
/// # Panics
/// As [`traced`]; if anything is refused, or the victim prints something else.
#[must_use]
pub fn unchanged(victim: &mut Running, verb: &str, words: &[&str], times: u64) -> Report {
    let bare = victim.run(times);
    let (report, reported) = traced(victim, verb, words, times);
    assert!(report.refused().is_empty(), "{words:?}: {}", report.errors);
    assert_eq!(reported, bare, "{words:?}: the program computes something else");
    report
}

/// What a command wrote to standard output.
#[must_use]
pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a command wrote to standard error.
#[must_use]
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An argument of a reported call.
///
/// # Panics
/// If the call has none of this number, or it is no unsigned number.
#[must_use]
pub fn argument(call: &Value, nth: usize) -> u64 {
    call["args"][nth]["value"].as_u64().unwrap_or_else(|| panic!("no argument {nth}: {call}"))
}

/// A running tracer that writes JSON lines to a file.
#[derive(Debug)]
pub struct Tracing {
    child: Child,
    json: PathBuf,
    errors: PathBuf,
}

/// What a tracer left behind when it ended.
#[derive(Debug)]
pub struct Report {
    /// Exit status.
    pub status: ExitStatus,
    /// Everything on standard error: the summary and warnings.
    pub errors: String,
    /// The objects of its JSON output.
    pub objects: Vec<Value>,
}

impl Tracing {
    /// Starts `trapline VERB --json …`, and waits until the first object shows that all sites are attached.
    ///
    /// # Errors
    /// The report of a tracer that ended instead.
    ///
    /// # Panics
    /// If it neither attaches nor ends in time.
    pub fn start(verb: &str, args: &[&str]) -> Result<Self, Report> {
        let mut tracing = Self::spawn(verb, args);
        let begun = Instant::now();
        loop {
            if std::fs::read_to_string(&tracing.json).is_ok_and(|text| text.contains('\n')) {
                return Ok(tracing);
            }
            if matches!(tracing.child.try_wait(), Ok(Some(_))) {
                return Err(tracing.end());
            }
            assert!(begun.elapsed() < PATIENCE, "the tracer does not attach: {}", tracing.output_text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts it without waiting.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn spawn(verb: &str, args: &[&str]) -> Self {
        Self::spawn_with(verb, args, &[])
    }

    /// Starts it with additional environment variables.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn spawn_with(verb: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = std::env::temp_dir().join(format!(
            "trapline-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        let (json, errors) = (base.with_extension("json"), base.with_extension("err"));
        let stderr = std::fs::File::create(&errors).expect("a temporary file");
        let mut command = Command::new(binary());
        command.arg(verb).args(["--json", "-i", "0.2", "-o"]).arg(&json).args(args).envs(env.iter().copied());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn();
        Self { child: child.expect("trapline starts"), json, errors }
    }

    /// Waits until its output contains a text.
    ///
    /// # Panics
    /// If the text does not appear in time, or the tracer ends.
    pub fn wait_for(&mut self, text: &str) {
        let begun = Instant::now();
        while !std::fs::read_to_string(&self.json).is_ok_and(|all| all.contains(text)) {
            assert!(matches!(self.child.try_wait(), Ok(None)), "the tracer ended: {}", self.output_text());
            assert!(begun.elapsed() < PATIENCE, "no {text} from the tracer: {}", self.output_text());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether its output contains a text by now.
    #[must_use]
    pub fn has(&self, text: &str) -> bool {
        std::fs::read_to_string(&self.json).is_ok_and(|all| all.contains(text))
    }

    /// The objects of its output so far.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.json).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Whether the tracer has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// PID of the tracer.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has taken the Ctrl-C that it was sent, so that its run is over. It blocks that signal, which is
    /// pending until then.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn has_taken_interrupt(&self) -> bool {
        let pending = u64::from_str_radix(&status_field(self.pid(), "ShdPnd"), 16).expect("a mask");
        pending >> (libc::SIGINT - 1) & 1 == 0
    }

    /// How often its main thread has waited for something.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn waits(&self) -> u64 {
        status_field(self.pid(), "voluntary_ctxt_switches").parse().expect("a number")
    }

    /// Whether its main thread is stopped by a signal.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        status_field(self.pid(), "State").starts_with('T')
    }

    /// What it printed on standard error so far.
    #[must_use]
    pub fn output_text(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Sends Ctrl-C, and returns its report.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn stop(mut self) -> Report {
        self.signal(libc::SIGINT);
        self.end()
    }

    /// Sends the tracer a signal. Does nothing if it ended already.
    pub fn signal(&mut self, signal: i32) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // SAFETY: kill takes plain numbers. The child was just seen unreaped, so the PID is still its
            // own.
            unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn end(&mut self) -> Report {
        let begun = Instant::now();
        let status = loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "the tracer does not end: {}", self.output_text());
            std::thread::sleep(Duration::from_millis(2));
        };
        Report { status, errors: self.output_text(), objects: self.objects() }
    }
}

/// A field of /proc/PID/status.
fn status_field(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let field = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

impl Drop for Tracing {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
        for file in [&self.json, &self.errors] {
            std::fs::remove_file(file).ok();
        }
    }
}

impl Report {
    /// The last object about each process: the totals.
    #[must_use]
    pub fn totals(&self) -> Vec<&Value> {
        let mut last: Vec<&Value> = Vec::new();
        for object in self.objects.iter().filter(|o| o["probes"].is_array()) {
            last.retain(|earlier| earlier["pid"] != object["pid"]);
            last.push(object);
        }
        last
    }

    /// All probe entries of the totals.
    pub fn probes(&self) -> impl Iterator<Item = &Value> {
        self.totals().into_iter().flat_map(|object| object["probes"].as_array().into_iter().flatten())
    }

    /// The entry of a function, by its own name or an alias.
    #[must_use]
    pub fn probe(&self, func: &str) -> Option<&Value> {
        self.probes().find(|probe| names(probe).any(|name| is_named(name, func)))
    }

    /// Hits of a function, over all processes and entries.
    ///
    /// # Panics
    /// If no entry has that name.
    #[must_use]
    pub fn hits(&self, func: &str) -> u64 {
        self.field(func, "hits")
    }

    /// Sum of a number of a function's entries, over all processes.
    ///
    /// # Panics
    /// If no entry has that name.
    #[must_use]
    pub fn field(&self, func: &str, field: &str) -> u64 {
        let named: Vec<&Value> =
            self.probes().filter(|p| names(p).any(|name| is_named(name, func))).collect();
        assert!(!named.is_empty(), "no probe `{func}` in the report; standard error:\n{}", self.errors);
        named.iter().filter_map(|probe| probe[field].as_u64()).sum()
    }

    /// Sum of all hits.
    #[must_use]
    pub fn total_hits(&self) -> u64 {
        self.probes().filter_map(|probe| probe["hits"].as_u64()).sum()
    }

    /// All reported calls, in the order in which they ended.
    #[must_use]
    pub fn calls(&self) -> Vec<&Value> {
        self.objects.iter().filter(|object| object["type"] == "call").collect()
    }

    /// Those of one function.
    #[must_use]
    pub fn calls_of(&self, func: &str) -> Vec<&Value> {
        let is_of =
            |call: &&Value| call["probe"].as_str().and_then(|text| text.rsplit(':').next()) == Some(func);
        self.calls().into_iter().filter(is_of).collect()
    }

    /// A counter of the whole process, such as `missed`, summed.
    #[must_use]
    pub fn number(&self, field: &str) -> u64 {
        self.totals().iter().filter_map(|object| object[field].as_u64()).sum()
    }

    /// What was refused, and the reasons.
    #[must_use]
    pub fn refused(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.totals()
            .iter()
            .flat_map(|object| object["refused"].as_array().into_iter().flatten())
            .map(|refused| (text(&refused["probe"]), text(&refused["reason"])))
            .collect()
    }
}

fn names(probe: &Value) -> impl Iterator<Item = &str> {
    let aliases = probe["aliases"].as_array().into_iter().flatten();
    std::iter::once(&probe["probe"]).chain(aliases).filter_map(Value::as_str)
}

/// Whether a probe's text, such as `uprobe:/bin/x:func` or a bare alias, names the function. C++ and Rust
/// names are mangled in it: `_ZN4deep7catcherEm` contains `7catcher`.
fn is_named(text: &str, func: &str) -> bool {
    let symbol = text.rsplit_once(':').map_or(text, |(_, symbol)| symbol);
    symbol == func || (symbol.starts_with("_") && symbol.contains(&format!("{}{func}", func.len())))
}
