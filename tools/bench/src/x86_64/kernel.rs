//! The kernel's uprobes on the same functions: what we compare with.

use anyhow::Result;
use trapline_tracee::kernel::{KernelLatency, Uprobe, UprobeMulti};

use crate::x86_64::victim::Sites;

/// A link of the kernel. Its probes stay as long as this value lives.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// Counts entries, or returns.
    Count(UprobeMulti),
    /// Entry and return, with a log2 histogram of the time between.
    Latency(KernelLatency),
}

impl Kernel {
    /// Counts entries of functions in one process.
    pub(crate) fn count(pid: u32, sites: &Sites) -> Result<Self> {
        UprobeMulti::available()?;
        let probes: Vec<Uprobe> = sites.offsets.iter().copied().map(Uprobe::from).collect();
        Ok(Self::Count(UprobeMulti::attach(&sites.path, &probes, Some(pid), false)?))
    }
    /// Counts returns of functions in one process: the cheapest use of the kernel's return probes.
    pub(crate) fn returns(pid: u32, sites: &Sites) -> Result<Self> {
        UprobeMulti::available()?;
        let probes: Vec<Uprobe> = sites.offsets.iter().copied().map(Uprobe::from).collect();
        Ok(Self::Count(UprobeMulti::attach(&sites.path, &probes, Some(pid), true)?))
    }
    /// Times functions in one process.
    pub(crate) fn latency(pid: u32, sites: &Sites) -> Result<Self> {
        UprobeMulti::available()?;
        Ok(Self::Latency(KernelLatency::attach(&sites.path, &sites.offsets, Some(pid))?))
    }
    /// Hits so far. A row does not count if the probe did not see its hits.
    pub(crate) fn hits(&self) -> Result<u64> {
        Ok(match self {
            Self::Count(link) => link.counts()?.iter().sum(),
            Self::Latency(link) => link.log2()?.iter().sum(),
        })
    }
}
