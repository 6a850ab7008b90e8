//! One hit, one increment in the row of its thread; and how generated code reads a thread's number.
//!
//! In: where the rows lie, which counter, how a thread's number is read. Out: code that adds 1 and runs into
//! the displaced code; behind it the search for a row. A thread needs that search only at its first hit,
//! unless another thread's row is in its way. See `record::threads`. A row belongs to one thread, so its
//! lines stay in that CPU's cache; an atomic addition makes it exact for the numbers that two threads share.
//!
//! | step | what | a signal there |
//! |---|---|---|
//! | T1 | the thread's number; the first row that may be its own | its handler's hits find the row, or claim it |
//! | T2 | the row's tag is the thread's: T4. It is 0: | the store fails, and the row is looked at again: |
//! | | exclusive load, exclusive store of ours | the handler of this thread may have claimed it |
//! | T3 | it is another thread's: the next row, at most `PROBES` of them; then the row of all others | |
//! | T4 | one more, atomically | before it, or behind it |
//!
//! ```text
//!   tag   = number + 1                               KEY
//!   row   = number mod rows, then (row + 1) mod rows; at last rows: the row of all others
//!   tag's place = TAGS + 8 row
//!   word  = TAGS + first + stride·row + 8 counter    first = 8 rows
//!
//!              x16 A            x17 B      x15 KEY   x14 TAGS     x13 ROW   x12 LEFT    x11 C
//!   T1         [tag's place]    -          tag       tags         row       -           -
//!   T2, T3     [tag's place]    FAILED     tag       tags         row       rows left   the tag's place
//!   T4         1                the word   scratch   tags         row       -           scratch
//! ```
//!
//! The frame is that of `frame`: sp = S - FRAME from the first instruction of T1 to the end of T4.
//!
//! # A thread's number
//!
//! The C library keeps it at an offset from tpidr_el0; otherwise a system call returns it (`gettid`). The
//! call keeps all registers but x0 (Linux' arm64 ABI), which is put back. It loses what SVE has beyond the
//! vectors' 128 bits. So on a processor with SVE no call is made (`supported::check`).
//!
//! ```text
//!   ThreadId::At(offset)   number = [tpidr_el0 + offset], 32 bits
//!   ThreadId::Call         number = [sp + ANSWER], which `ask` stored
//!   ThreadId::Unknown      number = 0
//! ```

use trapline_record::threads::{PROBES, ThreadArea};

use super::asm::{Asm, Cond, Fix, NoWords, Reg, SP, Update, ZERO};
use super::frame::{self, A, ANSWER, B, C, D, INDEX, KEY, VALUE, waiting};
use super::machine::Machine;
use super::pending::Code;
use crate::machine::ThreadId;

/// Where hits are counted by thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threads {
    /// Shape of the rows; its offset is not used.
    pub area: ThreadArea,
    /// Address of the rows' tags.
    pub tags: u64,
    /// How a thread's number is read.
    pub id: ThreadId,
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedThreadCount {
    asm: Asm,
    rows: u32,
    /// Where the common path is left if the first row is not the thread's, and where it is met again.
    elsewhere: Fix,
    found: u64,
}

const GETTID: u32 = 178;
const TAGS: Reg = D;
const ROW: Reg = INDEX;
const LEFT: Reg = VALUE;

/// Makes the system call if one is needed: once in a hit, outside of restartable sequences, and before
/// [`load`]. x0 and x8 wait at `waiting(0)` and `waiting(1)` meanwhile.
pub(super) fn ask(id: ThreadId, asm: &mut Asm) {
    const NUMBER: Reg = 8;
    if id == ThreadId::Call {
        asm.store_two(0, NUMBER, SP, waiting(0));
        asm.number(NUMBER, GETTID);
        asm.system_call();
        asm.store(0, SP, ANSWER);
        asm.load_two(0, NUMBER, SP, waiting(0));
    }
}

/// Loads the number, or 0.
pub(super) fn load(id: ThreadId, asm: &mut Asm, to: Reg) {
    load_below(id, asm, to, 0);
}

/// The same, if the stack pointer is lower by `depth` bytes.
pub(super) fn load_below(id: ThreadId, asm: &mut Asm, to: Reg, depth: u32) {
    match id {
        ThreadId::At(offset) => {
            asm.thread_pointer(to);
            asm.add_imm(to, to, offset);
            asm.load32(to, to, 0);
        }
        ThreadId::Call => asm.load_at(to, SP, depth + ANSWER),
        ThreadId::Unknown => asm.number(to, 0),
    }
}

/// The part of a stub that comes before the displaced code, for the address `at`.
pub fn count_by_thread(at: u64, machine: &Machine, threads: &Threads, counter: u32) -> UnfinishedThreadCount {
    let mut asm = Asm::new(at);
    let ThreadArea { rows, .. } = threads.area;
    frame::enter(&mut asm);
    ask(threads.id, &mut asm);
    load(threads.id, &mut asm, A);
    first_row(&mut asm, A, rows);
    asm.add_imm(KEY, A, 1);
    asm.constant(TAGS, threads.tags);
    asm.load_nth(A, TAGS, ROW);
    asm.compare(A, KEY);
    let elsewhere = asm.if_later(Cond::NotEqual);
    let found = asm.here();
    asm.number(A, threads.area.stride() as u32);
    asm.constant(B, threads.tags.wrapping_add(threads.area.first() + u64::from(counter) * 8));
    asm.mul_add(B, ROW, A, B);
    asm.one(A);
    asm.update(machine.lse, Update::Add, A, B, [C, KEY]);
    frame::leave(&mut asm);
    UnfinishedThreadCount { asm, rows, elsewhere, found }
}

/// `ROW = of mod rows`; `rows` is a power of two.
fn first_row(asm: &mut Asm, of: Reg, rows: u32) {
    match rows.max(1).ilog2() {
        0 => asm.mov(ROW, ZERO),
        bits => asm.bits(ROW, of, 0, bits),
    }
}

impl Code for UnfinishedThreadCount {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, rows, elsewhere, found } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        asm.bind(elsewhere);
        search(&mut asm, rows, found);
        asm.pool();
        asm.words()
    }
}

/// T2 and T3: goes to `found` with the thread's row, or the row of all others, in `ROW`.
fn search(asm: &mut Asm, rows: u32, found: u64) {
    const FAILED: Reg = B;
    asm.number(LEFT, PROBES.min(rows));
    let again = asm.here();
    asm.add_shifted(C, TAGS, ROW, 3);
    asm.load_exclusive(A, C);
    asm.compare(A, KEY);
    asm.if_to(Cond::Equal, found);
    let taken = asm.unless_zero_later(A);
    asm.store_exclusive(FAILED, KEY, C);
    asm.unless_zero(FAILED, again);
    asm.b(found);
    asm.bind(taken);
    asm.add_imm(ROW, ROW, 1);
    first_row(asm, ROW, rows);
    asm.subtract32(LEFT, 1);
    asm.unless_zero(LEFT, again);
    asm.number(ROW, rows);
    asm.b(found);
}
