//! What the CPU offers generated code.

use crate::process::CpuFeatures;
use crate::sys::cpu;

/// From AT_HWCAP and AT_HWCAP2 of a process.
pub(crate) fn features(_: u64, hwcap2: u64, cpus: u32) -> CpuFeatures {
    CpuFeatures { rdpid: cpu::has_rdpid(), fsgsbase: hwcap2 & 2 != 0, lse: false, sve: false, cpus }
}
