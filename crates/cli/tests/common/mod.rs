//! The victim, built once, and the command, run as a user runs it.
#![allow(dead_code, reason = "each test binary uses some of it")]

pub(crate) mod browser;
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
pub(crate) mod native;
pub(crate) mod scratch;
pub(crate) mod terminal;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The built victim.
pub(crate) fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built("trapline-victim", &[]))
}

fn built(name: &str, flags: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/victim.c");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Test binaries run at the same time, so each builds its own victim and moves it into place.
    let mine = program.with_extension(std::process::id().to_string());
    let built = Command::new("cc").args(["-O2", "-g"]).args(flags).arg("-o").arg(&mine).arg(source).status();
    assert!(built.expect("a C compiler").success());
    std::fs::rename(&mine, &program).expect("a directory of our own");
    program
}

/// The victim with frame pointers.
pub(crate) fn framed() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built("trapline-framed", &["-fno-omit-frame-pointer"]))
}

/// A copy of the victim, written by another process. Otherwise a child that another test starts meanwhile
/// could hold the copy open for writing until its exec, and it could not be executed (ETXTBSY).
pub(crate) fn copy_of_program(to: &Path) {
    copy_to(program(), to);
}

/// The same of any program.
pub(crate) fn copy_to(from: impl AsRef<Path>, to: &Path) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to).status().expect("cp runs").success());
}

/// A running victim; killed when dropped.
#[derive(Debug)]
pub(crate) struct Victim {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Victim {
    pub(crate) fn start() -> Self {
        Self::start_as(program())
    }
    /// Starts it by another path.
    pub(crate) fn start_as(path: &std::path::Path) -> Self {
        Self::start_by(&mut Command::new(path))
    }
    /// Starts it by a command that ends up as the victim.
    pub(crate) fn start_by(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the victim starts");
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut victim = Self { child, to, from };
        assert_eq!(victim.line(), "ready");
        victim
    }
    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the victim talks");
        line.trim().to_owned()
    }
    /// Sends a line, and returns the answer.
    pub(crate) fn say(&mut self, line: &str) -> String {
        writeln!(self.to.as_mut().expect("not closed"), "{line}").expect("the victim listens");
        self.line()
    }
    /// Makes `rounds` rounds. Returns the number of calls of `plain` and of `nested`, and of USDT probes seen
    /// with a raised semaphore.
    pub(crate) fn rounds(&mut self, rounds: u64) -> [u64; 3] {
        let line = self.say(&rounds.to_string());
        let mut numbers = line.split(' ').map(|n| n.parse().expect("a number"));
        std::array::from_fn(|_| numbers.next().expect("three numbers"))
    }
    /// Ends it by closing its input.
    pub(crate) fn finish(&mut self) {
        self.to = None;
        assert!(self.child.wait().expect("it ends").success());
    }
    /// Its mappings of the program's own file, without addresses that vary.
    pub(crate) fn text(&self) -> Vec<u8> {
        let pid = self.pid();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
        let line =
            maps.lines().find(|l| l.contains("r-xp") && l.contains("trapline-victim")).expect("its text");
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let (start, end) = (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("readable");
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start).expect("mapped");
        bytes
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn trapline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapline"));
    command.stdin(Stdio::null());
    command
}

/// Runs trapline to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    trapline().args(args).output().expect("trapline runs")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A tracer at work, which writes JSON lines.
#[derive(Debug)]
pub(crate) struct Tracer {
    child: Child,
    lines: BufReader<ChildStdout>,
    objects: Vec<serde_json::Value>,
}

impl Tracer {
    /// Starts it and waits for its first object; everything is attached by then.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut child = trapline()
            .args(args)
            .args(["--json", "-i", "50ms"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("trapline starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut tracer = Self { child, lines, objects: Vec::new() };
        assert!(tracer.next(), "it ended: {}", tracer.errors());
        tracer
    }
    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }
    fn next(&mut self) -> bool {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("readable");
        if !line.is_empty() {
            self.objects.push(serde_json::from_str(&line).expect("JSON"));
        }
        !line.is_empty()
    }
    fn errors(&mut self) -> String {
        let mut output_text = String::new();
        let mut from = self.child.stderr.take().expect("piped");
        std::io::Read::read_to_string(&mut from, &mut output_text).expect("text");
        output_text
    }
    /// Sends a signal and waits for the end; returns status, last object and messages.
    pub(crate) fn end(mut self, signal: &str) -> (Option<i32>, serde_json::Value, String) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        while self.next() {}
        let output_text = self.errors();
        let deadline = Instant::now() + Duration::from_secs(120);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("ours") {
                break status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        (status, self.objects.pop().expect("an object"), output_text)
    }
    /// Waits for its end.
    pub(crate) fn wait(self) -> (Option<i32>, serde_json::Value, String) {
        self.end("-0")
    }
}

/// A field of a probe, found by the end of its name.
pub(crate) fn field(object: &serde_json::Value, probe: &str, field: &str) -> u64 {
    let probes = object["probes"].as_array().expect("probes");
    let one = probes.iter().find(|one| one["probe"].as_str().is_some_and(|name| name.ends_with(probe)));
    let one = one.unwrap_or_else(|| panic!("no {probe} in {object}"));
    one[field].as_u64().unwrap_or_else(|| panic!("no {field} in {one}"))
}
