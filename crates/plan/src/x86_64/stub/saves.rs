//! What a record's code saves, and where: below the stack pointer, as in `count`.
//!
//! In: what is dead at the site. Out: code that saves what a filter overwrites ([`First`]), then what a look
//! for a mark overwrites ([`Second`]), then the rest, and that loads all again.
//! Invariant: STUB-1. What is saved here is where conditions (`filter`), texts and stacks expect it.
//!
//! The stack of a record's or aggregation's stub, with all files that store there. A dead register is not
//! saved. Where a line names two users, the first one's value is no longer needed when the second one stores:
//!
//! ```text
//!   rsp - 128          rdi (stack::SAVED)         deferred: TOOK at exits, in nanoseconds
//!   rsp - 120          rsi (stack::SAVED)         deferred: PLACE at entries, TIME at exits; then tally: OWNED
//!   rsp - 112          rcx (stack::SAVED)         deferred: SAVED_RSI
//!   rsp - 104          filter: WAITING[7]         then stack: LIMIT, or adding: SPARE[1]
//!   rsp - 96           filter: WAITING[6]         then stack: STACK, or adding: SPARE[0]
//!   rsp - 88           r10  SAVED_R10
//!   rsp - 80           r11  SAVED_R11             (First)
//!   rsp - 72, -64      filter: WAITING[5], [4]    latency::stamp_cell: r10, r9
//!   rsp - 56           filter: WAITING[3]         deferred: SAVED_R8
//!   rsp - 48, -40, -32 filter: WAITING[2], [1], [0]    then adding: KEY_AT, END, KEY;  shared: LINK, PASSED, DROPPED
//!   rsp - 24           rdx  SAVED_RDX             (Second)
//!   rsp - 16           flags, 4 bytes  FLAGS      (First); at rsp - 12 the thread's number, threads::ANSWER
//!   rsp - 8            rax  SAVED_RAX             (First); at an exit the returned value
//!   rsp                = S - step
//! ```
//!
//! Texts and fields lower rsp further (`text`): the saves are then at `depth` + these offsets.

use trapline_record::ring::RecordKind;

use super::asm::{Asm, Mem, R10, R11, RAX, RDX, RSP, Reg};
use super::machine::Liveness;
use super::stack;

const RED_ZONE: i32 = 128;
pub(super) const SAVED_RAX: i32 = -8;
const FLAGS: i32 = -16;
pub(super) const SAVED_RDX: i32 = -24;
// Between these lie intermediate values of conditions, and later what `latency` saves; below them what
// `stack` saves.
pub(super) const SAVED_R11: i32 = -80;
pub(super) const SAVED_R10: i32 = -88;
/// Of a call with a deferred record: while rsi is its cell.
pub(super) const SAVED_RSI: i32 = -112;

/// All that the code of one record saves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saves {
    first: First,
    /// The record holds a stack.
    stack: bool,
}

impl Saves {
    pub(super) const fn of(site: Liveness, kind: RecordKind, stack: bool) -> Self {
        let at_entry = matches!(kind, RecordKind::Entry);
        Self { first: First { site, at_entry, is_begun: false }, stack }
    }
    /// The same in shared code, for hits whose stub has lowered rsp and saved r11.
    pub(super) const fn begun(self) -> Self {
        Self { first: First { is_begun: true, ..self.first }, ..self }
    }
    /// The first save alone.
    pub(super) const fn first(&self) -> First {
        self.first
    }
    /// By how many bytes the stack pointer is below the program's.
    pub(super) const fn step(&self) -> i32 {
        if self.first.site.red_zone_live { RED_ZONE } else { 0 }
    }
    /// Registers that are saved in addition to those of [`First`] and [`Second`].
    fn rest(&self) -> impl Iterator<Item = (Reg, i32)> {
        let walked = if self.stack { &stack::SAVED[..] } else { &[] };
        let r10 = (!self.first.site.is_dead(R10)).then_some((R10, SAVED_R10));
        r10.into_iter().chain(walked.iter().copied())
    }
    pub(super) fn enter(&self, asm: &mut Asm<'_>) {
        self.first.enter(asm);
        Second::enter(asm);
        self.enter_rest(asm);
    }
    pub(super) fn enter_rest(&self, asm: &mut Asm<'_>) {
        self.rest().for_each(|(reg, at)| asm.store(Mem::At(RSP, at), reg));
    }
    pub(super) fn leave(&self, asm: &mut Asm<'_>) {
        self.rest().for_each(|(reg, at)| asm.load(reg, Mem::At(RSP, at)));
        Second::leave(asm);
        self.first.leave(asm);
    }
}

/// The second save: rdx, the only register that a look for a mark overwrites in addition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Second;

impl Second {
    pub(super) fn enter(asm: &mut Asm<'_>) {
        asm.store(Mem::At(RSP, SAVED_RDX), RDX);
    }
    pub(super) fn leave(asm: &mut Asm<'_>) {
        asm.load(RDX, Mem::At(RSP, SAVED_RDX));
    }
}

/// The first save: flags, rax and r11, as far as they are live. A filter overwrites nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    site: Liveness,
    at_entry: bool,
    /// The stub that led to this code, which it shares with others, has lowered rsp and saved r11.
    is_begun: bool,
}

impl First {
    /// Whether rax must be saved: at an exit it holds the returned value.
    const fn saves_rax(self) -> bool {
        !(self.at_entry && self.site.is_dead(RAX))
    }
    pub(super) fn enter(self, asm: &mut Asm<'_>) {
        if !self.is_begun {
            self.step_down(asm);
        }
        if self.saves_rax() {
            asm.store(Mem::At(RSP, SAVED_RAX), RAX);
        }
        if !self.site.flags_dead {
            asm.flags_to_rax();
            asm.store32(Mem::At(RSP, FLAGS), RAX);
        }
        if !self.is_begun && !self.site.is_dead(R11) {
            asm.store(Mem::At(RSP, SAVED_R11), R11);
        }
    }
    pub(super) fn step_down(self, asm: &mut Asm<'_>) {
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
        }
    }
    pub(super) fn step_up(self, asm: &mut Asm<'_>) {
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, RED_ZONE));
        }
    }
    pub(super) fn leave(self, asm: &mut Asm<'_>) {
        if !self.site.flags_dead {
            asm.load32(RAX, Mem::At(RSP, FLAGS));
            asm.flags_from_rax();
        }
        if !self.site.is_dead(R11) {
            asm.load(R11, Mem::At(RSP, SAVED_R11));
        }
        if self.saves_rax() {
            asm.load(RAX, Mem::At(RSP, SAVED_RAX));
        }
        if !self.is_begun {
            self.step_up(asm);
        }
    }
}
