//! What is asked of a watch, and what it tells.

use std::rc::Rc;
use std::time::Duration;

use trapline_record::RemoteAddr;
use trapline_target::Process;
use trapline_target::perf::Breakpoint;

use crate::value::Change;

/// Something to watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Where and what.
    pub at: Breakpoint,
    /// What the user calls it.
    pub label: String,
}

/// A process and what to watch in it.
#[derive(Debug)]
pub struct Target {
    /// The process.
    pub process: Process,
    /// Its points; at different addresses.
    pub points: Vec<Point>,
}

/// How to watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Whether forked children are watched with their parents.
    pub forks: bool,
    /// Call chains, by frame pointers.
    pub stack: bool,
    /// Values; without them an event is cheaper and says only who and when.
    pub values: bool,
    /// Values may be read at the trap by a BPF program, where permitted.
    pub bpf: bool,
    /// Threads may inherit what their maker has, where the kernel can; else each is armed by itself when its birth is told.
    pub inherit: bool,
    /// Take turns of this length where debug registers do not suffice.
    pub rotate: Option<Duration>,
}

impl Options {
    /// Values by all means, threads and no more.
    #[must_use]
    pub const fn new() -> Self {
        Self { forks: false, stack: false, values: true, bpf: true, inherit: true, rotate: None }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// What an access was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A store, or a read-modify-write.
    Write,
    /// A load.
    Read,
    /// The instruction was about to run.
    Execute,
    /// The kernel, for a system call of the thread.
    Kernel,
    /// By an instruction that could not be told.
    Unknown,
}

/// One access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Index of the target given.
    pub target: usize,
    /// Index of its point.
    pub point: usize,
    /// Process: the target, or a forked child.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Its name.
    pub comm: Rc<str>,
    /// CPU.
    pub cpu: u32,
    /// The instruction that made the access; where the thread then stood if that could not be told. For the kernel's, the
    /// system call's return address.
    pub ip: RemoteAddr,
    /// What it was.
    pub kind: Kind,
    /// What was there before and after.
    pub change: Change,
    /// Callers, innermost first, if asked for.
    pub stack: Vec<RemoteAddr>,
}

/// A process runs another program now: what was watched in it is no more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exec {
    /// The process: a target, or with [`Options::forks`] a child.
    pub pid: u32,
    /// The program's name.
    pub comm: String,
    /// When.
    pub time_ns: u64,
}

/// What was not seen, and what arming took.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tally {
    /// Events handed out.
    pub events: u64,
    /// Of these, with an exact value.
    pub exact: u64,
    /// Dropped by the kernel because a ring was full.
    pub lost: u64,
    /// Records that made no sense.
    pub malformed: u64,
    /// Threads armed.
    pub threads: usize,
    /// Threads born since, which are watched too.
    pub born: u64,
    /// Of these, armed some time after their birth, since the kernel does not let them inherit.
    pub late: u64,
    /// Of these, ended before they could be armed: never watched.
    pub unwatched: u64,
    /// The longest time from a birth to its arming.
    pub latest: Duration,
    /// Time to arm all.
    pub arming: Duration,
    /// Time to disarm all.
    pub disarming: Duration,
    /// Nanoseconds that each point was covered, by target, when they take turns; empty otherwise.
    pub covered_ns: Vec<Vec<u64>>,
    /// How long it was watched.
    pub watched: Duration,
}

/// Where functions begin, for decoding. Targets are known by their index.
pub trait CodeMap {
    /// Start of the function that holds an address.
    fn start_of(&mut self, target: usize, process: &Process, ip: RemoteAddr) -> Option<RemoteAddr>;
    /// Code as the file has it, for a process that has ended.
    fn code(&mut self, target: usize, addr: RemoteAddr, len: u64) -> Option<Vec<u8>> {
        let _ = (target, addr, len);
        None
    }
}

/// Knows no function.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMap;

impl CodeMap for NoMap {
    fn start_of(&mut self, _: usize, _: &Process, _: RemoteAddr) -> Option<RemoteAddr> {
        None
    }
}
