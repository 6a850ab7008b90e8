//! The kernel's own probes: the last tactic, the reference in tests, and the yardstick of the benchmark.
//!
//! Input: a file and offsets in it. Output: counts. Dropping a value removes its probes. Does not: decide
//! when a kernel probe is right.

mod program;

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use trapline_record::FileOffset;

use crate::error::TargetError;
use crate::living;
use crate::process::possible_cpus;
use crate::sys::bpf;

const DISABLED_HINT: &str = "root (CAP_BPF and CAP_PERFMON, CAP_SYS_ADMIN for BPF programs) is needed";

fn refused(what: &str, error: &io::Error) -> TargetError {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("{what}: {error}; {DISABLED_HINT}"),
        Some(libc::EINVAL) => {
            format!("{what}: {error}; it needs Linux 6.6 or later, and sites at instruction starts")
        }
        _ => format!("{what}: {error}"),
    };
    TargetError::Kernel { why }
}

fn c_path(path: &Path) -> Result<CString, TargetError> {
    CString::new(OsStr::as_bytes(path.as_os_str())).map_err(|e| refused("its path", &e.into()))
}

/// A place in a file for a kernel probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uprobe {
    /// The probed instruction.
    pub offset: FileOffset,
    /// A USDT semaphore. The kernel raises it by one while the probe is there, and lowers it even if the
    /// tracer dies (`ref_ctr_offsets` of a uprobe_multi link).
    pub semaphore: Option<FileOffset>,
}

impl From<u64> for Uprobe {
    fn from(offset: u64) -> Self {
        Self { offset: FileOffset(offset), semaphore: None }
    }
}

/// One uprobe_multi link that counts hits per site in a per-CPU BPF array.
#[derive(Debug)]
pub struct UprobeMulti {
    counts: OwnedFd,
    sites: u32,
    _program: OwnedFd,
    link: Option<OwnedFd>,
}

impl UprobeMulti {
    /// Checks whether it can be used here.
    ///
    /// # Errors
    /// [`TargetError::Kernel`] with the reason.
    pub fn available() -> Result<(), TargetError> {
        let counts = bpf::map(bpf::PERCPU_ARRAY, 4, 8, 1).map_err(|e| refused("making a BPF map", &e))?;
        let code = program::count(counts.as_fd());
        bpf::program(&code).map(drop).map_err(|e| refused("loading a BPF program", &e))
    }
    /// Attaches to places of the file at `path` in process `pid`, or in all processes. With `returns` it
    /// counts returns instead of entries.
    ///
    /// # Errors
    /// [`TargetError::Kernel`] with the reason.
    pub fn attach(
        path: &Path,
        probes: &[Uprobe],
        pid: Option<u32>,
        returns: bool,
    ) -> Result<Self, TargetError> {
        let sites = probes.len() as u32;
        let counts = bpf::map(bpf::PERCPU_ARRAY, 4, 8, sites).map_err(|e| refused("making a BPF map", &e))?;
        let code = program::count(counts.as_fd());
        let program = bpf::program(&code).map_err(|e| refused("loading a BPF program", &e))?;
        let link = link(&program, path, probes, pid, returns)?;
        Ok(Self { counts, sites, _program: program, link: Some(link) })
    }
    /// Removes the probes, and lowers the semaphores. Counts can still be read.
    pub fn detach(&mut self) {
        self.link = None;
    }
    /// Hits of each site, in the order of `probes`.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn counts(&self) -> Result<Vec<u64>, TargetError> {
        sums(&self.counts, self.sites)
    }
}

fn link(
    program: &OwnedFd,
    path: &Path,
    probes: &[Uprobe],
    pid: Option<u32>,
    returns: bool,
) -> Result<OwnedFd, TargetError> {
    let path = c_path(path)?;
    let offsets: Vec<u64> = probes.iter().map(|probe| probe.offset.0).collect();
    let semaphores: Vec<u64> = probes.iter().map(|probe| probe.semaphore.map_or(0, |at| at.0)).collect();
    let cookies: Vec<u64> = (0..offsets.len() as u64).collect();
    let sites = bpf::Sites {
        path: &path,
        offsets: &offsets,
        semaphores: &semaphores,
        cookies: &cookies,
        pid: pid.unwrap_or(0),
        returns,
    };
    bpf::uprobe_multi(program.as_fd(), &sites).map_err(|e| refused("attaching a uprobe_multi link", &e))
}

fn sums(counts: &OwnedFd, entries: u32) -> Result<Vec<u64>, TargetError> {
    let cpus = possible_cpus() as usize;
    let sum = |key| bpf::lookup(counts.as_fd(), key, cpus).map(|words| words.iter().sum());
    (0..entries).map(sum).collect::<io::Result<_>>().map_err(|e| refused("reading a BPF map", &e))
}

/// Threads of a process, in the type that perf_event_open takes.
pub(crate) fn threads(pid: u32) -> Vec<i32> {
    living::threads(pid).unwrap_or_default().into_iter().map(u32::cast_signed).collect()
}

/// Entry and return probes with a BPF log2 histogram of nanoseconds, as bcc's funclatency makes.
#[derive(Debug)]
pub struct KernelLatency {
    counts: OwnedFd,
    _kept: [OwnedFd; 5],
}

impl KernelLatency {
    /// Attaches to file offsets.
    ///
    /// # Errors
    /// [`TargetError::Kernel`] with the reason.
    pub fn attach(path: &Path, offsets: &[u64], pid: Option<u32>) -> Result<Self, TargetError> {
        const THREADS: u32 = 10240;
        let map = |e| refused("making a BPF map", &e);
        let load = |code: &[bpf::Insn]| bpf::program(code).map_err(|e| refused("loading a BPF program", &e));
        let starts = bpf::map(bpf::HASH, 16, 8, THREADS).map_err(map)?;
        let counts = bpf::map(bpf::PERCPU_ARRAY, 4, 8, 64).map_err(map)?;
        let enter = load(&program::enter(starts.as_fd()))?;
        let leave = load(&program::leave(starts.as_fd(), counts.as_fd()))?;
        let probes: Vec<Uprobe> = offsets.iter().copied().map(Uprobe::from).collect();
        let leaving = link(&leave, path, &probes, pid, true)?;
        let entering = link(&enter, path, &probes, pid, false)?;
        Ok(Self { counts, _kept: [entering, leaving, enter, leave, starts] })
    }
    /// Calls per power of two of nanoseconds: bucket `n` holds `2^n..2^(n+1)`, and bucket 0 also 0.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn log2(&self) -> Result<[u64; 64], TargetError> {
        let mut buckets = [0; 64];
        buckets.copy_from_slice(&sums(&self.counts, 64)?);
        Ok(buckets)
    }
}
