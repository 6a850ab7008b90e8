//! The requests to a watch, its results, and what its parts hand to each other.

use std::rc::Rc;
use std::time::Duration;

use trapline_record::RemoteAddr;
use trapline_tracee::Process;
use trapline_tracee::perf::Breakpoint;

use crate::accounts::Reserved;
use crate::record::Sample;
use crate::value::Change;

/// A point to watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Address, length and kind of access.
    pub at: Breakpoint,
    /// The user's name for it.
    pub label: String,
}

/// A process, and the points to watch in it.
#[derive(Debug)]
pub struct Target {
    /// The process.
    pub process: Process,
    /// Its points, at different addresses.
    pub points: Vec<Point>,
}

/// How to watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Whether forked children are watched with their parents.
    pub forks: bool,
    /// Whether to record call chains, by frame pointers.
    pub stack: bool,
    /// Whether to determine values. Without them an event is cheaper, and shows only the thread and the time.
    pub values: bool,
    /// Whether a BPF program may read values at the trap, where permitted.
    pub bpf: bool,
    /// Whether threads may inherit what their parent has, if the kernel can do that. Otherwise each is armed
    /// by itself when its birth is reported.
    pub inherit: bool,
    /// Whether the program is kept alive where the machine may lose a trap's reason ([`Shield`](trapline_tracee::Shield)).
    /// Its threads are traced for that.
    pub shield: bool,
    /// Length of a turn, if points take turns because debug registers do not suffice.
    pub rotate: Option<Duration>,
}

impl Options {
    /// Values by all means, for threads only.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            forks: false,
            stack: false,
            values: true,
            bpf: true,
            inherit: true,
            shield: true,
            rotate: None,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessKind {
    /// A store, or a read-modify-write.
    Write,
    /// A load.
    Read,
    /// The instruction was about to be executed.
    Execute,
    /// An access by the kernel, for a system call of the thread.
    Kernel,
    /// An access by an instruction that could not be determined.
    Unknown,
}

/// One access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The time, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Index of the target.
    pub target: usize,
    /// Index of its point.
    pub point: usize,
    /// The process: the target, or a forked child.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub comm: Rc<str>,
    /// The CPU.
    pub cpu: u32,
    /// The instruction that made the access. If it could not be determined: the address where the thread
    /// stood then. For an access by the kernel: the system call's return address.
    pub ip: RemoteAddr,
    /// The kind of access.
    pub kind: AccessKind,
    /// The values before and after.
    pub change: Change,
    /// Callers, innermost first, if requested.
    pub stack: Vec<RemoteAddr>,
}

/// A process has executed another program, so nothing is watched in it any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exec {
    /// The process: a target, or with [`Options::forks`] a child.
    pub pid: u32,
    /// The program's name.
    pub comm: String,
    /// The time, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
}

/// What was not seen, and the time that arming took.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tally {
    /// Number of events handed out.
    pub events: u64,
    /// Number of those with an exact value.
    pub exact: u64,
    /// Number of accesses that the kernel dropped because a ring was full. Before the end, and before Linux 6.0: number of
    /// its records, which may be twice as many, and of which the last ones may be missing.
    pub lost: u64,
    /// Whether more may have been dropped at the end. Only before Linux 6.0.
    pub lost_more: bool,
    /// Number of traps of which the machine lost the reason, and that are not among the events: their registers do not
    /// show what was accessed.
    pub unexplained: u64,
    /// Number of traps of which the machine lost the reason.
    pub lost_traps: u64,
    /// Number of records that made no sense.
    pub malformed: u64,
    /// Number of threads armed at the start.
    pub threads: usize,
    /// Number of threads born since then, which are watched too.
    pub born: u64,
    /// Number of those that were armed some time after their birth: the kernel does not let them inherit,
    /// or was creating them when their maker was armed.
    pub late: u64,
    /// Number of those that ended before they could be armed, and so were never watched.
    pub unwatched: u64,
    /// Longest time from a birth to its arming.
    pub latest: Duration,
    /// Time to arm all threads.
    pub arming: Duration,
    /// Time to disarm all threads.
    pub disarming: Duration,
    /// Nanoseconds for which each point was covered, by target, if points take turns; empty otherwise.
    pub covered_ns: Vec<Vec<u64>>,
    /// Time for which the targets were watched.
    pub watched: Duration,
}

/// The starts of functions, for decoding. Targets are identified by their index.
pub trait CodeMap {
    /// Start of the function that holds an address.
    fn start_of(&mut self, target: usize, process: &Process, ip: RemoteAddr) -> Option<RemoteAddr>;
    /// Code from the file, for a process that has ended.
    fn code(&mut self, target: usize, addr: RemoteAddr, len: u64) -> Option<Vec<u8>> {
        let _ = (target, addr, len);
        None
    }
}

/// A map without any function.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMap;

impl CodeMap for NoMap {
    fn start_of(&mut self, _: usize, _: &Process, _: RemoteAddr) -> Option<RemoteAddr> {
        None
    }
}

/// A watched thread.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) pid: u32,
    pub(super) target: usize,
    /// Whether it has events of its own.
    pub(super) own: bool,
    pub(super) reserved: Reserved,
}

pub(super) fn name_of(tid: u32) -> Rc<str> {
    trapline_tracee::comm(tid).into()
}

/// Process, index of the target, index of the point.
pub(super) type Where = (u32, usize, usize);

/// The value that was read when watching began.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) at: Where,
    pub(super) value: u64,
    /// Time at which its reading began.
    pub(super) from_ns: u64,
}

/// A trap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Trap {
    pub(super) sample: Sample,
    /// The word that the BPF program read at it.
    pub(super) word: Option<u64>,
    /// Whether another CPU accessed the same bytes at about the same time.
    pub(super) disputed: bool,
}
