//! What a hit's program has as its arguments at a USDT probe: numbers as the note describes them, and numbers of texts.
//!
//! In: what takes the arguments' places (`arguments`), what is read from memory, which texts keys name. Out: code that reads,
//! and puts each value into its argument's place; the jumps of hits that run no program. It runs before the hit's program,
//! and the places belong to the hit: they are given back behind it (`arguments`).
//!
//! ```text
//!   fetch     rsp is lower by depth; each field: the kernel's result, then its bytes (`text`)
//!   number    the field's result must be its whole length.  rax = its bits, or the operand's;  place = rax
//!   text      rax = its number, of `programs::texts`;  place = rax.  rax, r11, r10, rdx: its variables
//!   drop      rsp as before
//!
//!   places    rdi, rsi, rcx, r8, r9; the third one where rdx is saved; others at rsp + depth + step + 8 · nth
//!   rsp - 32 to - 72      words for variables of `programs::texts`
//!   rsp - 96, - 104       SPARE: rax and another register, during the claim
//! ```
//!
//! All of it comes before the program, in the hit's own frame. A signal handler in between has a frame of its own.

use std::cell::RefCell;

use trapline_code::x86_64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg};
use super::filter::{ARGUMENT, ARGUMENTS};
use super::saves::SAVED_RDX;
use super::text::Texts;
use super::traced::Traced;
use crate::filter::{OPERANDS, Taken};
use crate::hit::{HitProgram, TextLength, TextOfKey, input};
use crate::programs::{self, Kept, texts};

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

/// Jumps of hits that run no program.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    /// With the copies still there: a value is not known, so the hit is counted.
    pub(super) unknown: Vec<Fix>,
    /// With the copies still there: there was no room for a text.
    pub(super) no_room: Vec<Fix>,
    /// A goroutine's stack has no room for the copies.
    pub(super) cramped: Vec<Fix>,
}

impl<'a> Marked<'a> {
    pub(super) fn of(traced: &Traced<'a>, hit: &'a HitProgram, taken: &'a [Taken], table: u64) -> Self {
        let texts = traced.texts(trapline_record::ring::RecordKind::Entry);
        Self { hit, taken, table, texts }
    }
    /// Appends it. The thread's number was asked for, if anything is copied.
    pub(super) fn take(self, asm: &mut Asm<'_>) -> Left {
        let mut left = Left { cramped: self.texts.room(asm).into_iter().collect(), ..Left::default() };
        // Only texts of records may fault.
        self.texts.fetch(asm);
        for taken in self.taken {
            match *taken {
                Taken::Number { nth, field, width } => {
                    match field {
                        Some(field) => {
                            let (at, bytes) = self.field(field);
                            asm.load(RAX, Mem::At(RSP, at));
                            asm.alu_imm(Alu::Cmp, RAX, bytes, true);
                            left.unknown.push(asm.jcc_later(Cond::NotEqual));
                            asm.load(RAX, Mem::At(RSP, at + 8));
                        }
                        None if width.bits >= 64 => continue,
                        None => self.load(asm, RAX, nth.into()),
                    }
                    if width.bits < 64 {
                        asm.extend(RAX, RAX, width.bits, width.signed);
                    }
                    self.put(asm, nth.into());
                }
                Taken::Text { nth, field } => {
                    let Some(text) = self.hit.texts.get(usize::from(nth)) else { continue };
                    self.number(asm, (*text, self.field(field).0), &mut left);
                    self.put(asm, OPERANDS + usize::from(nth));
                }
                Taken::Unknown => left.unknown.push(asm.jmp_later()),
            }
        }
        self.texts.drop(asm);
        left
    }
    /// Offset of a field's result, and its length in bytes.
    fn field(self, nth: u8) -> (i32, i32) {
        let fields = self.texts.fields;
        let before = fields.iter().take(nth.into()).map(|read| read.words() as i32 * 8).sum::<i32>();
        let bytes = fields.get(usize::from(nth)).map_or(0, |read| read.bytes.into());
        (self.texts.first_field() + before, bytes)
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
    /// The place = rax.
    fn put(self, asm: &mut Asm<'_>, nth: usize) {
        match self.place(nth) {
            Ok(register) => asm.mov(register, RAX),
            Err(memory) => asm.store(memory, RAX),
        }
    }
    /// rax = the number of the text whose result is at this offset.
    fn number(self, asm: &mut Asm<'_>, (text, at): (TextOfKey, i32), left: &mut Left) {
        let known = KnownValues { marked: Some(self), text };
        match allocated(text, at) {
            Ok(allocated) => {
                let rdx = Mem::At(RSP, self.texts.depth() + SAVED_RDX);
                let frame = Frame { words: &WORDS, rdx, rdx_is_read: false, spare: SPARE, unbroken: false };
                for (outcome, fix) in emit(asm, &allocated, &known, frame) {
                    let to = if outcome == texts::NO_ROOM { &mut left.no_room } else { &mut left.unknown };
                    to.push(fix);
                }
            }
            Err(why) => asm.lack(why),
        }
    }
}

/// What a text's program depends on, and the program.
type Made = ((TextOfKey, i32), Allocated);

thread_local! {
    static MADE: RefCell<Kept<Made>> = const { RefCell::new(Kept::new()) };
}

fn allocated(text: TextOfKey, at: i32) -> Result<Allocated, NoCode> {
    MADE.with_borrow_mut(|made| {
        let make = || {
            let known = KnownValues { marked: None, text };
            Ok(((text, at), allocate(texts::number(text, at)?, &REGISTERS, WORDS.len(), &known)?))
        };
        made.answer(|(asked, _)| *asked == (text, at), make).map(|(_, allocated)| allocated.clone())
    })
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
