//! Where runs take place: alone, beside another tracer, within narrow limits, in a container, as another user.
//!
//! In: a setting's name. Out: words to put around the command and around the program ([`Setting`]), and a tracer that
//! works beside the runs of one program ([`Beside`]). Does not: run programs, or judge.
//!
//! A bare run has the same words around it as a traced one. What a debugger prints is thus compared as well.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// A setting.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// Words before the whole command, which then starts the program within them.
    pub(super) around: &'static [&'static str],
    /// Words that the command starts instead of the program; they start the program.
    pub(super) inside: &'static [&'static str],
    beside: Tool,
}

/// A tracer that works on the program's file in the meantime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    None,
    /// Kernel uprobes, put in and taken out again all the time.
    ComingAndGoing,
    /// `bpftrace` with a probe at the same functions.
    Bpftrace,
    /// A command that attaches to a service and goes again, without a pause; the last word is the service's number.
    Attaching(&'static [&'static str]),
}

impl Setting {
    const fn new(name: &'static str) -> Self {
        Self { name, around: &[], inside: &[], beside: Tool::None }
    }
    const fn around(self, around: &'static [&'static str]) -> Self {
        Self { around, ..self }
    }
    const fn inside(self, inside: &'static [&'static str]) -> Self {
        Self { inside, ..self }
    }
    const fn beside(self, beside: Tool) -> Self {
        Self { beside, ..self }
    }
    /// Starts what works beside the runs of a program, or beside a service, which has a number.
    pub(super) fn begin(&self, file: &Path, service: Option<u32>, trapline: &Path) -> Result<Option<Beside>> {
        let wraps = !(self.around.is_empty() && self.inside.is_empty());
        ensure!(service.is_none() || !wraps, "`{}` is for programs that are started in it", self.name);
        match (self.beside, service) {
            (Tool::None, _) => Ok(None),
            (Tool::ComingAndGoing, _) => coming_and_going(file, &offsets(file, trapline)?).map(Some),
            (Tool::Bpftrace, _) => bpftrace(file, &offsets(file, trapline)?).map(Some),
            (Tool::Attaching(words), Some(pid)) => Ok(Some(attaching(words, pid))),
            (Tool::Attaching(_), None) => bail!("`{}` is for services", self.name),
        }
    }
    /// Whether another tracer may hold a service at any moment.
    pub(super) const fn may_hold(&self) -> bool {
        matches!(self.beside, Tool::Attaching(_))
    }
}

/// All settings; the first one is where runs take place if none is named.
pub(super) const SETTINGS: [Setting; 12] = [
    Setting::new("alone"),
    Setting::new("attaching-gdb").beside(Tool::Attaching(&[
        "gdb",
        "-nx",
        "-batch",
        "-ex",
        "thread apply all backtrace 5",
        "-p",
    ])),
    Setting::new("attaching-strace").beside(Tool::Attaching(&[
        "timeout",
        "-s",
        "INT",
        "0.3",
        "strace",
        "-f",
        "-o",
        "/dev/null",
        "-p",
    ])),
    Setting::new("uprobes").beside(Tool::ComingAndGoing),
    Setting::new("bpftrace").beside(Tool::Bpftrace),
    Setting::new("around-strace").around(&["strace", "-f", "-o", "/dev/null"]),
    Setting::new("inside-strace").inside(&["strace", "-f", "-o", "/dev/null"]),
    Setting::new("inside-gdb").inside(&GDB),
    Setting::new("limits").around(&[
        "prlimit",
        "--nofile=40",
        "--memlock=0",
        "--stack=524288",
        "--as=3221225472",
    ]),
    Setting::new("container").inside(&[
        "unshare",
        "--user",
        "--map-root-user",
        "--mount-proc",
        "--pid",
        "--fork",
        "--uts",
        "--ipc",
        "--net",
    ]),
    Setting::new("user").around(&NOBODY),
    Setting::new("users-program").inside(&NOBODY),
];

const GDB: [&str; 8] = ["gdb", "-q", "-nx", "-batch", "-return-child-result", "-ex", "run", "--args"];
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// The setting of a name.
pub(super) fn named(name: &str) -> Result<&'static Setting> {
    let names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    SETTINGS
        .iter()
        .find(|setting| setting.name == name)
        .with_context(|| format!("no setting `{name}`; there are {}", names.join(", ")))
}

/// A tracer at work; dropped, it is gone.
#[derive(Debug)]
pub(super) enum Beside {
    Thread(Arc<AtomicBool>, Option<JoinHandle<()>>),
    Process(Child),
}

impl Beside {
    /// A thread that works until it is over.
    fn thread(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        Self::Thread(over, Some(std::thread::spawn(move || work(&is_over))))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        match self {
            Self::Thread(over, thread) => {
                over.store(true, Ordering::Relaxed);
                thread.take().map(JoinHandle::join);
            }
            Self::Process(child) => {
                child.kill().ok();
                child.wait().ok();
            }
        }
    }
}

/// Functions that get a probe of the other tracer, at most.
const FUNCTIONS: usize = 32;

/// Where functions of a file begin, evenly chosen.
fn offsets(file: &Path, trapline: &Path) -> Result<Vec<u64>> {
    let all =
        Command::new(trapline).args(["list", "--json"]).arg(format!("{}:*", file.display())).output()?;
    let text = String::from_utf8_lossy(&all.stdout).into_owned();
    let objects = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let found: Vec<u64> = objects.filter_map(|object| object["offset"].as_u64()).collect();
    Ok(found.iter().copied().step_by(found.len().div_ceil(FUNCTIONS).max(1)).collect())
}

const TRACING: &str = "/sys/kernel/tracing";

/// Adds a line to one of the kernel's tracing files.
fn tell(file: &str, line: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).open(Path::new(TRACING).join(file))?.write_all(line.as_bytes())
}

/// Puts a uprobe at each of these functions, and takes all of them out again, without a pause until it is dropped.
fn coming_and_going(file: &Path, offsets: &[u64]) -> Result<Beside> {
    ensure!(Path::new(TRACING).join("uprobe_events").exists(), "{TRACING} is not mounted");
    let lane = format!("{:?}", std::thread::current().id());
    let group = format!("world_{}_{}", std::process::id(), lane.replace(|c: char| !c.is_ascii_digit(), ""));
    for (nth, offset) in offsets.iter().enumerate() {
        // The kernel refuses what it cannot step; the others do.
        tell("uprobe_events", &format!("p:{group}/f{nth} {}:{offset:#x}\n", file.display())).ok();
    }
    let events = PathBuf::from("events").join(&group);
    Ok(Beside::thread(move |over| {
        let enable = events.join("enable");
        while !over.load(Ordering::Relaxed) {
            for word in ["1", "0"] {
                std::fs::write(Path::new(TRACING).join(&enable), word).ok();
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        tell("uprobe_events", &format!("-:{group}/\n")).ok();
    }))
}

/// Starts the command again and again.
fn attaching(words: &'static [&'static str], pid: u32) -> Beside {
    Beside::thread(move |over| {
        while !over.load(Ordering::Relaxed) {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).arg(pid.to_string()).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
            std::thread::sleep(Duration::from_millis(200));
        }
    })
}

/// Starts bpftrace with a count at each of these functions, and waits until it says so.
fn bpftrace(file: &Path, offsets: &[u64]) -> Result<Beside> {
    let probes: Vec<_> = offsets.iter().map(|at| format!("uprobe:{}:{at:#x}", file.display())).collect();
    ensure!(!probes.is_empty(), "no function to probe");
    let program = format!("BEGIN {{ printf(\"ready\\n\"); }} {} {{ @ = count(); }}", probes.join(","));
    let mut child = Command::new("bpftrace")
        .args(["--unsafe", "-B", "line", "-e", &program])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("bpftrace")?;
    let mut output = child.stdout.take().context("bpftrace's output")?;
    let beside = Beside::Process(child);
    let begun = Instant::now();
    let mut received = Vec::new();
    while !received.windows(5).any(|window| window == b"ready") {
        let mut byte = [0; 64];
        let length = std::io::Read::read(&mut output, &mut byte).context("bpftrace's output")?;
        if length == 0 || begun.elapsed() > Duration::from_secs(60) {
            bail!("bpftrace did not start: {}", String::from_utf8_lossy(&received));
        }
        received.extend_from_slice(&byte[..length]);
    }
    Ok(beside)
}

#[cfg(test)]
mod tests {
    use super::{SETTINGS, named};

    #[test]
    fn names_are_found_and_for_others_all_names_are_listed() {
        for setting in &SETTINGS {
            assert_eq!(named(setting.name).ok(), Some(setting));
        }
        let error = named("submarine").expect_err("no such setting").to_string();
        assert!(error.contains("alone, ") && error.contains("bpftrace"), "{error}");
    }
}
