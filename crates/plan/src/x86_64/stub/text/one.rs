//! One text: loaded directly if the pages that hold it are noted, else copied by the kernel (steps X1 to X5).
//!
//! In: a pointer, where the notes lie. Out: code of the common path and of the other ones; the instructions that may
//! fault.

use trapline_record::pages::{BITS, FILLED, PAGE_MASK, STRIDE_BITS, THREAD_SHIFT};
use trapline_record::ring::TEXT_BYTES;

use super::copy::{KEPT, copy};
use crate::machine::ThreadId;
use crate::x86_64::stub::asm::{Alu, Asm, Cond, Fix, Mem, R9, R10, R11, RAX, RDI, RDX, RSI, RSP, Shift};
use crate::x86_64::stub::machine::Machine;
use crate::x86_64::stub::rseq::{self, CPU_ID, PHI};
use crate::x86_64::stub::threads;

/// Linux, x86-64.
mod nr {
    pub(super) const RT_SIGACTION: u32 = 13;
    pub(super) const RT_SIGPROCMASK: u32 = 14;
}
const SIGBUS: u32 = 7;
const SIGSEGV: u32 = 11;
/// Number of loads for a text.
const LOADS: usize = TEXT_BYTES / 8;
/// Offsets of a text's first and last byte.
const ENDS: [i32; 2] = [0, TEXT_BYTES as i32 - 1];

/// Where the notes lie about pages that may be loaded from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageNotes {
    /// Address of CPU 0's table (`record::pages`). There is one for each line of counters but the last.
    pub tables: u64,
    /// Address of a word that holds the handler which serves faults of this code; 0 if there is none.
    pub handler: u64,
}

/// One text that is being copied.
#[derive(Clone, Copy)]
pub(super) struct One<'a> {
    pub(super) machine: Option<&'a Machine>,
    /// How the thread's number is read, and how many bytes lower the stack pointer is since it was asked for.
    pub(super) id: (ThreadId, i32),
    /// Offsets from the stack pointer: where the pointer is kept during the system call, and where result and
    /// bytes go.
    pub(super) kept: i32,
    pub(super) answer: i32,
}

impl One<'_> {
    /// r11 = this CPU's table; without rseq, that of `rseq::likely_cpu`. Jumps to the returned fix in a
    /// thread without an area if others have one. Uses rax and flags.
    fn table(self, asm: &mut Asm<'_>, known: PageNotes) -> Option<Fix> {
        let machine = self.machine?;
        let none = match machine.rseq {
            Some(rseq) => {
                asm.load32(R11, Mem::Fs(rseq.offset + CPU_ID));
                asm.alu_imm(Alu::Cmp, R11, machine.lines as i32 - 1, false);
                Some(asm.jcc_later(Cond::AboveEq))
            }
            None => {
                rseq::likely_cpu(asm, R11, machine);
                None
            }
        };
        asm.shift(Shift::Left, R11, STRIDE_BITS, true);
        asm.mov_imm64(RAX, known.tables);
        asm.alu(Alu::Add, R11, RAX);
        none
    }
    /// Steps X1 to X3; r10 = the pointer. Returns the jumps to X4, with r10 as it was; the jump of texts that
    /// end in another page, and where that comes back; the addresses of instructions that may fault. Uses
    /// rax, rdx, r11 and flags.
    pub(super) fn load(self, asm: &mut Asm<'_>, known: PageNotes) -> (Vec<Fix>, (Fix, u64), [u64; LOADS]) {
        let mut unknown = Vec::from_iter(self.table(asm, known));
        let [first, last] = ENDS;
        unknown.push(self.look(asm, first));
        asm.lea(RAX, Mem::At(R10, last));
        asm.alu(Alu::Xor, RAX, R10);
        // If a carry reaches bit 32, it has passed through these bits.
        let across = asm.unbroken(|asm| {
            asm.test_imm32(RAX, !PAGE_MASK as u32);
            asm.jcc_later(Cond::NotEqual)
        });
        let back = asm.here();
        let loads = core::array::from_fn(|word| {
            let load = asm.here();
            asm.load(RDX, Mem::At(R10, word as i32 * 8));
            asm.store(Mem::At(RSP, self.answer + 8 + word as i32 * 8), RDX);
            load
        });
        asm.store_imm(Mem::At(RSP, self.answer), TEXT_BYTES as i32);
        (unknown, (across, back), loads)
    }
    /// Step X1 for one end. Jumps to the returned fix if its page is not noted. Uses rax, rdx and flags.
    fn look(self, asm: &mut Asm<'_>, end: i32) -> Fix {
        let entry = self.entry(asm, end);
        asm.unbroken(|asm| {
            asm.alu_load(Alu::Cmp, RAX, entry);
            asm.jcc_later(Cond::NotEqual)
        })
    }
    /// Step X1 for the last byte, off the common path.
    pub(super) fn look_behind(self, asm: &mut Asm<'_>, (across, back): (Fix, u64), unknown: &mut Vec<Fix>) {
        asm.bind(across);
        unknown.push(self.look(asm, ENDS[1]));
        asm.jmp(back);
    }
    /// Steps X4 and X5; r10 = the pointer. Uses rax, rdx, r10, r11 and flags.
    pub(super) fn ask(self, asm: &mut Asm<'_>, known: Option<PageNotes>) {
        KEPT.into_iter().for_each(|(reg, at)| asm.store(Mem::At(RSP, at), reg));
        asm.mov(RAX, R10);
        copy(asm, self.id, (self.answer + 8, TEXT_BYTES as i32));
        asm.store(Mem::At(RSP, self.answer), RAX);
        if let Some(known) = known {
            asm.alu_imm(Alu::Cmp, RAX, TEXT_BYTES as i32, true);
            let mut not = vec![asm.jcc_later(Cond::NotEqual)];
            verify(asm, known, &mut not);
            not.extend(self.table(asm, known));
            asm.load(R10, Mem::At(RSP, self.kept));
            for end in ENDS {
                let entry = self.entry(asm, end);
                asm.store(entry, RAX);
            }
            asm.store_imm(Mem::At(R11, FILLED as i32), 1);
            self.take_back(asm, known);
            not.into_iter().for_each(|fix| asm.bind(fix));
        }
        KEPT.into_iter().for_each(|(reg, at)| asm.load(reg, Mem::At(RSP, at)));
    }

    /// The end of X5: the notes are taken back if faults are no longer served; r10 = the pointer, r11 = the
    /// table. Uses rax, rdx, r9 and flags.
    fn take_back(self, asm: &mut Asm<'_>, known: PageNotes) {
        // Adds 0, as a fence: the stores before it are seen before the load behind it.
        asm.alu_mem_imm(Alu::Add, Mem::At(RSP, 0), 0, true);
        asm.mov_imm64(R9, known.handler);
        asm.load(R9, Mem::At(R9, 0));
        asm.test(R9, R9, true);
        let served = asm.jcc_later(Cond::NotEqual);
        for end in ENDS {
            let entry = self.entry(asm, end);
            asm.store_imm(entry, 0);
        }
        asm.bind(served);
    }

    /// The entry in r11's table for the page of r10 + `end`: rax = value, rdx = index. Uses flags.
    fn entry(self, asm: &mut Asm<'_>, end: i32) -> Mem {
        threads::load(self.id.0, asm, RDX, self.id.1);
        asm.shift(Shift::Left, RDX, THREAD_SHIFT, true);
        asm.lea(RAX, Mem::At(R10, end));
        asm.alu_imm(Alu::Or, RAX, PAGE_MASK as i32, true);
        asm.alu(Alu::Xor, RAX, RDX);
        // The entry is chosen by the page alone: threads that share a CPU and a page take turns.
        asm.mov(RDX, RAX);
        asm.shift(Shift::Right, RDX, STRIDE_BITS, true);
        asm.imul_imm(RDX, RDX, PHI, false);
        asm.shift(Shift::Right, RDX, 32 - BITS, false);
        Mem::Sum(R11, RDX, 3, 0)
    }
}

/// Part of X5: jumps to a fix that it adds to `not`, unless faults of this thread are served. Uses the kept
/// registers, rax, rdx, r10, r11 and flags.
fn verify(asm: &mut Asm<'_>, known: PageNotes, not: &mut Vec<Fix>) {
    asm.mov_imm64(R9, known.handler);
    asm.load(R9, Mem::At(R9, 0));
    asm.test(R9, R9, true);
    not.push(asm.jcc_later(Cond::Equal));
    // A set of signals has eight bytes.
    asm.mov_imm32(R10, 8);
    asm.mov_imm32(RSI, 0);
    asm.mov(RDX, RSP);
    for signal in [SIGSEGV, SIGBUS] {
        asm.mov_imm32(RDI, signal);
        asm.mov_imm32(RAX, nr::RT_SIGACTION);
        asm.syscall();
        asm.test(RAX, RAX, true);
        not.push(asm.jcc_later(Cond::NotEqual));
        asm.alu_load(Alu::Cmp, R9, Mem::At(RSP, 0));
        not.push(asm.jcc_later(Cond::NotEqual));
    }
    asm.mov_imm32(RDI, 0);
    asm.mov_imm32(RAX, nr::RT_SIGPROCMASK);
    asm.syscall();
    asm.test(RAX, RAX, true);
    not.push(asm.jcc_later(Cond::NotEqual));
    asm.test_mem_imm32(Mem::At(RSP, 0), 1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1));
    not.push(asm.jcc_later(Cond::NotEqual));
}
