//! The world of a script: our own process, this machine, and where output goes.
//!
//! In: what the interpreter asks. Out: answers; written bytes. Invariant: when a reader of our output is gone, that is
//! kept, and the run ends. Does not: decide when blocks run.

use std::io::{self, Write};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use trapline::system::Everyone;
use trapline_script::{Clock, Hit, Meaning, StackMode, Stream, World, Zone};

use super::frames::Frames;
use super::system;
use crate::output::{Output, OutputError};

/// Stands for a name that is not known.
pub(super) const UNNAMED: &str = "?";

/// Most bytes that wait to be written.
const FULL: usize = 1 << 16;

/// The world of a script.
#[derive(Debug)]
pub(super) struct Host {
    output: Output,
    /// Output that waits.
    waiting: Vec<u8>,
    /// Whether output may wait for longer than a line.
    buffered: bool,
    /// Why nothing more can be written.
    pub(super) failed: Option<OutputError>,
    /// Whether what is written is thrown away.
    pub(super) silent: bool,
    /// Errors that the script reported itself.
    pub(super) errors: usize,
    zone: Zone,
    /// Frames of the stacks of hits.
    pub(super) frames: Frames,
    /// Whether stacks have source lines.
    pub(super) shows_lines: bool,
    /// Names of processes that have ended, if all are watched.
    pub(super) everyone: Option<Everyone>,
    /// The child that was launched.
    pub(super) child: u32,
    /// The boot clock as records have it, if programs are probed.
    pub(super) boot: Option<u64>,
}

impl Host {
    pub(super) fn new(output: Output, buffered: bool) -> Self {
        Self {
            output,
            waiting: Vec::new(),
            buffered,
            failed: None,
            silent: false,
            errors: 0,
            zone: system::zone(),
            frames: Frames::default(),
            shows_lines: true,
            everyone: None,
            child: 0,
            boot: None,
        }
    }
    /// Begins to write: a file's old content goes (OUT-1).
    pub(super) fn begin(&mut self) -> Result<(), OutputError> {
        self.output.begin()
    }
    /// Gives up an output in which nothing was begun.
    pub(super) fn release(&self) {
        self.output.release();
    }
    /// Writes what waits.
    pub(super) fn flush(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        if !waiting.is_empty()
            && let Err(error) = self.output.bytes(&waiting)
        {
            self.failed.get_or_insert(error);
        }
    }
    /// A block of our own process as it runs now.
    pub(super) fn hit() -> Hit {
        let pid = std::process::id();
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        Hit { pid, tid, comm: system::comm(), ..Hit::default() }
    }
}

impl World for Host {
    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Error {
            self.errors += usize::from(bytes.windows(7).any(|window| window == b" ERROR:"));
        }
        if self.silent {
            return;
        }
        match stream {
            Stream::Error => {
                self.flush();
                drop(io::stderr().lock().write_all(bytes));
            }
            Stream::Output => {
                self.waiting.extend(bytes);
                let full = self.waiting.len() >= FULL;
                if full || !self.buffered && bytes.contains(&b'\n') {
                    self.flush();
                }
            }
        }
    }
    fn now(&mut self, clock: Clock) -> u64 {
        if let (Clock::Boot, Some(boot)) = (clock, self.boot) {
            return boot;
        }
        let time = match clock {
            Clock::Monotonic => clock_gettime(ClockId::Monotonic),
            Clock::Boot => clock_gettime(ClockId::Boottime),
            Clock::Wall => clock_gettime(ClockId::Realtime),
            Clock::Tai => match clock_gettime_dynamic(DynamicClockId::Tai) {
                Ok(time) => time,
                Err(_) => clock_gettime(ClockId::Realtime),
            },
        };
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    }
    fn number(&mut self, of: Meaning) -> Option<u64> {
        Some(match of {
            Meaning::Pid if system::is_first_namespace() => u64::from(std::process::id()),
            Meaning::Tid if system::is_first_namespace() => u64::from(Self::hit().tid),
            Meaning::Uid => u64::from(rustix::process::getuid().as_raw()),
            Meaning::Gid => u64::from(rustix::process::getgid().as_raw()),
            Meaning::Cpid => u64::from(self.child),
            Meaning::Cpu => rustix::thread::sched_getcpu() as u64,
            Meaning::Ncpus => system::cpus(),
            Meaning::Numaid => system::node(rustix::thread::sched_getcpu()),
            Meaning::Cgroup => return system::cgroup(),
            Meaning::Jiffies => return system::jiffies(),
            Meaning::Ppid => return system::status(std::process::id(), "PPid:"),
            _ => return None,
        })
    }
    fn file(&mut self, path: &str, most: u64) -> Result<Vec<u8>, String> {
        system::file(path, most)
    }
    fn command(&mut self, text: &str) -> Result<Vec<u8>, String> {
        self.flush();
        system::command(text)
    }
    fn signal(&mut self, pid: u32, signal: i32) -> Result<(), String> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("there is no process")?;
        let signal = Signal::from_named_raw(signal).ok_or("the signal has no name")?;
        kill_process(pid, signal).map_err(|error| system::reason(&error.into()))
    }
    fn user(&mut self, uid: u32) -> Option<String> {
        system::user(uid)
    }
    fn cgroup_path(&mut self, id: u64) -> String {
        system::cgroup_path(id)
    }
    fn name_of_process(&mut self, pid: u32, parent: bool) -> Vec<u8> {
        let of = match parent {
            true => system::status(pid, "PPid:").and_then(|parent| u32::try_from(parent).ok()),
            false => Some(pid),
        };
        let ended = || Some(self.everyone.as_ref()?.name_of_process(pid, parent)?.into_bytes());
        of.and_then(system::name_of_process).or_else(ended).unwrap_or_else(|| UNNAMED.as_bytes().to_vec())
    }
    fn symbol(&mut self, pid: u32, address: u64) -> String {
        self.frames.symbol(pid, address)
    }
    fn stack(&self, frames: &[u64], mode: StackMode) -> Vec<u8> {
        self.frames.text(frames, mode, self.shows_lines)
    }
    fn ahead(&self, seconds: i64) -> i32 {
        self.zone.ahead(seconds)
    }
}

/// A timer of an `interval` block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timer {
    /// The block, and the probe in it.
    pub(super) block: usize,
    pub(super) probe: usize,
    pub(super) period: std::time::Duration,
    pub(super) due: Instant,
}
