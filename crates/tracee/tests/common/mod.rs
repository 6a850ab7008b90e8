//! Victims: small C programs that are compiled when a test needs them, run as children, and killed at the
//! end.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(missing_docs, missing_debug_implementations, unreachable_pub, reason = "a test's own helper")]

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Victim {
    child: Child,
    pub lines: Lines<BufReader<ChildStdout>>,
    pub stdin: Option<ChildStdin>,
    dir: PathBuf,
}

/// Compiles a C program into a folder of its own.
pub fn compile(source: &str, flags: &[&str]) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("trapline-victim-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (c, program) = (dir.join("victim.c"), dir.join(format!("vic{number}-{}", std::process::id())));
    std::fs::write(&c, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w", "-D_GNU_SOURCE", "-pthread"]).args(flags).arg("-o").arg(&program).arg(&c);
    let status = cc.status().expect("a C compiler is needed");
    assert!(status.success());
    program
}

impl Victim {
    /// Compiles and starts a program, and waits for its first line, "ready".
    pub fn start(source: &str) -> Self {
        Self::start_with(source, &[])
    }
    pub fn start_with(source: &str, args: &[&str]) -> Self {
        let program = compile(source, &[]);
        let mut child =
            Command::new(&program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut victim = Self { child, lines, stdin, dir: program.parent().unwrap().to_owned() };
        assert_eq!(victim.line(), "ready");
        victim
    }
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("the victim ended early").unwrap()
    }
    /// Waits until a thread sleeps in this system call.
    pub fn until_in_call(&self, tid: u32, nr: i64) {
        let path = format!("/proc/{}/task/{tid}/syscall", self.pid());
        for _ in 0..20000 {
            if std::fs::read_to_string(&path).unwrap_or_default().starts_with(&format!("{nr} ")) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        panic!("thread {tid} never came to call {nr}");
    }
    /// Its wait status.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.dir));
    }
}
