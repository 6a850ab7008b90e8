//! What is asked of a session of remote calls, and what it reports.
//!
//! Input: nothing. Output: plain values. Does not: make calls (`remote`).

use std::time::Duration;

use trapline_record::RemoteAddr;

/// How to choose the thread and where its frame may lie.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Readable memory of at least [`RemoteOptions::FRAME_ROOM`] bytes that is unused, for programs with
    /// stacks that are too small (Go). Its bytes are saved and put back.
    pub scratch: Option<RemoteAddr>,
    /// How long to wait for a thread to leave a call with a finite timeout. After that such a call is
    /// restarted.
    pub patience: Duration,
    /// Make calls even under a seccomp filter that may kill the process for them.
    pub risk_seccomp: bool,
}

impl RemoteOptions {
    /// Bytes of scratch memory that a caller must provide.
    pub const FRAME_ROOM: u64 = 16384;
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self { scratch: None, patience: Duration::from_millis(20), risk_seccomp: false }
    }
}

/// A thread's rseq area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rseq {
    /// Its address.
    pub addr: RemoteAddr,
    /// Its distance from the thread pointer.
    pub offset: i32,
    /// Bytes registered.
    pub len: u32,
    /// The word that stands before an abort handler.
    pub signature: u32,
}

/// What a session of remote calls cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteReport {
    /// The thread.
    pub tid: u32,
    /// Calls made.
    pub calls: u32,
    /// Time from its stop to its release.
    pub stopped: Duration,
    /// A call of the program's returned EINTR because of the tracer.
    pub interrupted: bool,
    /// Its call had a finite timeout and was restarted in full.
    pub restarted_timeout: bool,
}
