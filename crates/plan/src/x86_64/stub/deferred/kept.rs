//! Texts that a call keeps: copied into its cell, by its entry or by its exit.
//!
//! In: rsi = the cell, which holds the entry's arguments; the stub's saves. Out: code that lets the kernel copy each
//! text to its place in the cell, behind the fields. Nothing of a text goes onto the stack, so it may be long. What the
//! kernel says is the word before the text, as for all texts (TXT-2).
//!
//! ```text
//!   in     rsi = cell, rsp = S - step
//!   keep   rsp = S - step - ROOM: the two vectors of the call at rsp + 0 and rsp + 16, the registers that it takes
//!          at rsp + 32 (`text::KEPT`); above them the stub's saves, which lie below S - step
//!   copy   [rsi + 8 · word] = the result;  [rsi + 8 · word + 8 …] = the bytes
//!   end    rsi = cell; rcx, rdi, r8, r9 as they were; rax, rdx, r10, r11 and flags used
//! ```
//!
//! A call that goes on as another function has returned nothing yet: its texts of the return are unreadable.

use trapline_record::ring::{FIRST_VALUE, RecordKind};

use super::call::Deferred;
use crate::request::KeptPointer;
use crate::x86_64::stub::asm::{Asm, Mem, RAX, RSI, RSP};
use crate::x86_64::stub::saves::SAVED_RAX;
use crate::x86_64::stub::text::{KEPT, copy_to};
use crate::x86_64::stub::threads;

const EFAULT: i32 = 14;
/// Bytes of the saves below the stack pointer, and of what a copy takes.
const ROOM: i32 = 128 + 80;
/// Where rsi waits.
const CELL: Mem = Mem::At(RSP, 40);

/// Copies the texts of this kind of hit. At an exit it asks for the thread's number first, if that takes a call.
pub(super) fn keep(asm: &mut Asm<'_>, deferred: &Deferred<'_>, kind: RecordKind) {
    let is_entry = kind == RecordKind::Entry;
    let texts: Vec<_> = deferred.kept().filter(|(_, text)| text.at_return != is_entry).collect();
    if texts.is_empty() {
        return;
    }
    if kind == RecordKind::Tail {
        return texts.iter().for_each(|(word, _)| asm.store_imm(Mem::At(RSI, 8 * word), -EFAULT));
    }
    let id = deferred.traced.rings.id;
    if !is_entry {
        threads::ask(id, asm);
    }
    asm.lea(RSP, Mem::At(RSP, -ROOM));
    KEPT.into_iter().for_each(|(reg, at)| asm.store(Mem::At(RSP, at), reg));
    for (word, text) in texts {
        match text.pointer {
            KeptPointer::Argument(nth) => {
                asm.load(RAX, Mem::At(RSI, 8 * (FIRST_VALUE as i32 + i32::from(nth % 6))));
            }
            KeptPointer::Returned => asm.load(RAX, Mem::At(RSP, ROOM + SAVED_RAX)),
        }
        copy_to(asm, (id, ROOM), (Mem::At(RSI, 8 * word + 8), text.bytes.into()));
        asm.load(RSI, CELL);
        asm.store(Mem::At(RSI, 8 * word), RAX);
    }
    KEPT.into_iter().for_each(|(reg, at)| asm.load(reg, Mem::At(RSP, at)));
    asm.lea(RSP, Mem::At(RSP, ROOM));
}
