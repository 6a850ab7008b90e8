//! Memory that arguments point to, copied before a record is written: texts, and fields of structures.
//!
//! In: what to read, and where the notes lie about pages that may be loaded from ([`PageNotes`]). Out: code
//! that copies each text or field onto the stack, and from there into the record; the instructions in it that
//! may fault. General registers only. Fields are always copied by the kernel, so each load costs a system
//! call. A field behind other pointers takes a load for each pointer. If one of them cannot be loaded as a
//! whole, the result is EFAULT.
//! Invariants: TXT-1 whatever a pointer is, the program does not notice the read. TXT-2 the record holds what
//! could be read at the hit, and how much that was.
//!
//! # Protocol
//!
//! X0 In a Go program: a goroutine's stack ends where the heap goes on, and below it there is only what its
//!    functions were promised. If the frame below would not fit into the bounds that the thread's g names,
//!    nothing is copied, and the hit is counted as dropped. A function that has not yet checked for room has
//!    about 790 bytes, and six texts take less.
//! X1 This CPU's table names pages for this thread (`record::pages`). If both ends of the text lie in such
//!    pages, go on with X2, else with X4.
//! X2 Load eight bytes at a time, without a system call. If a load faults, the handler of SIGSEGV and SIGBUS
//!    (`stub::trap`) finds it in the table of fixups, and sends the thread to X4.
//! X3 The result is the whole length, as the kernel's would be. Done.
//! X4 The kernel copies, by process_vm_readv(2) on the thread itself. It reads what the program could read,
//!    stops where the program could not go on, and returns how far it came. Nothing faults.
//! X5 If the kernel read all of it, the handler is *verified*: the actions of both signals are read from the
//!    kernel and must be the segment's handler, and neither signal may be blocked here. Then both pages are
//!    noted. Otherwise nothing is noted, and the next hit takes X4 again. Behind a fence the handler's word
//!    is read once more. If it was cleared meanwhile, both notes are taken back.
//! X6 The reader empties the tables from time to time, so that notes are seldom old, and a handler that was
//!    replaced is noticed.
//!
//! So a load is tried only where the kernel has read for us recently. A fault takes two things: a page that
//! went away since then, and code that still passes its address. A pointer that was never good (null, a
//! number, the page behind the last one) costs X4 each time and never faults.
//!
//! # Interleavings
//!
//! - *A page is unmapped, protected or truncated between X5 and X2, or in the middle of X2*: the load faults,
//!   and X4 reads what is there now. What X2 had copied is copied again.
//! - *A page is mapped anew in between*: X2 reads what is there now, as the program would.
//! - *The handler is replaced after X5*: until the next X6, such a fault as above reaches the program's
//!   handler, with an address in our code. From then on every text takes X4. A handler that passes on faults
//!   which it does not know passes it to ours.
//! - *Detaching* (`patch`'s protocol): D1 the text is the file's again; D2 the handler's word is cleared; D3
//!   the tables are emptied; D4 each thread is seen blocked, stopped, or to have run on for long since; D5
//!   the actions are put back. A thread that looks (X1) after D3 finds nothing, and after D2 nothing is noted
//!   any more. A thread that is in X5 then has two cases. It reads the word before D2, and then D3 finds its
//!   note; or it reads the word after D2, and takes the note back. So at D5 no thread loads, except one that
//!   was between X1 and X3 for all of D4: blocked there by a page that had to be fetched, or stopped by
//!   another tool. Such a thread goes on with the program's own actions, as with a handler that was replaced.
//!   *The tracer dies between D2 and D5*: the kernel copies, and a later cleanup does all of it again.
//! - *Another thread, which blocks the signals*: it finds no entry of its own, and X5 gives it none.
//! - *The same thread blocks them after X5*: such a fault as above would be forced, as the kernel does with
//!   any fault in a thread that blocks its signal, and the program ends. That takes a pointer into a page
//!   that this thread could read less than one X6 ago, and that is gone. The program itself must not load
//!   from it either (else the program would end all the same).
//! - *A fault inside the handler*: the handler loads from segments and from the frame that the kernel has
//!   just written; none of that goes away.
//! - *A hit inside the program's own handler of SIGSEGV*: the signal is blocked there, so X5 notes nothing.
//!   With what was noted before: as above.
//! - *A stack too small for a signal's frame*: this matters only at a fault.
//! - *Migration between the look at the CPU's number and anything else*: another CPU's table serves as well.
//!   An entry is whole (PAGE-1), and true of the thread, not of the CPU. No rseq section is open here: in
//!   one, a fault would restart it.
//! - *A signal handler that hits, anywhere in between*: it has its own frame below ours, and may note or find
//!   pages.
//! - *fork*: the child maps the same tables, with an address space that was its parent's. What it unmaps is a
//!   fault in X2, and its handler is its parent's. Its thread has another number, which the C library notes
//!   before anything is hit, or which a system call returns at each hit. After exec there are no stubs.
//! - *vfork and CLONE_VM children with handlers of their own*: as a handler that was replaced.
//! - *X6 between X1 and X2*: X2 goes on with what X1 saw. *X6 during X5*: see `record::pages`.
//! - *The tracer dies*: X6 is no longer done. The rings fill, records are dropped, texts are still read: the
//!   handler serves.
//! - *No handler* (Go owns the signals; guard traps cannot be served): X5 notes nothing, so all texts take
//!   X4.
//! - *Without rseq*: the CPU's number is a hint that may be wrong at once, which is no more than a migration
//!   after it.
//! - *A goroutine*: between X0 and the record its stack is not moved, and it does not change threads. The
//!   runtime does either only where the goroutine runs code of its own. g's bounds, and with them X0's
//!   answer, are those of the stack that it runs on. On another stack (a signal's, the C library's) X0 lets
//!   all pass.
//!
//! # Frame
//!
//! The frame lies below the stub's saves and their red zone. It stays until the record is committed, since a
//! signal handler may run below the stack pointer at any time:
//!
//! ```text
//!   rsp              iovec: our buffer's address, its length         X5: an action, or a mask
//!   rsp + 16         iovec: the program's address, the same length   X5: the rest of the action
//!   rsp + 32         rcx, rsi, rdi, r8, r9, 8 bytes each (KEPT)
//!   rsp + TEXTS 72   each text: the call's result, then TEXT_BYTES = 64 bytes
//!   rsp + first_field = TEXTS + TEXT_LEN · texts
//!                    each field: the call's result, then its bytes, as whole words
//!   …                up to 15 bytes unused
//!
//!   for a compact ring (`programs::packed`), once all is copied and the kept registers are loaded:
//!   rsp, rsp + 8 …   words of that program, 8 of them
//!   rsp + 64         the number of words of all texts
//!   rsp + 79         the texts, as long as they are
//!
//!   rsp + depth - RED_ZONE   the stub's saves (`saves`): rdx at depth + SAVED_RDX
//!   rsp + depth      = S - step, the stub's rsp before X1
//! ```
//!
//! The registers of one text:
//!
//! ```text
//!   X0        rdx = g, rax = rsp - [g]            a jump if rax < depth
//!   X1        r10 = the pointer, r11 = the table, rax = what the entry should hold, rdx = its index
//!   X2        rdx = eight bytes: [r10 + 8 · n] to [result + 8 + 8 · n]
//!   X4        process_vm_readv(rdi = thread, rsi = rsp, rdx = 1, r10 = rsp + 16, r8 = 1, r9 = 0)
//!   X5        r9 = the handler's word; rt_sigaction(rdi, rsi = 0, rdx = rsp, r10 = 8), rt_sigprocmask
//!   the end   rcx, rsi, rdi, r8, r9 as they were; rax, rdx, r10, r11 used
//! ```
//!
//! The entry for the page of r10 + end, `end` being the offset of a text's first or last byte:
//!
//! ```text
//!   table = tables + (CPU << STRIDE_BITS)
//!   value = ((r10 + end) | PAGE_MASK) ^ (thread << THREAD_SHIFT)
//!   index = ((value >> STRIDE_BITS) · PHI mod 2^32) >> (32 - BITS)
//!   noted = [table + 8 · index] = value
//! ```

mod copy;
mod one;

use trapline_record::addr::Bias;
use trapline_record::ring::{FIRST_TEXT, TEXT_WORDS};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg};
use super::filter::ARGUMENT;
use super::machine::Machine;
use super::saves::{SAVED_R10, SAVED_R11, SAVED_RAX, SAVED_RDX};
use crate::machine::ThreadId;
use crate::request::Read;
use copy::field;
pub(super) use copy::{KEPT, copy_to};
use one::One;
pub use one::PageNotes;

const RED_ZONE: i32 = 128;
const TEXTS: i32 = 72;
/// Offset from the stack pointer of the result for the first text; its bytes follow.
pub(super) const ANSWER: i32 = TEXTS;
const TEXT_LEN: i32 = TEXT_WORDS as i32 * 8;

/// What is copied, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Texts<'a> {
    /// Bit `n`: argument `n` points to text.
    pub(super) texts: u8,
    /// Bit `n`: it ends at a 0.
    pub(super) ended: u8,
    pub(super) fields: &'a [Read],
    pub(super) known: Option<PageNotes>,
    pub(super) machine: Option<&'a Machine>,
    /// How the thread's number is read; it was asked for before.
    pub(super) id: ThreadId,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub(super) go: Option<i32>,
    /// By how many bytes the stack pointer is below the hit's, before it is lowered for the copies.
    pub(super) step: i32,
    /// Fields may lie beside the stack pointer: they are those of a USDT probe.
    pub(super) beside: bool,
    /// Where the probe's file is mapped.
    pub(super) bias: Bias,
}

impl Texts<'_> {
    fn all(self) -> impl Iterator<Item = Reg> {
        ARGUMENT.into_iter().enumerate().filter(move |(n, _)| self.texts >> n & 1 == 1).map(|(_, reg)| reg)
    }
    pub(super) const fn count(self) -> i32 {
        (self.texts & 0x3f).count_ones() as i32
    }
    /// Number of words that texts take in a record.
    pub(super) const fn words(self) -> i32 {
        self.count() * TEXT_WORDS as i32
    }
    /// Offset from the stack pointer of the first field's result.
    pub(super) const fn first_field(self) -> i32 {
        TEXTS + self.count() * TEXT_LEN
    }
    /// Number of words that fields take in a record.
    pub(super) fn fields_words(self) -> u16 {
        (self.fields_len() / 8) as u16
    }
    fn fields_len(self) -> i32 {
        self.fields.iter().map(|read| read.words() as i32 * 8).sum()
    }
    /// By how many bytes the stack pointer is lowered while the copies are there.
    pub(super) fn depth(self) -> i32 {
        let len = self.count() * TEXT_LEN + self.fields_len();
        if len == 0 { 0 } else { (RED_ZONE + TEXTS + len + 15) & !15 }
    }
    /// Step X0. Jumps if something is to be copied, and a goroutine's stack has no room for it below rsp.
    /// `fs:[go]` = g. Uses rax, rdx and flags.
    pub(super) fn room(self, asm: &mut Asm<'_>) -> Option<Fix> {
        let depth = self.depth();
        let go = self.go.filter(|_| depth > 0)?;
        asm.load(RDX, Mem::Fs(go));
        asm.mov(RAX, RSP);
        asm.test(RDX, RDX, true);
        let none = asm.jcc_later(Cond::Equal);
        asm.alu_load(Alu::Sub, RAX, Mem::At(RDX, 0));
        asm.bind(none);
        asm.alu_imm(Alu::Cmp, RAX, depth, true);
        Some(asm.jcc_later(Cond::Below))
    }
    /// Gives the copies' part of the stack back.
    pub(super) fn drop(self, asm: &mut Asm<'_>) {
        let depth = self.depth();
        if depth > 0 {
            asm.lea(RSP, Mem::At(RSP, depth));
        }
    }
    /// Copies all texts and fields. Returns the instructions that may fault, and where a thread goes on then.
    ///
    /// ```text
    ///   in    [rsp + SAVED_RDX] = the program's rdx; rax, r10 and r11 are saved; the other arguments in registers
    ///   out   rsp lower by depth; rdi, rsi, rcx, r8, r9 as they were
    ///   uses  rax, rdx, r10, r11, flags
    /// ```
    pub(super) fn fetch(self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        let (depth, mut fixups) = (self.depth(), Vec::new());
        if depth > 0 {
            asm.lea(RSP, Mem::At(RSP, -depth));
        }
        for (n, reg) in (0..).zip(self.all()) {
            let saved = KEPT.into_iter().find(|(other, _)| *other == reg);
            let kept = saved.map_or(depth + SAVED_RDX, |(_, at)| at);
            let one = One { machine: self.machine, id: (self.id, depth), kept, answer: TEXTS + n * TEXT_LEN };
            match saved {
                Some(_) => asm.mov(R10, reg),
                None => asm.load(R10, Mem::At(RSP, kept)),
            }
            let Some(known) = self.known else {
                one.ask(asm, None);
                continue;
            };
            let (mut unknown, across, loads) = one.load(asm, known);
            let done = asm.unbroken(Asm::jmp_later);
            one.look_behind(asm, across, &mut unknown);
            unknown.into_iter().for_each(|fix| asm.bind(fix));
            fixups.extend(loads.map(|load| (load, asm.here())));
            one.ask(asm, Some(known));
            asm.bind(done);
        }
        self.fetch_fields(asm, depth);
        fixups
    }
    fn fetch_fields(self, asm: &mut Asm<'_>, depth: i32) {
        if self.fields.is_empty() {
            return;
        }
        KEPT.into_iter().for_each(|(reg, at)| asm.store(Mem::At(RSP, at), reg));
        let kept = |reg: Reg| {
            KEPT.into_iter().find(|(other, _)| *other == reg).map_or(depth + SAVED_RDX, |(_, at)| at)
        };
        let mut at = self.first_field();
        for read in self.fields {
            let on_stack = (read.register == Read::STACK).then_some(depth + self.step);
            match (read.general(), read.register) {
                (Some(nth), _) => self.general(asm, Reg(nth & 15)),
                (None, Read::STACK) => asm.lea(RAX, Mem::At(RSP, depth + self.step)),
                (None, Read::FILE) => asm.mov_imm64(RAX, self.bias.0),
                (None, nth) => {
                    asm.load(RAX, Mem::At(RSP, kept(ARGUMENT[usize::from(nth) % ARGUMENT.len()])));
                }
            }
            let near = (self.beside || on_stack.is_some()).then_some(depth + self.step);
            field(asm, (self.id, depth), at, read, near);
            at += read.words() as i32 * 8;
        }
        KEPT.into_iter().for_each(|(reg, at)| asm.load(reg, Mem::At(RSP, at)));
    }
    /// rax = the program's value of a register, while the copies are there. Those that the stub overwrites are saved
    /// (`Env::registers_read`).
    fn general(self, asm: &mut Asm<'_>, reg: Reg) {
        let depth = self.depth();
        let saved = [(RAX, SAVED_RAX), (RDX, SAVED_RDX), (R10, SAVED_R10), (R11, SAVED_R11)];
        let saved = saved.into_iter().find(|(other, _)| *other == reg).map(|(_, at)| depth + at);
        let kept = KEPT.into_iter().find(|(other, _)| *other == reg).map(|(_, at)| at);
        match saved.or(kept) {
            Some(at) => asm.load(RAX, Mem::At(RSP, at)),
            None if reg == RSP => asm.lea(RAX, Mem::At(RSP, depth + self.step)),
            None => asm.mov(RAX, reg),
        }
    }
    /// Copies them into the record at r10; the fields begin at its word `first_field`. Uses rdx.
    pub(super) fn fill(self, asm: &mut Asm<'_>, first_field: u64) {
        let fields = self.fields_len() / 8;
        let texts = (0..self.words()).map(|n| FIRST_TEXT as i32 + n);
        let to = texts.chain((0..fields).map(|n| first_field as i32 + n));
        for (word, to) in (0..).zip(to) {
            asm.load(RDX, Mem::At(RSP, TEXTS + word * 8));
            asm.store(Mem::At(R10, to * 8), RDX);
        }
    }
}
