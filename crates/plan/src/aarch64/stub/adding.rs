//! Adds one to a table, and computes a text's key: the code of those programs (`programs`), with the registers and
//! words of a stub. The same as x86-64's twin.
//!
//! In: where one is added (`Into`), and whether other threads change the table. Out: the code, which was made once
//! and is copied. In a restartable sequence its last instruction is the commit.
//!
//! ```text
//!   x16 A          the table; it stays. Of a text's key: the key
//!   x12 VALUE      the cell's number or the row's key; it stays
//!   sp + key_at    the owner, the group-by key, if rows have one; of rows with sums, the value;
//!                  key_at = depth + waiting(0): sp is depth lower than `frame` left it
//!   uses           x17 B, x15 KEY, x14 D, x13 INDEX, x11 C, flags
//! ```
//!
//! A reader, while threads run, must see a row's key, owner and text no later than its hits: a commit behind stores has
//! release order.

use std::cell::RefCell;

use trapline_code::aarch64::{Frame, Inputs, Piece, allocate, emit};
use trapline_code::{Memory, NoCode, Program, Unsound};
use trapline_record::ring::FIRST_TEXT;
use trapline_record::tally::TableShape;

use super::asm::{Asm, Fix, Reg, SP};
use super::frame::{A, B, D, INDEX, KEY, VALUE, waiting};
use crate::filter::Tally;
use crate::programs::{self, Adding, Kept};

/// Upper bound of the additional code bytes for texts, owners and what cannot be read.
pub const ROW_BYTES: u64 = 512;
/// The same for sums and extremes.
pub const SUMS_BYTES: u64 = 1024;

/// A text that was copied: a word with the kernel's result, and behind it the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copied {
    /// At this offset from the stack pointer.
    Here(u32),
    /// In the record that the call's entry kept; its address is at this offset.
    Left(u32),
}

/// Where one is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Into {
    adding: Adding,
    copied: Copied,
    /// Offset from the stack pointer at which the owner waits.
    key_at: u32,
}

/// All that code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    Add(Into, Memory, bool),
    Key(Copied),
}

thread_local! {
    static MADE: RefCell<Kept<(Question, Piece)>> = const { RefCell::new(Kept::new()) };
}

impl Into {
    pub(super) const UNSEEN: Self = Self { adding: Adding::UNSEEN, copied: Copied::Here(0), key_at: 0 };

    /// `copied` is where texts are copied to; `depth`: by how many bytes the stack pointer is lower than `frame` left it.
    /// `seen`: whether the hit has a value.
    pub(super) fn of(shape: TableShape, tally: &Tally, (copied, depth): (Copied, u32), seen: bool) -> Self {
        Self { adding: Adding::of(shape, tally, seen, (0, false)), copied, key_at: depth + waiting(0) }
    }
    pub(super) const fn is_owned(self) -> bool {
        self.adding.is_owned()
    }
    /// Where a thread without an area adds, which looks for no row.
    pub(super) const fn without_area(self) -> Adding {
        self.adding.without_area()
    }
    /// Stores the owner before the section, if rows have one.
    pub(super) fn keep(self, asm: &mut Asm, owner: Reg) {
        if self.is_owned() {
            asm.store(owner, SP, self.key_at);
        }
    }
    /// Adds one to the table at `A`: by the commit that ends a sequence, or else where other threads add, too. `lse`:
    /// whether the processor has FEAT_LSE.
    pub(super) fn add(self, asm: &mut Asm, memory: Memory, lse: bool) {
        let known = KnownValues { copied: self.copied, key_at: self.key_at };
        let program = || self.adding.program(memory);
        append(asm, Question::Add(self, memory, lse), (&[KEY, B, D, INDEX], lse), &known, program);
    }
}

/// `A` = the key of a text that was copied. Jumps if no byte of it could be read. `VALUE` stays.
pub(super) fn text_key(asm: &mut Asm, copied: Copied) -> Vec<Fix> {
    let known = KnownValues { copied, key_at: 0 };
    append(asm, Question::Key(copied), (&[A, B, KEY, D, INDEX], false), &known, || programs::text_key(0))
}

/// Appends a program's code, or notes why there is none. Returns the branches by which it is left.
fn append(
    asm: &mut Asm,
    question: Question,
    (registers, lse): (&[Reg], bool),
    known: &KnownValues,
    program: impl FnOnce() -> Result<Program, Unsound>,
) -> Vec<Fix> {
    let make = || -> Result<_, NoCode> {
        let allocated = allocate(program()?, registers, 0, known)?;
        let mut asm = Asm::new(0);
        let leave = emit(&mut asm, &allocated, known, Frame { words: 0, lse });
        let leave: Vec<Fix> = leave.into_iter().map(|(_, fix)| fix).collect();
        Ok((question, Piece::since(&asm, 0, &leave)))
    };
    let appended = MADE.with_borrow_mut(|made| {
        made.answer(|(known, _)| *known == question, make).map(|(_, piece)| piece.append(asm))
    });
    appended.unwrap_or_else(|why| {
        asm.lack(why);
        Vec::new()
    })
}

/// Where a program's inputs are.
struct KnownValues {
    copied: Copied,
    key_at: u32,
}

impl Inputs for KnownValues {
    fn register(&self, nth: u16) -> Option<Reg> {
        match nth {
            programs::TABLE => Some(A),
            programs::KEY => Some(VALUE),
            _ => None,
        }
    }
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg) {
        match (nth, self.copied) {
            (programs::OWNER, _) => asm.load_at(to, SP, self.key_at),
            (_, Copied::Here(at)) => asm.add_imm(to, SP, at.cast_signed()),
            (_, Copied::Left(place)) => {
                asm.load_at(to, SP, place);
                asm.add_imm(to, to, 8 * FIRST_TEXT as i32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{A, Copied, KnownValues, Question, append, programs};
    use crate::aarch64::stub::asm::{Asm, NoWords};
    use trapline_code::NoCode;

    #[test]
    fn a_stub_without_room_for_its_program_lacks_code() {
        let (mut asm, copied) = (Asm::new(0x1000), Copied::Here(0));
        let known = KnownValues { copied, key_at: 0 };
        let program = || programs::text_key(0);
        assert!(append(&mut asm, Question::Key(copied), (&[A], false), &known, program).is_empty());
        let words = asm.words();
        assert!(matches!(words, Err(NoWords::NoCode(NoCode::NoRoom(_)))), "{words:?}");
    }
}
