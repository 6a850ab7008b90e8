//! One hit, one increment.
//!
//! In: address of the counter's word on line 0, what is dead. Out: code that adds 1 on this CPU's line and
//! runs into the displaced code, which the caller appends; then a jump back, the abort handler and the rseq
//! descriptor.
//! Registers are saved below rsp, where neither kernel nor handlers write (the psABI red zone). If the
//! function's own red zone may be live, rsp first steps over it. On a core that retires one store a cycle,
//! the stores are what a hit costs: announce, count, clear, and one for each register that had to be saved.
//!
//! The stack while the stub runs. `CountSaves` lists the registers that are not dead, first to last:
//!
//! ```text
//!   rsp - 32           rax, while it holds the flags in a thread without an area
//!   rsp - 24           third saved register   (no path saves three at present)
//!   rsp - 16           second: `at` if rcx is saved too; rax if it holds the flags (no rseq)
//!   rsp - 8            first: `at`, or rcx where flags are live
//!   rsp                = S - RED_ZONE if the function's red zone may be live, else S
//! ```
//!
//! The registers, up to the commit, which is the last line of each:
//!
//! ```text
//!   flags dead         at = CPU;  at = 64 · at;  base = word;  [base + at] += 1
//!   and no base dead   at = CPU;  at = word + 64 · at;  [at] += 1       (the word's address is loaded)
//!   flags live         rcx = CPU · 8;  at = word + 8 · rcx;  rcx = [at] + 1;  [at] = rcx
//!   no rseq            at = word + 64 · line;  lock [at] += 1       (one line: lock [word] += 1)
//!   no area            lock [last_line] += 1,  last_line = word + 64 · (lines - 1)
//! ```

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::machine::{Liveness, Machine};
use super::rseq::{self, CPU_ID, Section};
use crate::machine::Rseq;

/// What is left to append behind the displaced code.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountTail {
    section: Option<(Rseq, Section)>,
    /// Where an unregistered thread leaves the common path, and where it returns to it.
    unregistered: Option<(Fix, u64)>,
    /// `lea`-like use of the word's address, which lies behind the code.
    pointer: Option<Fix>,
    word: u64,
    last_line: u64,
    saves: CountSaves,
}

const RED_ZONE: i32 = 128;

/// Registers that a stub uses, and whether each had to be saved.
#[derive(Clone, Copy, Debug)]
struct CountSaves {
    regs: [Option<Reg>; 3],
    step: bool,
    flags: bool,
}

impl CountSaves {
    /// Takes the first register of `preferred` that is dead. If none is, it takes the first one, and saves
    /// it.
    fn take(&mut self, site: &Liveness, preferred: &[Reg]) -> Reg {
        match preferred.iter().find(|reg| site.dead >> reg.0 & 1 == 1) {
            Some(&reg) => reg,
            None => self.keep(preferred[0]),
        }
    }
    fn keep(&mut self, reg: Reg) -> Reg {
        if let Some(free) = self.regs.iter_mut().find(|reg| reg.is_none()) {
            *free = Some(reg);
        }
        reg
    }
    fn each(&self, mut placed: impl FnMut(Reg, Mem)) {
        for (reg, n) in self.regs.iter().zip(1..) {
            if let Some(reg) = *reg {
                placed(reg, Mem::At(RSP, -8 * n));
            }
        }
    }
    fn enter(&self, asm: &mut Asm<'_>) {
        if self.step {
            asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
        }
        self.each(|reg, at| asm.store(at, reg));
    }
    fn leave(&self, asm: &mut Asm<'_>) {
        self.each(|reg, at| asm.load(reg, at));
        if self.step {
            asm.lea(RSP, Mem::At(RSP, RED_ZONE));
        }
    }
}

/// Registers in order of preference. rax comes last, since `lahf` needs it.
const ANY: [Reg; 9] = [R11, R10, R9, R8, RDI, RSI, RDX, RCX, RAX];
const SECOND: [Reg; 8] = [RDX, R11, R10, R9, R8, RDI, RSI, RAX];

/// Appends the part of a count stub that comes before the displaced code. `word` is the counter on line 0,
/// within ±2 GiB.
pub(super) fn count(asm: &mut Asm<'_>, machine: &Machine, word: u64, site: &Liveness) -> CountTail {
    let saves = CountSaves { regs: [None; 3], step: site.red_zone_live, flags: !site.flags_dead };
    let last_line = word.wrapping_add((u64::from(machine.lines.max(1)) - 1) * 64);
    let tail = CountTail { section: None, unregistered: None, pointer: None, word, last_line, saves };
    match machine.rseq {
        Some(rseq) if site.flags_dead => owned(asm, machine, rseq, site, tail),
        Some(rseq) => owned_flags_live(asm, rseq, site, tail),
        None => shared(asm, machine, site, tail),
    }
}

fn owned(
    asm: &mut Asm<'_>,
    machine: &Machine,
    rseq: Rseq,
    site: &Liveness,
    mut tail: CountTail,
) -> CountTail {
    let at = tail.saves.take(site, &ANY);
    let base = ANY.into_iter().find(|&reg| reg != at && site.dead >> reg.0 & 1 == 1);
    tail.saves.enter(asm);
    let mut fixes = None;
    let section = rseq::section(asm, rseq, at, |asm| {
        asm.load32(at, Mem::Fs(rseq.offset + CPU_ID));
        // The number is negative, or of a CPU that was not known when the plan was made.
        let unregistered = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, at, machine.lines as i32 - 1, false);
            asm.jcc_later(Cond::AboveEq)
        });
        asm.shift(Shift::Left, at, 6, false);
        // With a second register no line of data is needed but the counter's.
        let pointer = match base {
            Some(base) => {
                asm.lea(base, Mem::Rip(tail.word));
                asm.alu_mem_imm(Alu::Add, Mem::Sum(base, at, 0, 0), 1, false);
                None
            }
            None => {
                let pointer = asm.alu_load_later(Alu::Add, at);
                asm.alu_mem_imm(Alu::Add, Mem::At(at, 0), 1, false);
                Some(pointer)
            }
        };
        fixes = Some((unregistered, pointer));
    });
    tail.section = Some((rseq, section));
    if let Some((unregistered, pointer)) = fixes {
        tail.unregistered = Some((unregistered, asm.here()));
        tail.pointer = pointer;
    }
    rseq::clear(asm, rseq);
    tail.saves.leave(asm);
    tail
}

/// Flags may be live, so the code uses only moves, `lea` and `jrcxz`.
fn owned_flags_live(asm: &mut Asm<'_>, rseq: Rseq, site: &Liveness, mut tail: CountTail) -> CountTail {
    tail.saves.take(site, &[RCX]);
    let at = tail.saves.take(site, &SECOND);
    tail.saves.enter(asm);
    let mut unregistered = None;
    let section = rseq::section(asm, rseq, at, |asm| {
        asm.load_byte(RCX, Mem::Fs(rseq.offset + CPU_ID + 3));
        let registered = asm.unbroken(Asm::jrcxz_later);
        unregistered = Some(asm.jmp_later());
        asm.bind(registered);
        asm.load32(RCX, Mem::Fs(rseq.offset + CPU_ID));
        asm.lea(at, Mem::Rip(tail.word));
        asm.raw(&[0x48, 0x8D, 0x0C, 0xCD, 0, 0, 0, 0]); // lea rcx, [rcx*8]
        asm.lea(at, Mem::Sum(at, RCX, 3, 0));
        asm.load(RCX, Mem::At(at, 0));
        asm.lea(RCX, Mem::At(RCX, 1));
        asm.store(Mem::At(at, 0), RCX);
    });
    tail.section = Some((rseq, section));
    tail.unregistered = unregistered.map(|fix| (fix, asm.here()));
    rseq::clear(asm, rseq);
    tail.saves.leave(asm);
    tail
}

/// For a process without rseq: `lock add` on some line.
fn shared(asm: &mut Asm<'_>, machine: &Machine, site: &Liveness, mut tail: CountTail) -> CountTail {
    let at = (machine.lines > 1).then(|| tail.saves.take(site, &ANY[..8]));
    let flags = tail.saves.flags;
    if flags && site.dead & 1 == 0 {
        tail.saves.keep(RAX);
    }
    tail.saves.enter(asm);
    if flags {
        asm.flags_to_rax();
    }
    match at {
        None => asm.alu_mem_imm(Alu::Add, Mem::Rip(tail.word), 1, true),
        Some(at) => {
            rseq::any_line(asm, at, machine.rdpid, machine.lines);
            asm.shift(Shift::Left, at, 6, false);
            tail.pointer = Some(asm.alu_load_later(Alu::Add, at));
            asm.alu_mem_imm(Alu::Add, Mem::At(at, 0), 1, true);
        }
    }
    if flags {
        asm.flags_from_rax();
    }
    tail.saves.leave(asm);
    tail
}

impl CountTail {
    /// Appends the path of unregistered threads, the descriptor and the word's address.
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        if let Some((from, back)) = self.unregistered {
            asm.bind(from);
            self.unregistered_thread(asm);
            asm.jmp(back);
        }
        if let Some((rseq, section)) = self.section {
            rseq::descriptors(asm, rseq, &[section]);
        }
        if let Some(pointer) = self.pointer {
            asm.align(8);
            asm.bind(pointer);
            asm.u64(self.word);
        }
    }
    fn unregistered_thread(&self, asm: &mut Asm<'_>) {
        let saved = Mem::At(RSP, -8 * 4);
        if self.saves.flags {
            asm.store(saved, RAX);
            asm.flags_to_rax();
        }
        asm.alu_mem_imm(Alu::Add, Mem::Rip(self.last_line), 1, true);
        if self.saves.flags {
            asm.flags_from_rax();
            asm.load(RAX, saved);
        }
    }
}
