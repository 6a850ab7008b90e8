//! Generated code: what runs in the target at a hit.
//!
//! Input: plain values (addresses, what the machine and the process offer, what is dead at the site). Output: bytes
//! appended to a vector, correct at the one address named.
//! Invariants: STUB-1 general registers only, and every register, flag, vector and red-zone byte is as it was when the
//! displaced code begins (SAFE-2); STUB-2 rbp is never written, so that frame-pointer unwinding works in a stub;
//! STUB-3 no store to a line that another CPU writes, but for threads without an rseq area (COST-2); STUB-4 every
//! word is counted exactly: by one rseq commit, or by `lock add` (LOSS-1).
//! Does not: relocate displaced code, choose addresses, decide what is dead.

mod asm;
pub mod count;
pub mod latency;
pub mod remote;
mod rseq;
pub mod trap;

pub use count::{Pending, count};
pub use latency::{
    Buckets, ExitKind, Latency, Routines, latency_enter, latency_exit, latency_exit_branch, latency_routines,
};
pub use remote::remote_sequence;
pub use trap::{TrapHandler, trap_handler};

/// Where a registered thread's rseq area lies, as PTRACE_GET_RSEQ_CONFIGURATION tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rseq {
    /// Offset of the area from the thread pointer, in bytes.
    pub offset: i32,
    /// Signature that stands before an abort handler.
    pub signature: u32,
}

/// What the process and its CPU offer to generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Present if the process' threads have rseq areas.
    pub rseq: Option<Rseq>,
    /// The CPU has `rdpid`.
    pub rdpid: bool,
    /// Counter lines. With rseq all but the last belong to one CPU each; the last is for threads without an area.
    pub lines: u32,
}

/// What is known to be dead where a stub runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Site {
    /// OF SF ZF AF CF PF are all overwritten before they are read.
    pub flags_dead: bool,
    /// Bit `n`: general register `n` is overwritten before it is read. rsp and rbp are never used.
    pub dead: u16,
    /// The 128 bytes below rsp may hold live data; false at function entries.
    pub red_zone_live: bool,
}
