//! `trapline run` beside a process: a script that has attached.
//!
//! In: words behind `run`. Out: what the script writes. Does not: start the process that is probed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::tracing::{binary, errors};

/// The line that says that everything is attached.
pub const NOTIFY: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";

/// A script that has attached, and the rest of what it writes.
#[derive(Debug)]
pub struct Script {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Script {
    /// Starts a script, and waits until it has attached.
    ///
    /// # Panics
    /// If it does not attach.
    #[must_use]
    pub fn start(args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.arg("run").args(args).env(NOTIFY, "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("trapline starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains(NOTIFY) {
            line.clear();
            if lines.read_line(&mut line).expect("text") == 0 {
                let output = child.wait_with_output().expect("it ends");
                panic!("not attached: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
        Self { child, lines }
    }
    /// One line.
    ///
    /// # Panics
    /// If it is no text.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }
    /// Sends a signal, by the option of `kill`.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
    /// The lines that are left, after Ctrl-C; the exit status is 0.
    ///
    /// # Panics
    /// If it fails, or lost something.
    #[must_use]
    pub fn stop(self) -> Vec<String> {
        let (rest, told) = self.end();
        assert!(!told.contains("lost"), "{told}");
        rest
    }
    /// The same, with what it wrote to standard error.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn end(self) -> (Vec<String>, String) {
        self.signal("-INT");
        self.ended()
    }
    /// The same for a script that ends by itself.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn ended(mut self) -> (Vec<String>, String) {
        let rest: Vec<String> = (&mut self.lines).lines().map_while(Result::ok).collect();
        let output = self.child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", errors(&output));
        (rest, errors(&output))
    }
}
