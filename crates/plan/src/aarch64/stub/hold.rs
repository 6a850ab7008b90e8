//! Where a program changes what patches rely on: the thread waits until these patches are removed.
//!
//! In: where the call's number and arguments are ([`Hold`]), the addresses of two words of the control block
//! (`ASKED`, `CLOSED`). Out: code that runs into the displaced code. It makes no system call and reads no clock.
//! Of the program's memory it loads only the action that `sigaction` itself loads next, and words of the stack
//! that the code behind it loads. So it is right whatever the program has denied its threads.
//! Invariants: HOLD-1, HOLD-2 (x86-64's twin, which has the table of places). Does not: decide which patches rely
//! on a fact.
//!
//! ```text
//!   sp +   0   x16, x17 = WORD, FACTS    <- sp
//!   sp +  16   x14, x15 = LEFT, CLOSED
//!   sp +  32   x13 = SCRATCH; the flags
//!   sp +  48   x11, x12 = ALIVE, SEEN
//!   sp +  64   <- S; the program's stack pointer is S + below (GO-2)
//!
//!   WORD       the word that is looked at            LEFT     turns that are left
//!   FACTS      what the thread is about to change    CLOSED   the word's address
//!   SEEN       `ALIVE` as it was seen last           ALIVE    that word's address
//! ```
//!
//! ```text
//!   pass    if closed & facts = facts
//!   else    asked |= facts;  then up to TURNS turns, until closed & facts = facts;
//!           if alive changes: asked |= facts, and TURNS turns again
//!   then    if no turn is left: closed |= facts                                       (HOLD-2)
//! ```
//!
//! `CLOSED` is loaded with acquire, so what the thread runs next is not older than the answer. Its own code was
//! changed while it was stopped.

use trapline_insn::origin::Origin;
use trapline_record::control::at;

use super::asm::{Asm, Cond, Fix, NoWords, Reg, SP, Update};
use super::machine::Machine;
use super::pending::Code;
use crate::held_calls::{Numbers, Tests, decide};
use crate::request::Hold;

pub(crate) const NUMBERS: Numbers = Numbers { rt_sigaction: 134, prctl: 167, seccomp: 277 };
/// Upper bound of the stub's bytes, with what it displaces.
pub(in crate::aarch64) const HOLD_BYTES: u64 = 1024;
/// Number of turns of `isb`, which takes 10 to 60 cycles: from a quarter of a second to two seconds of a CPU.
const TURNS: u32 = 1 << 26;
pub(super) const WORD: Reg = 16;
pub(super) const FACTS: Reg = 17;
const LEFT: Reg = 14;
pub(super) const CLOSED: Reg = 15;
pub(super) const SCRATCH: Reg = 13;
const SEEN: Reg = 12;
const ALIVE: Reg = 11;
/// Bytes of the frame.
const FRAME: i32 = 64;

/// The first three arguments of a C function.
const ARGUMENTS: [Origin; 3] = [Origin::Register(0), Origin::Register(1), Origin::Register(2)];

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedHold {
    pub(super) asm: Asm,
    /// By how many bytes the program's stack pointer is above S.
    below: u32,
}

/// The part of the stub that comes before the displaced code, for the address `at`.
pub fn hold(at: u64, machine: &Machine, hold: Hold, words: (u64, u64), below: u32) -> UnfinishedHold {
    let mut stub = UnfinishedHold::new(at, below);
    stub.begin();
    let (waits, mut passes) = decide(&mut stub, hold, NUMBERS, ARGUMENTS);
    waits.into_iter().for_each(|jump| stub.bind(jump));
    stub.wait(machine, &mut passes, words);
    passes.into_iter().for_each(|jump| stub.bind(jump));
    stub.end();
    stub
}

impl UnfinishedHold {
    pub(super) const fn new(at: u64, below: u32) -> Self {
        Self { asm: Asm::new(at), below }
    }
    pub(super) fn begin(&mut self) {
        let asm = &mut self.asm;
        asm.add_imm(SP, SP, -FRAME);
        asm.store_two(WORD, FACTS, SP, 0);
        asm.store_two(LEFT, CLOSED, SP, 16);
        asm.flags(WORD);
        asm.store_two(SCRATCH, WORD, SP, 32);
        asm.store_two(ALIVE, SEEN, SP, 48);
    }
    pub(super) fn end(&mut self) {
        let asm = &mut self.asm;
        asm.load_two(ALIVE, SEEN, SP, 48);
        asm.load_two(SCRATCH, WORD, SP, 32);
        asm.set_flags(WORD);
        asm.load_two(LEFT, CLOSED, SP, 16);
        asm.load_two(WORD, FACTS, SP, 0);
        asm.add_imm(SP, SP, FRAME);
    }
    /// Loads a word into `WORD`. Flags stay.
    fn load(&mut self, word: Origin) {
        let above = FRAME + self.below.cast_signed();
        let asm = &mut self.asm;
        match word {
            Origin::Register(number) => match u32::from(number) {
                WORD => asm.load_at(WORD, SP, 0),
                FACTS => asm.load_at(WORD, SP, 8),
                LEFT => asm.load_at(WORD, SP, 16),
                CLOSED => asm.load_at(WORD, SP, 24),
                SCRATCH => asm.load_at(WORD, SP, 32),
                number => asm.mov(WORD, number),
            },
            Origin::Memory { base, offset } => {
                let base = u32::from(base);
                let offset = if base == SP { offset.saturating_add(above) } else { offset };
                let from = if offset == 0 { base } else { WORD };
                asm.add_imm(WORD, base, offset);
                asm.load(WORD, from);
            }
            // Decided before the code runs (`held_calls`).
            Origin::Constant(_) | Origin::Unknown => {}
        }
    }
    /// HOLD-1 and HOLD-2. Uses all registers of the stub, and flags.
    fn wait(&mut self, machine: &Machine, passes: &mut Vec<Fix>, (asked, closed): (u64, u64)) {
        let asm = &mut self.asm;
        // All of them are closed already: most programs make such a change once, or no patch relies on the fact.
        asm.constant(CLOSED, closed);
        passes.push(if_closed(asm));
        asm.constant(LEFT, asked);
        asm.update(machine.lse, Update::Or, FACTS, LEFT, [WORD, SCRATCH]);
        count_anew(asm, asked + (at::ALIVE - at::ASKED));
        let again = asm.here();
        passes.push(if_closed(asm));
        take_turn(asm, again, |asm| {
            asm.constant(LEFT, asked);
            asm.update(machine.lse, Update::Or, FACTS, LEFT, [WORD, SCRATCH]);
        });
        asm.update(machine.lse, Update::Or, FACTS, CLOSED, [WORD, SCRATCH]);
    }
}

/// All turns are left from now on.
pub(super) fn count_anew(asm: &mut Asm, alive: u64) {
    asm.constant(ALIVE, alive);
    asm.load(SEEN, ALIVE);
    asm.number(LEFT, TURNS);
}

/// One turn; runs on when none is left. `ask` is appended where the tracer is seen to live; it may use all registers but
/// those of `ALIVE`. Uses `WORD` and flags.
pub(super) fn take_turn(asm: &mut Asm, again: u64, ask: impl FnOnce(&mut Asm)) {
    asm.load(WORD, ALIVE);
    asm.compare(WORD, SEEN);
    let silent = asm.if_later(Cond::Equal);
    asm.mov(SEEN, WORD);
    ask(asm);
    asm.number(LEFT, TURNS);
    asm.bind(silent);
    asm.pause();
    asm.subtract32(LEFT, 1);
    asm.unless_zero(LEFT, again);
}

/// A jump that is taken if all facts are closed.
fn if_closed(asm: &mut Asm) -> Fix {
    asm.load_acquire(WORD, CLOSED);
    asm.and(WORD, WORD, FACTS);
    asm.compare(WORD, FACTS);
    asm.if_later(Cond::Equal)
}

impl Tests for UnfinishedHold {
    type Jump = Fix;
    fn jump_if(&mut self, word: Origin, number: u32, is: bool) -> Fix {
        self.load(word);
        self.asm.compare_low(WORD, number);
        self.asm.if_later(if is { Cond::Equal } else { Cond::NotEqual })
    }
    fn unless_handler(&mut self, action: Origin, loads: bool, jumps: &mut Vec<Fix>) {
        self.load(action);
        jumps.push(self.asm.if_zero_later(WORD));
        if loads {
            // The default action, and ignoring the signal, show no address to the program.
            self.asm.load(WORD, WORD);
            self.asm.compare_number(WORD, 1);
            jumps.push(self.asm.if_later(Cond::BelowEq));
        }
    }
    fn changes(&mut self, facts: u64) -> Fix {
        self.asm.number(FACTS, facts as u32);
        self.jump()
    }
    fn jump(&mut self) -> Fix {
        self.asm.b_later()
    }
    fn bind(&mut self, jump: Fix) {
        self.asm.bind(jump);
    }
}

impl Code for UnfinishedHold {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, .. } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        asm.pool();
        asm.words()
    }
}
