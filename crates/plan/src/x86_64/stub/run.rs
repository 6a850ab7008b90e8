//! One hit runs a program of its own: a script's block (`hit`).
//!
//! In: the program, where the maps are, what is dead. Out: code that runs it, then the displaced code. A call that
//! goes on as another function returned nothing yet: it is counted in the probe's counter, and the program does not
//! run.
//!
//! ```text
//!   rax, r11, r10, rdx          variables; what they held lies where `saves` shows it
//!   rdi, rsi, rcx, r8, r9       the program's: arguments. The third one is read where rdx is saved
//!   rsp - 32 to - 64, - 96      words for variables (WAITING)
//!   rsp - 72                    another one, or the stack's number (`keyed_stack`)
//!   rsp - 104                   LINE: this CPU's line of the maps
//!   rsp - 112, - 120            rax and another register, while an entry is claimed
//!   rsp - 128                   NANOS
//! ```
//!
//! No restartable sequence: all that other threads change is changed by atomic accesses, and so any line is as right as
//! another one. This CPU's is taken because no other CPU writes it meanwhile.

use std::cell::RefCell;

use trapline_code::x86_64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode, Program};
use trapline_record::ring::RecordKind;

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg};
use super::filter::ARGUMENT;
use super::machine::Machine;
use super::rseq::{self, CPU_ID};
use super::saves::{SAVED_RAX, SAVED_RDX, Saves};
use super::traced::Traced;
use super::{keyed_stack, threads};
use crate::hit::{HitClock, HitProgram, input};
use crate::machine::ThreadId;
use crate::programs::Kept;

const REGISTERS: [Reg; 4] = [RAX, R11, R10, RDX];
/// The last one may hold the stack's number instead.
const WAITING: [i32; 7] = [-32, -40, -48, -56, -64, -96, -72];
const LINE: Mem = Mem::At(RSP, -104);
const SPARE: [Mem; 2] = [Mem::At(RSP, -112), Mem::At(RSP, -120)];
const NANOS: Mem = Mem::At(RSP, -128);

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) struct RunTail {
    /// Address of the maps' line 0.
    base: u64,
    /// Where it is read.
    fixes: Vec<Fix>,
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
    let known = KnownValues { id: ThreadId::Unknown, probe: 0, base: 0 };
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

/// Appends the part of a stub that comes before the displaced code. `base`: address of the maps. Of the rings in `traced`
/// only the way to read a thread's number is used.
pub(super) fn run(
    asm: &mut Asm<'_>,
    traced: &Traced<'_>,
    (hit, base): (&HitProgram, u64),
    kind: RecordKind,
) -> RunTail {
    let mut fixes = Vec::new();
    if kind == RecordKind::Tail {
        let saves = traced.saves(kind).first();
        saves.enter(asm);
        asm.alu_mem_imm(Alu::Add, Mem::Rip(traced.dropped), 1, true);
        saves.leave(asm);
        return RunTail { base, fixes };
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
    if hit.reads(input::THREAD) {
        threads::ask(traced.rings.id, asm);
    }
    if hit.reads(input::NANOS) {
        nanos(asm, hit.clock);
    }
    if hit.reads(input::LINE) {
        fixes.push(line(asm, traced.machine, hit.bytes.line));
    }
    match allocated(hit) {
        Ok(allocated) => {
            let known = KnownValues { id: traced.rings.id, probe: traced.probe, base };
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
    without.into_iter().for_each(|fix| asm.bind(fix));
    saves.leave(asm);
    RunTail { base: base + u64::from(hit.bytes.once), fixes }
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

/// `[LINE]` = the address of this CPU's line; that of line 0 waits. Uses r11 and flags.
fn line(asm: &mut Asm<'_>, machine: &Machine, stride: u32) -> Fix {
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
    asm.imul_imm(R11, R11, stride.cast_signed(), true);
    let base = asm.alu_load_later(Alu::Add, R11);
    asm.store(LINE, R11);
    base
}

impl RunTail {
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        if !self.fixes.is_empty() {
            asm.align(8);
            self.fixes.into_iter().for_each(|fix| asm.bind(fix));
            asm.u64(self.base);
        }
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
        ARGUMENT.get(usize::from(nth)).copied().filter(|register| *register != RDX)
    }
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        match nth {
            input::RETURNED => asm.load(to, Mem::At(RSP, SAVED_RAX)),
            input::THREAD => threads::load(self.id, asm, to, 0),
            input::NANOS => asm.load(to, NANOS),
            input::PROBE => asm.mov_imm32(to, self.probe),
            input::LINE => asm.load(to, LINE),
            input::STACK => asm.load(to, keyed_stack::NUMBER),
            input::ASSIGNED | input::OWN => asm.mov_imm64(to, self.base),
            _ => match ARGUMENT.get(usize::from(nth)) {
                Some(&RDX) => asm.load(to, Mem::At(RSP, SAVED_RDX)),
                Some(&register) => asm.mov(to, register),
                None => asm.mov_imm32(to, 0),
            },
        }
    }
}
