//! The other form of a timed call: the entry puts a return trampoline into x30, and the
//! trampoline's code is the one exit.
//!
//! In: what is timed, with [`Trampolines`]; whether x30 was signed before the entry's word. Out: the entry's
//! stub, and for a process the trampolines with the code that they share. Invariants: SLOT-1 to SLOT-3 of the
//! twin's `stub::trampolines`; SAFE-2: when the caller goes on, all registers but x30 are as the function
//! left them, and x30 holds the address where it goes on, as behind any `ret`. Does not: inform unwinders.
//!
//! | step | what | which code may look in between |
//! |---|---|---|
//! | A0 | if signed: authenticated, with the stack pointer that it was signed with | |
//! | A1 | the trampoline's byte, by an exclusive store: | a handler of this thread, other threads, |
//! | | it was 0, and becomes LENT. | a forked child: each takes another one |
//! | | Acquires what was released when the trampoline was given back | |
//! | A2 | the entry is written: x30, function, time | none: no word names the trampoline yet |
//! | A3 | x30 := trampoline | a search for trampolines: |
//! | | | it is in a register from here on, then where the function puts it, signed perhaps |
//! | A4 | the entry's WORD := the stack pointer at the entry: below it the function keeps x30, if it does | |
//! | A5 | BEGUN + 1, by a commit of its own: what the twin says of calls that began and did not end | |
//! | A6 | if signed: signed again, with the same stack pointer; the function authenticates the trampoline's address | |
//! | B1 | `ret` leads to the trampoline, and that to the | a search for trampolines: |
//! | | shared code (`stub::trampolines`): x30 = its number | pc is in the trampoline, or in the shared code |
//! | B2 | return address, function and time are read | |
//! | B3 | WORD := 0, then the byte := 0, | a thread that takes the trampoline now finds nothing of ours in it; |
//! | | which releases what was read | x30 still has the number, so a search sees which one it was |
//! | B4 | x30 := the return address; the duration is recorded as at any exit (`record`); `ret` | |
//!
//! ```text
//!           sp       x30                x16 A     x17 B    x14 CELL  x15 KEY    x13 INDEX  x12 TIME     x11 C
//!   A0      S        plain              the others are the program's
//!   A1      S - 64   plain              scratch   LENT     table     the hint   n          groups left  the byte
//!   A2      S - 64   plain              WHAT      TIME     entry     -          n          -            UNDER
//!   A3, A4  S - 64   trampoline n       S         -        entry     -          n          -            -
//!   A5      S - 64   trampoline n       scratch   scratch  WHAT      scratch    -          -            scratch
//!   A6      S        the same, signed   the others are the program's
//!   B1      S        n                  the others are as the function left them
//!   B2, B3  S - 64   n                  TIME      WHAT     entry     the byte   -          the time     REAL
//!   B4      S - 64   REAL               scratch   scratch  WHAT      scratch    bucket     duration     scratch
//!   end     S        REAL               the others are as the function left them
//!
//!   trampoline n = code + CODE·n + RETURN               CODE = 32, RETURN = 4
//!   its entry    = table + entries_off + ENTRY·n        REAL + 0, WORD + 8, TIME + 16, WHAT + 24, UNDER + 32
//!   its byte     = table + LENT_OFF + n                 LENT = 255 if taken, else 0
//!   hint         = table + 64 (cpu mod HINT_LINES)           without rseq: (S >> 12) mod HINT_LINES
//!   n            = [hint], then + 8 until its group of eight bytes has one that is 0: the lowest
//! ```
//!
//! The frame is that of `saves`, 64 bytes. WHAT is the function's block on line 0.
//!
//! If a call was entered with a trampoline in x30 already (a tail call), its own trampoline returns to that
//! one. Such chains are at most [`CHAIN`](trapline_record::trampolines::CHAIN) deep. x30 is plain then, or
//! signed by this function's pad. A signature that was made before the jump here would not be authenticated
//! by any code.
//!
//! A signal may come between any two steps. Its handler's calls take other trampolines, and x30 is in its
//! frame, where a search of memory finds it. A call that is left by `longjmp` or an exception, and one on a
//! thread that ends, never reaches B1. A detach finds threads at any step, also one that a handler holds
//! there. What becomes of their trampolines is up to `patch` (`trampolines`, `aarch64::returns`). A forked
//! child has copies of all but the code, and comes back in its own.
//!
//! A function that is a signal handler returns into the vdso, which unwinders recognize by that address
//! alone. From within its call they see no further than the handler. (In our own process such calls are left
//! alone.)

use trapline_record::latency::at;
use trapline_record::trampolines::{self, Trampolines, at as entry};

use super::super::asm::{Asm, Cond, Fix, Reg, SP, ZERO};
use super::super::counted::add_one;
use super::super::machine::Machine;
use super::super::rseq::{self, CPU_ID};
use super::super::trampolines::{LINK, RET, RETURN, lay};
use super::area::Latency;
use super::record::{DurationBlock, RareBegun};
use super::saves::{A, B, C, CELL, FRAME, INDEX, KEY, Saves, TIME};
use crate::unwind::TrampolineCode;

/// The key with which a function signs its return address: the word of its landing pad, and the word that
/// undoes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signed {
    /// `paciasp`, `autiasp`.
    KeyA,
    /// `pacibsp`, `autibsp`.
    KeyB,
}

impl Signed {
    /// The key with which this word signs.
    #[must_use]
    pub const fn by(word: u32) -> Option<Self> {
        match word {
            0xD503_233F => Some(Self::KeyA),
            0xD503_237F => Some(Self::KeyB),
            _ => None,
        }
    }
    const fn sign(self) -> u32 {
        match self {
            Self::KeyA => 0xD503_233F,
            Self::KeyB => 0xD503_237F,
        }
    }
    const fn authenticate(self) -> u32 {
        match self {
            Self::KeyA => 0xD503_23BF,
            Self::KeyB => 0xD503_23FF,
        }
    }
}

/// What is left to append behind an arming entry's displaced code.
#[derive(Debug)]
pub(super) struct Armed {
    chained: Fix,
    take: u64,
    full: Fix,
    look: u64,
    under: Fix,
    known: u64,
    begun: Option<RareBegun>,
    leave: u64,
}

/// Trampolines, the code that they share, and their unwind information. `None` if nothing is timed by
/// trampolines, or if there are more than a branch reaches.
#[must_use]
pub fn trampoline_code(machine: &Machine, latency: &Latency) -> Option<TrampolineCode> {
    let arming = Arming::of(machine, latency, 0)?;
    lay(&arming.trampolines, |asm| {
        arming.come_back(asm);
        asm.pool();
    })
}

/// The entry of a call that gets a return trampoline, and the code of its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arming {
    machine: Machine,
    trampolines: Trampolines,
    durations: DurationBlock,
    /// Address of the control block's MISSED word.
    missed: u64,
}

impl Arming {
    /// `None` without trampolines.
    pub(super) fn of(machine: &Machine, latency: &Latency, function: u32) -> Option<Self> {
        let durations = DurationBlock::of(machine, latency, function);
        Some(Self { machine: *machine, trampolines: latency.trampolines?, durations, missed: latency.missed })
    }
    /// The part of an entry's stub that comes before the displaced code.
    pub(super) fn begin(&self, asm: &mut Asm, signed: Option<Signed>) -> Armed {
        let trampolines = &self.trampolines;
        if let Some(key) = signed {
            asm.word(key.authenticate());
        }
        Saves::enter(asm);
        let chained = Self::if_trampoline_later(asm, trampolines);
        let take = asm.here();
        self.hint(asm);
        asm.load32(INDEX, KEY, 0);
        asm.number(TIME, trampolines.count / 8);
        let look = asm.here();
        let full = Self::take(asm, trampolines, look);
        // Steps A2 to A5.
        let under = Self::if_trampoline_later(asm, trampolines);
        asm.mov(C, ZERO);
        let known = asm.here();
        Self::entry_of(asm, trampolines, INDEX);
        asm.store(LINK, CELL, entry::REAL as u32);
        asm.store(C, CELL, entry::UNDER as u32);
        asm.constant(A, self.durations.at());
        asm.clock(B);
        asm.store(B, CELL, entry::TIME as u32);
        asm.store(A, CELL, entry::WHAT as u32);
        asm.constant(A, trampolines.code + RETURN);
        asm.add_shifted(LINK, A, INDEX, trampolines::CODE.trailing_zeros());
        asm.add_imm(A, SP, FRAME.cast_signed());
        asm.store(A, CELL, entry::WORD as u32);
        let begun = self.durations.begun(asm);
        let leave = asm.here();
        Saves::leave(asm);
        if let Some(key) = signed {
            asm.word(key.sign());
        }
        Armed { chained, take, full, look, under, known, begun, leave }
    }

    /// `A = x30 - code`. Jumps if that is below `code_len`: x30 holds a trampoline. Uses `B` and flags.
    fn if_trampoline_later(asm: &mut Asm, trampolines: &Trampolines) -> Fix {
        asm.constant(A, trampolines.code);
        asm.sub(A, LINK, A);
        asm.constant(B, trampolines.code_len());
        asm.compare(A, B);
        asm.if_later(Cond::Below)
    }
    /// `CELL = table + entries_off + ENTRY·number`
    fn entry_of(asm: &mut Asm, trampolines: &Trampolines, number: Reg) {
        asm.constant(CELL, trampolines.entry(0));
        asm.add_shifted(CELL, CELL, number, trampolines::ENTRY.trailing_zeros());
    }
    /// `CELL` = the private memory, `KEY` = the hint, which holds where this CPU, or this stack, begins to
    /// search. A stale one costs a longer search. Uses `A`.
    fn hint(&self, asm: &mut Asm) {
        const BITS: u32 = trampolines::HINT_LINES.trailing_zeros();
        asm.constant(CELL, self.trampolines.table);
        match self.machine.rseq {
            Some(area) => {
                rseq::find_area(asm, area, A);
                asm.load32(A, A, CPU_ID);
                asm.bits(A, A, 0, BITS);
            }
            None => {
                asm.add_imm(A, SP, FRAME.cast_signed());
                asm.bits(A, A, 12, BITS);
            }
        }
        asm.add_shifted(KEY, CELL, A, 6);
    }
    /// Step A1, for the group of eight at `INDEX`. Jumps if they are taken. If another thread was faster, it
    /// looks again.
    ///
    /// ```text
    ///   group = n & (count - 8)
    ///   n     = group + ctz(~[CELL + LENT_OFF + group]) / 8
    /// ```
    fn take(asm: &mut Asm, trampolines: &Trampolines, look: u64) -> Fix {
        asm.number(A, trampolines.count - 8);
        asm.and(INDEX, INDEX, A);
        asm.add(C, CELL, INDEX);
        asm.load_at(A, C, Trampolines::LENT_OFF as u32);
        asm.not(A, A);
        let full = asm.if_zero_later(A);
        asm.reverse_bits(A, A);
        asm.leading_zeros(A, A);
        asm.shift_right_by(A, A, 3);
        asm.add(INDEX, INDEX, A);
        asm.add(C, CELL, INDEX);
        asm.add_imm(C, C, Trampolines::LENT_OFF as i32);
        asm.load_exclusive_byte(A, C);
        asm.unless_zero(A, look);
        asm.number(B, trampolines::LENT.into());
        asm.store_exclusive_byte(A, B, C);
        asm.unless_zero(A, look);
        full
    }

    /// Appends the rare paths: a call that was entered by a jump from an armed one, eight neighbours taken,
    /// or all taken.
    pub(super) fn finish(&self, asm: &mut Asm, armed: Armed) {
        let Armed { chained, take, full, look, under, known, begun, leave } = armed;
        asm.bind(full);
        asm.add_imm(INDEX, INDEX, 8);
        asm.store32(INDEX, KEY);
        asm.subtract32(TIME, 1);
        asm.unless_zero(TIME, look);
        let missed = asm.here();
        asm.constant(B, self.missed);
        add_one(asm, &self.machine);
        asm.b(leave);
        asm.bind(chained);
        Self::depth(asm, &self.trampolines);
        asm.number(B, trampolines::CHAIN);
        asm.compare(C, B);
        asm.if_to(Cond::AboveEq, missed);
        asm.b(take);
        asm.bind(under);
        Self::depth(asm, &self.trampolines);
        asm.b(known);
        if let Some(rare) = begun {
            self.durations.begun_rare(asm, rare);
        }
    }
    /// `C` = number of trampolines that lie under one above the one in x30. Uses `CELL` and `A`.
    ///
    /// ```text
    ///   C = [entry of (A / CODE) + UNDER] + 1      A = x30 - code
    /// ```
    fn depth(asm: &mut Asm, trampolines: &Trampolines) {
        asm.shift_right_by(A, A, trampolines::CODE.trailing_zeros());
        Self::entry_of(asm, trampolines, A);
        asm.load_at(C, CELL, entry::UNDER as u32);
        asm.add_imm(C, C, 1);
    }

    /// The code that all trampolines share: B1 to B4.
    fn come_back(&self, asm: &mut Asm) {
        let trampolines = &self.trampolines;
        Saves::enter(asm);
        asm.clock(TIME);
        Self::entry_of(asm, trampolines, LINK);
        asm.load_at(C, CELL, entry::REAL as u32);
        asm.load_two(A, B, CELL, entry::TIME as u32);
        asm.store(ZERO, CELL, entry::WORD as u32);
        asm.constant(KEY, trampolines.table + Trampolines::LENT_OFF);
        asm.add(KEY, KEY, LINK);
        asm.store_release_byte(ZERO, KEY);
        asm.mov(LINK, C);
        asm.mov(CELL, B);
        asm.subs(TIME, TIME, A);
        let negative = asm.if_later(Cond::Below);
        let clamped = asm.here();
        let rare = self.durations.record(asm, self.durations.armed_exit());
        Saves::leave(asm);
        asm.word(RET);
        asm.bind(negative);
        asm.constant(A, self.durations.last_line() + at::CLAMPED);
        asm.add(B, CELL, A);
        add_one(asm, &self.machine);
        asm.mov(TIME, ZERO);
        asm.b(clamped);
        if let Some(rare) = rare {
            self.durations.record_rare(asm, rare, self.durations.armed_exit());
        }
    }
}
