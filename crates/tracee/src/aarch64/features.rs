//! The features that generated code may use.

use crate::features::CpuFeatures;

/// `HWCAP_ATOMICS` (asm/hwcap.h).
const HWCAP_ATOMICS: u64 = 1 << 8;
/// `HWCAP_SVE`.
const HWCAP_SVE: u64 = 1 << 22;

/// Reads them from AT_HWCAP and AT_HWCAP2 of a process.
pub(crate) const fn features(hwcap: u64, _: u64, cpus: u32) -> CpuFeatures {
    CpuFeatures {
        rdpid: false,
        fsgsbase: false,
        lse: hwcap & HWCAP_ATOMICS != 0,
        sve: hwcap & HWCAP_SVE != 0,
        cpus,
    }
}
