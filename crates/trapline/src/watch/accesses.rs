//! What watching reports: places, accesses, programs that were executed, and the end.
//!
//! In: nothing. Out: plain values. Does not: look anything up.

use std::rc::Rc;
use std::time::Duration;

use trapline_image::Encoding;
use trapline_record::RemoteAddr;
use trapline_watch::{Access, Event, Tally};

use crate::session::Running;

/// A place that is watched in a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// Name that the user gave.
    pub label: String,
    /// Address of the first byte.
    pub addr: RemoteAddr,
    /// Length in bytes.
    pub len: u8,
    /// Kind of accesses.
    pub access: Access,
    /// How its bytes are interpreted.
    pub encoding: Encoding,
}

/// A place in code.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Where {
    /// `function+0x12`, with the library before it; an address if nothing is known.
    pub function: String,
    /// Source file and line.
    pub line: Option<(String, u32)>,
}

/// One access.
#[derive(Clone, Debug)]
pub struct Accessed {
    /// The access itself.
    pub event: Event,
    /// Index into [`WatchSession::watched`](super::WatchSession::watched).
    pub watched: usize,
    /// Code that made it.
    pub by: Rc<Where>,
    /// Callers of that code, innermost first, if requested.
    pub stack: Vec<Rc<Where>>,
}

/// A watched process runs another program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewProgram {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub comm: String,
    /// Time of the exec, on the clock of accesses.
    pub time_ns: u64,
    /// Places that are watched in it: a part of [`WatchSession::watched`](super::WatchSession::watched);
    /// empty if there are none.
    pub watched: std::ops::Range<usize>,
    /// How long it ran before they were armed.
    pub unwatched: Duration,
    /// What was not found in it, or why nothing is watched.
    pub misses: Vec<String>,
}

/// What a watch session returns at its end.
#[derive(Debug)]
pub struct WatchEnd {
    /// Accesses that were not handed out before.
    pub rest: Vec<Accessed>,
    /// What was not seen, and what arming took.
    pub tally: Tally,
    /// Nanoseconds by which one access was slowed down, measured at the start in the tracer itself.
    pub ns_per_trap: Option<f64>,
    /// CPU time of the processes while they were watched.
    pub cpu: Duration,
    /// The launched command, if there was one.
    pub command: Option<Running>,
}
