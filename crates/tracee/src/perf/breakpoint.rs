//! One hardware breakpoint of the kernel's.
//!
//! In: an address, the kind of access, a thread or CPU. Out: a count, or a typed reason why there is none.
//! The breakpoint is removed when the value is dropped. Does not: keep records of the accesses (it has no
//! ring), or know which debug registers are free.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;

use trapline_record::RemoteAddr;

use crate::sys::perf::{self, Attr};

/// Which accesses trap. x86-64 cannot watch reads alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Stores.
    Write,
    /// Loads and stores.
    ReadWrite,
    /// Execution of the instruction at the address, before it runs.
    Execute,
}

/// The threads or the CPU for which accesses count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// One thread.
    Thread {
        /// Its number; `None` for the calling thread.
        tid: Option<u32>,
        /// Only while it runs on this CPU.
        cpu: Option<u32>,
    },
    /// All that runs on one CPU (needs CAP_PERFMON).
    Cpu(u32),
}

/// A breakpoint that is to be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    /// First byte of the range; a multiple of its length.
    pub addr: RemoteAddr,
    /// Bytes: 1, 2, 4 or 8. Ignored for [`Access::Execute`].
    pub len: u8,
    /// Which accesses count.
    pub access: Access,
    /// For which thread or CPU they count.
    pub scope: Scope,
    /// Count also in threads and processes that the thread starts from now on. Each of them takes debug
    /// registers of its own.
    pub inherit: bool,
}

/// Why there is no breakpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BreakpointError {
    /// A debug register cannot hold the range.
    #[error("{len} bytes at {addr} cannot be watched: 1, 2, 4 or 8 bytes, aligned to as many")]
    BadRange {
        /// Its first byte.
        addr: RemoteAddr,
        /// Its length in bytes.
        len: u8,
    },
    /// ENOSPC: no debug register is free.
    #[error("no debug register is free for {scope:?}: other breakpoints hold them")]
    NoRegister {
        /// For which thread or CPU.
        scope: Scope,
    },
    /// ESRCH: there is no such thread.
    #[error("thread {tid} is gone")]
    NoThread {
        /// The thread.
        tid: u32,
    },
    /// EACCES or EPERM: the kernel does not permit it.
    #[error(
        "hardware breakpoints are not permitted for {scope:?}: {source} (perf_event_paranoid is {paranoid}; CAP_PERFMON is needed)"
    )]
    Denied {
        /// For which thread or CPU.
        scope: Scope,
        /// The text of `/proc/sys/kernel/perf_event_paranoid`.
        paranoid: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// ENODEV, ENOENT or EOPNOTSUPP: this machine has no such registers, or the CPU is off.
    #[error(
        "hardware breakpoints are not to be had for {scope:?}: {source} (a virtual machine without debug registers, or a CPU that is off)"
    )]
    Unsupported {
        /// For which thread or CPU.
        scope: Scope,
        /// The kernel's error.
        source: io::Error,
    },
    /// EMFILE or ENFILE: no descriptor is free.
    #[error("no descriptor left for another breakpoint: {source}; raise RLIMIT_NOFILE (ulimit -n)")]
    NoDescriptor {
        /// The kernel's error.
        source: io::Error,
    },
    /// Any other error.
    #[error("cannot {what}: {source}")]
    System {
        /// What failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A breakpoint that counts as long as this value exists.
#[derive(Debug)]
pub struct Breakpoint {
    event: File,
    spec: Spec,
    enabled: bool,
}

impl Spec {
    fn check(&self) -> Result<(), BreakpointError> {
        let fits = matches!(self.len, 1 | 2 | 4 | 8) && self.addr.0.is_multiple_of(self.len.into());
        match fits || self.access == Access::Execute {
            true => Ok(()),
            false => Err(BreakpointError::BadRange { addr: self.addr, len: self.len }),
        }
    }
    fn attr(&self, enabled: bool) -> Attr {
        /// For instructions the kernel requires the size of a `long`.
        const LONG: u64 = 8;
        let (bp_type, len) = match self.access {
            Access::Write => (2, self.len.into()),
            Access::ReadWrite => (3, self.len.into()),
            Access::Execute => (perf::EXECUTE, LONG),
        };
        let flags = perf::EXCLUDE_KERNEL
            | perf::EXCLUDE_HV
            | if self.inherit { perf::INHERIT } else { 0 }
            | if enabled { 0 } else { perf::DISABLED };
        Attr { kind: perf::BREAKPOINT, bp_type, config1: self.addr.0, config2: len, flags, ..Attr::default() }
    }
}

impl Scope {
    /// The arguments `pid` and `cpu` of the system call.
    fn numbers(self) -> (i32, i32) {
        let cpu = |cpu: Option<u32>| cpu.map_or(-1, u32::cast_signed);
        match self {
            Self::Thread { tid, cpu: on } => (tid.map_or(0, u32::cast_signed), cpu(on)),
            Self::Cpu(on) => (-1, cpu(Some(on))),
        }
    }
}

fn refused(scope: Scope, source: io::Error) -> BreakpointError {
    match (source.raw_os_error(), scope) {
        (Some(libc::ENOSPC), _) => BreakpointError::NoRegister { scope },
        (Some(libc::ESRCH), Scope::Thread { tid: Some(tid), .. }) => BreakpointError::NoThread { tid },
        (Some(libc::EPERM | libc::EACCES), _) => {
            let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
            let paranoid = paranoid.map_or_else(|_| "unknown".into(), |text| text.trim().to_owned());
            BreakpointError::Denied { scope, paranoid, source }
        }
        (Some(libc::ENODEV | libc::ENOENT | libc::EOPNOTSUPP), _) => {
            BreakpointError::Unsupported { scope, source }
        }
        (Some(libc::EMFILE | libc::ENFILE), _) => BreakpointError::NoDescriptor { source },
        _ => BreakpointError::System { what: "open a hardware breakpoint", source },
    }
}

impl Breakpoint {
    /// Opens it; it counts at once if `enabled`. Its debug registers are taken either way.
    ///
    /// # Errors
    /// The reason, as one of the variants.
    pub fn open(spec: Spec, enabled: bool) -> Result<Self, BreakpointError> {
        spec.check()?;
        let (pid, cpu) = spec.scope.numbers();
        let event = perf::open(spec.attr(enabled), pid, cpu).map_err(|e| refused(spec.scope, e))?;
        Ok(Self { event: event.into(), spec, enabled })
    }
    /// What it watches, and for which thread or CPU.
    #[must_use]
    pub const fn spec(&self) -> Spec {
        self.spec
    }
    /// Starts or stops counting, in inherited copies too. The debug registers stay taken.
    ///
    /// # Errors
    /// [`BreakpointError::System`].
    pub fn set_enabled(&mut self, enabled: bool) -> Result<(), BreakpointError> {
        let what = if enabled { "enable a hardware breakpoint" } else { "disable a hardware breakpoint" };
        let set = if enabled { perf::enable } else { perf::disable };
        set(self.event.as_fd()).map_err(|source| BreakpointError::System { what, source })?;
        self.enabled = enabled;
        Ok(())
    }
    /// Watches another range, or for another access, on the same event and in the same scope. The count goes
    /// on from its value.
    ///
    /// # Errors
    /// As [`Self::open`]; the breakpoint is then unchanged.
    pub fn modify(&mut self, addr: RemoteAddr, len: u8, access: Access) -> Result<(), BreakpointError> {
        let spec = Spec { addr, len, access, ..self.spec };
        spec.check()?;
        perf::modify(self.event.as_fd(), spec.attr(self.enabled)).map_err(|e| refused(spec.scope, e))?;
        self.spec = spec;
        Ok(())
    }
    /// The number of accesses so far, those of inherited copies included.
    ///
    /// # Errors
    /// [`BreakpointError::System`].
    pub fn count(&self) -> Result<u64, BreakpointError> {
        let mut word = [0; 8];
        (&self.event).read_exact(&mut word).map_err(|source| BreakpointError::System {
            what: "read a hardware breakpoint's count",
            source,
        })?;
        Ok(u64::from_ne_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::{Access, Breakpoint, BreakpointError, RemoteAddr, Scope, Spec};

    const ME: Scope = Scope::Thread { tid: None, cpu: None };

    fn spec(word: &AtomicU64, access: Access) -> Spec {
        Spec {
            addr: RemoteAddr(std::ptr::from_ref(word).addr() as u64),
            len: 8,
            access,
            scope: ME,
            inherit: false,
        }
    }

    /// Opens it, or prints why that fails: other programs may hold the debug registers just now.
    fn open(spec: Spec, enabled: bool) -> Option<Breakpoint> {
        match Breakpoint::open(spec, enabled) {
            Ok(breakpoint) => Some(breakpoint),
            Err(
                error @ (BreakpointError::Denied { .. }
                | BreakpointError::Unsupported { .. }
                | BreakpointError::NoRegister { .. }),
            ) => {
                println!("SKIP: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn every_access_counts_while_it_is_enabled() {
        let (word, other) = (AtomicU64::new(0), AtomicU64::new(0));
        let Some(mut writes) = open(spec(&word, Access::Write), false) else { return };
        let Some(both) = open(spec(&word, Access::ReadWrite), true) else { return };
        word.store(1, Relaxed);
        writes.set_enabled(true).expect("enabled");
        (0..10).for_each(|n| word.store(n, Relaxed));
        assert_eq!((0..5).map(|_| black_box(word.load(Relaxed))).max(), Some(9));
        writes.set_enabled(false).expect("disabled");
        word.store(2, Relaxed);
        let counts = (writes.count().expect("count"), both.count().expect("count"));
        assert_eq!(counts, (10, 17));

        // Moved to another word while disabled; then enabled.
        let moved = spec(&other, Access::Write);
        writes.modify(moved.addr, moved.len, moved.access).expect("modified");
        other.store(1, Relaxed);
        writes.set_enabled(true).expect("enabled");
        other.store(2, Relaxed);
        word.store(3, Relaxed);
        assert_eq!((writes.count().expect("count"), writes.spec()), (11, moved));
    }

    #[test]
    fn threads_started_later_count_if_inherited() {
        let word = AtomicU64::new(0);
        let store = || std::thread::scope(|scope| drop(scope.spawn(|| word.store(1, Relaxed)).join()));
        let Some(alone) = open(spec(&word, Access::Write), true) else { return };
        let Some(family) = open(Spec { inherit: true, ..spec(&word, Access::Write) }, true) else { return };
        store();
        store();
        assert_eq!((alone.count().expect("count"), family.count().expect("count")), (0, 2));
    }

    #[test]
    fn what_cannot_be_watched_is_refused_by_type() {
        let word = AtomicU64::new(0);
        let good = spec(&word, Access::Write);
        for (off, len) in [(1, 2), (4, 8), (0, 3), (0, 16), (0, 0)] {
            let bad = Breakpoint::open(Spec { addr: RemoteAddr(good.addr.0 + off), len, ..good }, true);
            assert!(matches!(bad, Err(BreakpointError::BadRange { .. })), "{off} {len}: {bad:?}");
        }
        let gone = Scope::Thread { tid: Some((1 << 22) - 1), cpu: None };
        let gone = Breakpoint::open(Spec { scope: gone, ..good }, true);
        assert!(
            matches!(gone, Err(BreakpointError::NoThread { .. } | BreakpointError::Denied { .. })),
            "{gone:?}"
        );
    }

    #[test]
    fn registers_run_out_and_come_back() {
        let word = AtomicU64::new(0);
        let wanted = spec(&word, Access::Write);
        let mut all = Vec::new();
        let error = loop {
            match Breakpoint::open(wanted, true) {
                Ok(breakpoint) if all.len() < 64 => all.push(breakpoint),
                Ok(_) => panic!("debug registers without end"),
                Err(error) => break error,
            }
        };
        if all.is_empty() {
            println!("SKIP: {error}");
            return;
        }
        assert!(matches!(error, BreakpointError::NoRegister { .. }), "{error}");
        drop(all.pop());
        assert!(open(wanted, true).is_some());
    }
}
