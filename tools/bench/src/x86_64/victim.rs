//! The measured process, seen from the measuring side.
//!
//! In: which process, and what it is to call. Out: nanoseconds per call and thread. The tracer attaches to the victim
//! from outside, so figures are what a user gets. The victim is a program of its own: it contains nothing of
//! Trapline, so it is taken for an ordinary program. One that probes itself is this program, started as
//! `trapline-bench victim` (see `inside`).

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::x86_64::inside;

/// What a victim is asked to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Load {
    /// Number of threads that call.
    pub(crate) threads: usize,
    /// Each thread calls a function of its own, or all call the same.
    pub(crate) own: bool,
}

/// The victim's program, which is built beside this one.
pub(crate) fn program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("trapline-bench-victim"))
}

/// A case's first functions, in the file where they are.
#[derive(Clone, Debug)]
pub(crate) struct Sites {
    pub(crate) path: PathBuf,
    /// Their offsets in the file.
    pub(crate) offsets: Vec<u64>,
}

impl Sites {
    /// Those of the victim's program.
    pub(crate) fn of(case: &str, limit: usize) -> Result<Self> {
        let path = program()?;
        let output = Command::new(&path).args(["sites", case, &limit.to_string()]).output();
        let output = output.context("the victim does not start")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let offsets: Result<_, _> = text.lines().map(str::parse).collect();
        Ok(Self { path, offsets: offsets.context("the victim prints numbers")? })
    }
    /// Those of this program.
    pub(crate) fn own(case: &str, limit: usize) -> Result<Self> {
        let offsets = trapline_bench::victim::offsets(case, limit)?;
        Ok(Self { path: std::env::current_exe()?, offsets })
    }
}

/// A process that probes itself: measures, and obeys `probe CASE LIMIT HOW` and `unprobe`. Out for these: milliseconds.
pub(crate) fn serve() -> Result<()> {
    let mut probes = Vec::new();
    trapline_bench::victim::serve(|words| {
        let took = match *words {
            ["probe", case, limit, how] => limit
                .parse()
                .map_err(Into::into)
                .and_then(|limit| inside::probe(&mut probes, case, limit, how)),
            ["unprobe"] => inside::unprobe(&mut probes),
            _ => return None,
        };
        Some(took.map_or_else(|error| format!("{error:#}"), |took| took.to_string()))
    })
}

/// A victim seen from the measuring side; killed when dropped.
#[derive(Debug)]
pub(crate) struct Victim {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Victim {
    /// Starts one. Without `rseq` it has no rseq areas, so that stubs must count with `lock add`.
    pub(crate) fn start(rseq: bool) -> Result<Self> {
        let mut command = Command::new(program()?);
        if !rseq {
            command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
        }
        Self::by(command)
    }
    /// Starts one that can probe itself.
    pub(crate) fn inside() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("victim");
        Self::by(command)
    }
    /// Starts one by a command.
    pub(crate) fn by(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the victim does not start")?;
        let stdin = child.stdin.take().context("piped")?;
        let stdout = BufReader::new(child.stdout.take().context("piped")?);
        let mut victim = Self { child, stdin, stdout };
        ensure!(victim.line()? == "ready", "the victim is not ready");
        Ok(victim)
    }
    /// Its PID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
    /// Makes it probe itself. Returns the milliseconds that it took.
    pub(crate) fn probe(&mut self, case: &str, limit: usize, how: &str) -> Result<f64> {
        writeln!(self.stdin, "probe {case} {limit} {how}")?;
        let line = self.line()?;
        line.parse().map_err(|_| anyhow::anyhow!("{line}"))
    }
    /// Makes it remove its probes. Returns the milliseconds that it took.
    pub(crate) fn unprobe(&mut self) -> Result<f64> {
        writeln!(self.stdin, "unprobe")?;
        let line = self.line()?;
        line.parse().map_err(|_| anyhow::anyhow!("{line}"))
    }
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the victim died: {:?}", self.child.try_wait());
        Ok(line.trim_end().to_owned())
    }
    /// Nanoseconds per call and thread.
    pub(crate) fn measure(&mut self, case: &str, load: Load, control: bool, time: Duration) -> Result<f64> {
        Ok(self.measure_calls(case, load, control, time)?.0)
    }
    /// The same, and the number of all calls.
    pub(crate) fn measure_calls(
        &mut self,
        case: &str,
        load: Load,
        control: bool,
        time: Duration,
    ) -> Result<(f64, u64)> {
        let (sharing, kind) =
            (if load.own { "own" } else { "same" }, if control { "control" } else { "plain" });
        writeln!(self.stdin, "{case} {} {sharing} {kind} {}", load.threads, time.as_millis().max(1))?;
        let line = self.line()?;
        let figures =
            line.split_once(' ').and_then(|(ns, calls)| Some((ns.parse().ok()?, calls.parse().ok()?)));
        figures.with_context(|| format!("the victim says `{line}`"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The child is ours and not yet reaped.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
