//! One hit runs a program of its own: a script's block (`hit`); the same as x86-64's twin.
//!
//! In: the program, where the maps are. Out: code that runs it, then the displaced code. A call that goes on as another
//! function returned nothing yet: it is counted in the probe's counter, and the program does not run. So is a hit at a USDT
//! probe with a value that is not known (`marked`).
//!
//! ```text
//!   x16, x17, x15, x14, x13, x12   A, B, KEY, D, INDEX, VALUE: variables; x11 is on the way to memory
//!   x0 to x5                       the program's: arguments, or what was returned
//!   sp +  0                        NANOS                   <- sp between `enter` and `leave`
//!   sp +  8                        CPU: the line of the maps that is added to, by its number
//!   sp + 16                        the frame of `frame`; its eight words are for variables, the last one perhaps for the
//!                                  stack's number (`keyed_stack`)
//! ```
//!
//! What is added to a CPU's line is added in a restartable sequence of one store, which is made if the thread is still on that
//! CPU. All else that other threads change is changed by atomic accesses.

use std::cell::{Cell, RefCell};

use trapline_code::aarch64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode, Program};
use trapline_record::addr::Bias;
use trapline_record::ring::RecordKind;

use super::asm::{Asm, Cond, Fix, NoWords, Reg, SP};
use super::counted::{add_one, by_thread};
use super::filter::ARGUMENTS;
use super::frame::{self, A, B, C, D, INDEX, KEY, VALUE, waiting};
use super::machine::Machine;
use super::marked::{Left, Marked};
use super::pending::Code;
use super::rseq::{self, Begun, CPU_ID, Section};
use super::text::Texts;
use super::{keyed_stack, sharers, threads};
use crate::filter::{MAX_WORDS, Taken};
use crate::hit::{HitClock, HitProgram, MapBytes, MapsAt, NAMES, input};
use crate::machine::{Stacks, ThreadId};
use crate::programs::Kept;
use crate::request::Read;

const REGISTERS: [Reg; 6] = [A, B, KEY, D, INDEX, VALUE];
const DEPTH: u32 = 16;
const NANOS: u32 = 0;
const CPU: u32 = 8;

/// What a hit runs, and for which probe.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// The program.
    pub hit: &'a HitProgram,
    /// Where the maps are.
    pub maps: MapsAt,
    /// The probe.
    pub probe: u32,
    /// Address of the probe's counter on line 0.
    pub counter: u64,
    /// Where stacks end, if the program asks for them.
    pub stacks: Stacks,
    /// g is in x28.
    pub goroutine: bool,
    /// What is read from memory at a USDT probe.
    pub fields: &'a [Read],
    /// What becomes of the arguments' places there.
    pub taken: &'a [Taken],
    /// The hit is at an instruction, and not at a function's entry or exit.
    pub inside: bool,
    /// Where the probe's file is mapped.
    pub bias: Bias,
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedRun {
    asm: Asm,
    machine: Machine,
    sections: Vec<Section>,
    /// The jumps of hits that run no program, and where they go on.
    left: Left,
    /// By how many bytes the copies lower the stack pointer.
    depth: u32,
    /// Address of the probe's counter on line 0.
    counter: u64,
    leave: u64,
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
    let known = KnownValues::of(ThreadId::Unknown, hit, MapsAt::default(), None);
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
        let leave = asm.here();
        frame::leave(&mut asm);
        let (machine, counter, left) = (*machine, what.counter, Left::default());
        return UnfinishedRun { asm, machine, sections: Vec::new(), left, depth: 0, counter, leave };
    }
    let without = what.hit.reads(input::STACK).then(|| keyed_stack::keep(&mut asm, machine, &what));
    if what.hit.reads(input::THREAD) || what.hit.reads(input::MEMBER) {
        threads::ask(id, &mut asm);
    }
    if what.hit.reads(input::MEMBER) {
        sharers::look(&mut asm, machine, what.maps);
    }
    let marked = marked(machine, id, &what);
    let (left, depth) = (marked.take(&mut asm), marked.texts.depth());
    asm.add_imm(SP, SP, -DEPTH.cast_signed());
    if what.hit.reads(input::NANOS) {
        nanos(&mut asm, what.hit.clock);
    }
    if what.hit.reads(input::LINE) {
        line(&mut asm, machine);
    }
    let known = KnownValues::of(id, what.hit, what.maps, Some(machine));
    match allocated(what.hit) {
        Ok(allocated) => {
            let frame = Frame { words: DEPTH + waiting(0), lse: machine.lse };
            let leave = emit(&mut asm, &allocated, &known, frame);
            leave.into_iter().for_each(|(_, fix)| asm.bind(fix));
        }
        Err(why) => asm.lack(why),
    }
    let sections = known.sections.into_inner();
    if let (Some(rseq), false) = (machine.rseq, sections.is_empty()) {
        rseq::clear(&mut asm, rseq, A);
    }
    asm.add_imm(SP, SP, DEPTH.cast_signed());
    without.into_iter().for_each(|fix| asm.bind(fix));
    let leave = asm.here();
    frame::leave(&mut asm);
    UnfinishedRun { asm, machine: *machine, sections, left, depth, counter: what.counter, leave }
}

/// What the program has as its arguments.
fn marked<'a>(machine: &Machine, id: ThreadId, what: &Ran<'a>) -> Marked<'a> {
    let Ran { hit, taken, fields, goroutine, bias, .. } = *what;
    let table = what.maps.maps + hit.bytes.before_stacks(machine.lines) + hit.stacks.len();
    let step = frame::FRAME.unsigned_abs();
    let texts = Texts { texts: 0, ended: 0, fields, id, goroutine, step, beside: what.inside, bias };
    Marked { hit, taken, table, texts, lse: machine.lse }
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

/// `[CPU]` = the number of this CPU's line. Uses `A`, `B`, `KEY` and flags.
fn line(asm: &mut Asm, machine: &Machine) {
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
    asm.store(A, SP, CPU);
}

impl Code for UnfinishedRun {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, machine, sections, left, depth, counter, leave } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        without(&mut asm, left, (depth, leave), |asm| {
            asm.constant(B, counter);
            add_one(asm, &machine);
        });
        rseq::descriptors(&mut asm, &sections);
        asm.pool();
        asm.words()
    }
}

/// The paths of hits that run no program.
fn without(asm: &mut Asm, left: Left, (depth, leave): (u32, u64), count: impl Fn(&mut Asm)) {
    let Left { unknown, no_room, cramped } = left;
    if !no_room.is_empty() {
        no_room.into_iter().for_each(|fix| asm.bind(fix));
        asm.add_imm(SP, SP, depth.cast_signed());
        asm.b(leave);
    }
    if unknown.is_empty() && cramped.is_empty() {
        return;
    }
    if !unknown.is_empty() {
        unknown.into_iter().for_each(|fix| asm.bind(fix));
        asm.add_imm(SP, SP, depth.cast_signed());
    }
    cramped.into_iter().for_each(|fix| asm.bind(fix));
    count(asm);
    asm.b(leave);
}

/// Where the program's inputs are.
struct KnownValues<'a> {
    id: ThreadId,
    names: [u32; NAMES],
    /// Where the maps are, and their bytes.
    maps: (MapsAt, MapBytes),
    machine: Option<&'a Machine>,
    begun: Cell<Option<Begun>>,
    sections: RefCell<Vec<Section>>,
}

impl<'a> KnownValues<'a> {
    fn of(id: ThreadId, hit: &HitProgram, base: MapsAt, machine: Option<&'a Machine>) -> Self {
        let (maps, names) = ((base, hit.bytes), hit.names);
        Self { id, names, maps, machine, begun: Cell::new(None), sections: RefCell::default() }
    }
    /// Address of a line.
    fn line(&self, nth: u32) -> u64 {
        let (at, bytes) = self.maps;
        at.maps + u64::from(bytes.once) + u64::from(nth) * u64::from(bytes.line)
    }
}

impl Inputs for KnownValues<'_> {
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
            input::LINE => {
                asm.load_at(to, SP, CPU);
                asm.number(C, self.maps.1.line);
                asm.multiply(to, to, C);
                asm.constant(C, self.line(0));
                asm.add(to, to, C);
            }
            input::OTHERS => asm.constant(to, self.line(self.machine.map_or(0, |machine| machine.lines - 1))),
            input::STACK => asm.load_at(to, SP, DEPTH + keyed_stack::NUMBER),
            input::ASSIGNED | input::OWN => asm.constant(to, self.maps.0.maps),
            input::MEMBER => {
                threads::load_below(self.id, asm, to, DEPTH);
                asm.constant(C, self.maps.0.own_page);
                asm.load(C, C);
                asm.add(to, to, C);
            }
            input::NAME.. => asm.number(to, name(self.names, nth)),
            input::MORE.. => {
                let first = DEPTH + frame::FRAME.unsigned_abs();
                asm.load_at(to, SP, first + 8 * u32::from(nth - input::MORE));
            }
            _ => asm.mov(to, self.register(nth).unwrap_or(super::asm::ZERO)),
        }
    }
    fn begin_add(&self, asm: &mut Asm, _: u16, [area, cpu]: [Reg; 2]) -> Option<Fix> {
        let rseq = self.machine?.rseq?;
        self.begun.set(Some(rseq::begin(asm, rseq, [area, cpu])));
        asm.load32(area, area, CPU_ID);
        asm.load_at(cpu, SP, CPU);
        asm.compare(area, cpu);
        Some(asm.if_later(Cond::NotEqual))
    }
    fn end_add(&self, asm: &Asm) {
        let begun = self.begun.take();
        self.sections.borrow_mut().extend(begun.map(|begun| begun.end(asm.here())));
    }
}

/// The number that this input is.
fn name(names: [u32; NAMES], nth: u16) -> u32 {
    names.get(usize::from(nth - input::NAME)).copied().unwrap_or(0)
}
