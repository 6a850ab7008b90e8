//! A USDT probe's arguments in their places, on x86-64 (`crate::marked`).
//!
//! In: what is taken, and of what. Out: code; the jumps of hits that run no program.
//!
//! ```text
//!   value     rax;  r11, r10, rdx: variables of `programs::texts`, too
//!   places    rdi, rsi, rcx, r8, r9; the third one where rdx is saved; others at rsp + depth + step + 8 · nth
//!   rsp - 32 to - 72      words for variables of `programs::texts`
//!   rsp - 96, - 104       SPARE: rax and another register, during the claim
//! ```

use std::cell::RefCell;

use trapline_code::x86_64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode, Width};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg};
use super::filter::{ARGUMENT, ARGUMENTS};
use super::saves::SAVED_RDX;
use super::text::Texts;
use super::traced::Traced;
use crate::filter::Taken;
use crate::hit::{HitProgram, TextLength, TextOfKey, input};
use crate::marked::{Made, Places, take};
use crate::programs::{self, texts};

/// Jumps of hits that run no program.
pub(super) type Left = crate::marked::Left<Fix>;

/// Upper bound of the code bytes for a number.
pub(crate) const NUMBER_BYTES: u64 = 64;
/// Upper bound of the code bytes for a text's number.
pub(crate) const TEXT_BYTES: u64 = 1536;

const REGISTERS: [Reg; 4] = [RAX, R11, R10, RDX];
const WORDS: [Mem; texts::WORDS] = [
    Mem::At(RSP, -32),
    Mem::At(RSP, -40),
    Mem::At(RSP, -48),
    Mem::At(RSP, -56),
    Mem::At(RSP, -64),
    Mem::At(RSP, -72),
];
const SPARE: [Mem; 2] = [Mem::At(RSP, -96), Mem::At(RSP, -104)];

/// What is taken, and of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked<'a> {
    pub(super) hit: &'a HitProgram,
    pub(super) taken: &'a [Taken],
    /// Address of the table of texts.
    pub(super) table: u64,
    /// The copies.
    pub(super) texts: Texts<'a>,
}

impl<'a> Marked<'a> {
    pub(super) fn of(traced: &Traced<'a>, hit: &'a HitProgram, taken: &'a [Taken], table: u64) -> Self {
        let texts = traced.texts(trapline_record::ring::RecordKind::Entry);
        Self { hit, taken, table, texts }
    }
    /// Appends it. The thread's number was asked for, if anything is copied.
    pub(super) fn take(self, asm: &mut Asm<'_>) -> Left {
        let Self { hit, taken, texts, .. } = self;
        take(&mut Taking { asm, marked: self }, taken, texts.fields, &hit.texts)
    }
    /// Where an argument's place is while the copies are there.
    fn place(self, nth: usize) -> Result<Reg, Mem> {
        let depth = self.texts.depth();
        match ARGUMENT.get(nth) {
            Some(&RDX) => Err(Mem::At(RSP, depth + SAVED_RDX)),
            Some(&register) => Ok(register),
            None => Err(Mem::At(RSP, depth + self.texts.step + 8 * (nth - ARGUMENTS) as i32)),
        }
    }
    fn load(self, asm: &mut Asm<'_>, to: Reg, nth: usize) {
        match self.place(nth) {
            Ok(register) => asm.mov(to, register),
            Err(memory) => asm.load(to, memory),
        }
    }
}

struct Taking<'a, 'c, 'm> {
    asm: &'a mut Asm<'c>,
    marked: Marked<'m>,
}

impl Places for Taking<'_, '_, '_> {
    type Fix = Fix;

    fn fetch(&mut self) -> Option<Fix> {
        let room = self.marked.texts.room(self.asm);
        // Only texts of records may fault.
        self.marked.texts.fetch(self.asm);
        room
    }
    fn load(&mut self, at: i32) {
        self.asm.load(RAX, Mem::At(RSP, self.marked.texts.first_field() + at));
    }
    fn unless(&mut self, number: i32) -> Fix {
        self.asm.alu_imm(Alu::Cmp, RAX, number, true);
        self.asm.jcc_later(Cond::NotEqual)
    }
    fn leave(&mut self) -> Fix {
        self.asm.jmp_later()
    }
    fn get(&mut self, nth: usize) {
        self.marked.load(self.asm, RAX, nth);
    }
    fn extend(&mut self, width: Width) {
        self.asm.extend(RAX, RAX, width.bits, width.signed);
    }
    fn number(&mut self, text: TextOfKey, at: i32) -> Vec<(u8, Fix)> {
        let (texts, asm) = (self.marked.texts, &mut *self.asm);
        let known = KnownValues { marked: Some(self.marked), text };
        let rdx = Mem::At(RSP, texts.depth() + SAVED_RDX);
        let frame = Frame { words: &WORDS, rdx, rdx_is_read: false, spare: SPARE, unbroken: false };
        match allocated(text, texts.first_field() + at) {
            Ok(allocated) => emit(asm, &allocated, &known, frame),
            Err(why) => {
                asm.lack(why);
                Vec::new()
            }
        }
    }
    fn put(&mut self, nth: usize) {
        match self.marked.place(nth) {
            Ok(register) => self.asm.mov(register, RAX),
            Err(memory) => self.asm.store(memory, RAX),
        }
    }
    fn drop(&mut self) {
        self.marked.texts.drop(self.asm);
    }
}

thread_local! {
    static MADE: RefCell<Made> = const { RefCell::new(Made::new()) };
}

fn allocated(text: TextOfKey, at: i32) -> Result<Allocated, NoCode> {
    let known = KnownValues { marked: None, text };
    let allocate = |program| Ok(allocate(program, &REGISTERS, WORDS.len(), &known)?);
    MADE.with_borrow_mut(|made| made.program((text, at), allocate))
}

/// Where the inputs of a text's program are.
struct KnownValues<'a> {
    marked: Option<Marked<'a>>,
    text: TextOfKey,
}

impl Inputs for KnownValues<'_> {
    fn register(&self, nth: u16) -> Option<Reg> {
        (nth == programs::TEXT).then_some(RSP)
    }
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        let Some(marked) = self.marked else { return };
        match (nth, self.text.length) {
            (input::TEXTS, _) => asm.mov_imm64(to, marked.table),
            (_, TextLength::Argument(nth)) => marked.load(asm, to, nth.into()),
            _ => asm.mov_imm32(to, 0),
        }
    }
}
