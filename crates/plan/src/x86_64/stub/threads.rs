//! One hit, one increment in the row of its thread.
//!
//! In: where the rows lie, which counter, how a thread's number is read, what is dead. Out: code that adds 1
//! and runs into the displaced code; behind it the search for a row. A thread needs that search only at its
//! first hit, unless another thread's row is in its way. See `record::threads`. A row belongs to one thread,
//! so its lines stay in that CPU's cache; `lock add` makes it exact for the numbers that two threads share.
//! Registers are saved below the stack pointer, as in `count`:
//!
//! ```text
//!   rsp - 56   SCRATCH   rdi, during the search for a row
//!   rsp - 48             r11, if the number takes a system call
//!   rsp - 40             rsi
//!   rsp - 32             rdx
//!   rsp - 24             rcx
//!   rsp - 16   FLAGS     flags, 4 bytes;  rsp - 12  ANSWER: the number, for other stubs' `ask` and `load`
//!   rsp - 8              rax
//!   rsp                  = S - RED_ZONE if the function's own red zone may be live, else S
//! ```
//!
//! ```text
//!   rdx = tag = thread + 1;  rsi = tags
//!   rcx = row = thread mod rows
//!   search: up to PROBES rows from there on, modulo rows, until [rsi + 8 · rcx] = tag
//!           a tag of 0 is claimed: compare-and-swap to `tag`;  no row left: rcx = rows, the row of all others
//!   lock [rsi + stride · rcx + first + 8 · counter] += 1
//! ```

use trapline_record::threads::{PROBES, ThreadArea};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::machine::Liveness;
use crate::machine::ThreadId;

/// Offset from the stack pointer at which a stub keeps the result of the call: beside the flags, which take
/// four bytes of their word.
const ANSWER: i32 = -12;

/// Makes the system call if one is needed: once in a hit, outside of restartable sequences, and before
/// [`load`]. The number cannot be cached, in a word of the thread's or of ours: it would be wrong in a forked
/// child, or in the next thread on the same block. Uses rax, r10 and r11.
pub(super) fn ask(id: ThreadId, asm: &mut Asm<'_>) {
    if id == ThreadId::Call {
        asm.mov(R10, RCX);
        asm.mov_imm32(RAX, SYS_GETTID);
        asm.syscall();
        asm.store32(Mem::At(RSP, ANSWER), RAX);
        asm.mov(RCX, R10);
    }
}

/// `to` = the number, or 0. rsp is lower by `depth` than at `ask`.
pub(super) fn load(id: ThreadId, asm: &mut Asm<'_>, to: Reg, depth: i32) {
    match id {
        ThreadId::At(offset) => asm.load32(to, Mem::Fs(offset)),
        ThreadId::Call => asm.load32(to, Mem::At(RSP, depth + ANSWER)),
        ThreadId::Unknown => asm.mov_imm32(to, 0),
    }
}

/// Where hits are counted by thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threads {
    /// Shape of the rows; its offset is not used.
    pub area: ThreadArea,
    /// Address of the rows' tags, within ±2 GiB of the code.
    pub tags: u64,
    /// How a thread's number is read.
    pub id: ThreadId,
}

/// What is left to append behind the displaced code.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadCountTail {
    rows: u32,
    /// Where the common path is left if the first row is not the thread's, and where it is met again.
    elsewhere: Fix,
    found: u64,
}

const SYS_GETTID: u32 = 186;
const RED_ZONE: i32 = 128;
const FLAGS: i32 = -16;
const SCRATCH: i32 = -56;

/// Registers that are used, and where they are saved. rax comes first, and last; it also holds the flags.
fn saved(id: ThreadId, site: &Liveness) -> impl Iterator<Item = (Reg, i32)> {
    let call = id == ThreadId::Call;
    [(true, RCX, -24), (true, RDX, -32), (true, RSI, -40), (call, R11, -48)]
        .into_iter()
        .filter(move |(used, reg, _)| *used && site.dead >> reg.0 & 1 == 0)
        .map(|(_, reg, at)| (reg, at))
}

/// Appends the part of a stub that comes before the displaced code.
pub(super) fn count_by_thread(
    asm: &mut Asm<'_>,
    threads: &Threads,
    counter: u32,
    site: &Liveness,
) -> ThreadCountTail {
    enter(asm, threads.id, site);
    let ThreadArea { rows, .. } = threads.area;
    thread(asm, threads.id);
    asm.mov32(RCX, RDX);
    asm.alu_imm(Alu::And, RCX, rows as i32 - 1, false);
    asm.lea(RDX, Mem::At(RDX, 1));
    asm.mov_imm64(RSI, threads.tags);
    let elsewhere = asm.unbroken(|asm| {
        asm.alu_store(Alu::Cmp, Mem::Sum(RSI, RCX, 3, 0), RDX, false);
        asm.jcc_later(Cond::NotEqual)
    });
    let found = asm.here();
    asm.imul_imm(RCX, RCX, threads.area.stride() as i32, true);
    let word = threads.area.first() + u64::from(counter) * 8;
    asm.alu_mem_imm(Alu::Add, Mem::Sum(RSI, RCX, 0, word as i32), 1, true);
    leave(asm, threads.id, site);
    ThreadCountTail { rows, elsewhere, found }
}

fn enter(asm: &mut Asm<'_>, id: ThreadId, site: &Liveness) {
    if site.red_zone_live {
        asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
    }
    asm.store(Mem::At(RSP, -8), RAX);
    if !site.flags_dead {
        asm.flags_to_rax();
        asm.store32(Mem::At(RSP, FLAGS), RAX);
    }
    saved(id, site).for_each(|(reg, at)| asm.store(Mem::At(RSP, at), reg));
}

fn leave(asm: &mut Asm<'_>, id: ThreadId, site: &Liveness) {
    if !site.flags_dead {
        asm.load32(RAX, Mem::At(RSP, FLAGS));
        asm.flags_from_rax();
    }
    saved(id, site).for_each(|(reg, at)| asm.load(reg, Mem::At(RSP, at)));
    asm.load(RAX, Mem::At(RSP, -8));
    if site.red_zone_live {
        asm.lea(RSP, Mem::At(RSP, RED_ZONE));
    }
}

/// rdx = the thread's number. A system call uses rax, rcx and r11.
fn thread(asm: &mut Asm<'_>, id: ThreadId) {
    match id {
        ThreadId::At(offset) => asm.load32(RDX, Mem::Fs(offset)),
        ThreadId::Call => {
            asm.mov_imm32(RAX, SYS_GETTID);
            asm.syscall();
            asm.mov32(RDX, RAX);
        }
        // All hits go to one row.
        ThreadId::Unknown => asm.mov_imm32(RDX, 0),
    }
}

impl ThreadCountTail {
    /// Appends the search from the first row on: rsi = tags, rcx = row, rdx = tag. It ends with the thread's
    /// row, or the row of all others, in rcx.
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        asm.bind(self.elsewhere);
        asm.store(Mem::At(RSP, SCRATCH), RDI);
        asm.mov_imm32(RDI, PROBES.min(self.rows));
        let again = asm.here();
        asm.load(RAX, Mem::Sum(RSI, RCX, 3, 0));
        asm.alu(Alu::Cmp, RAX, RDX);
        let same = asm.jcc_later(Cond::Equal);
        asm.test(RAX, RAX, true);
        let taken = asm.jcc_later(Cond::NotEqual);
        asm.cmpxchg(Mem::Sum(RSI, RCX, 3, 0), RDX);
        let mine = asm.jcc_later(Cond::Equal);
        // A signal handler of this thread may have claimed the row since it was looked at.
        asm.alu(Alu::Cmp, RAX, RDX);
        let handler = asm.jcc_later(Cond::Equal);
        asm.bind(taken);
        asm.alu_imm(Alu::Add, RCX, 1, false);
        asm.alu_imm(Alu::And, RCX, self.rows as i32 - 1, false);
        asm.alu_imm(Alu::Sub, RDI, 1, false);
        asm.jcc(Cond::NotEqual, again);
        asm.mov_imm32(RCX, self.rows);
        for fix in [same, mine, handler] {
            asm.bind(fix);
        }
        asm.load(RDI, Mem::At(RSP, SCRATCH));
        asm.jmp(self.found);
    }
}
