//! Generated code: what runs in the target at a hit.
//!
//! In: plain values (addresses, what the machine and the process offer, what is dead at the site). Out: bytes
//! appended to a vector, correct at the one address named.
//! Invariants: STUB-1 only general registers are used (except for what `call` saves around a consumer), and
//! every register, flag, vector and red-zone byte is as it was when the displaced code begins (SAFE-2);
//! STUB-2 rbp keeps its value, so that frame-pointer unwinding works in a stub; STUB-3 no store goes to a
//! line that another CPU writes, except by threads without an rseq area (COST-2); STUB-4 every word is
//! counted exactly: by one rseq commit, or by `lock add` (LOSS-1).
//!
//! Pictures of a stub's state write `S` for the program's stack pointer at the site. Offsets are in bytes and
//! rise from line to line. `in` is what the code finds, `out` what it leaves, `uses` what else it overwrites.
//!
//! ```text
//!   S - step           rsp in the stub: step = 128 if the function's own red zone may be live, else 0
//!   S                  the program's stack; what lies from here on up stays as it is. In the action of a USDT
//!                      probe, S is the stack pointer behind what was pushed (`arguments`)
//!   saves              rsp - 128 to rsp, where neither the kernel nor a signal handler writes (psABI red zone)
//!   rbp                the program's, throughout (STUB-2)
//! ```
//!
//! Does not: relocate displaced code, choose addresses, decide what is dead.

mod adding;
mod aggregate_at_return;
pub mod arguments;
pub mod call;
mod count;
mod counted;
mod deferred;
mod deliver;
pub mod filter;
mod filtered_count;
mod filtered_path;
mod filtering;
mod hold;
pub(crate) mod keyed_stack;
mod latency;
mod load;
mod machine;
pub(crate) mod marked;
mod own_trampolines;
mod passed;
mod pending;
mod put;
mod record_parts;
mod remote;
mod rseq;
pub(crate) mod run;
mod saves;
mod shared_record;
mod sharers;
pub(crate) mod stack;
mod state;
pub mod tally;
mod text;
mod threads;
mod trace;
mod traced;
pub mod trampolines;
mod trap;
mod wait;
mod written;

use trapline_code::x86_64::asm;

pub use crate::calls::{CallFunctions, ExtendedState, InlinedPath};
pub use crate::machine::{Buckets, ExitKind, Rseq, ThreadId};
pub use call::{Gate, call, call_arming, gate};
pub use deliver::deliver;
pub use filtering::Filtered;
pub(crate) use hold::NUMBERS;
pub use hold::hold;
pub use latency::{
    Latency, SharedTimed, Timed, leading_trampoline_code, shared_timed, trampoline_code, trampoline_code_len,
};
pub use load::load;
pub use machine::{Liveness, Machine};
pub use own_trampolines::{own_trampoline_code, own_trampoline_code_len};
pub use passed::Passed;
pub use pending::{
    UnfinishedStub, count, count_by_thread, count_filtered, latency_arm, latency_enter, latency_exit,
    return_arm, run, tally, trace,
};
pub use put::Rings;
pub use remote::remote_sequence;
pub use shared_record::{RecordedExit, recorded_exit, shared_record};
pub use text::PageNotes;
pub use threads::Threads;
pub use traced::Traced;
pub use trap::{TrapHandler, trap_handler};
pub use wait::Waits;
