//! A USDT probe's arguments in their places, on arm64 (`crate::marked`).
//!
//! In: what is taken, and of what. Out: code; the jumps of hits that run no program.
//!
//! ```text
//!   value     A;  B, KEY, D, INDEX, VALUE: variables of `programs::texts`, too
//!   places    x0 to x5; others at sp + depth + FRAME + 8 · nth
//!   words     of `programs::texts`: WAITING of `frame`, but the last one, which may be the stack's number
//! ```

use std::cell::RefCell;

use trapline_code::aarch64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode, Width};

use super::asm::{Asm, Cond, Fix, Reg, SP};
use super::filter::ARGUMENTS;
use super::frame::{self, A, B, D, INDEX, KEY, VALUE, waiting};
use super::text::Texts;
use crate::filter::{MAX_WORDS, Taken};
use crate::hit::{HitProgram, TextLength, TextOfKey, input};
use crate::marked::{Made, Places, take};
use crate::programs::{self, texts};

/// Jumps of hits that run no program.
pub(super) type Left = crate::marked::Left<Fix>;

/// Upper bound of the code bytes for a number.
pub(in crate::aarch64) const NUMBER_BYTES: u64 = 64;
/// Upper bound of the code bytes for a text's number.
pub(in crate::aarch64) const TEXT_BYTES: u64 = 2048;

const REGISTERS: [Reg; 6] = [A, B, KEY, D, INDEX, VALUE];
const _: () = assert!(texts::WORDS < MAX_WORDS);

/// What is taken, and of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked<'a> {
    pub(super) hit: &'a HitProgram,
    pub(super) taken: &'a [Taken],
    /// Address of the table of texts.
    pub(super) table: u64,
    /// The copies.
    pub(super) texts: Texts<'a>,
    /// Whether the processor has FEAT_LSE.
    pub(super) lse: bool,
}

impl Marked<'_> {
    /// Appends it.
    pub(super) fn take(self, asm: &mut Asm) -> Left {
        let Self { hit, taken, texts, .. } = self;
        take(&mut Taking { asm, marked: self }, taken, texts.fields, &hit.texts)
    }
    /// Where an argument's place is while the copies are there: a register, or a word.
    fn place(self, nth: usize) -> Result<Reg, u32> {
        match nth {
            0..ARGUMENTS => Ok(nth as Reg),
            _ => Err(self.texts.depth() + frame::FRAME.unsigned_abs() + 8 * (nth - ARGUMENTS) as u32),
        }
    }
    fn load(self, asm: &mut Asm, to: Reg, nth: usize) {
        match self.place(nth) {
            Ok(register) => asm.mov(to, register),
            Err(at) => asm.load_at(to, SP, at),
        }
    }
    /// Distance of a word from the stack pointer.
    fn at(self, behind_first_field: i32) -> u32 {
        self.texts.first_field().wrapping_add_signed(behind_first_field)
    }
}

struct Taking<'a, 'm> {
    asm: &'a mut Asm,
    marked: Marked<'m>,
}

impl Places for Taking<'_, '_> {
    type Fix = Fix;

    fn fetch(&mut self) -> Option<Fix> {
        let room = self.marked.texts.room(self.asm);
        self.marked.texts.fetch(self.asm);
        room
    }
    fn load(&mut self, at: i32) {
        self.asm.load_at(A, SP, self.marked.at(at));
    }
    fn unless(&mut self, number: i32) -> Fix {
        self.asm.compare_number(A, number);
        self.asm.if_later(Cond::NotEqual)
    }
    fn leave(&mut self) -> Fix {
        self.asm.b_later()
    }
    fn get(&mut self, nth: usize) {
        self.marked.load(self.asm, A, nth);
    }
    fn extend(&mut self, width: Width) {
        match width.signed {
            true => self.asm.signed_bits(A, A, width.bits.into()),
            false => self.asm.bits(A, A, 0, width.bits.into()),
        }
    }
    fn number(&mut self, text: TextOfKey, at: i32) -> Vec<(u8, Fix)> {
        let known = KnownValues { marked: Some(self.marked), text };
        let frame = Frame { words: self.marked.texts.depth() + waiting(0), lse: self.marked.lse };
        match allocated(text, self.marked.at(at).cast_signed()) {
            Ok(allocated) => emit(self.asm, &allocated, &known, frame),
            Err(why) => {
                self.asm.lack(why);
                Vec::new()
            }
        }
    }
    fn put(&mut self, nth: usize) {
        match self.marked.place(nth) {
            Ok(register) => self.asm.mov(register, A),
            Err(at) => self.asm.store(A, SP, at),
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
    let allocate = |program| Ok(allocate(program, &REGISTERS, texts::WORDS, &known)?);
    MADE.with_borrow_mut(|made| made.program((text, at), allocate))
}

/// Where the inputs of a text's program are.
struct KnownValues<'a> {
    marked: Option<Marked<'a>>,
    text: TextOfKey,
}

impl Inputs for KnownValues<'_> {
    fn register(&self, _: u16) -> Option<Reg> {
        None
    }
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg) {
        let Some(marked) = self.marked else { return };
        match (nth, self.text.length) {
            (input::TEXTS, _) => asm.constant(to, marked.table),
            (programs::TEXT, _) => asm.stack_pointer(to),
            (_, TextLength::Argument(nth)) => marked.load(asm, to, nth.into()),
            _ => asm.number(to, 0),
        }
    }
}
