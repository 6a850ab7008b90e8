//! Generated code: what runs in the target at a hit.
//!
//! In: plain values (addresses, what the machine and the process offer, what is dead at the site). Out: bytes
//! appended to a vector, correct at the one address named.
//! Invariants: STUB-1 only general registers are used (except for what `call` saves around a consumer), and
//! every register, flag, vector and red-zone byte is as it was when the displaced code begins (SAFE-2);
//! STUB-2 rbp keeps its value, so that frame-pointer unwinding works in a stub; STUB-3 no store goes to a
//! line that another CPU writes, except by threads without an rseq area (COST-2); STUB-4 every word is
//! counted exactly: by one rseq commit, or by `lock add` (LOSS-1).
//! Does not: relocate displaced code, choose addresses, decide what is dead.

mod aggregate_at_return;
pub(crate) mod arguments;
mod asm;
pub mod call;
pub mod count;
mod counted;
mod deferred;
pub mod filter;
mod filtered_count;
mod filtered_path;
mod filtering;
mod hold;
pub mod latency;
pub mod own_trampolines;
mod put;
pub mod remote;
mod rows;
mod rseq;
mod saves;
pub(crate) mod stack;
mod state;
pub mod tally;
mod text;
pub mod threads;
pub mod trace;
pub mod trampolines;
pub mod trap;
mod word;
mod written;

use asm::Asm;
pub use call::{CallFunctions, Gate, InlinedPath, call, call_arming, gate};
pub use count::count;
pub use filtered_count::count_filtered;
pub use filtering::Filtered;
pub use hold::hold;
pub use latency::{
    Buckets, ExitKind, Latency, Timed, latency_arm, latency_enter, latency_exit, latency_exit_branch,
    leading_trampoline_code, return_arm, trampoline_code, trampoline_code_len,
};
pub use own_trampolines::{own_trampoline_code, own_trampoline_code_len};
pub use remote::remote_sequence;
pub use state::ExtendedState;
pub use tally::tally;
pub use text::PageNotes;
pub use threads::{ThreadId, Threads, count_by_thread};
pub use trace::{Rings, Traced, trace};
pub use trap::{TrapHandler, trap_handler};

/// Where a registered thread's rseq area lies, as PTRACE_GET_RSEQ_CONFIGURATION reports it.
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
    /// Number of counter lines. With rseq, all lines but the last belong to one CPU each; the last is for
    /// threads without an area.
    pub lines: u32,
}

/// What is known to be dead where a stub runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Liveness {
    /// OF SF ZF AF CF PF are all overwritten before they are read.
    pub flags_dead: bool,
    /// Bit `n`: general register `n` is overwritten before it is read. rsp and rbp are never used.
    pub dead: u16,
    /// The 128 bytes below rsp may hold live data; false at function entries.
    pub red_zone_live: bool,
}

impl Liveness {
    /// Whether that register is dead.
    const fn is_dead(&self, reg: asm::Reg) -> bool {
        self.dead >> reg.0 & 1 == 1
    }
}

/// A stub that waits for its displaced code. The caller relocates it to [`Pending::displaced_at`], appends it
/// to the same vector, and calls [`Pending::finish`].
#[derive(Debug)]
#[must_use]
pub struct Pending<'a> {
    origin: u64,
    displaced: u64,
    kind: Kind<'a>,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack: a box would cost more than the copy"
)]
enum Kind<'a> {
    Count(count::Tail),
    FilteredCount(filtered_count::Tail),
    Threads(threads::Tail),
    Traced(trace::Tail<'a>),
    Deferred(deferred::Tail),
    Aggregated(aggregate_at_return::Tail),
    Tallied(tally::Tail),
    Latency(Machine, Latency, u32, Liveness, latency::Tail),
}

impl<'a> Pending<'a> {
    fn new(asm: &Asm<'_>, kind: Kind<'a>) -> Self {
        Self { origin: asm.origin(), displaced: asm.here(), kind }
    }
    /// Address where the displaced code will lie.
    #[must_use]
    pub const fn displaced_at(&self) -> u64 {
        self.displaced
    }
    /// Appends what follows the displaced code: a jump to `resume` (none if that code never runs on), the
    /// paths that are rarely taken, and the rseq descriptors. Returns pairs of addresses: an instruction that
    /// may fault, and where its thread goes on then.
    pub fn finish(self, out: &mut Vec<u8>, resume: Option<u64>) -> Vec<(u64, u64)> {
        let mut asm = Asm::resume(out, self.origin);
        if let Some(resume) = resume {
            asm.unbroken(|asm| asm.jmp(resume));
        }
        let known = match &self.kind {
            Kind::Deferred(tail) => tail.fixups().to_vec(),
            Kind::Tallied(tail) => tail.fixups().to_vec(),
            _ => Vec::new(),
        };
        match self.kind {
            Kind::Count(tail) => tail.finish(&mut asm),
            Kind::FilteredCount(tail) => tail.finish(&mut asm),
            Kind::Threads(tail) => tail.finish(&mut asm),
            Kind::Traced(tail) => return tail.finish(&mut asm),
            Kind::Deferred(tail) => tail.finish(&mut asm),
            Kind::Aggregated(tail) => tail.finish(&mut asm),
            Kind::Tallied(tail) => tail.finish(&mut asm),
            Kind::Latency(machine, latency, function, site, tail) => {
                Timed { machine: &machine, latency: &latency, function, site }.finish(&mut asm, tail);
            }
        }
        known
    }
}
