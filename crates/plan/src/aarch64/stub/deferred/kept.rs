//! Texts that a call keeps: copied into its cell, by its entry or by its exit.
//!
//! In: the cell's address in the frame, the entry's arguments in the cell. Out: code that lets the kernel copy each text
//! to its place in the cell, behind the fields. Nothing of a text goes onto the stack, so it may be long (TXT-2).
//!
//! ```text
//!   in     sp = S - DEPTH              [sp + PLACE] = cell
//!   keep   sp = S - DEPTH - ROOM       the two vectors of the call at sp + 0 and sp + 16
//!                                      x0 to x5 at sp + KEPT, x8 behind them
//!   copy   x16 A = the source, x17 B = the cell, then the copy
//!          [cell + 8·word] = the result; [cell + 8·word + 8 …] = the bytes
//!   end    sp = S - DEPTH              x0 to x5 and x8 are the program's; A, B and flags used
//! ```
//!
//! A call that goes on as another function has returned nothing yet: its texts of the return are unreadable.

use trapline_record::ring::{FIRST_VALUE, RecordKind};

use super::call::{Deferred, PLACE};
use crate::aarch64::stub::asm::{Asm, Reg, SP};
use crate::aarch64::stub::saves::{A, B};
use crate::aarch64::stub::text;
use crate::request::KeptPointer;

const EFAULT: u32 = 14;
const NUMBER: Reg = 8;
const KEPT: u32 = 32;
const KEPT_NUMBER: u32 = KEPT + 48;
const ROOM: u32 = 96;

/// Copies the texts of this kind of hit.
pub(super) fn keep(asm: &mut Asm, deferred: &Deferred<'_>, kind: RecordKind) {
    let is_entry = kind == RecordKind::Entry;
    let texts: Vec<_> = deferred.kept().filter(|(_, text)| text.at_return != is_entry).collect();
    if texts.is_empty() {
        return;
    }
    if kind == RecordKind::Tail {
        asm.load_at(B, SP, PLACE);
        asm.number(A, EFAULT);
        asm.negate(A, A);
        return texts.iter().for_each(|(word, _)| asm.store(A, B, 8 * word));
    }
    asm.add_imm(SP, SP, -ROOM.cast_signed());
    for pair in [0, 2, 4] {
        asm.store_two(pair, pair + 1, SP, KEPT + 8 * pair);
    }
    asm.store(NUMBER, SP, KEPT_NUMBER);
    for (word, text) in texts {
        asm.load_at(B, SP, ROOM + PLACE);
        match text.pointer {
            KeptPointer::Argument(nth) => asm.load_at(A, B, 8 * (FIRST_VALUE as u32 + u32::from(nth % 6))),
            KeptPointer::Returned => asm.load_at(A, SP, KEPT),
        }
        asm.add_imm(B, B, 8 * word.cast_signed() + 8);
        text::copy_to(asm, deferred.traced.rings.id, text.bytes.into(), None);
        asm.load_at(B, SP, ROOM + PLACE);
        asm.store(0, B, 8 * word);
    }
    for pair in [0, 2, 4] {
        asm.load_two(pair, pair + 1, SP, KEPT + 8 * pair);
    }
    asm.load_at(NUMBER, SP, KEPT_NUMBER);
    asm.add_imm(SP, SP, ROOM.cast_signed());
}
