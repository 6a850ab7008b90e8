//! Return trampolines: code that replaces a return address by its own, the unwind information for it, and how
//! one is taken.
//!
//! In: where trampolines and their entries lie ([`Trampolines`]). Out: bytes. Invariants: SLOT-1 no two armed
//! stack words hold the same trampoline. SLOT-2 from the moment at which a stack word holds a trampoline
//! until a thread has arrived at that trampoline's code, its entry names the real return address. SLOT-3 a
//! trampoline is given back by the thread that arrived at its code, or by a tool that has proven that no word
//! anywhere names it. Does not: know what is done at a return (see `latency::armed`).
//!
//! # One call
//!
//! | step | what | which code may look in between |
//! |---|---|---|
//! | A1 | the trampoline's byte is exchanged with LENT; | a signal handler of this thread, |
//! | | it was 0, so the trampoline is ours | other threads, a forked child: each takes another one |
//! | A2 | the entry is written: return address, function, time | none: no word names the trampoline yet |
//! | A3 | the stack word := trampoline | an unwinder, a signal handler, a debugger: SLOT-2 |
//! | A4 | the entry's WORD := the stack word's address | a detach before this step leaves the word armed, which works |
//! | B1 | `ret` leads to the trampoline's code, which pushes its number where the stack word was | |
//! | B2 | return address, function and time are read | |
//! | B3 | WORD := 0, then the byte := 0 | a thread that takes the trampoline now finds nothing of ours in it, |
//! | | | and we need nothing of it |
//! | B4 | a jump to the return address, with the stack pointer that `ret` would have left | |
//!
//! If returns are recorded, the trampoline leads on (`latency::armed`): the action of a return is code of its
//! own for each function, beside the stub of its entry. Between B2 and B4 nothing is recorded then, and the
//! last steps are:
//!
//! | step | what | which code may look in between |
//! |---|---|---|
//! | C3 | B3, while the stack word | as at B3; a search for trampolines that no word names finds the number, |
//! | | holds the trampoline's number | which is right or names one too many |
//! | C4 | the stack word := the return address | an unwinder sees a frame that is about to return |
//! | C5 | a jump to the function's own code: | detach and unmapping |
//! | | stack and registers are as at its `ret`; it records, and returns | see a thread in our code (R4, P2) |
//!
//! The code that the entry's WHAT leads to stays mapped while a trampoline is taken (`patch`'s `free`, F6).
//! If a tracer dies, all of it stays mapped.
//!
//! A thread that leaves its calls by `longjmp`, an exception, or its end never reaches B1. Its trampolines
//! stay taken, though no word names them. No code in the process can find that out: coroutines may have been
//! copied away, stack and all, to come back later. `patch` finds it out, with all threads stopped, when
//! trampolines run short.
//!
//! If the entry finds a trampoline in its stack word, the function was reached by a tail call. Its own
//! trampoline then returns to that one. Such chains are at most
//! [`CHAIN`](trapline_record::trampolines::CHAIN) deep, since mutual tail recursion never ends.
//!
//! # Pictures
//!
//! The stack word of a call; S is the stack pointer at the function's first instruction:
//!
//! ```text
//!   the call               rsp = S        [S] = return address
//!   A3, in the stub        rsp = S        [S] = code + CODE · n + RETURN
//!   `ret`                  rsp = S + 8    rip = that address
//!   B1, `push n`           rsp = S        [S] = n, where the return address was
//!   B4                     rsp = S + 8    rip = the entry's REAL
//!   C4                     rsp = S        [S] = the entry's REAL
//!   C5, then `ret`         rsp = S + 8    rip = the entry's REAL
//! ```
//!
//! The code of trampoline n, at code + CODE · n:
//!
//! ```text
//!   + 0                    nop, which never runs
//!   + 1   RETURN           push n
//!   + 6                    jmp common
//!   + 11  ENTER            call [entry n + GO]     with `paired` only
//!   + 17  PAIRED           push n
//!   + 22                   jmp paired
//!   … 32  CODE             int3
//! ```
//!
//! The private memory, at `table`:
//!
//! ```text
//!   + 64 · line            the trampoline with which a search begins; line below HINT_LINES
//!   + LENT_OFF + n         one byte for each trampoline: 0 free, LENT taken
//!   + entries_off          entries of ENTRY = 64 bytes each:
//!       + 0 REAL, + 8 WORD, + 16 TIME or SITE, + 24 WHAT, + 32 UNDER, + 40 BOUND, + 48 GO, + 56 INTO
//! ```

use trapline_record::trampolines::{self, Trampolines, at};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::machine::Machine;
use super::rseq::{self, CPU_ID};

/// Appends the code of all trampolines, which will lie at `trampolines.code`. Each pushes its number and
/// jumps to `common`. That code finds the number in the word where the return address was. Every register and
/// flag is as the return left it. The code must do B2 to B4. With `paired`, each trampoline also has a
/// call ([`ENTER`](trampolines::ENTER)) through its entry's `GO`; a return from there goes to `paired` in the
/// same way.
pub fn lay(out: &mut Vec<u8>, trampolines: &Trampolines, common: u64, paired: Option<u64>) {
    let mut asm = Asm::new(out, trampolines.code);
    for trampoline in 0..trampolines.count {
        asm.raw(&[0x90]);
        asm.push_imm(trampoline as i32);
        asm.jmp(common);
        if let Some(paired) = paired {
            debug_assert_eq!(asm.here() % trampolines::CODE, trampolines::ENTER);
            asm.call_mem(Mem::Rip(trampolines.entry(trampoline) + at::GO));
            debug_assert_eq!(asm.here() % trampolines::CODE, trampolines::PAIRED);
            asm.push_imm(trampoline as i32);
            asm.jmp(paired);
        }
        asm.align(trampolines::CODE);
    }
}

/// The byte that says whether a trampoline is taken, relative to the private memory's address in `base`.
const fn lent(base: Reg, trampoline: Reg) -> Mem {
    Mem::Sum(base, trampoline, 0, Trampolines::LENT_OFF as i32)
}

/// What is left to append behind the common path of [`Taking::begin`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Taking {
    trampolines: Trampolines,
    taken: Fix,
    full: Fix,
    look: u64,
    found: u64,
}

impl Taking {
    /// Step A1.
    ///
    /// ```text
    ///   rdi = table
    ///   rsi = rdi + 64 · (CPU mod HINT_LINES)          without rseq: `rseq::any_line` in place of the CPU
    ///   rcx = [rsi] mod count, rounded down to 8
    ///   rcx += index of the first byte of [rdi + LENT_OFF + rcx] that is 0
    ///   al  = exchange([rdi + LENT_OFF + rcx], LENT);  taken by this thread if al = 0
    ///   out   rdi = private memory, rcx = trampoline
    ///   uses  rax, rdx, rsi, flags
    /// ```
    pub(super) fn begin(asm: &mut Asm<'_>, trampolines: &Trampolines, machine: &Machine) -> Self {
        asm.mov_imm64(RDI, trampolines.table);
        match machine.rseq {
            // This is only a hint: a stale or negative number costs a longer search.
            Some(rseq) => {
                asm.load32(RSI, Mem::Fs(rseq.offset + CPU_ID));
                asm.alu_imm(Alu::And, RSI, trampolines::HINT_LINES as i32 - 1, false);
            }
            None => rseq::any_line(asm, RSI, machine.rdpid, trampolines::HINT_LINES as u32),
        }
        asm.shift(Shift::Left, RSI, 6, false);
        asm.alu(Alu::Add, RSI, RDI);
        asm.load32(RCX, Mem::At(RSI, 0));
        let look = asm.here();
        asm.alu_imm(Alu::And, RCX, trampolines.count as i32 - 8, false);
        asm.load(RDX, lent(RDI, RCX));
        asm.not(RDX);
        asm.bsf(RDX, RDX);
        let full = asm.jcc_later(Cond::Equal);
        let found = asm.here();
        asm.shift(Shift::Right, RDX, 3, false);
        asm.alu(Alu::Add, RCX, RDX);
        asm.mov_imm32(RAX, u32::from(trampolines::LENT));
        asm.exchange_al(lent(RDI, RCX));
        asm.test_al();
        let taken = asm.jcc_later(Cond::NotEqual);
        Self { trampolines: *trampolines, taken, full, look, found }
    }
    /// Appends the rest, for the case that another thread was faster, or that eight neighbours are taken. Only
    /// then does the next search begin elsewhere: `[rsi] = rcx`. If
    /// there is no free trampoline at all, it counts `missed` and goes to `leave`. r8 counts the groups of
    /// eight that are left, and is saved at rsp + `scratch`.
    pub(super) fn finish(self, asm: &mut Asm<'_>, scratch: i32, missed: Mem, leave: u64) {
        asm.bind(self.taken);
        asm.jmp(self.look);
        asm.bind(self.full);
        asm.store(Mem::At(RSP, scratch), R8);
        asm.mov_imm32(R8, self.trampolines.count / 8);
        let again = asm.here();
        asm.alu_imm(Alu::Add, RCX, 8, false);
        asm.alu_imm(Alu::And, RCX, self.trampolines.count as i32 - 8, false);
        asm.load(RDX, lent(RDI, RCX));
        asm.not(RDX);
        asm.bsf(RDX, RDX);
        let some = asm.jcc_later(Cond::NotEqual);
        asm.alu_imm(Alu::Sub, R8, 1, false);
        asm.jcc(Cond::NotEqual, again);
        asm.load(R8, Mem::At(RSP, scratch));
        asm.alu_mem_imm(Alu::Add, missed, 1, true);
        asm.jmp(leave);
        asm.bind(some);
        asm.load(R8, Mem::At(RSP, scratch));
        asm.store32(Mem::At(RSI, 0), RCX);
        asm.jmp(self.found);
    }
}

/// `to` = `memory` + ENTRY · `trampoline`, a base for [`entry`]; `memory` = the private memory's address.
pub(super) fn entry_of(asm: &mut Asm<'_>, to: Reg, trampoline: Reg, memory: Reg) {
    debug_assert!(to != trampoline && to != memory && to != RSP, "operands are read behind the first write");
    asm.mov(to, trampoline);
    asm.shift(Shift::Left, to, trampolines::ENTRY.trailing_zeros() as u8, true);
    asm.alu(Alu::Add, to, memory);
}

/// The word at base + entries_off + at; `base` is from [`entry_of`].
pub(super) const fn entry(trampolines: &Trampolines, base: Reg, at: u64) -> Mem {
    Mem::At(base, (trampolines.entries_off() + at) as i32)
}

/// Step B3: WORD = 0, then the byte at memory + LENT_OFF + trampoline = 0.
pub(super) fn give_back(
    asm: &mut Asm<'_>,
    trampolines: &Trampolines,
    entry_base: Reg,
    trampoline: Reg,
    memory: Reg,
) {
    asm.store_imm(entry(trampolines, entry_base, at::WORD), 0);
    asm.store_byte_imm(lent(memory, trampoline), 0);
}
