//! The kernel's own probes: the last tactic, the oracle of tests, and the yardstick of the benchmark.

use std::path::Path;

use crate::error::TargetError;

/// One uprobe_multi link that counts hits per site in a per-CPU BPF array.
#[derive(Debug)]
pub struct UprobeMulti {}

impl UprobeMulti {
    /// Why it cannot be used here, if it cannot.
    ///
    /// # Errors
    /// [`TargetError::Kernel`] with the reason.
    pub fn available() -> Result<(), TargetError> {
        todo!()
    }
    /// Attaches to file offsets of `path` in process `pid`, or in all; `returns` counts returns instead of entries.
    ///
    /// # Errors
    /// [`TargetError::Kernel`] with the reason.
    pub fn attach(path: &Path, offsets: &[u64], pid: Option<u32>, returns: bool) -> Result<Self, TargetError> {
        let _ = (path, offsets, pid, returns);
        todo!()
    }
    /// Hits of each site, in the order of `offsets`.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn counts(&self) -> Result<Vec<u64>, TargetError> {
        todo!()
    }
}

/// One uprobe as a perf event that counts.
#[derive(Debug)]
pub struct PerfUprobe {}

impl PerfUprobe {
    /// Attaches at a file offset, in process `pid` and the threads it makes later, or in all processes.
    ///
    /// # Errors
    /// [`TargetError::Kernel`] with the reason.
    pub fn attach(path: &Path, offset: u64, pid: Option<u32>, returns: bool) -> Result<Self, TargetError> {
        let _ = (path, offset, pid, returns);
        todo!()
    }
    /// Hits so far.
    ///
    /// # Errors
    /// When the event cannot be read.
    pub fn count(&self) -> Result<u64, TargetError> {
        todo!()
    }
}

/// Entry and return probes with a BPF log2 histogram of nanoseconds, as bcc's funclatency makes.
#[derive(Debug)]
pub struct KernelLatency {}

impl KernelLatency {
    /// Attaches to file offsets.
    ///
    /// # Errors
    /// [`TargetError::Kernel`] with the reason.
    pub fn attach(path: &Path, offsets: &[u64], pid: Option<u32>) -> Result<Self, TargetError> {
        let _ = (path, offsets, pid);
        todo!()
    }
    /// Calls per power of two of nanoseconds: slot `n` holds `2^n..2^(n+1)`.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn log2(&self) -> Result<[u64; 64], TargetError> {
        todo!()
    }
}
