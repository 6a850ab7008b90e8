//! Errors of this crate. Each names what was tried, why it failed, and what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use trapline_record::RemoteAddr;

use crate::living::UNKNOWN;
use crate::stuck::Stuck;

/// Why something could not be done to a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// There is no such pid.
    #[error("cannot trace process {pid}: there is no such process")]
    NoProcess {
        /// The pid that was given.
        pid: u32,
    },
    /// The number names a thread.
    #[error("cannot trace {tid}: it is a thread of process {pid}; use -p {pid}")]
    IsThread {
        /// The number that was given.
        tid: u32,
        /// Its process.
        pid: u32,
    },
    /// The process has exited and waits for its parent.
    #[error("cannot trace process {pid}: it is a zombie (has exited, not yet reaped by its parent {parent})")]
    Zombie {
        /// The pid.
        pid: u32,
        /// Its parent.
        parent: u32,
    },
    /// It is a kernel thread, which has no program.
    #[error("cannot trace process {pid}: it is a kernel thread ({comm})")]
    KernelThread {
        /// The pid.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// Its program is not one for this machine.
    #[error(
        "cannot trace process {pid}: it runs a {what} program; only 64-bit {} is supported",
        std::env::consts::ARCH
    )]
    WrongClass {
        /// The pid.
        pid: u32,
        /// The kind of program, e.g. "32-bit".
        what: String,
    },
    /// Permission is missing, with the exact obstacle and what to do.
    #[error("cannot trace process {pid}: {obstacle}; {remedy}")]
    Denied {
        /// The pid.
        pid: u32,
        /// The obstacle.
        obstacle: String,
        /// What to do about it.
        remedy: String,
    },
    /// Another tracer traces it.
    #[error(
        "cannot trace process {pid}: it is already traced by process {tracer} ({comm}); {}",
        way_out(comm)
    )]
    AlreadyTraced {
        /// The pid.
        pid: u32,
        /// The tracer's pid.
        tracer: u32,
        /// The tracer's name.
        comm: String,
    },
    /// It exited, was killed, or executed another program meanwhile.
    #[error("process {pid} is gone: {how}")]
    Gone {
        /// The pid.
        pid: u32,
        /// What happened.
        how: String,
    },
    /// Target memory could not be read or written.
    #[error("cannot {what} {len} bytes at {addr} in process {pid}: {source}")]
    Memory {
        /// The pid.
        pid: u32,
        /// "read" or "write".
        what: &'static str,
        /// The first address.
        addr: RemoteAddr,
        /// The number of bytes.
        len: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// Code of our own process cannot be written.
    #[error(
        "code at {addr} cannot be written: /proc/self/mem refuses ({mem}), and its page cannot be made writable ({rights})"
    )]
    Locked {
        /// The address.
        addr: RemoteAddr,
        /// The kernel's error for the write.
        mem: io::Error,
        /// The kernel's error for the change of rights.
        rights: io::Error,
    },
    /// The file of a mapping could not be opened.
    #[error("cannot open the file mapped as {}: {why}", path.display())]
    File {
        /// The path as the kernel shows it.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A kernel request failed.
    #[error("cannot {what} (process {pid}): {source}{}", remedy(source))]
    System {
        /// The pid or tid.
        pid: u32,
        /// What was tried.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// No thread can make our calls.
    #[error("cannot run calls in process {pid}: {why}")]
    NoCaller {
        /// The pid.
        pid: u32,
        /// Why no thread was fit.
        why: String,
    },
    /// A remote call was made and failed.
    #[error("process {pid}: {call} failed in the process: {source}{hint}")]
    RemoteCall {
        /// The pid.
        pid: u32,
        /// The call's name.
        call: &'static str,
        /// Its error.
        source: io::Error,
        /// What is likely in the way, starting with "; ", or nothing.
        hint: String,
    },
    /// A thread did not stop in time.
    #[error("a thread of process {pid} did not stop within {waited_ms} ms: {doing}")]
    NoStop {
        /// The pid.
        pid: u32,
        /// The thread.
        tid: u32,
        /// How long we waited, in milliseconds.
        waited_ms: u64,
        /// Its state, what it waits in, and what to do.
        doing: String,
    },
    /// A thread did not come back from a call of ours, or the user ended the session meanwhile.
    #[error("a thread of process {pid} did not come back from {what} within {waited_ms} ms: {doing}")]
    Stuck {
        /// The pid.
        pid: u32,
        /// What it was doing for us.
        what: &'static str,
        /// How long we waited, in milliseconds.
        waited_ms: u64,
        /// Its state, what it waits in, and what to do.
        doing: String,
    },
    /// Our own limit of file sizes is too low for the shared memory.
    #[error(
        "cannot make {needed} bytes of shared memory: trapline's own limit of file sizes (ulimit -f) is {limit} bytes; raise it, or let it hold for the command alone: trapline ... -- sh -c 'ulimit -f N; exec CMD'"
    )]
    FileSizes {
        /// The hard limit, in bytes.
        limit: u64,
        /// The number of bytes that were needed.
        needed: u64,
    },
    /// The kernel's own probes cannot be used.
    #[error("kernel uprobes cannot be used: {why}")]
    Kernel {
        /// The reason.
        why: String,
    },
}

impl TargetError {
    /// Makes an error from the kernel's, with what was tried.
    pub(crate) fn system(pid: u32, what: impl Into<String>, source: io::Error) -> Self {
        Self::System { pid, what: what.into(), source }
    }
    /// Makes the error for a thread that did not stop.
    #[must_use]
    pub fn no_stop(pid: u32, tid: u32, waited: Duration) -> Self {
        let waited_ms = waited.as_millis() as u64;
        Self::NoStop { pid, tid, waited_ms, doing: Stuck::of(pid, tid).to_string() }
    }
    /// Makes the error for a thread that did not come back.
    pub(crate) fn stuck(pid: u32, tid: u32, what: &'static str, waited: Duration) -> Self {
        let waited_ms = waited.as_millis() as u64;
        Self::Stuck { pid, what, waited_ms, doing: Stuck::of(pid, tid).to_string() }
    }
    /// Whether a mapping was to go where the process has one: it may have made that since it was looked at.
    #[must_use]
    pub fn is_mapped_already(&self) -> bool {
        matches!(self, Self::RemoteCall { call: "mmap", source, .. } if source.raw_os_error() == Some(libc::EEXIST))
    }
    /// Whether the error means that the process is gone.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::NoProcess { .. } | Self::Zombie { .. })
    }
}

/// What to do about an error of the kernel's, to follow its text; empty where that is not known.
#[must_use]
pub fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE) => "; the limit is the tracer's own: raise it with `ulimit -n`",
        Some(libc::ENFILE) => "; the limit is the machine's: fs.file-max",
        _ => "",
    }
}

/// Makes an error; ESRCH and ENOENT mean that the process is gone.
pub(crate) fn gone_or(pid: u32, what: &str, error: io::Error) -> TargetError {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => TargetError::Gone { pid, how: "it ended".to_owned() },
        _ => TargetError::system(pid, what, error),
    }
}

/// Makes the error of a ptrace request on the thread that makes our calls: the thread is gone, or the request
/// was wrong.
pub(crate) fn caller_gone_or(pid: u32, what: &str, error: io::Error) -> TargetError {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ECHILD) => {
            TargetError::Gone { pid, how: "the thread that made our calls was killed".to_owned() }
        }
        _ => TargetError::system(pid, what, error),
    }
}

/// Name of the thread that shields a watched program. Another process finds it by that as the tracer.
pub(crate) const SHIELD_NAME: &str = "trapline-shield";

/// What to do about another tracer.
fn way_out(comm: &str) -> &'static str {
    if comm == SHIELD_NAME {
        "that is `trapline watch`, which keeps it alive on this machine: stop it, or run it with --no-shield"
    } else if comm == UNKNOWN {
        "it may have ended by now: try again"
    } else {
        "stop that tracer first"
    }
}
