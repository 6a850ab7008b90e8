//! The features that generated code may use.

use crate::features::CpuFeatures;
use crate::sys::x86_64::has_rdpid;

/// Reads them from AT_HWCAP2 of a process and from CPUID.
pub(crate) fn features(_: u64, hwcap2: u64, cpus: u32) -> CpuFeatures {
    CpuFeatures { rdpid: has_rdpid(), fsgsbase: hwcap2 & 2 != 0, lse: false, sve: false, cpus }
}
