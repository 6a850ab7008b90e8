//! One hit, one increment.
//!
//! In: address of the counter's word on line 0, whether x16 and x17 are free. Out: code that adds 1 on this
//! CPU's line and runs into the displaced code, which the caller appends. Behind that come a branch back, the
//! path of threads without an area, the abort handler, the descriptor. No flag is read or written. If x16 and
//! x17 are in use, they are pushed: nothing below sp is in use (AAPCS64 has no red zone). sp is a multiple of
//! 16 wherever it is used as an address.
//!
//! | step | what | a signal or a move to another CPU there |
//! |---|---|---|
//! | A1 | announce the descriptor in the thread's area | nothing was done |
//! | A2 | read the CPU; if there is none, or one that was not known when the plan was made: the other path | back to A1 |
//! | A3 | load the line's word, add | back to A1 |
//! | A4 | store it: the commit, and the last of the section | before it, back to A1; behind it, counted |
//! | A5 | clear the announcement | counted; the kernel clears it too |
//!
//! ```text
//!   last = word + 64 (lines - 1)             the word on the line of threads without an area
//!   word of a CPU = last + 64 (cpu - (lines - 1))
//!
//!            x16 A                   x17 B
//!   A1       descriptor              the area
//!   A2       cpu - (lines - 1)       the area        bit 31 of A set: the CPU has a line
//!   A3, A4   the count, then + 1     the word
//!   A5       -                       the area
//!   others   1, or the count + 1     last            x15: whether the exclusive store failed (no FEAT_LSE)
//!
//!   sp +  0   x15, 0         in the path of the others, without FEAT_LSE    <- sp
//!   sp + 16   x16, x17       unless they are free
//!   sp + 32   <- S           sp + 16 without one of these pairs, sp without both
//! ```

use super::asm::{Asm, Fix, NoWords, Reg, ZERO};
use super::counted::by_thread;
use super::machine::{Machine, Rseq, SIGNATURE};
use super::pending::Code;

const A: Reg = 16;
const B: Reg = 17;
/// `struct rseq`: offset of the CPU's number, which is negative in a thread that is not registered.
const CPU_ID: u32 = 4;
/// `struct rseq`: offset of the running sequence's descriptor.
const RSEQ_CS: u32 = 8;

/// A stub that waits for its displaced code. The caller relocates it to [`UnfinishedCount::displaced_at`].
#[derive(Debug)]
#[must_use]
pub struct UnfinishedCount {
    asm: Asm,
    machine: Machine,
    word: u64,
    section: Option<Section>,
    /// Uses of the last line's address, which lies behind the code.
    last_line: Vec<Fix>,
}

#[derive(Debug)]
struct Section {
    descriptor: Fix,
    restart: u64,
    start: u64,
    end: u64,
    unregistered: [Fix; 2],
    /// Where the path of threads without an area comes back.
    done: u64,
}

/// The part of a counting stub that comes before the displaced code. The stub is for the address `at`; `word`
/// is the counter on line 0.
pub fn count(at: u64, machine: &Machine, word: u64, ip_free: bool) -> UnfinishedCount {
    let mut asm = Asm::new(at);
    let (mut section, mut last_line) = (None, Vec::new());
    if !ip_free {
        asm.push_pair(A, B);
    }
    match machine.rseq {
        Some(rseq) => section = Some(owned(&mut asm, machine, rseq, &mut last_line)),
        None => shared(&mut asm, machine, &mut last_line),
    }
    if !ip_free {
        asm.pop_pair(A, B);
    }
    UnfinishedCount { asm, machine: *machine, word, section, last_line }
}

/// Loads the address of the thread's area into `B`.
fn area(asm: &mut Asm, rseq: Rseq) {
    asm.thread_pointer(B);
    asm.add_imm(B, B, rseq.offset);
}

fn owned(asm: &mut Asm, machine: &Machine, rseq: Rseq, last_line: &mut Vec<Fix>) -> Section {
    let restart = asm.here();
    area(asm, rseq);
    let descriptor = asm.adr_later(A);
    asm.store(A, B, RSEQ_CS);
    let start = asm.here();
    asm.load32(A, B, CPU_ID);
    let negative = asm.if_negative_later(A);
    // Counted from the last line, so that one bit shows whether the CPU has a line, and flags stay as they
    // are.
    asm.subtract32(A, machine.lines.saturating_sub(1));
    let beyond = asm.unless_negative_later(A);
    asm.lines(A);
    last_line.push(asm.literal_later(B));
    asm.add(B, B, A);
    asm.load(A, B);
    asm.add_imm(A, A, 1);
    asm.store(A, B, 0);
    let end = asm.here();
    area(asm, rseq);
    let done = asm.here();
    asm.store(ZERO, B, RSEQ_CS);
    Section { descriptor, restart, start, end, unregistered: [negative, beyond], done }
}

/// For a process without rseq: an atomic addition on some line.
fn shared(asm: &mut Asm, machine: &Machine, last_line: &mut Vec<Fix>) {
    let several = machine.lines > 1;
    if several {
        by_thread(asm, [A, B], machine.lines);
    }
    last_line.push(asm.literal_later(B));
    if several {
        asm.subtract32(A, machine.lines - 1);
        asm.lines(A);
        asm.add(B, B, A);
    }
    add(asm, machine);
}

/// `[B] = [B] + 1`, by an atomic access. Uses `A`; without FEAT_LSE x15 waits on the stack.
fn add(asm: &mut Asm, machine: &Machine) {
    if machine.lse {
        asm.one(A);
        asm.add_atomic(A, B);
        return;
    }
    const FAILED: Reg = 15;
    asm.push_pair(FAILED, ZERO);
    let again = asm.here();
    asm.load_exclusive(A, B);
    asm.add_imm(A, A, 1);
    asm.store_exclusive(FAILED, A, B);
    asm.unless_zero(FAILED, again);
    asm.pop_pair(FAILED, ZERO);
}

impl UnfinishedCount {
    /// Address at which the displaced code will run.
    #[must_use]
    pub const fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    /// The whole stub, with the displaced code, and a branch `back` if that falls through.
    ///
    /// # Errors
    /// That is out of reach.
    pub fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, machine, word, section, mut last_line } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        if let (Some(section), Some(rseq)) = (section, machine.rseq) {
            section.unregistered.into_iter().for_each(|fix| asm.bind(fix));
            last_line.push(asm.literal_later(B));
            add(&mut asm, &machine);
            area(&mut asm, rseq);
            asm.b(section.done);
            asm.word(SIGNATURE);
            let abort = asm.here();
            asm.b(section.restart);
            asm.align(32);
            asm.bind(section.descriptor);
            // Version 0, no flags.
            [0, section.start, section.end - section.start, abort]
                .into_iter()
                .for_each(|field| asm.double(field));
        }
        asm.align(8);
        last_line.into_iter().for_each(|fix| asm.bind(fix));
        asm.double(word.wrapping_add(64 * (u64::from(machine.lines.max(1)) - 1)));
        asm.words()
    }
}

impl Code for UnfinishedCount {
    fn displaced_at(&self) -> u64 {
        Self::displaced_at(self)
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        Self::finish(self, displaced, back)
    }
}
