//! Other tracers on the same functions: bpftrace and `trapline run` from outside, uftrace around a victim of its own.
//!
//! In: a process or nothing, and what to do at a hit. Out: a running tracer, and at its end the number of
//! hits that it saw. A row does not count if the tracer did not see its hits. If a tracer is not installed,
//! the error says so. Does not: install anything.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::x86_64::victim;

/// What a script does at a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Script {
    /// `@ = count()`.
    Count,
    /// `printf` of three arguments.
    Arguments,
    /// `printf` of the text that the first argument points to.
    Text,
    /// `@[arg0] = count()`.
    By,
    /// `@ = hist(arg0)`.
    Log2,
    /// `@[ustack(16)] = count()`.
    Stack,
    /// The time from the entry to the return, as a histogram, by way of `@s[tid]`.
    Pair,
    /// What a heap has given out, with sizes and stacks.
    Heap,
}

impl Script {
    /// Its probes at a function.
    fn probes(self, at: &str) -> String {
        let body = match self {
            Self::Count => "@ = count();",
            Self::Arguments => "printf(\"%d %d %d %d\\n\", tid, arg0, arg1, arg2);",
            Self::Text => "printf(\"%d %s\\n\", tid, str(arg0));",
            Self::By => "@[arg0] = count();",
            Self::Log2 => "@ = hist(arg0);",
            Self::Stack => "@[ustack(16)] = count();",
            Self::Pair => {
                let end = "@ns = hist(nsecs - @s[tid]); delete(@s[tid]);";
                return format!("uprobe:{at} {{ @s[tid] = nsecs; }} uretprobe:{at} /@s[tid]/ {{ {end} }}");
            }
            Self::Heap => {
                let [take, give] = ["take", "give"].map(|name| at.replace("heap", name));
                let taken = format!("uretprobe:{take} {{ @live[retval] = (@size[tid], ustack(16)); }}");
                return format!(
                    "uprobe:{take} {{ @size[tid] = arg0; }} {taken} uprobe:{give} {{ delete(@live[arg0]); }}"
                );
            }
        };
        format!("uprobe:{at} {{ {body} }}")
    }
}

/// A running bpftrace, or `trapline run`; stopped when dropped.
#[derive(Debug)]
pub(crate) struct Bpftrace {
    child: Child,
    lines: Arc<AtomicU64>,
    reader: Option<JoinHandle<()>>,
}

impl Bpftrace {
    /// Attaches to a case's first function.
    pub(crate) fn start(pid: u32, case: &str, script: Script) -> Result<Self> {
        Self::by(Command::new("bpftrace"), pid, case, script)
    }
    /// The same with `trapline run`, which was built beside this program.
    pub(crate) fn ours(pid: u32, case: &str, script: Script) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?.with_file_name("trapline"));
        command.args(["run", "-q"]);
        Self::by(command, pid, case, script)
    }
    fn by(mut command: Command, pid: u32, case: &str, script: Script) -> Result<Self> {
        let program = victim::program()?;
        let program = program.to_str().context("the victim's path is not UTF-8")?;
        let text = format!(
            "BEGIN {{ printf(\"ready\\n\"); }} {}",
            script.probes(&format!("{program}:bench_{case}_0"))
        );
        command.args(["-p", &pid.to_string(), "-e", &text]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("it does not start")?;
        let mut out = BufReader::new(child.stdout.take().context("piped")?);
        let mut line = String::new();
        while line.trim_end() != "ready" {
            line.clear();
            ensure!(out.read_line(&mut line)? > 0, "it ended: {:?}", child.wait());
        }
        let lines = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            let some = out.split(b'\n').map_while(Result::ok).filter(|line| !line.is_empty());
            for _ in some {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(Self { child, lines, reader: Some(reader) })
    }
    /// Waits until it has written so many lines.
    pub(crate) fn wait(&self, lines: u64) -> Result<()> {
        let begun = Instant::now();
        loop {
            let written = self.lines.load(Ordering::Relaxed);
            if written >= lines {
                return Ok(());
            }
            ensure!(begun.elapsed() < Duration::from_secs(5), "{written} of {lines} lines were written");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Ends it, and returns the number of lines that it wrote.
    pub(crate) fn finish(mut self) -> Result<u64> {
        self.end()?;
        Ok(self.lines.load(Ordering::Relaxed))
    }
    fn end(&mut self) -> Result<()> {
        let Some(reader) = self.reader.take() else { return Ok(()) };
        let pid = self.child.id().to_string();
        // bpftrace 0.17 does not see a signal that comes right before it begins to wait.
        while self.child.try_wait()?.is_none() {
            Command::new("kill").args(["-INT", &pid]).status().context("kill")?;
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(2) && self.child.try_wait()?.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        ensure!(reader.join().is_ok(), "the reader of its output");
        Ok(())
    }
}

impl Drop for Bpftrace {
    fn drop(&mut self) {
        // Reached when another error ended the measurement.
        drop(self.end());
    }
}

/// The command that starts a victim under uftrace, which patches a case's first function, and the folder that
/// uftrace writes.
pub(crate) fn uftrace(case: &str) -> Result<(Command, PathBuf)> {
    let found = Command::new("uftrace").arg("--version").stdout(Stdio::null()).status();
    ensure!(found.context("uftrace")?.success(), "uftrace does not run");
    let dir = std::env::temp_dir().join(format!("trapline-bench-uftrace-{}", std::process::id()));
    let mut command = Command::new("uftrace");
    command.args(["record", "--no-libcall", "-P", &format!("^bench_{case}_0$"), "-d"]).arg(&dir);
    command.arg(victim::program()?);
    Ok((command, dir))
}
