//! What CPUID reports.

use core::arch::x86_64::__cpuid_count;

/// Whether `rdpid` exists.
pub(crate) fn has_rdpid() -> bool {
    // SAFETY: every x86-64 CPU has cpuid; leaf 7 reads as zero where it does not exist.
    #[allow(unused_unsafe, reason = "safe in newer toolchains")]
    let leaf = unsafe { __cpuid_count(7, 0) };
    leaf.ecx >> 22 & 1 == 1
}

/// The end of XSAVE component `index` (2 and up) in the standard layout, in bytes.
pub(crate) fn xsave_end(index: u32) -> usize {
    // SAFETY: as above; leaf 13 reads as zero for components that do not exist.
    #[allow(unused_unsafe, reason = "safe in newer toolchains")]
    let leaf = unsafe { __cpuid_count(13, index) };
    leaf.ebx as usize + leaf.eax as usize
}
