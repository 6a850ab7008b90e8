//! The stack at a hit: walked by frame pointers, or copied, into the record that is being written
//! (`record::stack`).
//!
//! In: what is known about stacks in the process ([`Stacks`]), how much is requested. Out: code in two parts.
//! `bound` leaves in rcx how far the stack may be read. `fill` reads it, and leaves another number there. So both
//! are inside the restartable sequence, which begins with `bound`. General registers only.
//!
//! # Protocol
//!
//! Let S be the program's stack pointer, and E the end of the stack that S lies on. Invariant: STK-1 nothing
//! outside [S, E) is ever read, whatever rbp and the words of the stack are, and all of [S, E) stays mapped
//! while the thread is in the stub. So nothing faults, no system call is made, and no handler of the
//! program's gets in the way. E is taken from the first of these that is certain:
//!
//! B1 The main thread's stack, as it was mapped when we attached: S lies in it, E is its end. The kernel
//!    makes it longer below, never shorter.
//! B2 In a Go program: the goroutine's own bounds, the first two words behind the pointer that the thread
//!    keeps. The runtime moves a stack only where the goroutine does not run code of its own.
//! B3 glibc's block of the thread (`stackblock`, `stackblock_size` in its control block, which the tracer
//!    found by their values): S lies in it, E is its end. It is given back after the thread has ended. The
//!    main thread has none: its block begins at 0.
//! B4 Otherwise only the page that S lies on, and the record shows it. Examples are coroutines, alternate
//!    signal stacks, other C libraries' threads, and a main stack that has grown deeper than it was.
//!
//! The same as rules; the first that holds decides:
//!
//! ```text
//!   B1    low <= S < high            E = high               (low, high) = stacks.main
//!   B2    g != 0, [g] <= S < [g + 8] E = [g + 8]            g = fs:[go]
//!   B3    b != 0, b <= S < b + size  E = b + size           b = fs:[block], size = fs:[block + 8]
//!   B4    always                     E = S | 0xfff          the page's last byte
//! ```
//!
//! A walk: at a function's entry the return address is at S, and rbp is still the caller's. Anywhere else rbp
//! may be the function's own.
//!
//! ```text
//!   entry    address = *S
//!   W1       end, and record rbp, unless S <= rbp, rbp + 16 <= E and there is room for one more address
//!   W2       (address, rbp) = (*(rbp + 8), *rbp)
//!   W3       W1 again
//! ```
//!
//! What rbp may be:
//!
//! - a frame of the running stack: it is followed;
//! - 0, the end of the chain: the walk ends;
//! - any other number, in code compiled without frame pointers: below S, or behind E, or nearly so, the walk
//!   ends. Between them, two words of the stack are taken for a frame, as the kernel does. What they name is
//!   followed by the same rule;
//! - itself, or a frame further down: it is followed until the room is used up;
//! - a frame of another stack (a signal handler on its own stack, a coroutine that names its resumer): the
//!   walk ends, since rbp is outside [S, E);
//! - in a leaf function that sets up no frame: at its entry nothing is missed; inside it, its caller is left
//!   out for lack of the frame.
//!
//! A copy: the words from S up to E, as many as there is room for.
//!
//! The registers, and where they are saved (`saves`):
//!
//! ```text
//!   rsp - 128    rdi, as saved               rsp - 104    E    (LIMIT)
//!   rsp - 120    rsi, as saved               rsp - 96     S    (STACK)
//!   rsp - 112    rcx, as saved               rsp + step   = S
//! ```
//!
//! ```text
//!   bound   rdx = S, rcx = E;  then, for a walk:  rcx = max(E - S - 15, 0)
//!                                    for a copy:  rcx = min((E - S) rounded down to 8, room)
//!   walk    r10 = record, rsi = rbp, rdi = rsi - S or the address, rdx = bytes used;  on while rsi - S < rcx
//!   copy    r10 = record, rsi = bytes copied, rdi = the word
//!   fold    r10 = PHI, rsi and rdi as in a walk, rax = addresses that there is still room for, rdx = the number
//!   end     rcx = bytes used, rsi = the rbp that was reached;  the record's words FRAME, END = rsi, E
//! ```
//!
//! Return trampolines: a call with a replaced return address has a trampoline's address on the stack
//! (`trampolines`). Invariant: STK-2 if a trampoline lies on the stack, the return address that it stands for is
//! recorded. A word that lies in the trampolines' code is looked up in that trampoline's entry (REAL):
//!
//! ```text
//!   while 0 <= word - code < code_len:    word = [entries + ENTRY · floor((word - code) / CODE) + REAL]
//! ```
//!
//! It is repeated while the result lies there too, which is so for a function that was entered by a tail
//! call. The frames above S are calls that have not ended, so their trampolines are taken, and SLOT-2 says
//! that their entries are right. A word that is no return address (in a copy, or if rbp is no frame pointer)
//! may name a trampoline that was given back. Then some address is recorded that this trampoline stood for.
//! Entries are mapped as long as stubs are (the plan ensures that), so nothing faults. The repetition ends:
//! REAL was written when the trampoline that it names was taken, so that one's own REAL was written before.
//!
//! Interleavings. A thread that is moved or interrupted in the sequence computes S and rcx again, and walks
//! again from the start, into another slot. A signal handler runs below S - 128 and changes nothing above S
//! except what the program lets it change. A word that changes during the walk has one value or the other. It
//! is checked after it was loaded, in the register that is then used (it is never loaded again). If another
//! thread unmaps this stack, or mprotects it, it takes it away from the program too.

use trapline_record::ring::FIRST_VALUE;
use trapline_record::stack::{END, FIRST, FRAME};
use trapline_record::tally::PHI;
use trapline_record::trampolines::{self, Trampolines, at};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, RAX, RBP, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use crate::machine::Stacks;
use crate::request::Unwind;

/// Registers that are used in addition to the records' own, and the offsets from the stack pointer at which
/// they are saved.
pub(super) const SAVED: [(Reg, i32); 3] = [(RCX, -112), (RSI, -120), (RDI, -128)];
/// Offset at which S and E wait; a filter's intermediate values are no longer needed then.
const STACK: i32 = -96;
const LIMIT: i32 = -104;
/// Upper bound of the code bytes for this.
pub(crate) const BYTES: u64 = 640;

/// The stack part of one record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) stacks: Stacks,
    pub(super) unwind: Unwind,
    /// By how many bytes the stack pointer is below the program's.
    pub(super) step: i32,
    /// Upper bound of a record's bytes.
    pub(super) most: u32,
    /// The hit is at a function's entry, so S points to the return address.
    pub(super) at_entry: bool,
    /// Return trampolines that may stand in place of return addresses.
    pub(super) trampolines: Option<Trampolines>,
}

/// Where the trampolines' code begins, and where their entries do: two words that lie between the code.
#[derive(Clone, Copy, Debug)]
struct Real {
    code: Mem,
    entries: Mem,
    len: i32,
}

impl Real {
    /// Appends both words; the code before them jumps over them.
    fn lay(asm: &mut Asm<'_>, trampolines: Trampolines) -> Self {
        let over = asm.jmp_later();
        asm.align(8);
        let (code, entries) = (asm.here(), asm.here() + 8);
        asm.u64(trampolines.code);
        asm.u64(trampolines.entry(0));
        asm.bind(over);
        Self { code: Mem::Rip(code), entries: Mem::Rip(entries), len: trampolines.code_len() as i32 }
    }
    /// rdi = the word in rdi, or the address that a trampoline there stands for (STK-2). Uses flags.
    fn find(self, asm: &mut Asm<'_>) {
        let again = asm.here();
        asm.alu_load(Alu::Sub, RDI, self.code);
        let other = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, RDI, self.len, true);
            asm.jcc_later(Cond::AboveEq)
        });
        asm.shift(Shift::Right, RDI, trampolines::CODE.trailing_zeros() as u8, true);
        asm.shift(Shift::Left, RDI, trampolines::ENTRY.trailing_zeros() as u8, true);
        asm.alu_load(Alu::Add, RDI, self.entries);
        asm.load(RDI, Mem::At(RDI, at::REAL as i32));
        asm.jmp(again);
        asm.bind(other);
        asm.alu_load(Alu::Add, RDI, self.code);
    }
}

impl Walk {
    /// rcx = how many bytes from S on may be read; for a walk, how many bytes from S on a frame may begin.
    /// Uses rdx, rsi and flags.
    pub(super) fn bound(&self, asm: &mut Asm<'_>) {
        asm.lea(RDX, Mem::At(RSP, self.step));
        asm.store(Mem::At(RSP, STACK), RDX);
        let mut done = Vec::new();
        self.main(asm, &mut done);
        if let Some(go) = self.stacks.go {
            goroutine(asm, go, &mut done);
        }
        if let Some(block) = self.stacks.block {
            thread(asm, block, &mut done);
        }
        asm.mov(RCX, RDX);
        asm.alu_imm(Alu::Or, RCX, 0xfff, true);
        done.into_iter().for_each(|fix| asm.bind(fix));
        asm.store(Mem::At(RSP, LIMIT), RCX);
        asm.alu(Alu::Sub, RCX, RDX);
        match self.unwind {
            Unwind::Copy(_) => {
                let most = self.most.saturating_sub(FIRST as u32 * 8) & !7;
                asm.alu_imm(Alu::And, RCX, -8, true);
                asm.alu_imm(Alu::Cmp, RCX, most as i32, true);
                let fits = asm.jcc_later(Cond::BelowEq);
                asm.mov_imm32(RCX, most);
                asm.bind(fits);
            }
            _ => {
                asm.alu_imm(Alu::Sub, RCX, 15, true);
                let room = asm.jcc_later(Cond::AboveEq);
                asm.mov_imm32(RCX, 0);
                asm.bind(room);
            }
        }
    }
    /// Step B1. Jumps to a fix that it adds to `done` with E in rcx; S is in rdx.
    fn main(&self, asm: &mut Asm<'_>, done: &mut Vec<Fix>) {
        let (low, high) = self.stacks.main;
        if low >= high {
            return;
        }
        asm.mov_imm64(RCX, high);
        asm.alu(Alu::Cmp, RDX, RCX);
        let above = asm.jcc_later(Cond::AboveEq);
        asm.mov_imm64(RSI, low);
        asm.alu(Alu::Cmp, RDX, RSI);
        done.push(asm.jcc_later(Cond::AboveEq));
        asm.bind(above);
    }
    /// Fills the record at r10, but not its word USED; rcx is from `bound`. rcx = how many of its bytes are used. Uses rdx,
    /// rsi, rdi and flags.
    pub(super) fn fill(&self, asm: &mut Asm<'_>) {
        let real = self.trampolines.map(|trampolines| Real::lay(asm, trampolines));
        match self.unwind {
            Unwind::None => {}
            Unwind::Frames(frames) => {
                self.walk(asm, frames, real);
                asm.mov(RCX, RDX);
            }
            Unwind::Copy(_) => copy(asm, self.step, real),
        }
        asm.store(word(FRAME), RSI);
        asm.load(RDI, Mem::At(RSP, LIMIT));
        asm.store(word(END), RDI);
    }
    /// rdx = the stack's number, begun with `from` (K1 of `programs::stacks`); rcx is from `bound` and stays. Uses
    /// rax, r10, rsi, rdi and flags.
    pub(super) fn fold(&self, asm: &mut Asm<'_>, from: u32) {
        let Unwind::Frames(frames) = self.unwind else { return };
        let real = self.trampolines.map(|trampolines| Real::lay(asm, trampolines));
        asm.mov_imm64(R10, PHI);
        asm.mov_imm32(RDX, from);
        asm.mov(RSI, RBP);
        let add = |asm: &mut Asm<'_>| {
            real.into_iter().for_each(|real| real.find(asm));
            asm.multiply(RDX, R10);
            asm.alu(Alu::Add, RDX, RDI);
        };
        let mut left = u32::from(frames);
        if self.at_entry {
            asm.load(RDI, Mem::At(RSP, self.step));
            add(asm);
            left -= 1;
        }
        if left == 0 {
            return;
        }
        asm.mov_imm32(RAX, left);
        let again = asm.here();
        let outside = self.outside(asm);
        asm.load(RDI, Mem::At(RSI, 8));
        asm.load(RSI, Mem::At(RSI, 0));
        add(asm);
        asm.alu_imm(Alu::Sub, RAX, 1, false);
        asm.jcc(Cond::NotEqual, again);
        asm.bind(outside);
    }
    /// W1: a jump for a frame in rsi that may not be followed. Uses rdi.
    fn outside(&self, asm: &mut Asm<'_>) -> Fix {
        asm.mov(RDI, RSI);
        asm.alu_load(Alu::Sub, RDI, Mem::At(RSP, STACK));
        asm.unbroken(|asm| {
            asm.alu(Alu::Cmp, RDI, RCX);
            asm.jcc_later(Cond::AboveEq)
        })
    }
    /// Steps W1 to W3. From one frame to the next it takes one load; the checks are computed beside it.
    fn walk(&self, asm: &mut Asm<'_>, frames: u8, real: Option<Real>) {
        let room = (u32::from(frames) * 8 + FIRST as u32 * 8).min(self.most & !7);
        asm.mov(RSI, RBP);
        asm.mov_imm32(RDX, FIRST as u32 * 8);
        if self.at_entry {
            asm.load(RDI, Mem::At(RSP, self.step));
            real.into_iter().for_each(|real| real.find(asm));
            asm.store(Mem::At(R10, FIRST as i32 * 8), RDI);
            asm.mov_imm32(RDX, FIRST as u32 * 8 + 8);
            // The loop checks for room behind each address.
            if room <= FIRST as u32 * 8 + 8 {
                return;
            }
        }
        let again = asm.here();
        let outside = self.outside(asm);
        asm.load(RDI, Mem::At(RSI, 8));
        asm.load(RSI, Mem::At(RSI, 0));
        real.into_iter().for_each(|real| real.find(asm));
        asm.store(Mem::Sum(R10, RDX, 0, 0), RDI);
        asm.alu_imm(Alu::Add, RDX, 8, false);
        asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, RDX, room as i32, false);
            asm.jcc(Cond::Below, again);
        });
        asm.bind(outside);
    }
}

/// Step B2: g holds the stack's bounds in its first two words.
fn goroutine(asm: &mut Asm<'_>, g: i32, done: &mut Vec<Fix>) {
    asm.load(RSI, Mem::Fs(g));
    asm.test(RSI, RSI, true);
    let none = asm.jcc_later(Cond::Equal);
    asm.alu_load(Alu::Cmp, RDX, Mem::At(RSI, 0));
    let below = asm.jcc_later(Cond::Below);
    asm.load(RCX, Mem::At(RSI, 8));
    asm.alu(Alu::Cmp, RDX, RCX);
    done.push(asm.jcc_later(Cond::Below));
    asm.bind(none);
    asm.bind(below);
}

/// Step B3: the block's address, and behind it its length.
fn thread(asm: &mut Asm<'_>, block: i32, done: &mut Vec<Fix>) {
    asm.load(RSI, Mem::Fs(block));
    asm.test(RSI, RSI, true);
    let none = asm.jcc_later(Cond::Equal);
    asm.alu(Alu::Cmp, RDX, RSI);
    let below = asm.jcc_later(Cond::Below);
    asm.load(RCX, Mem::Fs(block + 8));
    asm.alu(Alu::Add, RCX, RSI);
    asm.alu(Alu::Cmp, RDX, RCX);
    done.push(asm.jcc_later(Cond::Below));
    asm.bind(none);
    asm.bind(below);
}

/// Copies rcx bytes from S on. rcx = bytes used of the record, rsi = rbp. Uses rdi and flags.
fn copy(asm: &mut Asm<'_>, step: i32, real: Option<Real>) {
    asm.mov_imm32(RSI, 0);
    asm.test(RCX, RCX, true);
    let none = asm.jcc_later(Cond::Equal);
    let again = asm.here();
    asm.load(RDI, Mem::Sum(RSP, RSI, 0, step));
    real.into_iter().for_each(|real| real.find(asm));
    asm.store(Mem::Sum(R10, RSI, 0, FIRST as i32 * 8), RDI);
    asm.alu_imm(Alu::Add, RSI, 8, true);
    asm.unbroken(|asm| {
        asm.alu(Alu::Cmp, RSI, RCX);
        asm.jcc(Cond::Below, again);
    });
    asm.bind(none);
    asm.lea(RCX, Mem::At(RCX, FIRST as i32 * 8));
    asm.mov(RSI, RBP);
}

const fn word(n: u64) -> Mem {
    debug_assert!(n >= FIRST_VALUE);
    Mem::At(R10, n as i32 * 8)
}
