//! A sample program of our own: built with the system's C compiler, run, and removed.
//!
//! Invariants: DEMO-1 program and directory are gone when a [`Sample`] is dropped, unless `keep` is set.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SOURCE: &str = include_str!("sample.c");
/// Compilers that may build it.
pub(crate) const COMPILERS: [&str; 3] = ["cc", "gcc", "clang"];

/// The built program.
#[derive(Debug)]
pub(crate) struct Sample {
    dir: PathBuf,
    keep: bool,
}

impl Sample {
    /// Compiles it in a directory of its own.
    pub(crate) fn build(keep: bool) -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("trapline-demo-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
        let sample = Self { dir, keep };
        let source = sample.dir.join("sample.c");
        fs::write(&source, SOURCE).map_err(|error| format!("cannot write {}: {error}", source.display()))?;
        for compiler in COMPILERS {
            let mut command = Command::new(compiler);
            command.args(["-O2", "-g", "-pthread", "-o"]).arg(sample.program()).arg(&source);
            match command.stdin(Stdio::null()).output() {
                Ok(output) if output.status.success() => return Ok(sample),
                Ok(output) => {
                    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
                    return Err(format!("{compiler} cannot build the sample program: {printed}"));
                }
                Err(_) => {}
            }
        }
        Err("the demo needs a C compiler: none of cc, gcc, clang was found; install one (package gcc)"
            .to_owned())
    }
    /// The program's path.
    pub(crate) fn program(&self) -> PathBuf {
        self.dir.join("sample")
    }
    /// Starts it, to serve requests or to time calls of `hot`.
    pub(crate) fn run(&self, measuring: bool) -> Result<SampleRun, String> {
        let mut command = Command::new(self.program());
        if measuring {
            command.arg("measure");
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            child.map_err(|error| format!("cannot start {}: {error}", self.program().display()))?;
        let lines = child.stdout.take().map(BufReader::new);
        let mut run = SampleRun { child, lines };
        match run.line().as_deref() {
            Some("ready") => Ok(run),
            _ => Err("the sample program ended at once".to_owned()),
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        if !self.keep {
            // What cannot be removed stays in the temporary directory, which the system cleans.
            drop(fs::remove_dir_all(&self.dir));
        }
    }
}

/// The program, running.
#[derive(Debug)]
pub(crate) struct SampleRun {
    child: Child,
    lines: Option<BufReader<std::process::ChildStdout>>,
}

impl SampleRun {
    /// Its pid.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.lines.as_mut()?.read_line(&mut line).ok()?;
        Some(line.trim().to_owned())
    }
    /// Nanoseconds per call of `hot`: the median of a few rounds made now, without the first ones. Fewer
    /// rounds are made if they take far longer than they should, on a busy machine.
    pub(crate) fn measured(&mut self) -> Option<f64> {
        const WARM: usize = 3;
        const ROUNDS: usize = 15;
        const LEAST: usize = 3;
        const ENOUGH: Duration = Duration::from_millis(500);
        let start = Instant::now();
        let mut rounds = Vec::new();
        for round in 0..WARM + ROUNDS {
            self.child.stdin.as_mut()?.write_all(b"m").ok()?;
            let ns: f64 = self.line()?.parse().ok()?;
            if round >= WARM {
                rounds.push(ns);
            }
            if rounds.len() >= LEAST && start.elapsed() > ENOUGH {
                break;
            }
        }
        rounds.sort_by(f64::total_cmp);
        rounds.get(rounds.len() / 2).copied()
    }
}

impl Drop for SampleRun {
    fn drop(&mut self) {
        // It may have ended already; then both have no effect.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
