//! Rows of a table: adds one to the row of a key. The key is a value, a cell or the hash of a text. If hits
//! are grouped, a row also has an owner, the group-by key: the thread, or a value of the call
//! (`record::tally`). The same as x86-64's twin.
//!
//! In: the key; the owner and the text, if rows have those. Out: the code of a restartable sequence that has
//! found its table (`Rows::add`); and code without such a sequence (`Rows::add_anywhere`, R1 to R3). The
//! latter is for a table that other threads change as well. The key is in `VALUE`, and the owner waits in the
//! frame, so a sequence that starts again finds them as they were.
//!
//! ```text
//!   hash      = key, or key + FNV.1·owner if rows have owners
//!   first row = hash·PHI >> (64 - bits)                           products mod 2^64
//!   B         = A + CELLS + 8 + size·row                          size = 16, or 32 with owners; CELLS = 16
//!   C         = B of the first row + size·PROBES                  behind the last row that is tried
//!   [B - 8] = key, [B] = hits (0: free), [B + 8] = owner
//!   text      = A + first_text + (64 / size) (B - A - CELLS - 8)  64 = TEXT_BYTES for each row
//!   text key  = fold from FNV.0: key = (key ^ byte)·FNV.1         up to a 0, or to the bytes that were read
//!
//!              x16 A     x17 B         x15 KEY   x14 D       x13 INDEX       x12 VALUE   x11 C
//!   text key   the key   FNV.1         a byte    the bytes   bytes so far    kept        bytes read
//!   look       table     a row's hits  scratch   owner       the hits        key         behind the last row
//!   take       table     a row's hits  scratch   the copy    the row's text  key         behind the last row
//!   end        table     a row's hits  -         -           hits + 1        key         -
//!
//!   [sp + key_at] = owner       key_at = depth + waiting(0): sp is depth lower than `frame` left it
//! ```
//!
//! If no row is left, B = A at the end: the overflow, at OVERFLOW = 0. All of it uses flags. A reader, while
//! threads run, must see a row's key, owner and text no later than its hits: hits are stored with release.

use trapline_record::ring::FIRST_TEXT;
use trapline_record::tally::{
    self, CELLS, FNV, OVERFLOW, OWNER, PHI, PROBES, TAKING, TEXT_BYTES, TableShape, bits_in_reach,
};

use super::asm::{Asm, Cond, Fix, Reg, SP, ZERO};
use super::counted::add_one;
use super::frame::{A, B, C, D, INDEX, KEY, VALUE, waiting};
use super::machine::Machine;
use crate::filter::Tally;

/// Upper bound of the additional code bytes for texts, owners and what cannot be read.
pub const ROW_BYTES: u64 = 512;

/// How a hit of one probe finds its row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    rows: tally::Rows,
    /// The text that is stored in a new row.
    text: Option<Copied>,
    /// Offset from the stack pointer at which the owner waits.
    key_at: u32,
}

/// A text that was copied: a word with the kernel's result, and behind it the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Copied {
    /// At this offset from the stack pointer.
    Here(u32),
    /// In the record that the call's entry kept; its address is at this offset.
    Left(u32),
}

impl Copied {
    /// `to` = the text's address.
    fn point(self, asm: &mut Asm, to: Reg) {
        match self {
            Self::Here(at) => asm.add_imm(to, SP, at.cast_signed()),
            Self::Left(place) => {
                asm.load_at(to, SP, place);
                asm.add_imm(to, to, 8 * FIRST_TEXT as i32);
            }
        }
    }
    /// `A` = the text's key, as [`tally::text_key`]; zeros are written behind its end. Jumps if no byte could
    /// be read.
    pub(super) fn key(self, asm: &mut Asm) -> [Fix; 2] {
        self.point(asm, D);
        asm.load(C, D);
        let unread = [asm.if_zero_later(C), asm.if_sign_later(C)];
        asm.add_imm(D, D, 8);
        asm.constant(A, FNV.0);
        asm.constant(B, FNV.1);
        asm.mov(INDEX, ZERO);
        let again = asm.here();
        asm.load_byte(KEY, D, INDEX);
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
        asm.store_byte(ZERO, D, INDEX);
        asm.add_imm(INDEX, INDEX, 1);
        asm.b(more);
        asm.bind(filled);
        unread
    }
}

impl Rows {
    /// `None` if the table has cells instead of rows. `depth`: by how many bytes the stack pointer is lower
    /// than `frame` left it.
    pub(super) fn of(shape: TableShape, tally: &Tally, copied: Copied, depth: u32) -> Option<Self> {
        let rows = shape.rows()?;
        let text = (rows.texts && tally.texts() != 0).then_some(copied);
        Some(Self { rows, text, key_at: depth + waiting(0) })
    }
    pub(super) const fn are_owned(self) -> bool {
        self.rows.owned
    }
    /// Stores the owner before the section, if rows have one.
    pub(super) fn keep(self, asm: &mut Asm, key_at: Reg) {
        if self.rows.owned {
            asm.store(key_at, SP, self.key_at);
        }
    }
    const fn size(self) -> i32 {
        self.rows.size() as i32
    }
    /// `D` = the owner, if rows have one.
    fn load_owner(self, asm: &mut Asm) {
        if self.rows.owned {
            asm.load_at(D, SP, self.key_at);
        }
    }
    /// `B` = the key's first row, `C` = behind its last, `D` = owner. Uses `INDEX`.
    fn first(self, asm: &mut Asm) {
        self.load_owner(asm);
        let key = if self.rows.owned {
            asm.constant(C, FNV.1);
            asm.mul_add(INDEX, D, C, VALUE);
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
    /// Jumps if the row at `B` has this key and this owner. Uses `KEY` and flags.
    fn is_same(self, asm: &mut Asm) -> Fix {
        asm.load_before(KEY, B);
        asm.compare(KEY, VALUE);
        if !self.rows.owned {
            return asm.if_later(Cond::Equal);
        }
        let other = asm.if_later(Cond::NotEqual);
        asm.load_at(KEY, B, OWNER as u32 - 8);
        asm.compare(KEY, D);
        let same = asm.if_later(Cond::Equal);
        asm.bind(other);
        same
    }
    /// Goes on at `again` with the next row. Behind the last one, jumps with the overflow.
    fn next(self, asm: &mut Asm, again: u64) -> Fix {
        asm.add_imm(B, B, self.size());
        asm.compare(B, C);
        asm.if_to(Cond::NotEqual, again);
        asm.mov(B, A);
        const { assert!(OVERFLOW == 0) };
        asm.b_later()
    }
    /// Claims the row at `B`: writes key, owner, text. Uses `KEY`, `D`, `INDEX`.
    fn take(self, asm: &mut Asm) {
        asm.store_before(VALUE, B);
        if self.rows.owned {
            asm.store(D, B, OWNER as u32 - 8);
        }
        let Some(copied) = self.text else { return };
        // A text is as long as `rows` rows.
        let rows = TEXT_BYTES as i32 / self.size();
        asm.sub(INDEX, B, A);
        asm.add_shifted(INDEX, A, INDEX, rows.trailing_zeros());
        asm.add_imm(INDEX, INDEX, self.rows.first_text() as i32 - rows * (CELLS as i32 + 8));
        copied.point(asm, D);
        for word in 0..TEXT_BYTES as u32 / 8 {
            asm.load_at(KEY, D, 8 + 8 * word);
            asm.store(KEY, INDEX, 8 * word);
        }
    }
    /// The rest of a section: adds one to the key's row, or to the overflow. `A` = table.
    pub(super) fn add(self, asm: &mut Asm) {
        self.first(asm);
        let again = asm.here();
        asm.load(INDEX, B);
        // A free row may hold the key of a thread that started its sequence again before it had written the
        // whole row.
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
    /// The same by R1 to R3 of `record::tally`, for a table that other threads change as well.
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
        asm.constant(D, TAKING);
        let take = asm.here();
        asm.load_exclusive(INDEX, B);
        let gone = asm.unless_zero_later(INDEX);
        asm.store_exclusive(FAILED, D, B);
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
