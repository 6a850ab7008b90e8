//! One hit runs a program of its own: a script's block (`hit`).
//!
//! In: the program, where the maps are, what is dead. Out: code that runs it, then the displaced code. A call that
//! goes on as another function returned nothing yet: it is counted in the probe's counter, and the program does not
//! run. So is a hit at a USDT probe with a value that is not known (`marked`).
//!
//! ```text
//!   rax, r11, r10, rdx          variables; what they held lies where `saves` shows it
//!   rdi, rsi, rcx, r8, r9       the program's: arguments. The third one is read where rdx is saved
//!   rsp - 32 to - 64, - 96      words for variables (WAITING)
//!   rsp - 72                    another one, or the stack's number (`keyed_stack`)
//!   rsp - 104                   CPU: the line of the maps that is added to, by its number
//!   rsp - 112, - 120            rax and another register, during a claim's access; the process' number, while MEMBER is loaded
//!   rsp - 128                   NANOS
//! ```
//!
//! What is added to a CPU's line is added in a restartable sequence of one store, which is made if the thread is still on that
//! CPU. All else that other threads change is changed by atomic accesses.

use std::cell::{Cell, RefCell};

use trapline_code::x86_64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode, Program};
use trapline_record::ring::RecordKind;

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg};
use super::filter::ARGUMENT;
use super::machine::Machine;
use super::marked::{Left, Marked};
use super::rseq::{self, Begun, CPU_ID, Section};
use super::saves::{SAVED_RAX, SAVED_RDX, Saves};
use super::sharers::{self, Taking};
use super::traced::Traced;
use super::{keyed_stack, threads};
use crate::hit::{HitClock, HitProgram, MapBytes, MapsAt, NAMES, input};
use crate::machine::{Rseq, ThreadId};
use crate::programs::Kept;

const REGISTERS: [Reg; 4] = [RAX, R11, R10, RDX];
/// The last one may hold the stack's number instead.
const WAITING: [i32; 7] = [-32, -40, -48, -56, -64, -96, -72];
const CPU: Mem = Mem::At(RSP, -104);
const SPARE: [Mem; 2] = [Mem::At(RSP, -112), Mem::At(RSP, -120)];
const NANOS: Mem = Mem::At(RSP, -128);

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) struct RunTail {
    /// Address of the maps' line 0.
    base: u64,
    /// Where it is read.
    fixes: Vec<Fix>,
    rseq: Option<Rseq>,
    sections: Vec<Section>,
    /// What the first hit of a process does.
    taking: Option<Taking>,
    /// The jumps of hits that run no program, and where they go on.
    left: Left,
    /// By how many bytes the copies lower the stack pointer.
    depth: i32,
    /// The probe's counter.
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
    let (program, words) = (hit.program(), words(hit));
    let known = KnownValues::of((ThreadId::Unknown, 0), hit, MapsAt::default(), None);
    MADE.with_borrow_mut(|made| {
        made.answer(
            |(asked, _)| asked == program,
            || Ok((program.clone(), allocate(program.clone(), &REGISTERS, words, &known)?)),
        )
        .map(|(_, allocated)| allocated.clone())
    })
}

/// How many words it has for variables.
fn words(hit: &HitProgram) -> usize {
    WAITING.len() - usize::from(hit.reads(input::STACK))
}

/// Appends the part of a stub that comes before the displaced code. `at`: where the maps are. Of the rings in `traced`
/// only the way to read a thread's number is used.
pub(super) fn run(
    asm: &mut Asm<'_>,
    traced: &Traced<'_>,
    (hit, at): (&HitProgram, MapsAt),
    kind: RecordKind,
) -> RunTail {
    let machine = traced.machine;
    let ids = (traced.rings.id, traced.saves(kind).step());
    let known = KnownValues::of(ids, hit, at, Some(machine));
    let base = at.maps;
    if kind == RecordKind::Tail {
        let saves = traced.saves(kind).first();
        saves.enter(asm);
        asm.alu_mem_imm(Alu::Add, Mem::Rip(traced.dropped), 1, true);
        saves.leave(asm);
        return known.tail(traced, (Left::default(), 0));
    }
    let saves = traced.saves(kind);
    let without = if hit.reads(input::STACK) {
        let wide = Saves::of(traced.site, kind, true);
        wide.enter(asm);
        let stacks = (hit.stacks, base + hit.bytes.before_stacks(traced.machine.lines));
        Some(keyed_stack::keep(asm, traced, stacks, wide.step()))
    } else {
        saves.enter(asm);
        None
    };
    let copies = !traced.fields.is_empty();
    if hit.reads(input::THREAD) || hit.reads(input::MEMBER) || copies {
        threads::ask(traced.rings.id, asm);
    }
    let taking = hit.reads(input::MEMBER).then(|| sharers::look(asm, at));
    let taken = traced.filter.map_or(&[][..], |filtered| &filtered.filter.taken);
    let table = base + hit.bytes.before_stacks(machine.lines) + hit.stacks.len();
    let marked = Marked::of(traced, hit, taken, table);
    let left = marked.take(asm);
    if hit.reads(input::NANOS) {
        nanos(asm, hit.clock);
    }
    if hit.reads(input::LINE) {
        line(asm, machine);
    }
    match allocated(hit) {
        Ok(allocated) => {
            let waiting = WAITING.map(|at| Mem::At(RSP, at));
            let rdx = Mem::At(RSP, SAVED_RDX);
            let frame = Frame {
                words: &waiting[..words(hit)],
                rdx,
                rdx_is_read: false,
                spare: SPARE,
                unbroken: false,
            };
            let leave = emit(asm, &allocated, &known, frame);
            leave.into_iter().for_each(|(_, fix)| asm.bind(fix));
        }
        Err(why) => asm.lack(why),
    }
    if let (Some(rseq), false) = (machine.rseq, known.sections.borrow().is_empty()) {
        rseq::clear(asm, rseq);
    }
    without.into_iter().for_each(|fix| asm.bind(fix));
    let tail = RunTail { leave: asm.here(), taking, ..known.tail(traced, (left, marked.texts.depth())) };
    saves.leave(asm);
    tail
}

/// `[NANOS]` = the time. Uses rax, rdx and r11.
fn nanos(asm: &mut Asm<'_>, clock: HitClock) {
    asm.clock(RAX);
    asm.mov_imm64(R11, clock.tick);
    asm.multiply_wide(R11);
    asm.shift_from(RAX, RDX, 32);
    asm.mov_imm64(R11, clock.offset);
    asm.alu(Alu::Add, RAX, R11);
    asm.store(NANOS, RAX);
}

/// `[CPU]` = the number of this CPU's line. Uses r11 and flags.
fn line(asm: &mut Asm<'_>, machine: &Machine) {
    match machine.rseq {
        Some(rseq) => {
            let last = machine.lines as i32 - 1;
            asm.load32(R11, Mem::Fs(rseq.offset + CPU_ID));
            asm.alu_imm(Alu::Cmp, R11, last, false);
            let known = asm.jcc_later(Cond::Below);
            asm.mov_imm32(R11, last.cast_unsigned());
            asm.bind(known);
        }
        None => rseq::any_line(asm, R11, machine.rdpid, machine.lines),
    }
    asm.store(CPU, R11);
}

impl RunTail {
    /// The paths of hits that run no program.
    fn without(&self, asm: &mut Asm<'_>) {
        let Left { unknown, no_room, cramped } = self.left.clone();
        if !no_room.is_empty() {
            no_room.into_iter().for_each(|fix| asm.bind(fix));
            asm.lea(RSP, Mem::At(RSP, self.depth));
            asm.jmp(self.leave);
        }
        if unknown.is_empty() && cramped.is_empty() {
            return;
        }
        if !unknown.is_empty() {
            unknown.into_iter().for_each(|fix| asm.bind(fix));
            asm.lea(RSP, Mem::At(RSP, self.depth));
        }
        cramped.into_iter().for_each(|fix| asm.bind(fix));
        asm.alu_mem_imm(Alu::Add, Mem::Rip(self.counter), 1, true);
        asm.jmp(self.leave);
    }
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        self.without(asm);
        self.taking.into_iter().for_each(|taking| taking.finish(asm));
        if !self.fixes.is_empty() {
            asm.align(8);
            self.fixes.into_iter().for_each(|fix| asm.bind(fix));
            asm.u64(self.base);
        }
        self.rseq.into_iter().for_each(|rseq| rseq::descriptors(asm, rseq, &self.sections));
    }
}

/// Where the program's inputs are.
struct KnownValues<'a> {
    id: ThreadId,
    /// By how many bytes the stack pointer is below the hit's.
    step: i32,
    names: [u32; NAMES],
    /// Where the maps are, and their bytes.
    maps: (MapsAt, MapBytes),
    machine: Option<&'a Machine>,
    /// Where the address of line 0 is read.
    fixes: RefCell<Vec<Fix>>,
    begun: Cell<Option<Begun>>,
    sections: RefCell<Vec<Section>>,
}

impl<'a> KnownValues<'a> {
    fn of((id, step): (ThreadId, i32), hit: &HitProgram, at: MapsAt, machine: Option<&'a Machine>) -> Self {
        let (fixes, sections) = (RefCell::default(), RefCell::default());
        let (maps, names) = ((at, hit.bytes), hit.names);
        Self { id, step, names, maps, machine, fixes, begun: Cell::new(None), sections }
    }
    /// Address of line 0.
    fn lines(&self) -> u64 {
        self.maps.0.maps + u64::from(self.maps.1.once)
    }
    fn tail(self, traced: &Traced<'_>, (left, depth): (Left, i32)) -> RunTail {
        let base = self.lines();
        let rseq = self.machine.and_then(|machine| machine.rseq);
        let (fixes, sections) = (self.fixes.into_inner(), self.sections.into_inner());
        RunTail { base, fixes, rseq, sections, taking: None, left, depth, counter: traced.dropped, leave: 0 }
    }
}

impl Inputs for KnownValues<'_> {
    fn register(&self, nth: u16) -> Option<Reg> {
        ARGUMENT.get(usize::from(nth)).copied().filter(|register| *register != RDX)
    }
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        match nth {
            input::RETURNED => asm.load(to, Mem::At(RSP, SAVED_RAX)),
            input::THREAD => threads::load(self.id, asm, to, 0),
            input::NANOS => asm.load(to, NANOS),
            input::LINE => {
                asm.load(to, CPU);
                asm.imul_imm(to, to, self.maps.1.line.cast_signed(), true);
                self.fixes.borrow_mut().push(asm.alu_load_later(Alu::Add, to));
            }
            input::OTHERS => {
                let lines = self.machine.map_or(1, |machine| machine.lines);
                asm.mov_imm64(to, self.lines() + u64::from(lines - 1) * u64::from(self.maps.1.line));
            }
            input::STACK => asm.load(to, keyed_stack::NUMBER),
            input::ASSIGNED | input::OWN => asm.mov_imm64(to, self.maps.0.maps),
            // The words of a claim hold nothing here.
            input::MEMBER => {
                asm.mov_imm64(to, self.maps.0.own_page);
                asm.load(to, Mem::At(to, 0));
                asm.store(SPARE[1], to);
                threads::load(self.id, asm, to, 0);
                asm.alu_load(Alu::Add, to, SPARE[1]);
            }
            input::NAME.. => asm.mov_imm32(to, name(self.names, nth)),
            input::MORE.. => asm.load(to, Mem::At(RSP, self.step + 8 * i32::from(nth - input::MORE))),
            _ => match ARGUMENT.get(usize::from(nth)) {
                Some(&RDX) => asm.load(to, Mem::At(RSP, SAVED_RDX)),
                Some(&register) => asm.mov(to, register),
                None => asm.mov_imm32(to, 0),
            },
        }
    }
    fn begin_add(&self, asm: &mut Asm<'_>, _: u16, scratch: Reg) -> Option<Fix> {
        let rseq = self.machine?.rseq?;
        self.begun.set(Some(rseq::begin(asm, rseq, scratch)));
        asm.load32(scratch, Mem::Fs(rseq.offset + CPU_ID));
        asm.alu_load(Alu::Cmp, scratch, CPU);
        Some(asm.jcc_later(Cond::NotEqual))
    }
    fn end_add(&self, asm: &Asm<'_>) {
        let begun = self.begun.take();
        self.sections.borrow_mut().extend(begun.map(|begun| begun.end(asm.here())));
    }
}

/// The number that this input is.
fn name(names: [u32; NAMES], nth: u16) -> u32 {
    names.get(usize::from(nth - input::NAME)).copied().unwrap_or(0)
}
