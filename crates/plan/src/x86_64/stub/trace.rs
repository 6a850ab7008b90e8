//! One hit, one record in the ring of the CPU that it happened on (`record::ring`).
//!
//! Input: where the rings lie, which probe, what is told (arguments at an entry, the value at a return), what is dead. Output: code
//! that writes the record, or counts it as dropped where the ring is full, and runs into the displaced code.
//! One restartable sequence reads the clock, finds the CPU's ring, fills the slot behind the head and commits by storing the head.
//! A dropped record, and one of a thread without an rseq area, adds one to the probe's counter: written + dropped = hits.
//! Registers are saved below the stack pointer, as in `count`.

use trapline_record::ring::{FIRST_VALUE, HEAD, Kind, RingArea, SLOTS, TAIL};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::rseq::{self, CPU_ID, Section};
use super::{Machine, Pending, Rseq, Site, ThreadId};

/// Registers that hold a function's first integer arguments (System V ABI, 3.2.3).
pub const ARGUMENTS: usize = 6;
const ARGUMENT: [Reg; ARGUMENTS] = [RDI, RSI, RDX, RCX, R8, R9];

/// Where records go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Their shape; its offset is not used. One for each line of counters but the last.
    pub area: RingArea,
    /// Address of ring 0.
    pub base: u64,
    /// How a thread's number is learnt; one that only a call tells is recorded as 0.
    pub id: ThreadId,
}

/// Everything that one probe's records depend on.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// What the process offers; without rseq nothing is recorded.
    pub machine: &'a Machine,
    /// Where to.
    pub rings: &'a Rings,
    /// Whose hit it is; below 2³¹.
    pub probe: u32,
    /// The counter of dropped records on line 0.
    pub dropped: u64,
    /// What is dead where the stub runs.
    pub site: Site,
}

/// What is left to append behind the displaced code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    rseq: Rseq,
    section: Section,
    ring: Fix,
    base: u64,
    full: Fix,
    unregistered: Fix,
    /// Where the usual path goes on.
    written: u64,
    lines: u32,
    dropped: u64,
}

/// How far ahead lines are asked for, so that a slot is in this CPU's cache when it is written.
const AHEAD: i32 = 1024;
const RED_ZONE: i32 = 128;
const SAVED_RAX: i32 = -8;
const FLAGS: i32 = -16;
const SAVED_RDX: i32 = -24;

/// Appends the part of a stub that comes before the displaced code, for `values` arguments at an entry (of [`ARGUMENTS`] the first)
/// and the value returned at a return. The stub starts at `at`. `None` for a process without rseq.
pub fn trace(out: &mut Vec<u8>, at: u64, traced: &Traced<'_>, kind: Kind, values: usize) -> Option<Pending> {
    let rseq = traced.machine.rseq?;
    let mut asm = Asm::new(out, at);
    traced.enter(&mut asm);
    let mut fixes = None;
    let section = rseq::section(&mut asm, rseq, R11, |asm| {
        let (ring, unregistered, full) = traced.slot(asm, rseq);
        traced.fill(asm, kind, values);
        asm.lea(RAX, Mem::At(RAX, traced.rings.area.slot as i32));
        asm.store(Mem::At(R11, HEAD as i32), RAX);
        fixes = Some((ring, unregistered, full));
    });
    let written = asm.here();
    rseq::clear(&mut asm, rseq);
    traced.leave(&mut asm);
    let (ring, unregistered, full) = fixes?;
    let tail = Tail {
        rseq,
        section,
        ring,
        base: traced.rings.base,
        full,
        unregistered,
        written,
        lines: traced.machine.lines,
        dropped: traced.dropped,
    };
    Some(Pending::new(&asm, super::Kind::Traced(tail)))
}

impl Traced<'_> {
    fn saved(&self) -> impl Iterator<Item = (Reg, i32)> {
        let dead = self.site.dead;
        let scratch = [(R10, -32), (R11, -40)].into_iter().filter(move |(reg, _)| dead >> reg.0 & 1 == 0);
        [(RDX, SAVED_RDX)].into_iter().chain(scratch)
    }
    /// How far the stack pointer stands below the program's.
    const fn step(&self) -> i32 {
        if self.site.red_zone_live { RED_ZONE } else { 0 }
    }
    fn enter(&self, asm: &mut Asm<'_>) {
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
        }
        asm.store(Mem::At(RSP, SAVED_RAX), RAX);
        if !self.site.flags_dead {
            asm.flags_to_rax();
            asm.store32(Mem::At(RSP, FLAGS), RAX);
        }
        self.saved().for_each(|(reg, at)| asm.store(Mem::At(RSP, at), reg));
    }
    fn leave(&self, asm: &mut Asm<'_>) {
        if !self.site.flags_dead {
            asm.load32(RAX, Mem::At(RSP, FLAGS));
            asm.flags_from_rax();
        }
        self.saved().for_each(|(reg, at)| asm.load(reg, Mem::At(RSP, at)));
        asm.load(RAX, Mem::At(RSP, SAVED_RAX));
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, RED_ZONE));
        }
    }
    /// Out: rdx = time, r11 = this CPU's ring, rax = its head, r10 = the slot behind it.
    fn slot(&self, asm: &mut Asm<'_>, rseq: Rseq) -> (Fix, Fix, Fix) {
        let area = &self.rings.area;
        asm.rdtsc();
        asm.shift(Shift::Left, RDX, 32, true);
        asm.alu(Alu::Or, RDX, RAX);
        asm.load32(R11, Mem::Fs(rseq.offset + CPU_ID));
        let unregistered = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, R11, self.machine.lines as i32 - 1, false);
            asm.jcc_later(Cond::AboveEq)
        });
        asm.imul_imm(R11, R11, area.stride() as i32, true);
        let ring = asm.alu_load_later(Alu::Add, R11);
        asm.load(RAX, Mem::At(R11, HEAD as i32));
        asm.mov(R10, RAX);
        asm.alu_load(Alu::Sub, R10, Mem::At(R11, TAIL as i32));
        let full = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, R10, area.bytes as i32, true);
            asm.jcc_later(Cond::AboveEq)
        });
        asm.mov(R10, RAX);
        asm.alu_imm(Alu::And, R10, area.bytes as i32 - 1, false);
        asm.lea(R10, Mem::Sum(R11, R10, 0, SLOTS as i32));
        (ring, unregistered, full)
    }
    /// In: as `slot` leaves it. Spoils rdx.
    fn fill(&self, asm: &mut Asm<'_>, kind: Kind, values: usize) {
        let word = |n: u64| Mem::At(R10, n as i32 * 8);
        asm.prefetchw(Mem::At(R10, AHEAD));
        asm.store(word(1), RDX);
        match self.rings.id {
            ThreadId::At(offset) => {
                asm.load32(RDX, Mem::Fs(offset));
                asm.shift(Shift::Left, RDX, 32, true);
                asm.alu_imm(Alu::Or, RDX, self.probe as i32, true);
            }
            ThreadId::Call => asm.mov_imm32(RDX, self.probe),
        }
        asm.store(word(0), RDX);
        asm.lea(RDX, Mem::At(RSP, self.step() + kind as i32));
        asm.store(word(2), RDX);
        let all: &[Reg] = match kind {
            Kind::Entry => &ARGUMENT[..values.min(ARGUMENTS)],
            Kind::Return => &[RAX],
            Kind::Tail => &[],
        };
        for (&reg, n) in all.iter().take(self.rings.area.values()).zip(FIRST_VALUE..) {
            let saved = [(RAX, SAVED_RAX), (RDX, SAVED_RDX)].into_iter().find(|(other, _)| *other == reg);
            let from = saved.map_or(reg, |(_, at)| {
                asm.load(RDX, Mem::At(RSP, at));
                RDX
            });
            asm.store(word(n), from);
        }
    }
}

impl Tail {
    /// Appends what happens to a record that is not written, the descriptors and the rings' address.
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        asm.bind(self.full);
        let mut fixes = None;
        let section = rseq::section(asm, self.rseq, R11, |asm| {
            asm.load32(R11, Mem::Fs(self.rseq.offset + CPU_ID));
            asm.alu_imm(Alu::Cmp, R11, self.lines as i32 - 1, false);
            let unregistered = asm.jcc_later(Cond::AboveEq);
            asm.shift(Shift::Left, R11, 6, false);
            let line = asm.alu_load_later(Alu::Add, R11);
            asm.alu_mem_imm(Alu::Add, Mem::At(R11, 0), 1, false);
            fixes = Some((unregistered, line));
        });
        asm.jmp(self.written);
        asm.bind(self.unregistered);
        let last_line = self.dropped.wrapping_add((u64::from(self.lines.max(1)) - 1) * 64);
        if let Some((unregistered, _)) = fixes {
            asm.bind(unregistered);
        }
        asm.alu_mem_imm(Alu::Add, Mem::Rip(last_line), 1, true);
        asm.jmp(self.written);
        rseq::descriptors(asm, self.rseq, &[self.section, section]);
        asm.align(8);
        asm.bind(self.ring);
        asm.u64(self.base);
        if let Some((_, line)) = fixes {
            asm.bind(line);
            asm.u64(self.dropped);
        }
    }
}
