//! What the processors of this machine can do, as far as generated code depends on it.
//!
//! Input: nothing. Output: a plain value. Does not: find it out (`numbers` of the processors).

/// What generated code may rely on: features of the CPU, and the number of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuFeatures {
    /// x86-64: `rdpid` may be used.
    pub rdpid: bool,
    /// x86-64: `rdfsbase` may be used (AT_HWCAP2 bit 1).
    pub fsgsbase: bool,
    /// arm64: one instruction can add to memory (FEAT_LSE).
    pub lse: bool,
    /// arm64: there are vectors that a system call does not preserve (SVE).
    pub sve: bool,
    /// Possible CPUs: one more than the highest number that a thread may run on.
    pub cpus: u32,
}
