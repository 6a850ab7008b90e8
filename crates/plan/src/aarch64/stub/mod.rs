//! Generated code: what runs in the target at a hit.
//!
//! In: plain values (addresses, what the machine and the process offer, what is free at the site). Out:
//! words, correct at the one address named. Invariants: STUB-1: only general registers are used (of the
//! vectors, a condition may read one). Every register except x16 and x17, where these are free, the flags and
//! the stack are as they were when the displaced code begins (SAFE-2). STUB-2: x29 keeps its value. STUB-3:
//! no store goes to a line that another CPU writes, except by threads without an rseq area (COST-2). STUB-4:
//! every word is counted exactly: by one rseq commit, or by an atomic addition (LOSS-1). Does not: relocate
//! displaced code, choose addresses, decide what is free.
//!
//! In all pictures S is the program's stack pointer, and `[x]` is the word at x. The content of a register
//! under `-` does not matter. The parts of a stub, in order:
//!
//! ```text
//!   head          sp = S               all registers are the program's
//!   save          sp = S - step        what the action overwrites is on the stack, flags included
//!   action        sp <= S - step       x0 to x7, x29 and vectors are the program's, but for calls
//!   load          sp = S               all registers are the program's again
//!   displaced     the displaced words, as relocated; then `b` back, if they fall through
//!   rare paths    each begins where a jump of the action left it, and goes back there
//!   data          abort handlers and descriptors (`rseq`), then constants
//! ```
//!
//! A system call takes x0 to x5 and x8, which wait on the stack (`threads`, `text`). A consumer is called
//! with another frame (`call`). In a Go program S is 16 bytes below the program's stack pointer (`go`). A
//! timed entry may also write x30 (`latency::armed`), and a recorded stack goes through x30 (`stack`), which
//! is saved for that.

pub mod adding;
pub mod aggregate_at_return;
pub mod arguments;
mod call;
mod count;
mod counted;
pub mod deferred;
pub mod filter;
pub mod filtered_count;
mod filtered_path;
mod filtering;
mod frame;
mod hold;
#[cfg(target_arch = "aarch64")]
mod host;
pub mod keyed_stack;
pub mod latency;
mod load;
mod machine;
pub(in crate::aarch64) mod marked;
mod own_trampolines;
mod pending;
mod put;
mod record_parts;
mod rseq;
pub mod run;
mod saves;
mod sharers;
mod stack;
pub mod tally;
pub(crate) mod text;
pub mod threads;
pub mod trace;
mod traced;
mod trampolines;

use trapline_code::aarch64::asm;
pub use trapline_code::aarch64::asm::NoWords;

pub use crate::machine::ExitKind;
pub use aggregate_at_return::aggregate_call;
pub use call::{Called, NoCall, call};

pub use count::{UnfinishedCount, count};
pub use deferred::defer;
pub use filter::ARGUMENTS;
pub use filtered_count::count_filtered;
pub use filtering::Filtered;
pub(in crate::aarch64) use hold::HOLD_BYTES;
pub(crate) use hold::NUMBERS;
pub use hold::{UnfinishedHold, hold};
pub use latency::{Latency, Signed, Timed, latency_arm, latency_enter, latency_exit, trampoline_code};
pub use load::load;
pub use machine::{Machine, Rseq, SIGNATURE};
pub use own_trampolines::{common_return, own_trampoline_code, own_trampoline_code_len};
pub use pending::Code;
pub use put::Rings;
pub use tally::{TableLocation, Tallied, tally};
pub use threads::{Threads, count_by_thread};
pub use trace::trace;
pub use traced::Traced;
