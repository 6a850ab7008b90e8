//! The measured process: this same program, position-independent, started as `trapline-bench victim`. It
//! times itself. The tracer attaches from outside, so figures are what a user gets.
//!
//! In, one a line: `CASE THREADS same|own plain|control MILLISECONDS`. Out: nanoseconds per call and thread.
//! With `probe CASE LIMIT HOW` (see `inside`) it probes itself with an empty handler, and with `unprobe` it
//! removes the probes. Out: milliseconds.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::x86_64::functions::{Private, Work, pin};
use crate::x86_64::inside;

/// What a victim is asked to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Load {
    /// Number of threads that call.
    pub(crate) threads: usize,
    /// Each thread calls a function of its own, or all call the same.
    pub(crate) own: bool,
}

/// The loop of the victim.
pub(crate) fn serve() -> Result<()> {
    let mut probes = Vec::new();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["probe", case, limit, how] => {
                let took = inside::probe(&mut probes, case, limit.parse()?, how);
                println!("{}", took.map_or_else(|error| format!("{error:#}"), |took| took.to_string()));
                continue;
            }
            ["unprobe"] => {
                println!("{}", inside::unprobe(&mut probes)?);
                continue;
            }
            _ => {}
        }
        let [case, threads, sharing, kind, millis] = words[..] else { anyhow::bail!("cannot read `{line}`") };
        let load = Load { threads: threads.parse()?, own: sharing == "own" };
        println!("{}", measure(case, load, kind == "control", Duration::from_millis(millis.parse()?))?);
    }
    Ok(())
}

fn measure(case: &str, load: Load, control: bool, time: Duration) -> Result<f64> {
    let works: Option<Vec<Work>> =
        (0..load.threads).map(|t| Work::of(case, if load.own { t } else { 0 })).collect();
    let works = works.with_context(|| format!("no case {case} for {} threads", load.threads))?;
    let barrier = Barrier::new(load.threads);
    let each: Vec<f64> = std::thread::scope(|scope| {
        let run = |(thread, work): (usize, Work)| {
            let barrier = &barrier;
            scope.spawn(move || {
                pin(thread);
                if load.threads > 1 {
                    barrier.wait();
                }
                timed(work, control, time)
            })
        };
        let threads: Vec<_> = works.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).collect()
    });
    Ok(each.iter().sum::<f64>() / each.len() as f64)
}

/// Nanoseconds per call in one thread.
fn timed(work: Work, control: bool, time: Duration) -> f64 {
    let own = Private::default();
    let batch = || if control { work.run_counted(&own) } else { work.run() };
    batch();
    let begun = Instant::now();
    let mut calls = 0;
    loop {
        batch();
        calls += work.batch();
        let took = begun.elapsed();
        if took >= time {
            return took.as_secs_f64() * 1e9 / calls as f64;
        }
    }
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
        let mut command = Command::new(std::env::current_exe()?);
        if !rseq {
            command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
        }
        Self::by(command)
    }
    /// Starts one by a command; its last argument becomes `victim`.
    pub(crate) fn by(mut command: Command) -> Result<Self> {
        command.arg("victim").stdin(Stdio::piped()).stdout(Stdio::piped());
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
        let (sharing, kind) =
            (if load.own { "own" } else { "same" }, if control { "control" } else { "plain" });
        writeln!(self.stdin, "{case} {} {sharing} {kind} {}", load.threads, time.as_millis().max(1))?;
        let line = self.line()?;
        line.parse().with_context(|| format!("the victim says `{line}`"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The child is ours and not yet reaped.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
