//! Runs a script of `scripts/` beside a process, by our tracer or by the kernel's bpftrace.
//!
//! In: a script's name, a process. Out: maps and lines. The kernel puts its probes into all processes that map a
//! file, so its process has copies of the files that a script names. Does not: start processes that are traced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::tracing::binary;
use crate::{programs, victims};

const PATIENCE: Duration = Duration::from_secs(120);
/// What the marker's block prints. It is the last one that bpftrace attaches, since it is the first of the script.
const MARKER: &str = "marker\n";
const MOUNT: &str = "mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null; ";

/// The file of a script.
#[must_use]
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts").join(format!("{name}.bt"))
}

/// Whether the kernel's bpftrace runs here.
///
/// # Errors
/// It does not.
pub fn bpftrace() -> Result<(), String> {
    static WORKS: OnceLock<bool> = OnceLock::new();
    let works = || {
        let mut command = Command::new("unshare");
        command.args(["-m", "bash", "-c", &format!("{MOUNT} bpftrace -e 'BEGIN {{ exit() }}'")]);
        command.output().is_ok_and(|output| output.status.success())
    };
    WORKS.get_or_init(works).then_some(()).ok_or_else(|| "the kernel's bpftrace does not run here".to_owned())
}

/// A folder with copies of files that no other process maps. Removed when dropped.
#[derive(Debug)]
pub struct Copies {
    folder: PathBuf,
    /// Names as scripts have them, and the copies.
    files: Vec<(String, PathBuf)>,
}

impl Copies {
    /// Copies files; each with the name that it has in scripts.
    ///
    /// # Panics
    /// If a file cannot be copied.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("trapline-twin-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let copied = files.iter().map(|(name, from)| {
            let to = folder.join(Path::new(from).file_name().expect("a file"));
            programs::copy(Path::new(from), &to).unwrap_or_else(|error| panic!("{from}: {error}"));
            ((*name).to_owned(), to)
        });
        let files = copied.collect();
        Self { folder, files }
    }
    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
    /// The copy of a file, by its name in scripts.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Path> {
        self.files.iter().find(|(one, _)| one == name).map(|(_, path)| path.as_path())
    }
    /// A script that names the copies, and the marker first.
    fn script(&self, name: &str, marker: &Path) -> PathBuf {
        let mut text = fs::read_to_string(file(name)).expect("a script");
        for (name, copy) in &self.files {
            text = text.replace(&format!(":{name}:"), &format!(":\"{}\":", copy.display()));
        }
        let begins =
            |line: &&str| ["BEGIN", "uprobe:", "uretprobe:", "usdt:"].iter().any(|p| line.starts_with(p));
        let first = text.lines().find(begins).expect("a block").to_owned();
        let block = format!("uprobe:{}:main {{ printf(\"marker\\n\"); }}\n{first}", marker.display());
        let to = self.folder.join(format!("{name}.bt"));
        fs::write(&to, text.replacen(&first, &block, 1)).expect("written");
        to
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// What a tracer wrote.
#[derive(Debug)]
pub struct Ran {
    /// Maps by name.
    pub maps: Value,
    /// What `printf` wrote, by line.
    pub lines: Vec<String>,
    /// Standard error.
    pub messages: String,
}

impl Ran {
    /// How many values a map's histogram holds, by key; by the empty one if it has none.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn totals(&self, map: &str) -> Vec<(String, u64)> {
        let total = |buckets: &Value| {
            let counts = buckets.as_array().expect("a histogram").iter();
            counts.map(|bucket| bucket["count"].as_u64().expect("a number")).sum()
        };
        match &self.maps[map] {
            Value::Object(keys) => keys.iter().map(|(key, value)| (key.clone(), total(value))).collect(),
            Value::Null => Vec::new(),
            value => vec![(String::new(), total(value))],
        }
    }
    /// The numbers of a map, without their keys, in order.
    ///
    /// # Panics
    /// If they are none.
    #[must_use]
    pub fn numbers(&self, map: &str) -> Vec<i64> {
        let keys = self.maps[map].as_object();
        let mut numbers: Vec<i64> =
            keys.into_iter().flatten().map(|(_, value)| value.as_i64().expect("a number")).collect();
        numbers.sort_unstable();
        numbers
    }
    /// The words of each line from this one on, without the first line, which is a heading.
    #[must_use]
    pub fn words_from(&self, first: usize) -> Vec<String> {
        let words = |line: &String| line.split_whitespace().skip(first).collect::<Vec<_>>().join(" ");
        self.lines.iter().skip(1).map(words).collect()
    }
}

/// A map whose keys have no spaces: in JSON, bpftrace 0.17 writes those of texts, and we do not.
fn dense(map: &Value) -> Value {
    let Value::Object(keys) = map else { return map.clone() };
    keys.iter()
        .map(|(key, value)| (key.replace(' ', ""), value.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// A running tracer that has attached.
#[derive(Debug)]
pub struct Tracer {
    child: Child,
    output: PathBuf,
}

impl Tracer {
    /// Ours, beside a process. Words that begin with two dashes are options.
    ///
    /// # Panics
    /// If it does not attach.
    #[must_use]
    pub fn ours(name: &str, pid: u32, args: &[String]) -> Self {
        let (options, words): (Vec<&String>, Vec<&String>) =
            args.iter().partition(|word| word.starts_with("--"));
        let mut command = Command::new(binary());
        command.args(["run", "-f", "json", "-p", &pid.to_string()]).args(options).arg(file(name)).args(words);
        let mut tracer = Self::spawn(command);
        tracer.wait_for("attached_probes", || {});
        tracer
    }
    /// The kernel's, beside a process that maps the copies.
    ///
    /// # Panics
    /// If it does not attach.
    #[must_use]
    pub fn kernels(name: &str, pid: u32, args: &[String], copies: &Copies) -> Self {
        let marker = copies.folder.join("marker");
        programs::copy(&victims::plain("counter").expect("a compiler"), &marker).expect("room");
        let script = copies.script(name, &marker);
        let mut command = Command::new("unshare");
        let run = format!("{MOUNT} exec bpftrace -f json -p \"$0\" \"$@\"");
        command.args(["-m", "bash", "-c", &run, &pid.to_string()]).arg(script);
        command.args(args.iter().filter(|word| !word.starts_with("--")));
        let mut tracer = Self::spawn(command);
        tracer.wait_for("marker", || {
            let mut command = Command::new(&marker);
            command.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("the marker runs");
        });
        tracer
    }
    fn spawn(mut command: Command) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let output = std::env::temp_dir().join(format!("trapline-script-{}-{number}", std::process::id()));
        let file = |path: &Path| Stdio::from(fs::File::create(path).expect("a temporary file"));
        command.stdout(file(&output)).stderr(file(&output.with_extension("errors"))).stdin(Stdio::null());
        let child = command.spawn().expect("the tracer starts");
        Self { child, output }
    }
    fn errors(&self) -> String {
        fs::read_to_string(self.output.with_extension("errors")).unwrap_or_default()
    }
    /// What it wrote so far.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }
    /// Waits until its output has a text.
    ///
    /// # Panics
    /// If it has none in time, or ends.
    pub fn wait_for(&mut self, text: &str, meanwhile: impl Fn()) {
        let begun = Instant::now();
        while !self.output().contains(text) {
            let ended = self.child.try_wait().is_ok_and(|ended| ended.is_some());
            let in_time = !ended && begun.elapsed() < PATIENCE;
            assert!(in_time, "no {text}: {}{}", self.output(), self.errors());
            meanwhile();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    /// Ends it with Ctrl-C. bpftrace 0.17 sleeps on if the signal comes right before it begins to wait, so the signal is
    /// sent again.
    fn interrupt(&mut self) -> ExitStatus {
        loop {
            let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
            assert!(sent.is_ok_and(|status| status.success()));
            let begun = Instant::now();
            while begun.elapsed().as_secs() < 5 {
                if let Some(status) = self.child.try_wait().expect("a child of ours") {
                    return status;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    /// Ends it.
    ///
    /// # Panics
    /// If it fails, or lost something.
    #[must_use]
    pub fn stop(mut self) -> Ran {
        let status = self.interrupt();
        let (text, messages) = (self.output(), self.errors());
        assert!(status.success() && !messages.to_lowercase().contains("lost"), "{text}{messages}");
        let (mut maps, mut printed) = (json!({}), String::new());
        for line in text.lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            match (line["type"].as_str(), line["data"].as_str(), line["data"].as_object()) {
                (Some("printf"), Some(MARKER), _) | (Some("attached_probes"), ..) => {}
                (Some("printf"), Some(text), _) => printed += text,
                (Some(_), _, Some(named)) => named.iter().for_each(|(name, map)| maps[name] = dense(map)),
                _ => {}
            }
        }
        Ran { maps, lines: printed.lines().map(str::to_owned).collect(), messages }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // A test that failed leaves it running; after `stop` it is reaped, and kill does nothing.
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_file(&self.output).ok();
        fs::remove_file(self.output.with_extension("errors")).ok();
    }
}
