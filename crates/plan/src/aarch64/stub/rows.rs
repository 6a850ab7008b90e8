//! Rows of a table: one more of a key, which is a value, a cell or a text's hash, and where hits are told apart of an owner: the thread, or what the call says itself (`record::tally`); what x86-64's twin does.
//!
//! In: the key; whose it is, and the text, if rows have those. Out: what a restartable sequence does when it has found its table (`Rows::add`), and what is done without one, where other
//! threads are at the same table (`Rows::add_anywhere`, R1 to R3). The key is in `VALUE`, whose it is waits in the frame: what begins again finds them as they were. Who reads while threads
//! run must see a row's key, owner and text no later than its hits: hits are stored with release.

use trapline_record::ring::FIRST_TEXT;
use trapline_record::tally::{
    self, CELLS, FNV, OVERFLOW, OWNER, PHI, PROBES, Shape, TAKING, TEXT_BYTES, bits_in_reach,
};

use super::Machine;
use super::asm::{Asm, Cond, Fix, Reg, SP, ZERO};
use super::counted::add_one;
use super::saves::{A, B, C, INDEX, KEY, SLOT, VALUE, waiting};
use crate::filter::Tally;

/// Bytes of code that texts, owners and what cannot be read take besides, at most.
pub const ROW_BYTES: u64 = 512;

/// Rows, as a hit of one probe finds them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    rows: tally::Rows,
    /// The text that a new row gets.
    text: Option<Copied>,
    /// Where it waits whose the key is, from the stack pointer on.
    whose: u32,
}

/// A text that was copied: a word with the kernel's answer, and behind it the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Copied {
    /// From the stack pointer on.
    Here(u32),
    /// In what the call's entry left, whose address is there.
    Left(u32),
}

impl Copied {
    /// `to` = where it is.
    fn point(self, asm: &mut Asm, to: Reg) {
        match self {
            Self::Here(at) => asm.add_imm(to, SP, at.cast_signed()),
            Self::Left(place) => {
                asm.load_at(to, SP, place);
                asm.add_imm(to, to, 8 * FIRST_TEXT as i32);
            }
        }
    }
    /// Out: `A` = its key, as [`tally::text_key`], and zeros behind its end. Jumps away where no byte could be read. Spoils `B`, `C`, `KEY`, `SLOT`, `INDEX`.
    pub(super) fn key(self, asm: &mut Asm) -> [Fix; 2] {
        self.point(asm, SLOT);
        asm.load(C, SLOT);
        let unread = [asm.if_zero_later(C), asm.if_sign_later(C)];
        asm.add_imm(SLOT, SLOT, 8);
        asm.constant(A, FNV.0);
        asm.constant(B, FNV.1);
        asm.mov(INDEX, ZERO);
        let again = asm.here();
        asm.load_byte(KEY, SLOT, INDEX);
        let zero = asm.if_zero_later(KEY);
        asm.xor(A, A, KEY);
        asm.multiply(A, A, B);
        asm.add_imm(INDEX, INDEX, 1);
        asm.compare(INDEX, C);
        asm.if_to(Cond::Below, again);
        asm.bind(zero);
        asm.number(C, TEXT_BYTES as u32);
        let more = asm.here();
        asm.compare(INDEX, C);
        let filled = asm.if_later(Cond::AboveEq);
        asm.store_byte(ZERO, SLOT, INDEX);
        asm.add_imm(INDEX, INDEX, 1);
        asm.b(more);
        asm.bind(filled);
        unread
    }
}

impl Rows {
    /// `None` if the table has cells. `depth`: how much lower the stack pointer is than `saves` left it.
    pub(super) fn of(shape: Shape, tally: &Tally, copied: Copied, depth: u32) -> Option<Self> {
        let rows = shape.rows()?;
        let text = (rows.texts && tally.texts() != 0).then_some(copied);
        Some(Self { rows, text, whose: depth + waiting(0) })
    }
    pub(super) const fn are_owned(self) -> bool {
        self.rows.owned
    }
    /// Before the section. In: whose the key is, if rows are somebody's.
    pub(super) fn keep(self, asm: &mut Asm, whose: Reg) {
        if self.rows.owned {
            asm.store(whose, SP, self.whose);
        }
    }
    const fn size(self) -> i32 {
        self.rows.size() as i32
    }
    /// `SLOT` = whose the key is, where that is asked.
    fn load_owner(self, asm: &mut Asm) {
        if self.rows.owned {
            asm.load_at(SLOT, SP, self.whose);
        }
    }
    /// In: `VALUE` = key, `A` = table. Out: `B` = the hits of its first row, `C` = those behind its last, `SLOT` = whose. Spoils `INDEX`.
    fn first(self, asm: &mut Asm) {
        self.load_owner(asm);
        let key = if self.rows.owned {
            asm.constant(C, FNV.1);
            asm.mul_add(INDEX, SLOT, C, VALUE);
            INDEX
        } else {
            VALUE
        };
        asm.constant(C, PHI);
        asm.multiply(INDEX, key, C);
        asm.shift_right_by(INDEX, INDEX, 64 - u32::from(bits_in_reach(self.rows.bits)));
        asm.add_shifted(B, A, INDEX, self.rows.size().trailing_zeros());
        asm.add_imm(B, B, CELLS as i32 + 8);
        asm.add_imm(C, B, self.size() * PROBES as i32);
    }
    /// Jumps if the row at `B` has this key, and this owner. Spoils `KEY`.
    fn is_same(self, asm: &mut Asm) -> Fix {
        asm.load_before(KEY, B);
        asm.compare(KEY, VALUE);
        if !self.rows.owned {
            return asm.if_later(Cond::Equal);
        }
        let other = asm.if_later(Cond::NotEqual);
        asm.load_at(KEY, B, OWNER as u32 - 8);
        asm.compare(KEY, SLOT);
        let same = asm.if_later(Cond::Equal);
        asm.bind(other);
        same
    }
    /// The next row is looked at, `again`; behind the last one goes away with the overflow.
    fn next(self, asm: &mut Asm, again: u64) -> Fix {
        asm.add_imm(B, B, self.size());
        asm.compare(B, C);
        asm.if_to(Cond::NotEqual, again);
        asm.mov(B, A);
        const { assert!(OVERFLOW == 0) };
        asm.b_later()
    }
    /// Makes the row at `B` this key's: key, owner, text. Spoils `KEY`, `SLOT`, `INDEX`.
    fn take(self, asm: &mut Asm) {
        asm.store_before(VALUE, B);
        if self.rows.owned {
            asm.store(SLOT, B, OWNER as u32 - 8);
        }
        let Some(copied) = self.text else { return };
        // A text is as long as some rows.
        let rows = TEXT_BYTES as i32 / self.size();
        asm.sub(INDEX, B, A);
        asm.add_shifted(INDEX, A, INDEX, rows.trailing_zeros());
        asm.add_imm(INDEX, INDEX, self.rows.first_text() as i32 - rows * (CELLS as i32 + 8));
        copied.point(asm, SLOT);
        for word in 0..TEXT_BYTES as u32 / 8 {
            asm.load_at(KEY, SLOT, 8 + 8 * word);
            asm.store(KEY, INDEX, 8 * word);
        }
    }
    /// The rest of a section. In: `A` = table, and as [`Self::keep`] was told. Adds one to the key's row, or to the overflow. Spoils all but `VALUE`.
    pub(super) fn add(self, asm: &mut Asm) {
        self.first(asm);
        let again = asm.here();
        asm.load(INDEX, B);
        // A free row may have the key of a thread that began again before all of the row was there.
        let free = asm.if_zero_later(INDEX);
        let same = self.is_same(asm);
        let none = self.next(asm, again);
        asm.bind(free);
        self.take(asm);
        asm.bind(same);
        asm.bind(none);
        asm.load(INDEX, B);
        asm.add_imm(INDEX, INDEX, 1);
        asm.store_release(INDEX, B);
    }
    /// The same by R1 to R3 of `record::tally`, where other threads are at the same table.
    pub(super) fn add_anywhere(self, asm: &mut Asm, machine: &Machine) {
        const FAILED: Reg = KEY;
        self.first(asm);
        let again = asm.here();
        asm.load_acquire(INDEX, B);
        let free = asm.if_zero_later(INDEX);
        let taking = asm.if_sign_later(INDEX);
        let same = self.is_same(asm);
        asm.bind(taking);
        let none = self.next(asm, again);
        asm.bind(free);
        asm.constant(SLOT, TAKING);
        let take = asm.here();
        asm.load_exclusive(INDEX, B);
        let gone = asm.unless_zero_later(INDEX);
        asm.store_exclusive(FAILED, SLOT, B);
        asm.unless_zero(FAILED, take);
        self.load_owner(asm);
        self.take(asm);
        asm.one(INDEX);
        asm.store_release(INDEX, B);
        let taken = asm.b_later();
        asm.bind(gone);
        self.load_owner(asm);
        asm.b(again);
        asm.bind(same);
        asm.bind(none);
        add_one(asm, machine);
        asm.bind(taken);
    }
}
