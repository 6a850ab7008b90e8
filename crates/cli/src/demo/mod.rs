//! A sample program of our own: it lies in the command, is written to a folder, run, and removed.
//!
//! In: what `build.rs` compiled. Out: a running program. Does not: need a compiler. Invariants: DEMO-1 program and
//! directory are gone when a [`Sample`] is dropped, unless `keep` is set.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flate2::read::DeflateDecoder;
use trapline_order::Order as _;

const SOURCE: &str = include_str!("sample.rs");
/// The program, compressed: for the GNU C library if the command is built for another one, and for the command's own. The first that
/// runs here is taken: most programs of users have the GNU C library, so what it costs there is what they will see.
const PROGRAMS: [&[u8]; 2] = [
    include_bytes!(concat!(env!("OUT_DIR"), "/sample-dynamic")),
    include_bytes!(concat!(env!("OUT_DIR"), "/sample-static")),
];

/// The program, as a file.
#[derive(Debug)]
pub(crate) struct Sample {
    dir: PathBuf,
    keep: bool,
}

impl Sample {
    /// Writes it to a directory of its own.
    pub(crate) fn new(keep: bool) -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("trapline-demo-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
        let sample = Self { dir, keep };
        let mut why = String::new();
        for program in PROGRAMS.into_iter().filter(|program| !program.is_empty()) {
            match sample.written(program) {
                Ok(()) => return Ok(sample),
                Err(error) => why = error.to_string(),
            }
        }
        Err(format!(
            "cannot run the sample program {}: {why}; set TMPDIR to a folder where programs may be run",
            sample.program().display()
        ))
    }
    /// Writes this program, and runs it once without input, which ends it at once.
    fn written(&self, compressed: &[u8]) -> std::io::Result<()> {
        let mut program = Vec::new();
        DeflateDecoder::new(compressed).read_to_end(&mut program)?;
        fs::write(self.dir.join("sample.rs"), SOURCE)?;
        fs::write(self.program(), program)?;
        fs::set_permissions(self.program(), fs::Permissions::from_mode(0o755))?;
        // A pipe that is closed at once: in a bare root, /dev/null may be a file that others have written to.
        let mut command = Command::new(self.program());
        let output = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?.wait_with_output()?;
        let ran = output.status.success() && output.stdout == b"ready\n";
        if ran { Ok(()) } else { Err(std::io::Error::other(format!("it ended with {}", output.status))) }
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
        rounds.order_by(f64::total_cmp);
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
