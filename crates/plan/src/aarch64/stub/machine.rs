//! What generated code depends on: what the process and its CPU offer.
//!
//! In: numbers. Out: plain values for all stubs.
//! Does not: emit code.

/// Where a registered thread's rseq area lies, as PTRACE_GET_RSEQ_CONFIGURATION reports it. Its signature is
/// the architecture's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rseq {
    /// Offset of the area from the thread pointer, in bytes; within ±16 MiB.
    pub offset: i32,
}

/// `RSEQ_SIG` (glibc, sys/rseq.h, aarch64): a `brk` that nothing executes.
pub const SIGNATURE: u32 = 0xD428_BC00;

/// What the process and its CPU offer to generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Present if the process' threads have rseq areas.
    pub rseq: Option<Rseq>,
    /// FEAT_LSE: one instruction adds to memory.
    pub lse: bool,
    /// Number of counter lines of 64 bytes, at most 4095. With rseq, all lines but the last belong to one CPU
    /// each; the last is for threads without an area.
    pub lines: u32,
}
