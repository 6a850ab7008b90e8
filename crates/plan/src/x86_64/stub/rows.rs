//! Rows of a table: adds one to the row of a key. The key is a value, a cell or the hash of a text. If hits
//! are grouped, a row also has an owner, the group-by key: the thread, or a value of the call
//! (`record::tally`).
//!
//! In: the key; the owner and the text, if rows have those. Out: the code of a restartable sequence that has
//! found its table ([`Rows::add`]). Without such sequences other threads change the table too; for that there
//! is other code ([`Rows::add_anywhere`], R1 to R3). Both keys wait below the stack pointer, so a
//! sequence that starts again finds them as they were.
//!
//! ```text
//!   rsp - 48   KEY_AT   the group-by key, if rows have one
//!   rsp - 40   END      address behind the last row for this key; rdx, while a row is claimed without rseq
//!   rsp - 32   KEY      the key, if rows have texts or group-by keys, or while a row is claimed without rseq
//!   rax        key
//!   rdx        address behind the last row for this key; the group-by key, if rows have one
//!   r10        the row that is looked at
//!   r11        the table
//! ```
//!
//! ```text
//!   r11 + OVERFLOW 0, + UNSEEN 8        words
//!   r11 + CELLS   16                    rows, `size` bytes each:
//!   r10 + 0 key, + 8 hits, + OWNER 16 group-by key
//!   r11 + first_text                    the rows' texts, TEXT_BYTES each
//! ```
//!
//! The rows that a key may have, with g the group-by key, all modulo 2^64:
//!
//! ```text
//!   h     = key · PHI;  with group-by keys h = (g · FNV.1 + key) · PHI
//!   first = r11 + CELLS + size · (h >> (64 - bits))
//!   last  = first + size · (PROBES - 1)
//!   text of a row = r11 + first_text + TEXT_BYTES · (row - r11 - CELLS) / size
//! ```
//!
//! The commit:
//!
//! ```text
//!   [r10 + 8] += 1
//!   no row left           r10 = r11 + OVERFLOW - 8
//!   text was not read     r10 = r11 + UNSEEN - 8
//! ```

use trapline_record::tally::{
    self, CELLS, FNV, OVERFLOW, OWNER, PHI, PROBES, TAKING, TEXT_BYTES, TableShape, UNSEEN, bits_in_reach,
};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg, Shift};
use super::text;
use crate::filter::Tally;

// Where they wait; the value's own intermediate values are no longer needed then.
const KEY: Mem = Mem::At(RSP, -32);
const END: Mem = Mem::At(RSP, -40);
const KEY_AT: Mem = Mem::At(RSP, -48);

/// How a hit of one probe finds its row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    rows: tally::Rows,
    /// The text that is stored in a new row.
    text: Option<Copied>,
}

/// A text that was copied: where its result is, and behind it the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copied {
    pub(super) at: Reg,
    pub(super) answer: i32,
}

impl Copied {
    /// Where `text` leaves it.
    pub(super) const ON_STACK: Self = Self { at: RSP, answer: text::ANSWER };
    const fn answer(self) -> Mem {
        Mem::At(self.at, self.answer)
    }
    const fn bytes(self) -> i32 {
        self.answer + 8
    }
}

impl Rows {
    /// `None` if the table has cells instead of rows.
    pub(super) fn of(shape: TableShape, tally: &Tally, copied: Copied) -> Option<Self> {
        let rows = shape.rows()?;
        Some(Self { rows, text: (rows.texts && tally.texts() != 0).then_some(copied) })
    }
    const fn size(self) -> i32 {
        self.rows.size() as i32
    }
    /// Whether key and owner wait below the stack pointer.
    const fn waits(self) -> bool {
        self.text.is_some() || self.rows.owned
    }
    /// Before the section: `[KEY]` = rax, and `[KEY_AT]` = rdx, the group-by key, if rows have one.
    pub(super) fn keep(self, asm: &mut Asm<'_>) {
        if self.waits() {
            asm.store(KEY, RAX);
        }
        if self.rows.owned {
            asm.store(KEY_AT, RDX);
        }
    }
    pub(super) const fn are_owned(self) -> bool {
        self.rows.owned
    }
    /// ```text
    ///   in    r11 = table;  rax = key, if it is not stored
    ///   out   rax = key;  r10 = first;  rdx = last + size
    ///         with group-by keys: [END] = last + size;  rdx = the group-by key
    /// ```
    fn first(self, asm: &mut Asm<'_>) {
        if self.waits() {
            asm.load(RAX, KEY);
        }
        if self.rows.owned {
            asm.load(R10, KEY_AT);
            asm.mov_imm64(RDX, FNV.1);
            asm.multiply(R10, RDX);
            asm.alu(Alu::Add, R10, RAX);
            asm.mov_imm64(RDX, PHI);
            asm.multiply(R10, RDX);
        } else {
            asm.mov_imm64(R10, PHI);
            asm.multiply(R10, RAX);
        }
        asm.shift(Shift::Right, R10, 64 - bits_in_reach(self.rows.bits), true);
        asm.shift(Shift::Left, R10, self.rows.size().trailing_zeros() as u8, false);
        asm.lea(R10, Mem::Sum(R11, R10, 0, CELLS as i32));
        asm.lea(RDX, Mem::At(R10, self.size() * PROBES as i32));
        if self.rows.owned {
            asm.store(END, RDX);
            asm.load(RDX, KEY_AT);
        }
    }
    /// Jumps if the row at r10 has this key and this group-by key.
    fn is_same(self, asm: &mut Asm<'_>) -> Fix {
        asm.alu_store(Alu::Cmp, Mem::At(R10, 0), RAX, false);
        if !self.rows.owned {
            return asm.jcc_later(Cond::Equal);
        }
        let other = asm.jcc_later(Cond::NotEqual);
        asm.alu_store(Alu::Cmp, Mem::At(R10, OWNER as i32), RDX, false);
        let same = asm.jcc_later(Cond::Equal);
        asm.bind(other);
        same
    }
    /// Goes on at `again` with the next row. Behind the last one, sets r10 so that the commit counts an
    /// overflow.
    fn next(self, asm: &mut Asm<'_>, again: u64) -> Fix {
        asm.lea(R10, Mem::At(R10, self.size()));
        if self.rows.owned {
            asm.alu_load(Alu::Cmp, R10, END);
        } else {
            asm.alu(Alu::Cmp, R10, RDX);
        }
        asm.jcc(Cond::NotEqual, again);
        asm.lea(R10, Mem::At(R11, OVERFLOW as i32 - 8));
        asm.jmp_later()
    }
    /// Claims the row at r10: writes key, group-by key and text. With a text, uses rax and rdx.
    fn take(self, asm: &mut Asm<'_>) {
        asm.store(Mem::At(R10, 0), RAX);
        if self.rows.owned {
            asm.store(Mem::At(R10, OWNER as i32), RDX);
        }
        let Some(copied) = self.text else { return };
        asm.mov(RDX, R10);
        asm.alu(Alu::Sub, RDX, R11);
        // A text is as long as `rows` rows, so the offset of its bytes is that many times the offset of its
        // row.
        let rows = TEXT_BYTES as i32 / self.size();
        asm.shift(Shift::Left, RDX, rows.trailing_zeros() as u8, true);
        let first = self.rows.first_text() as i32 - rows * CELLS as i32;
        for word in 0..TEXT_BYTES as i32 / 8 {
            asm.load(RAX, Mem::At(copied.at, copied.bytes() + word * 8));
            asm.store(Mem::Sum(R11, RDX, 0, first + word * 8), RAX);
        }
    }
    /// Adds one to the key's row, or to the overflow; r11 = table, and [`keep`](Self::keep) has stored the
    /// rest. Uses rax, rdx, r10 and flags.
    pub(super) fn add(self, asm: &mut Asm<'_>) {
        let unread = self.text.map(|copied| unread(asm, copied));
        self.first(asm);
        let again = asm.here();
        // A free row may hold the key of a thread that started its sequence again before it had written the
        // whole row.
        let free = self.waits().then(|| is_free(asm));
        let same = self.is_same(asm);
        let free = free.unwrap_or_else(|| is_free(asm));
        let none = self.next(asm, again);
        asm.bind(free);
        self.take(asm);
        asm.bind(same);
        asm.bind(none);
        unread.into_iter().for_each(|fix| asm.bind(fix));
        asm.alu_mem_imm(Alu::Add, Mem::At(R10, 8), 1, false);
    }
    /// The same by R1 to R3 of `record::tally`, for a table that other threads change as well.
    pub(super) fn add_anywhere(self, asm: &mut Asm<'_>) {
        let unread = self.text.map(|copied| unread(asm, copied));
        self.first(asm);
        let again = asm.here();
        asm.cmp_mem_imm(Mem::At(R10, 8), 0);
        let free = asm.jcc_later(Cond::Equal);
        let taking = asm.jcc_later(Cond::Sign);
        let same = self.is_same(asm);
        asm.bind(taking);
        let none = self.next(asm, again);
        asm.bind(free);
        let rdx = if self.rows.owned { KEY_AT } else { END };
        asm.store(KEY, RAX);
        asm.store(rdx, RDX);
        asm.mov_imm64(RDX, TAKING);
        asm.mov_imm32(RAX, 0);
        asm.cmpxchg(Mem::At(R10, 8), RDX);
        asm.load(RAX, KEY);
        asm.load(RDX, rdx);
        asm.jcc(Cond::NotEqual, again);
        self.take(asm);
        asm.store_imm(Mem::At(R10, 8), 1);
        let taken = asm.jmp_later();
        asm.bind(same);
        asm.bind(none);
        unread.into_iter().for_each(|fix| asm.bind(fix));
        asm.alu_mem_imm(Alu::Add, Mem::At(R10, 8), 1, true);
        asm.bind(taken);
    }
}

/// Jumps if no text could be read, with r10 = r11 + UNSEEN - 8: the commit counts the hit as unseen.
fn unread(asm: &mut Asm<'_>, copied: Copied) -> Fix {
    asm.lea(R10, Mem::At(R11, UNSEEN as i32 - 8));
    asm.cmp_mem_imm(copied.answer(), 0);
    asm.jcc_later(Cond::LessEq)
}

/// Jumps if the row at r10 has no hits.
fn is_free(asm: &mut Asm<'_>) -> Fix {
    asm.cmp_mem_imm(Mem::At(R10, 8), 0);
    asm.jcc_later(Cond::Equal)
}

/// rax = the key of a text that `text` has copied, as [`trapline_record::tally::text_key`]. Zeros are written
/// behind its end.
///
/// ```text
///   h = FNV.0;  for each byte before the end or a 0:  h = (h ^ byte) · FNV.1
///   r10 = h, r11 = FNV.1, rdx = index, rax = byte;  at the end rax = h
///   uses  rdx, r10, r11, flags
/// ```
pub(super) fn text_key(asm: &mut Asm<'_>, copied: Copied) {
    let byte = Mem::Sum(copied.at, RDX, 0, copied.bytes());
    asm.mov_imm64(R10, FNV.0);
    asm.mov_imm64(R11, FNV.1);
    asm.mov_imm32(RDX, 0);
    let again = asm.here();
    asm.alu_load(Alu::Cmp, RDX, copied.answer());
    let ends = asm.jcc_later(Cond::GreaterEq);
    asm.load_byte(RAX, byte);
    asm.test(RAX, RAX, false);
    let zero = asm.jcc_later(Cond::Equal);
    asm.alu(Alu::Xor, R10, RAX);
    asm.multiply(R10, R11);
    asm.alu_imm(Alu::Add, RDX, 1, false);
    asm.jmp(again);
    asm.bind(ends);
    asm.bind(zero);
    let more = asm.here();
    asm.alu_imm(Alu::Cmp, RDX, TEXT_BYTES as i32, false);
    let filled = asm.jcc_later(Cond::AboveEq);
    asm.store_byte_imm(byte, 0);
    asm.alu_imm(Alu::Add, RDX, 1, false);
    asm.jmp(more);
    asm.bind(filled);
    asm.mov(RAX, R10);
}
