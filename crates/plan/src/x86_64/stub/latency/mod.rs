//! Time from entry to return: a stamp at the entry, a histogram at every exit.
//!
//! A stub saves what it uses below the stack pointer (`timed` has the picture), and finds the stamp cell of
//! (function, stack pointer at entry).
//!
//! ```text
//!   step            rsi                  rdi         rax                 others
//!   entry, lookup   cell                 -           used                rdx used; r8 = S if `special`
//!   free            [rsi + 8] = 0, else `occupied`
//!   stamp           [rsi + 8] = function + 1, or r8 with `outermost`;  [rsi] = rax = time
//!   exit, clock     -                    time        used                rdx used
//!   lookup          cell                 time        used                rdx used; r8 = S if `special`
//!   own             [rsi + 8] = function + 1, or r8;  else unpaired, or a deeper call with `outermost`
//!   duration        cell                 time - [rsi], or 0 if that is below 0
//!   record          block of line 0      duration    used                rcx, rdx used (`record`)
//! ```
//!
//! Stamp cells are private memory, a block of 512 to each stack page; see `record::latency`. The clock is
//! read as the last thing before the stamp and as the first thing at an exit. What an exit finds is written
//! word by word, each by an rseq commit of its own; rare words always by `lock add` on the last line.
//! Everything is in line: calls into shared routines would cost 3 ns of the 25 (COST-1). What is rare lies
//! behind the displaced code.
//! With `outermost` a cell belongs to (thread, function) and holds {tsc, S of the outermost call}. Deeper
//! calls are ignored, and a call at a shallower place proves that the remembered one is gone. In Go, the
//! goroutine takes the place of the thread, and S is the distance from the stack's end, because stacks move.
//! A thread without a goroutine is treated as elsewhere.

mod armed;
mod mark;
mod record;
mod stamp_cell;
mod timed;

use trapline_record::latency::{self as words, at};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, RAX, RDI, RDX, RSI};
use crate::machine::ExitKind;
use armed::Armed;
pub use armed::{leading_trampoline_code, trampoline_code, trampoline_code_len};
pub(super) use mark::{Mark, MarkLookup};
use record::Rare;
pub(super) use stamp_cell::{Claim, Lookup};
pub use timed::{Latency, Timed};
use timed::{add_one, clock};

/// What is left to append behind the displaced code.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack: a box would cost more than the copy"
)]
pub(super) enum LatencyTail {
    Enter {
        loop_entry: bool,
        occupied: Fix,
        stamp: u64,
        lookup: Lookup,
        leave: u64,
    },
    Armed(Armed),
    Exit {
        kind: ExitKind,
        lookup: Lookup,
        other: Fix,
        negative: Fix,
        clamped: u64,
        rare: Option<Rare>,
        leave: u64,
    },
}

/// Appends the whole stub of a conditional jump out of the function. `condition` is the low nibble of its
/// opcode, `target` is where it leads. The code that follows runs if the jump is not taken.
pub fn latency_exit_branch(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, condition: u8, target: u64) {
    let mut asm = Asm::new(out, at);
    let stay = asm.jcc_raw_later(condition ^ 1);
    let tail = timed.exit(&mut asm, ExitKind::Tail);
    asm.jmp(target);
    timed.finish(&mut asm, tail);
    asm.bind(stay);
}

impl Timed<'_> {
    /// The part of an entry's stub that comes before the displaced code. With `loop_entry` the entry is also a
    /// branch target, so the first stamp of (function, S) is kept until the exit.
    pub(super) fn enter(&self, asm: &mut Asm<'_>, loop_entry: bool) -> LatencyTail {
        self.prologue(asm, false);
        let lookup = self.lookup(asm);
        let occupied = asm.unbroken(|asm| {
            asm.alu_mem_imm(Alu::Cmp, Mem::At(RSI, 8), 0, false);
            asm.jcc_later(Cond::NotEqual)
        });
        let stamp = asm.here();
        clock(asm);
        if self.latency.outermost {
            asm.store(Mem::At(RSI, 8), R8);
        } else {
            asm.store_imm(Mem::At(RSI, 8), self.function as i32 + 1);
        }
        asm.store(Mem::At(RSI, 0), RAX);
        let leave = asm.here();
        self.epilogue(asm, false);
        LatencyTail::Enter { loop_entry, occupied, stamp, lookup, leave }
    }

    /// The part of an exit's stub that comes before the `ret` or jump that leaves, right before which it has to
    /// lie.
    pub(super) fn exit(&self, asm: &mut Asm<'_>, kind: ExitKind) -> LatencyTail {
        self.prologue(asm, true);
        clock(asm);
        asm.mov(RDI, RAX);
        let lookup = self.lookup(asm);
        let other = asm.unbroken(|asm| {
            self.compare_owner(asm);
            asm.jcc_later(Cond::NotEqual)
        });
        let negative = asm.unbroken(|asm| {
            asm.alu_load(Alu::Sub, RDI, Mem::At(RSI, 0));
            asm.jcc_later(Cond::Below)
        });
        let clamped = asm.here();
        asm.store_imm(Mem::At(RSI, 8), 0);
        asm.mov_imm64(RSI, self.block());
        let rare = match self.machine.rseq {
            Some(rseq) => Some(self.record_owned(asm, rseq, kind)),
            None => {
                self.record_shared(asm, kind);
                None
            }
        };
        let leave = asm.here();
        self.epilogue(asm, true);
        LatencyTail::Exit { kind, lookup, other, negative, clamped, rare, leave }
    }

    /// Appends the rare paths.
    pub(super) fn finish(&self, asm: &mut Asm<'_>, tail: LatencyTail) {
        match tail {
            LatencyTail::Enter { loop_entry, occupied, stamp, lookup, leave } => {
                self.occupied(asm, loop_entry, occupied, stamp, leave);
                self.miss(asm, lookup, Claim::Yes, None, self.latency.missed, leave);
            }
            LatencyTail::Armed(armed) => self.finish_armed(asm, armed),
            LatencyTail::Exit { kind, lookup, other, negative, clamped, rare, leave } => {
                asm.bind(negative);
                add_one(asm, self.last(at::CLAMPED));
                asm.mov_imm32(RDI, 0);
                asm.jmp(clamped);
                asm.bind(other);
                if self.latency.outermost {
                    asm.jcc(Cond::Above, leave); // a deeper call than the one that is timed
                }
                let unpaired = asm.jmp_later();
                self.miss(asm, lookup, Claim::No, Some(unpaired), self.last(at::UNPAIRED), leave);
                if let Some(rare) = rare {
                    self.record_rare(asm, rare, kind);
                }
            }
        }
    }

    /// The path of an entry that finds a stamp in its cell.
    fn occupied(&self, asm: &mut Asm<'_>, loop_entry: bool, from: Fix, stamp: u64, leave: u64) {
        asm.bind(from);
        self.compare_owner(asm);
        if loop_entry {
            asm.jcc(Cond::Equal, leave); // the first stamp is kept
        }
        if self.latency.outermost {
            asm.jcc(Cond::Above, leave); // deeper than the outermost call
            add_one(asm, self.last(at::UNRETURNED));
        } else {
            asm.load(RAX, Mem::At(RSI, 8));
            asm.alu_imm(Alu::Cmp, RAX, self.latency.functions as i32, true);
            asm.jcc(Cond::Above, stamp); // not a number that stubs write
            asm.imul_imm(RAX, RAX, self.stride(), true);
            asm.mov_imm64(RDX, self.latency.area.wrapping_sub(words::STRIDE));
            asm.alu_mem_imm(Alu::Add, Mem::Sum(RDX, RAX, 0, at::UNRETURNED as i32), 1, true);
        }
        asm.jmp(stamp);
    }
}
