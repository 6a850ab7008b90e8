//! What stops a watch. Each error says what was tried, why it failed, what to do.

use std::io;

use trapline_record::RemoteAddr;
use trapline_target::TargetError;

use crate::holders::Holder;

/// Why something cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// A process, or the right to touch it.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A range that no debug register holds.
    #[error("cannot watch {len} bytes at {addr}: {why}")]
    Range {
        /// First byte.
        addr: RemoteAddr,
        /// Bytes.
        len: u64,
        /// What is wrong, and what would do.
        why: String,
    },
    /// The same bytes twice.
    #[error("{addr} is watched twice in process {pid}; once is enough")]
    Twice {
        /// First byte.
        addr: RemoteAddr,
        /// The process.
        pid: u32,
    },
    /// Debug registers are all in use.
    #[error("no free debug register: {0}")]
    NoSlots(Box<NoSlots>),
    /// perf_event_open is not permitted.
    #[error(
        "cannot watch thread {tid}: {source}; perf_event_paranoid is {paranoid}: run as root, with CAP_PERFMON, or \
         set it to 2 or less"
    )]
    Denied {
        /// The thread.
        tid: u32,
        /// What the kernel said.
        source: io::Error,
        /// `/proc/sys/kernel/perf_event_paranoid`.
        paranoid: String,
    },
    /// No debug registers, or none that traps.
    #[error(
        "this machine has no debug registers to use ({why}); virtual machines and emulators often lack them"
    )]
    NoHardware {
        /// What was seen.
        why: String,
    },
    /// Too many descriptors.
    #[error(
        "cannot watch {threads} threads on {cpus} CPUs: it takes {wanted} descriptors and {allowed} are allowed; raise \
         the limit (ulimit -n) or run as root"
    )]
    NoFiles {
        /// Threads to watch.
        threads: usize,
        /// CPUs that are on.
        cpus: usize,
        /// Descriptors needed.
        wanted: u64,
        /// Descriptors allowed.
        allowed: u64,
    },
    /// No memory for the rings.
    #[error("cannot make rings for samples: {source}; perf_event_mlock_kb may be too small")]
    Rings {
        /// What the kernel said.
        source: io::Error,
    },
    /// Something else.
    #[error("cannot watch thread {tid}: {source}")]
    Kernel {
        /// The thread.
        tid: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Who has the debug registers of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoSlots {
    /// The thread that could not be armed.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// Debug registers of a CPU here, found by trying on ourselves.
    pub slots: u32,
    /// Free ones for that thread, found by trying.
    pub free: u32,
    /// How many were asked for.
    pub wanted: u32,
    /// Others who have breakpoints, as far as that can be seen.
    pub holders: Vec<Holder>,
}

impl std::fmt::Display for NoSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tid, comm, slots, free, wanted, holders } = self;
        write!(f, "{wanted} wanted, {slots} in each CPU, {free} free for thread {tid} ({comm})")?;
        let held = slots.saturating_sub(*free);
        if held > 0 {
            let who: Vec<String> = holders.iter().map(Holder::to_string).collect();
            let who = if who.is_empty() { "nobody that can be seen".to_owned() } else { who.join(", ") };
            write!(f, "; {held} held by others: {who}")?;
        }
        if *free > 0 { write!(f, "; watch fewer, or take turns with --rotate") } else { Ok(()) }
    }
}
