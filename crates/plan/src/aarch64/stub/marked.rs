//! What a hit's program has as its arguments at a USDT probe: numbers as the note describes them, and numbers of texts;
//! the same as x86-64's twin.
//!
//! In: what takes the arguments' places (`arguments`), what is read from memory, which texts keys name. Out: code that reads,
//! and puts each value into its argument's place; the jumps of hits that run no program. It runs before the hit's program, in
//! the frame of `frame`, and the places belong to the hit: they are given back behind it (`arguments`).
//!
//! ```text
//!   fetch     sp is lower by depth; each field: the kernel's result, then its bytes (`text`)
//!   number    the field's result must be its whole length.  A = its bits, or the operand's;  place = A
//!   text      A = its number, of `programs::texts`;  place = A.  A, B, KEY, D, INDEX, VALUE: its variables
//!   drop      sp as before
//!
//!   places    x0 to x5; others at sp + depth + FRAME + 8 · nth
//!   words     of `programs::texts`: WAITING of `frame`, but the last one, which may be the stack's number
//! ```
//!
//! All of it comes before the program, in the hit's own frame. A signal handler in between has a frame of its own.

use std::cell::RefCell;

use trapline_code::aarch64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode};

use super::asm::{Asm, Cond, Fix, Reg, SP};
use super::filter::ARGUMENTS;
use super::frame::{self, A, B, D, INDEX, KEY, VALUE, waiting};
use super::text::Texts;
use crate::filter::{MAX_WORDS, OPERANDS, Taken};
use crate::hit::{HitProgram, TextLength, TextOfKey, input};
use crate::programs::{self, Kept, texts};

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

/// Jumps of hits that run no program.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// With the copies still there: a value is not known, so the hit is counted.
    pub(super) unknown: Vec<Fix>,
    /// With the copies still there: there was no room for a text.
    pub(super) no_room: Vec<Fix>,
    /// A goroutine's stack has no room for the copies.
    pub(super) cramped: Vec<Fix>,
}

impl Marked<'_> {
    /// Appends it.
    pub(super) fn take(self, asm: &mut Asm) -> Left {
        let mut left = Left { cramped: self.texts.room(asm).into_iter().collect(), ..Left::default() };
        self.texts.fetch(asm);
        for taken in self.taken {
            match *taken {
                Taken::Number { nth, field, width } => {
                    match field {
                        Some(field) => {
                            let (at, bytes) = self.field(field);
                            asm.load_at(A, SP, at);
                            asm.compare_number(A, bytes);
                            left.unknown.push(asm.if_later(Cond::NotEqual));
                            asm.load_at(A, SP, at + 8);
                        }
                        None if width.bits >= 64 => continue,
                        None => self.load(asm, A, nth.into()),
                    }
                    match (width.bits, width.signed) {
                        (64.., _) => {}
                        (bits, true) => asm.signed_bits(A, A, bits.into()),
                        (bits, false) => asm.bits(A, A, 0, bits.into()),
                    }
                    self.put(asm, nth.into());
                }
                Taken::Text { nth, field } => {
                    let Some(text) = self.hit.texts.get(usize::from(nth)) else { continue };
                    self.number(asm, (*text, self.field(field).0), &mut left);
                    self.put(asm, OPERANDS + usize::from(nth));
                }
                Taken::Unknown => left.unknown.push(asm.b_later()),
            }
        }
        self.texts.drop(asm);
        left
    }
    /// Offset of a field's result, and its length in bytes.
    fn field(self, nth: u8) -> (u32, i32) {
        let fields = self.texts.fields;
        let before = fields.iter().take(nth.into()).map(|read| read.words() as u32 * 8).sum::<u32>();
        let bytes = fields.get(usize::from(nth)).map_or(0, |read| read.bytes.into());
        (self.texts.first_field() + before, bytes)
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
    /// The place = `A`.
    fn put(self, asm: &mut Asm, nth: usize) {
        match self.place(nth) {
            Ok(register) => asm.mov(register, A),
            Err(at) => asm.store(A, SP, at),
        }
    }
    /// `A` = the number of the text whose result is at this offset.
    fn number(self, asm: &mut Asm, (text, at): (TextOfKey, u32), left: &mut Left) {
        let known = KnownValues { marked: Some(self), text };
        match allocated(text, at) {
            Ok(allocated) => {
                let frame = Frame { words: self.texts.depth() + waiting(0), lse: self.lse };
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
type Made = ((TextOfKey, u32), Allocated);

thread_local! {
    static MADE: RefCell<Kept<Made>> = const { RefCell::new(Kept::new()) };
}

fn allocated(text: TextOfKey, at: u32) -> Result<Allocated, NoCode> {
    MADE.with_borrow_mut(|made| {
        let make = || {
            let known = KnownValues { marked: None, text };
            let program = texts::number(text, at.cast_signed())?;
            Ok(((text, at), allocate(program, &REGISTERS, texts::WORDS, &known)?))
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
