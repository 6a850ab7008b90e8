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
mod arithmetic;
mod asm;
mod call;
mod count;
mod counted;
pub mod deferred;
pub mod filter;
pub mod filtering;
mod frame;
#[cfg(target_arch = "aarch64")]
mod host;
pub mod latency;
mod machine;
mod own_trampolines;
mod pending;
mod put;
pub mod rows;
mod rseq;
mod saves;
mod stack;
pub mod tally;
pub(crate) mod text;
pub mod threads;
pub mod trace;
mod traced;
mod trampolines;

pub use crate::machine::ExitKind;
pub use aggregate_at_return::aggregate_call;
pub use call::{Called, NoCall, call};

pub use count::{UnfinishedCount, count};
pub use deferred::defer;
pub use filtering::count_filtered;
pub use latency::{Latency, Signed, Timed, latency_arm, latency_enter, latency_exit, trampoline_code};
pub use machine::{Machine, Rseq, SIGNATURE};
pub use own_trampolines::{common_return, own_trampoline_code, own_trampoline_code_len};
pub use pending::Code;
pub use tally::{TableLocation, Tallied, tally};
pub use threads::{Threads, count_by_thread};
pub use trace::trace;
pub use traced::{ARGUMENTS, Filtered, Rings, Traced};
