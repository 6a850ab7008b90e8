//! One hit runs a program of its own: a script's block (`hit`); the same as x86-64's twin.
//!
//! In: the program, where the maps are. Out: code that runs it, then the displaced code. A call that goes on as another
//! function returned nothing yet: it is counted in the probe's counter, and the program does not run.
//!
//! ```text
//!   x16, x17, x15, x14, x13, x12   A, B, KEY, D, INDEX, VALUE: variables; x11 is on the way to memory
//!   x0 to x5                       the program's: arguments, or what was returned
//!   sp +  0                        NANOS                   <- sp between `enter` and `leave`
//!   sp +  8                        LINE: this CPU's line of the maps
//!   sp + 16                        the frame of `frame`; its eight words are for variables, the last one perhaps for the
//!                                  stack's number (`keyed_stack`)
//! ```
//!
//! No restartable sequence: all that other threads change is changed by atomic accesses, and so any line is as right as
//! another one. This CPU's is taken because no other CPU writes it meanwhile.

use std::cell::RefCell;

use trapline_code::aarch64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode, Program};
use trapline_record::ring::RecordKind;

use super::asm::{Asm, Cond, NoWords, Reg, SP};
use super::counted::{add_one, by_thread};
use super::filter::ARGUMENTS;
use super::frame::{self, A, B, C, D, INDEX, KEY, VALUE, waiting};
use super::machine::Machine;
use super::pending::Code;
use super::rseq::{self, CPU_ID};
use super::{keyed_stack, threads};
use crate::filter::MAX_WORDS;
use crate::hit::{HitClock, HitProgram, input};
use crate::machine::{Stacks, ThreadId};
use crate::programs::Kept;

const REGISTERS: [Reg; 6] = [A, B, KEY, D, INDEX, VALUE];
const DEPTH: u32 = 16;
const NANOS: u32 = 0;
const LINE: u32 = 8;

/// What a hit runs, and for which probe.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// The program.
    pub hit: &'a HitProgram,
    /// Address of the maps.
    pub maps: u64,
    /// The probe.
    pub probe: u32,
    /// Address of the probe's counter on line 0.
    pub counter: u64,
    /// Where stacks end, if the program asks for them.
    pub stacks: Stacks,
    /// g is in x28.
    pub goroutine: bool,
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedRun {
    asm: Asm,
}

thread_local! {
    static MADE: RefCell<Kept<(Program, Allocated)>> = const { RefCell::new(Kept::new()) };
}

/// The program with its registers and words.
///
/// # Errors
/// There are too few.
pub(crate) fn allocated(hit: &HitProgram) -> Result<Allocated, NoCode> {
    let program = hit.program();
    let words = MAX_WORDS - usize::from(hit.reads(input::STACK));
    let known = KnownValues { id: ThreadId::Unknown, probe: 0, base: 0 };
    MADE.with_borrow_mut(|made| {
        made.answer(
            |(asked, _)| asked == program,
            || Ok((program.clone(), allocate(program.clone(), &REGISTERS, words, &known)?)),
        )
        .map(|(_, allocated)| allocated.clone())
    })
}

/// The part of a stub that comes before the displaced code, for the address `at`.
pub fn run(at: u64, machine: &Machine, id: ThreadId, what: Ran<'_>, kind: RecordKind) -> UnfinishedRun {
    let mut asm = Asm::new(at);
    frame::enter(&mut asm);
    if kind == RecordKind::Tail {
        asm.constant(B, what.counter);
        add_one(&mut asm, machine);
        frame::leave(&mut asm);
        return UnfinishedRun { asm };
    }
    let without = what.hit.reads(input::STACK).then(|| keyed_stack::keep(&mut asm, machine, &what));
    if what.hit.reads(input::THREAD) {
        threads::ask(id, &mut asm);
    }
    asm.add_imm(SP, SP, -DEPTH.cast_signed());
    if what.hit.reads(input::NANOS) {
        nanos(&mut asm, what.hit.clock);
    }
    if what.hit.reads(input::LINE) {
        let bytes = what.hit.bytes;
        line(&mut asm, machine, (what.maps + u64::from(bytes.once), bytes.line));
    }
    match allocated(what.hit) {
        Ok(allocated) => {
            let known = KnownValues { id, probe: what.probe, base: what.maps };
            let frame = Frame { words: DEPTH + waiting(0), lse: machine.lse };
            let leave = emit(&mut asm, &allocated, &known, frame);
            leave.into_iter().for_each(|(_, fix)| asm.bind(fix));
        }
        Err(why) => asm.lack(why),
    }
    asm.add_imm(SP, SP, DEPTH.cast_signed());
    without.into_iter().for_each(|fix| asm.bind(fix));
    frame::leave(&mut asm);
    UnfinishedRun { asm }
}

/// `[NANOS]` = the time. Uses `A`, `B`, `C`.
fn nanos(asm: &mut Asm, clock: HitClock) {
    asm.clock(A);
    asm.constant(B, clock.tick);
    asm.multiply_high(C, A, B);
    asm.multiply(A, A, B);
    asm.extract(A, (C, A), 32);
    asm.constant(B, clock.offset);
    asm.add(A, A, B);
    asm.store(A, SP, NANOS);
}

/// `[LINE]` = the address of this CPU's line. Uses `A`, `B`, `KEY` and flags.
fn line(asm: &mut Asm, machine: &Machine, (base, stride): (u64, u32)) {
    match machine.rseq {
        Some(rseq) => {
            rseq::find_area(asm, rseq, B);
            asm.load32(A, B, CPU_ID);
            asm.number(KEY, machine.lines.saturating_sub(1));
            asm.compare(A, KEY);
            asm.select(A, A, KEY, Cond::Below);
        }
        None => by_thread(asm, [A, KEY], machine.lines),
    }
    asm.number(KEY, stride);
    asm.constant(B, base);
    asm.mul_add(A, A, KEY, B);
    asm.store(A, SP, LINE);
}

impl Code for UnfinishedRun {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        asm.pool();
        asm.words()
    }
}

/// Where the program's inputs are.
struct KnownValues {
    id: ThreadId,
    probe: u32,
    /// Address of the maps.
    base: u64,
}

impl Inputs for KnownValues {
    fn register(&self, nth: u16) -> Option<Reg> {
        match nth {
            input::RETURNED => Some(0),
            _ => Some(u32::from(nth)).filter(|nth| *nth < ARGUMENTS as u32),
        }
    }
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg) {
        match nth {
            input::THREAD => threads::load_below(self.id, asm, to, DEPTH),
            input::NANOS => asm.load_at(to, SP, NANOS),
            input::PROBE => asm.number(to, self.probe),
            input::LINE => asm.load_at(to, SP, LINE),
            input::STACK => asm.load_at(to, SP, DEPTH + keyed_stack::NUMBER),
            input::ASSIGNED | input::OWN => asm.constant(to, self.base),
            _ => asm.mov(to, self.register(nth).unwrap_or(super::asm::ZERO)),
        }
    }
}
