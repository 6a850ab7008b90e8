//! What stops a watch. Each error names what was tried, why it failed, and what to do.

use std::io;

use trapline_record::RemoteAddr;
use trapline_tracee::TargetError;
use trapline_tracee::perf::NotArmed;

use crate::holders::NoRegisters;

/// Why something cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The process does not exist, or may not be touched.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A debug register cannot hold the range.
    #[error("cannot watch {len} bytes at {addr}: {why}")]
    Range {
        /// First byte.
        addr: RemoteAddr,
        /// Length in bytes.
        len: u64,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The same bytes were requested twice.
    #[error("{addr} is watched twice in process {pid}; once is enough")]
    Twice {
        /// First byte.
        addr: RemoteAddr,
        /// The process.
        pid: u32,
    },
    /// All debug registers are in use.
    #[error("no free debug register: {0}")]
    NoRegisters(Box<NoRegisters>),
    /// perf_event_open is not permitted.
    #[error(
        "cannot watch thread {tid}: {source}; perf_event_paranoid is {paranoid}: run as root, with CAP_PERFMON, or \
         set it to 2 or less"
    )]
    Denied {
        /// The thread.
        tid: u32,
        /// The kernel's error.
        source: io::Error,
        /// The text of `/proc/sys/kernel/perf_event_paranoid`.
        paranoid: String,
    },
    /// There are no debug registers, or none that traps.
    #[error(
        "this machine has no debug registers to use ({why}); virtual machines and emulators often lack them"
    )]
    NoHardware {
        /// What was found.
        why: String,
    },
    /// More descriptors are needed than allowed.
    #[error(
        "cannot watch {threads} threads on {cpus} CPUs: it takes {wanted} descriptors and {allowed} are allowed; raise \
         the limit (ulimit -n), or run with CAP_SYS_RESOURCE"
    )]
    NoFiles {
        /// Number of threads to watch.
        threads: usize,
        /// Number of CPUs that are online.
        cpus: usize,
        /// Number of descriptors needed.
        wanted: u64,
        /// Number of descriptors allowed.
        allowed: u64,
    },
    /// There is no memory for the rings.
    #[error("cannot make rings for samples: {source}; perf_event_mlock_kb may be too small")]
    Rings {
        /// The kernel's error.
        source: io::Error,
    },
    /// Threads are born faster than they can be armed.
    #[error(
        "cannot watch process {pid}: in {listings} listings there was always another thread that had not inherited \
         everything; watch fewer places, or try again when fewer threads are made"
    )]
    Churn {
        /// The process.
        pid: u32,
        /// How often its threads were listed.
        listings: usize,
    },
    /// Any other error of the kernel.
    #[error("cannot watch thread {tid}: {source}")]
    Kernel {
        /// The thread.
        tid: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

pub(crate) const ESRCH: i32 = 3;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const ENODEV: i32 = 19;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// Turns the kernel's error into its meaning; full debug registers have a message of their own.
pub(crate) fn explain(error: NotArmed) -> WatchError {
    let NotArmed { tid, source, .. } = error;
    match source.raw_os_error() {
        Some(EPERM | EACCES) => WatchError::Denied { tid, source, paranoid: paranoid() },
        Some(ENODEV | ENOENT | ENOSYS | EOPNOTSUPP) => WatchError::NoHardware { why: source.to_string() },
        _ => WatchError::Kernel { tid, source },
    }
}

/// The kernel's present setting.
fn paranoid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
        .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}
