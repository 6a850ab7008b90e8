//! Generated code: what runs in the target at a hit.
//!
//! In: plain values (addresses, what the machine and the process offer, what is free at the site). Out:
//! words, correct at the one address named. Invariants: STUB-1: only general registers are used (of the
//! vectors, a condition may read one). Every register except x16 and x17, where these are free, the flags and
//! the stack are as they were when the displaced code begins (SAFE-2). STUB-2: x29 keeps its value. STUB-3:
//! no store goes to a line that another CPU writes, except by threads without an rseq area (COST-2). STUB-4:
//! every word is counted exactly: by one rseq commit, or by an atomic addition (LOSS-1). Does not: relocate
//! displaced code, choose addresses, decide what is free.

mod access;
pub mod aggregate_at_return;
mod asm;
mod call;
mod count;
mod counted;
pub mod deferred;
pub mod filter;
pub mod filtering;
mod frame;
pub mod latency;
mod own_trampolines;
mod put;
pub mod rows;
mod rseq;
mod saves;
mod stack;
pub mod tally;
pub(crate) mod text;
pub mod threads;
pub mod trace;
mod trampolines;

pub use aggregate_at_return::aggregate_call;
pub use call::{Called, NoCall, call};
pub use count::{Pending, count};
pub use deferred::defer;
pub use filtering::{Filtered, count_filtered};
pub use latency::{
    ExitKind, Latency, Signed, Timed, latency_arm, latency_enter, latency_exit, trampoline_code,
};
pub use own_trampolines::{common_return, own_trampoline_code, own_trampoline_code_len};
pub use tally::{Table, Tallied, tally};
pub use threads::{Threads, count_by_thread};
pub use trace::{Rings, Traced, trace};

/// The code of a stub, which waits for its displaced code.
pub trait Code {
    /// Address at which the displaced code will run. The caller relocates it for that address.
    fn displaced_at(&self) -> u64;
    /// The whole stub, with the displaced code, and a branch `back` if that falls through. `None` if this is
    /// out of reach.
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>>;
}

impl Code for Pending {
    fn displaced_at(&self) -> u64 {
        Self::displaced_at(self)
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
        Self::finish(self, displaced, back)
    }
}

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
