//! Time from entry to return: a stamp at the entry, a histogram at every exit; what x86-64's twin does, by the virtual counter.
//!
//! In: what is timed and where it is kept. Out: the code before an entry's or an exit's displaced word, and what follows it. A stub pushes what it uses and finds
//! the slot of (function, stack pointer at entry), which is the stack pointer again when a `ret` or a jump out of the function is about
//! to run:
//!
//! ```text
//!   S        stack pointer at the function's entry: a multiple of 16, so of a page's 512 slots every other one is used
//!   S-64 …   x16, x17; x14, x15; x12, x13; x11, flags       <- sp in the stub
//! ```
//!
//! | step | what | a signal there |
//! |---|---|---|
//! | E1 | look the slot up; claim a block for the stack page if there is none | its handler's calls lie below sp, in slots of their own |
//! | E2 | a stamp there is of a call that did not return: counted for its function | the same |
//! | E3 | read the counter; store time and function at once | before it, the handler's time counts before the call |
//! | X1 | read the counter, look the slot up; it must be this function's | the handler's time counts after the call |
//! | X2 | take the stamp away | a call is recorded once: nobody finds the stamp again |
//! | X3 | count, bucket, sum, extremes: each by a commit of its own (see `record`) | back to the beginning of the one that it broke |
//!
//! Slots are private memory, a block of 512 to each stack page; see `record::latency`. A block is claimed by an exclusive store; a signal
//! makes that fail, and it is looked at again. The counter runs at one rate on all CPUs (Arm ARM D12.1), slower than x86-64's: calls
//! shorter than its step take 0 or 1 of it.
//! In Go the place is (goroutine, S's distance from its stack's end), as x86-64's twin has it: stacks move, and a goroutine goes on in any thread. A function
//! that looks whether its stack suffices and begins anew on a larger one is entered twice at one such place: its first stamp stands.
//! With `outermost` a slot belongs to (thread, function) and holds {time, S of the outermost call}: deeper calls are ignored, and a call at a shallower place proves that
//! the remembered one is gone. In Go it belongs to (goroutine, function), and S is its distance from the stack's end. Slots in place of return addresses are another form (`armed`).

mod armed;
mod mark;
mod record;
mod slot;

use trapline_record::latency::{self as words, at};
use trapline_record::slots::Slots;

use super::asm::{Asm, Cond, Fix, Reg, SP, Update, ZERO};
use super::{Code, Machine};
use crate::request::Buckets;
use armed::Armed;
pub use armed::{Signed, latency_arm, slot_code};
pub(super) use mark::Mark;
use record::Rare;
pub(super) use slot::{Claim, G, Lookup, STACK_END};

/// What is to be timed, and where it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Address of function 0's block on line 0.
    pub area: u64,
    /// How many functions the area holds.
    pub functions: u32,
    /// Address of the stamp memory: tags, then blocks.
    pub stamps: u64,
    /// How large its slots are.
    pub shape: words::Stamps,
    /// Address of the control block's MISSED word.
    pub missed: u64,
    /// Calls shorter than this many ticks count as returns only, and enter no bucket, total, minimum or maximum.
    pub min_ticks: u64,
    /// How durations fall into buckets.
    pub buckets: Buckets,
    /// Count recursion once, by its outermost call.
    pub outermost: bool,
    /// Where calls get slots that come back by one.
    pub slots: Option<Slots>,
}

impl Latency {
    /// The same slots, one for each call of any depth.
    #[must_use]
    pub const fn for_stage(self) -> Self {
        Self { outermost: false, ..self }
    }
}

/// How a function is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// By `ret`.
    Return,
    /// By a jump into another function.
    Tail,
}

/// Registers of a stub: two for anything, the slot (before that the tags, behind it the block), the tag, the block's number or a bucket, the time,
/// one more for anything.
const A: Reg = 16;
const B: Reg = 17;
const SLOT: Reg = 14;
const KEY: Reg = 15;
const INDEX: Reg = 13;
const TIME: Reg = 12;
const C: Reg = 11;
/// Bytes that they take on the stack, with the flags.
const FRAME: u32 = 64;

/// One site to be timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed<'a> {
    /// What the process offers.
    pub machine: &'a Machine,
    /// What is timed, and where it is kept.
    pub latency: &'a Latency,
    /// The function's number, below `latency.functions`.
    pub function: u32,
    /// The call is that of the goroutine that x28 names, wherever its stack is, and not its place's on the stack.
    pub goroutine: bool,
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct Pending<'a> {
    asm: Asm,
    timed: Timed<'a>,
    tail: Tail,
}

/// What is left to append behind the displaced code.
#[derive(Debug)]
enum Tail {
    Enter {
        loop_entry: bool,
        occupied: Fix,
        stamp: u64,
        lookup: Lookup,
        leave: u64,
    },
    Exit {
        lookup: Lookup,
        other: Fix,
        negative: Fix,
        clamped: u64,
        rare: Option<Rare>,
        kind: ExitKind,
        leave: u64,
    },
    Armed(Armed),
}

/// The stub of an entry, up to the displaced code. With `loop_entry` the entry is also a branch target, so the first stamp of (function, S)
/// stands until the exit.
pub fn latency_enter(at: u64, timed: Timed<'_>, loop_entry: bool) -> Pending<'_> {
    let mut asm = Asm::new(at);
    let tail = timed.enter(&mut asm, loop_entry);
    Pending { asm, timed, tail }
}

/// The stub of an exit, up to the `ret` or jump that leaves.
pub fn latency_exit(at: u64, timed: Timed<'_>, kind: ExitKind) -> Pending<'_> {
    let mut asm = Asm::new(at);
    let tail = timed.exit(&mut asm, kind);
    Pending { asm, timed, tail }
}

impl Code for Pending<'_> {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
        let Self { mut asm, timed, tail } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        timed.finish(&mut asm, tail);
        asm.pool();
        asm.words()
    }
}

impl Timed<'_> {
    const fn stride(&self) -> u64 {
        self.machine.lines as u64 * words::STRIDE
    }
    /// The function's block on line 0.
    const fn block(&self) -> u64 {
        self.latency.area.wrapping_add(self.function as u64 * self.stride())
    }
    /// A word of the function's block on the last line.
    const fn last(&self, word: u64) -> u64 {
        self.block().wrapping_add(self.stride() - words::STRIDE + word)
    }

    fn prologue(asm: &mut Asm) {
        asm.add_imm(SP, SP, -FRAME.cast_signed());
        asm.store_two(A, B, SP, 0);
        asm.store_two(SLOT, KEY, SP, 16);
        asm.store_two(TIME, INDEX, SP, 32);
        asm.flags(A);
        asm.store_two(C, A, SP, 48);
    }
    fn epilogue(asm: &mut Asm) {
        asm.load_two(C, A, SP, 48);
        asm.set_flags(A);
        asm.load_two(TIME, INDEX, SP, 32);
        asm.load_two(SLOT, KEY, SP, 16);
        asm.load_two(A, B, SP, 0);
        asm.add_imm(SP, SP, FRAME.cast_signed());
    }
    /// Adds one to the word whose address is in `B`; spoils `A`, `C` and `KEY`.
    fn add_one(&self, asm: &mut Asm) {
        asm.one(A);
        asm.update(self.machine.lse, Update::Add, A, B, [C, KEY]);
    }

    /// `to` = what this call puts into its slot's second word. Spoils `KEY`.
    fn owner(&self, asm: &mut Asm, to: Reg) {
        if !self.latency.outermost {
            return asm.number(to, self.function + 1);
        }
        asm.add_imm(to, SP, FRAME.cast_signed());
        if self.goroutine {
            // Its stack moves, and its end with it. Deeper is smaller here, too: none is above its end.
            asm.load_at(KEY, G, STACK_END);
            asm.sub(to, to, KEY);
        }
    }

    fn enter(&self, asm: &mut Asm, loop_entry: bool) -> Tail {
        Self::prologue(asm);
        let lookup = self.lookup(asm, FRAME);
        asm.load_at(A, SLOT, 8);
        let occupied = asm.unless_zero_later(A);
        let stamp = asm.here();
        self.owner(asm, B);
        asm.clock(A);
        asm.store_two(A, B, SLOT, 0);
        let leave = asm.here();
        Self::epilogue(asm);
        Tail::Enter { loop_entry, occupied, stamp, lookup, leave }
    }

    fn exit(&self, asm: &mut Asm, kind: ExitKind) -> Tail {
        Self::prologue(asm);
        asm.clock(TIME);
        let lookup = self.lookup(asm, FRAME);
        asm.load_two(A, B, SLOT, 0);
        self.owner(asm, C);
        asm.compare(B, C);
        let other = asm.if_later(Cond::NotEqual);
        asm.subs(TIME, TIME, A);
        let negative = asm.if_later(Cond::Below);
        let clamped = asm.here();
        asm.store(ZERO, SLOT, 8);
        asm.constant(SLOT, self.block());
        let rare = match self.machine.rseq {
            Some(rseq) => Some(self.record_owned(asm, rseq, kind)),
            None => {
                self.record_shared(asm, kind);
                None
            }
        };
        let leave = asm.here();
        Self::epilogue(asm);
        Tail::Exit { lookup, other, negative, clamped, rare, kind, leave }
    }

    /// Appends what is rare.
    fn finish(&self, asm: &mut Asm, tail: Tail) {
        match tail {
            Tail::Enter { loop_entry, occupied, stamp, lookup, leave } => {
                self.occupied(asm, loop_entry, occupied, stamp, leave);
                self.search(asm, lookup, Claim::Yes);
                asm.constant(B, self.latency.missed);
                self.add_one(asm);
                asm.b(leave);
            }
            Tail::Armed(armed) => self.finish_armed(asm, armed),
            Tail::Exit { lookup, other, negative, clamped, rare, kind, leave } => {
                asm.bind(negative);
                asm.constant(B, self.last(at::CLAMPED));
                self.add_one(asm);
                asm.mov(TIME, ZERO);
                asm.b(clamped);
                self.search(asm, lookup, Claim::No);
                let unpaired = asm.b_later();
                asm.bind(other);
                if self.latency.outermost {
                    // A deeper call than the one that is timed.
                    asm.if_to(Cond::Above, leave);
                }
                asm.bind(unpaired);
                asm.constant(B, self.last(at::UNPAIRED));
                self.add_one(asm);
                asm.b(leave);
                if let Some(rare) = rare {
                    self.record_rare(asm, rare, kind);
                }
            }
        }
    }

    /// An entry that finds a stamp in its slot, whose owner is in `A`.
    fn occupied(&self, asm: &mut Asm, loop_entry: bool, from: Fix, stamp: u64, leave: u64) {
        asm.bind(from);
        self.owner(asm, B);
        asm.compare(A, B);
        if loop_entry {
            asm.if_to(Cond::Equal, leave); // the first stamp stands
        }
        if self.latency.outermost {
            asm.if_to(Cond::Above, leave); // deeper than the outermost call
            asm.constant(B, self.last(at::UNRETURNED));
            self.add_one(asm);
            return asm.b(stamp);
        }
        asm.number(B, self.latency.functions);
        asm.compare(A, B);
        asm.if_to(Cond::Above, stamp); // not a number that we wrote
        // On the last line of function A - 1: one stride further, and one line back.
        asm.constant(B, self.stride());
        asm.constant(C, self.latency.area.wrapping_sub(words::STRIDE).wrapping_add(at::UNRETURNED));
        asm.mul_add(B, A, B, C);
        self.add_one(asm);
        asm.b(stamp);
    }
}
