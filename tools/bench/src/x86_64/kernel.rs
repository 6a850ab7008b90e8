//! The kernel's uprobes on the same functions: what we compare with.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use trapline_tracee::kernel::{KernelLatency, Uprobe, UprobeMulti};

use crate::x86_64::functions;

/// A link of the kernel. Its probes stay as long as this value lives.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// Counts entries, or returns.
    Count(UprobeMulti),
    /// Entry and return, with a log2 histogram of the time between.
    Latency(KernelLatency),
}

/// This program's file, and the offsets of a case's functions in it.
pub(crate) fn sites(case: &str, limit: usize) -> Result<(PathBuf, Vec<u64>)> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("own maps")?;
    let offset = |addr: u64| {
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let (start, end, offset) = (hex(start)?, hex(end)?, hex(rest.split(' ').nth(1)?)?);
            (start..end).contains(&addr).then(|| addr - start + offset)
        })
    };
    let offsets: Option<Vec<u64>> = functions::addresses(case, limit).into_iter().map(offset).collect();
    Ok((std::env::current_exe()?, offsets.context("functions lie in mapped files")?))
}

impl Kernel {
    /// Counts entries of a case's functions in one process.
    pub(crate) fn count(pid: u32, case: &str, limit: usize) -> Result<Self> {
        UprobeMulti::available()?;
        let (path, offsets) = sites(case, limit)?;
        let probes: Vec<Uprobe> = offsets.into_iter().map(Uprobe::from).collect();
        Ok(Self::Count(UprobeMulti::attach(&path, &probes, Some(pid), false)?))
    }
    /// Counts returns of a case's functions in one process: the cheapest use of the kernel's return probes.
    pub(crate) fn returns(pid: u32, case: &str, limit: usize) -> Result<Self> {
        UprobeMulti::available()?;
        let (path, offsets) = sites(case, limit)?;
        let probes: Vec<Uprobe> = offsets.into_iter().map(Uprobe::from).collect();
        Ok(Self::Count(UprobeMulti::attach(&path, &probes, Some(pid), true)?))
    }
    /// Times a case's functions in one process.
    pub(crate) fn latency(pid: u32, case: &str, limit: usize) -> Result<Self> {
        UprobeMulti::available()?;
        let (path, offsets) = sites(case, limit)?;
        Ok(Self::Latency(KernelLatency::attach(&path, &offsets, Some(pid))?))
    }
    /// Hits so far. A row does not count if the probe did not see its hits.
    pub(crate) fn hits(&self) -> Result<u64> {
        Ok(match self {
            Self::Count(link) => link.counts()?.iter().sum(),
            Self::Latency(link) => link.log2()?.iter().sum(),
        })
    }
}
