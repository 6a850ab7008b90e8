//! Memory that arguments point to, copied before a record is written: texts, and fields of structures.
//!
//! In: what to read. Out: code that copies each text or field onto the stack, and from there into the record.
//! General registers only. Invariants: TXT-1: whatever a pointer is, the program does not notice the read.
//! TXT-2: the record holds what could be read at the hit, and how much that was.
//!
//! Each is copied by the kernel, by process_vm_readv(2) on the thread itself (x86-64's X4). It reads what the
//! program could read, stops where the program could not go on, and returns how far it came. Nothing faults,
//! and no signal handler is needed; a text costs a system call. (Here no code takes faults in other
//! processes, so nothing is loaded directly.) A field behind other pointers takes a call for each pointer. If
//! one of them cannot be loaded as a whole, the result is EFAULT.
//!
//! A system call keeps all general registers but x0, the flags, and 128 bits of each vector. It loses what
//! vectors of SVE hold above that, predicates and SME's modes. At the entry of a function that follows the
//! base procedure call standard none of that is live (AAPCS64, 6.1.3, 6.3). A function with words that name
//! any of it has no texts and no fields (`supported`).
//!
//! A goroutine's stack ends where the heap goes on, and below it there is only what its functions were
//! promised. If the frame would not fit above the end that g names, nothing is copied, and the hit is counted
//! as dropped (x86-64's X0). A function that has not yet checked for room has about 790 bytes. Until the
//! record is there, the goroutine's stack is not moved: the runtime does that only where it runs code of its
//! own.
//!
//! # Frame
//!
//! The frame lies below the stub's saves, and stays until the record is committed. P is sp before `fetch`.
//!
//! ```text
//!   sp +  0   iovec 0: address of the copy, length         <- sp = Q = P - depth
//!   sp + 16   iovec 1: address of the source, length
//!   sp + 32   KEPT: x0 to x5
//!   sp + 80   KEPT_NUMBER: x8; a word that is not used
//!   sp + 96   TEXTS: 72 bytes for each text: the call's result, then 64 bytes
//!             then for each field: the call's result, then its bytes, whole words
//!   sp + depth <- P; a multiple of 16
//!
//!   for a compact ring (`programs::packed`), once all is copied and x0 to x5 and x8 are loaded:
//!   sp + 0 to 63      words of that program
//!   sp + 88           the number of words of all texts
//!   sp + 103          the texts, as long as they are
//!
//!   call      x0 = the thread's number, x1 = sp, x2 = 1, x3 = sp + 16, x4 = 1, x5 = 0, x8 = PROCESS_VM_READV
//!             x16 A = the source, x17 B = the copy
//!   behind    x0 = bytes that were copied, or -errno
//!   end       x0 to x5 and x8 are the program's; A, B are free
//!
//!   pointers  A = [register], then A = [A + offset] for each offset but the last
//!   room      P - depth >= [g], if g != 0              g = x28
//! ```

use trapline_record::addr::Bias;
use trapline_record::ring::{FIRST_TEXT, TEXT_BYTES, TEXT_WORDS};

use super::asm::{Asm, Cond, Fix, Reg, SP};
use super::filter::{ARGUMENTS, Fields};
use super::latency::G;
use super::saves::{A, B, SLOT};
use crate::machine::ThreadId;
use crate::request::Read;

/// Linux, arm64.
mod nr {
    pub(super) const GETTID: u32 = 178;
    pub(super) const PROCESS_VM_READV: u32 = 270;
}
const NUMBER: Reg = 8;
const KEPT: u32 = 32;
const KEPT_NUMBER: u32 = KEPT + 8 * ARGUMENTS as u32;
const TEXTS: u32 = 96;
/// Offset from the stack pointer of the first word that was copied: results and bytes of texts, then of fields.
pub(super) const FIRST_COPY: u32 = TEXTS;
const TEXT_LEN: u32 = TEXT_WORDS as u32 * 8;
const EFAULT: u32 = 14;
/// Upper bound of the code bytes for a load, with its share of what all need.
pub(crate) const BYTES: u64 = 256;
/// Upper bound of the code bytes that check for room, and of the path without room.
pub(crate) const ROOM_BYTES: u64 = 512;

/// What is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Texts<'a> {
    /// Bit `n`: argument `n` points to text.
    pub(super) texts: u8,
    /// Bit `n`: it ends at a 0.
    pub(super) ended: u8,
    /// The fields that are copied too.
    pub(super) fields: &'a [Read],
    /// How the thread's number is read.
    pub(super) id: ThreadId,
    /// The copies go onto the stack of the goroutine that x28 names.
    pub(super) goroutine: bool,
    /// By how many bytes the stack pointer is below the hit's, before it is lowered for the copies.
    pub(super) step: u32,
    /// Fields may lie beside the stack pointer: they are those of a USDT probe.
    pub(super) beside: bool,
    /// Where the probe's file is mapped.
    pub(super) bias: Bias,
}

impl<'a> Texts<'a> {
    /// How conditions read the fields.
    pub(super) fn copied_fields(self) -> Fields<'a> {
        Fields { reads: self.fields, at: self.first_field() }
    }
    fn all(self) -> impl Iterator<Item = u32> {
        (0..ARGUMENTS as u32).filter(move |n| self.texts >> n & 1 == 1)
    }
    pub(super) fn count(self) -> u32 {
        self.all().count() as u32
    }
    /// By how many bytes the stack pointer is lowered while the copies are there.
    pub(super) fn depth(self) -> u32 {
        let len = self.count() * TEXT_LEN + self.fields_len();
        if len == 0 { 0 } else { (TEXTS + len).next_multiple_of(16) }
    }
    /// Offset from the stack pointer of the first text's result.
    pub(super) const fn first_text(self) -> u32 {
        TEXTS
    }
    /// Offset from the stack pointer of the first field's result.
    pub(super) fn first_field(self) -> u32 {
        TEXTS + self.count() * TEXT_LEN
    }
    /// Number of words that fields take in a record.
    pub(super) fn fields_words(self) -> u16 {
        (self.fields_len() / 8) as u16
    }
    fn fields_len(self) -> u32 {
        8 * words(self.fields) as u32
    }
    /// Jumps if a goroutine's stack has no room for the frame. Uses `A`, `B` and flags.
    pub(super) fn room(self, asm: &mut Asm) -> Option<Fix> {
        if !self.goroutine || self.depth() == 0 {
            return None;
        }
        asm.add_imm(A, SP, -self.depth().cast_signed());
        let no_goroutine = asm.if_zero_later(G);
        asm.load_at(B, G, 0);
        asm.compare(A, B);
        let cramped = asm.if_later(Cond::Below);
        asm.bind(no_goroutine);
        Some(cramped)
    }
    /// Gives the copies' part of the stack back.
    pub(super) fn drop(self, asm: &mut Asm) {
        if self.depth() > 0 {
            asm.add_imm(SP, SP, self.depth().cast_signed());
        }
    }
    /// Copies all texts and fields. The stack pointer is lower by [`Self::depth`] then.
    pub(super) fn fetch(self, asm: &mut Asm) {
        if self.depth() == 0 {
            return;
        }
        asm.add_imm(SP, SP, -self.depth().cast_signed());
        for pair in [0, 2, 4] {
            asm.store_two(pair, pair + 1, SP, KEPT + 8 * pair);
        }
        asm.store(NUMBER, SP, KEPT_NUMBER);
        for (text, nth) in (0..).zip(self.all()) {
            let to = TEXTS + text * TEXT_LEN;
            asm.load_at(A, SP, KEPT + 8 * nth);
            self.copy(asm, to + 8, TEXT_BYTES as u32);
            asm.store(0, SP, to);
        }
        let mut to = self.first_field();
        for read in self.fields {
            match (read.general(), read.register) {
                (Some(nth), _) => self.general(asm, u32::from(nth & 31)),
                (None, Read::STACK) => asm.add_imm(A, SP, self.stack()),
                (None, Read::FILE) => asm.constant(A, self.bias.0),
                (None, register) => asm.load_at(A, SP, KEPT + 8 * (u32::from(register) % ARGUMENTS as u32)),
            }
            self.field(asm, to, read);
            to += 8 * read.words() as u32;
        }
        for pair in [0, 2, 4] {
            asm.load_two(pair, pair + 1, SP, KEPT + 8 * pair);
        }
        asm.load_at(NUMBER, SP, KEPT_NUMBER);
    }
    /// `A` = the program's value of a register, while the copies are there.
    fn general(self, asm: &mut Asm, reg: Reg) {
        let saved = self.depth();
        match reg {
            0..6 => asm.load_at(A, SP, KEPT + 8 * reg),
            NUMBER => asm.load_at(A, SP, KEPT_NUMBER),
            // As `saves` and `frame` have them.
            16 | 17 => asm.load_at(A, SP, saved + 8 * (reg - 16)),
            14 | 15 => asm.load_at(A, SP, saved + 16 + 8 * (reg - 14)),
            12 | 13 => asm.load_at(A, SP, saved + 32 + 8 * (reg - 12)),
            11 => asm.load_at(A, SP, saved + 48),
            SP => asm.add_imm(A, SP, self.stack()),
            _ => asm.mov(A, reg),
        }
    }
    /// Offset from the stack pointer of the hit's, while the copies are there.
    fn stack(self) -> i32 {
        (self.depth() + self.step).cast_signed()
    }
    /// Copies one field, with `A` = the register that it is read through: `[sp + at]` = the result, and
    /// behind it the bytes.
    fn field(self, asm: &mut Asm, at: u32, read: &Read) {
        let Some((last, before)) = read.offsets.split_last() else {
            asm.store(A, SP, at + 8);
            asm.number(A, read.bytes.into());
            return asm.store(A, SP, at);
        };
        let mut broken = Vec::new();
        let mut near = self.beside || read.register == Read::STACK;
        for offset in before {
            past(asm, *offset);
            self.load(asm, (at + 8, 8), core::mem::take(&mut near));
            asm.number(1, 8);
            asm.compare(0, 1);
            broken.push(asm.if_later(Cond::NotEqual));
            asm.load_at(A, SP, at + 8);
        }
        past(asm, *last);
        self.load(asm, (at + 8, read.bytes.into()), near);
        if !broken.is_empty() {
            let whole = asm.b_later();
            broken.into_iter().for_each(|fix| asm.bind(fix));
            asm.number(0, EFAULT);
            asm.negate(0, 0);
            asm.bind(whole);
        }
        asm.store(0, SP, at);
    }
    /// As `copy`. If it may be `near`, eight bytes at most are loaded directly if they lie in one page with the word
    /// below the hit's stack pointer: the stub has just written there, so the load cannot fault. Pages have 4 KiB or
    /// more.
    fn load(self, asm: &mut Asm, (to, len): (u32, u32), near: bool) {
        if !near || len > 8 {
            return self.copy(asm, to, len);
        }
        asm.add_imm(0, SP, self.stack() - 1);
        asm.bits(0, 0, 12, 52);
        asm.bits(1, A, 12, 52);
        asm.compare(1, 0);
        let first = asm.if_later(Cond::NotEqual);
        asm.add_imm(B, A, 7);
        asm.bits(B, B, 12, 52);
        asm.compare(B, 0);
        let last = asm.if_later(Cond::NotEqual);
        asm.load(B, A);
        asm.store(B, SP, to);
        asm.number(0, len);
        let done = asm.b_later();
        asm.bind(first);
        asm.bind(last);
        self.copy(asm, to, len);
        asm.bind(done);
    }
    /// Lets the kernel copy `len` bytes from `A` to `to`, an offset in the frame; x0 = the result.
    fn copy(self, asm: &mut Asm, to: u32, len: u32) {
        copy_to(asm, self.id, len, Some(to));
    }
    /// Copies them into the record at `SLOT`; the fields begin at its word `first_field`. Uses `A`.
    pub(super) fn fill(self, asm: &mut Asm, first_field: u32) {
        let texts = (0..self.count() * TEXT_WORDS as u32).map(|n| FIRST_TEXT as u32 + n);
        let to = texts.chain((0..self.fields_len() / 8).map(|n| first_field + n));
        for (word, to) in (0..).zip(to) {
            asm.load_at(A, SP, TEXTS + 8 * word);
            asm.store(A, SLOT, 8 * to);
        }
    }
}

/// Lets the kernel copy `len` bytes from `A` to `B`, or to an offset in the frame, with its vectors at sp and sp + 16;
/// x0 = the result. Uses x0 to x5 and x8.
pub(super) fn copy_to(asm: &mut Asm, id: ThreadId, len: u32, to: Option<u32>) {
    match id {
        ThreadId::At(offset) => {
            asm.thread_pointer(0);
            asm.add_imm(0, 0, offset);
            asm.load32(0, 0, 0);
        }
        _ => {
            asm.number(NUMBER, nr::GETTID);
            asm.system_call();
        }
    }
    if let Some(to) = to {
        asm.add_imm(B, SP, to.cast_signed());
    }
    asm.number(1, len);
    asm.store_two(B, 1, SP, 0);
    asm.store_two(A, 1, SP, 16);
    asm.stack_pointer(1);
    asm.number(2, 1);
    asm.add_imm(3, SP, 16);
    asm.number(4, 1);
    asm.number(5, 0);
    asm.number(NUMBER, nr::PROCESS_VM_READV);
    asm.system_call();
}

/// Number of words that fields take in a record.
pub(super) fn words(fields: &[Read]) -> usize {
    fields.iter().map(Read::words).sum()
}

/// `A = A + offset`, for any offset. Uses `B`.
fn past(asm: &mut Asm, offset: i32) {
    if offset.unsigned_abs() >> 24 == 0 {
        return asm.add_imm(A, A, offset);
    }
    asm.constant(B, i64::from(offset).cast_unsigned());
    asm.add(A, A, B);
}
