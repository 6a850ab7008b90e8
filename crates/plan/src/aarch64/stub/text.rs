//! Memory that arguments point to, copied before a record is written: texts.
//!
//! In: what to read. Out: code that copies each onto the stack, and from there into the record. General registers only.
//! Invariants: TXT-1 whatever a pointer is, the program does not notice; TXT-2 the record holds what could be read at the hit, and how much that was.
//!
//! Each is copied by the kernel, by process_vm_readv(2) on the thread itself (x86-64's X4): it reads what the program could, stops where it could not, and says so. Nothing
//! faults, and no handler of signals is asked for; a text costs a system call. (Here there is no code that takes faults in other processes, so nothing is loaded directly.)
//!
//! A system call keeps all general registers but x0, flags, and 128 bits of each vector; it loses what vectors of SVE hold above that, predicates and SME's modes. At the entry of a
//! function that follows the base procedure call standard nothing of that is live (AAPCS64, 6.1.3, 6.3); one whose words name any of it has no texts (`module`).
//!
//! # Frame
//!
//! It lies below the stub's saves, and stays until the record is committed:
//!
//! ```text
//!   Q + 0, 16    the two iovecs: ours, the program's        <- sp
//!   Q + 32 …     x0 to x5, x8
//!   Q + 96 …     for each text: the call's answer, then the bytes
//! ```

use trapline_record::ring::{FIRST_TEXT, TEXT_BYTES, TEXT_WORDS};

use super::asm::{Asm, Reg, SP};
use super::frame::{A, B, SLOT};
use super::trace::ARGUMENTS;
use crate::request::ThreadId;

/// Linux, arm64.
mod nr {
    pub(super) const GETTID: u32 = 178;
    pub(super) const PROCESS_VM_READV: u32 = 270;
}
const NUMBER: Reg = 8;
const KEPT: u32 = 32;
const KEPT_NUMBER: u32 = KEPT + 8 * ARGUMENTS as u32;
const TEXTS: u32 = 96;
const TEXT_LEN: u32 = TEXT_WORDS as u32 * 8;
/// Bytes of code that each takes at most.
pub(crate) const BYTES: u64 = 256;

/// What is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Texts {
    /// Bit `n`: argument `n` points to text.
    pub(super) texts: u8,
    /// How the thread's number is learnt.
    pub(super) id: ThreadId,
}

impl Texts {
    fn all(self) -> impl Iterator<Item = u32> {
        (0..ARGUMENTS as u32).filter(move |n| self.texts >> n & 1 == 1)
    }
    pub(super) fn count(self) -> u32 {
        self.all().count() as u32
    }
    /// How far the stack pointer moves while the copies are there.
    pub(super) fn depth(self) -> u32 {
        if self.count() == 0 { 0 } else { (TEXTS + self.count() * TEXT_LEN).next_multiple_of(16) }
    }
    /// Copies all. Out: the stack pointer lower by [`Self::depth`]; the argument registers as they were. Spoils `A`, `B`.
    pub(super) fn fetch(self, asm: &mut Asm) {
        if self.count() == 0 {
            return;
        }
        asm.add_imm(SP, SP, -self.depth().cast_signed());
        for pair in [0, 2, 4] {
            asm.store_two(pair, pair + 1, SP, KEPT + 8 * pair);
        }
        asm.store(NUMBER, SP, KEPT_NUMBER);
        for (text, nth) in (0..).zip(self.all()) {
            let to = TEXTS + text * TEXT_LEN;
            asm.load_at(A, SP, KEPT + 8 * nth);
            self.copy(asm, to + 8);
            asm.store(0, SP, to);
        }
        for pair in [0, 2, 4] {
            asm.load_two(pair, pair + 1, SP, KEPT + 8 * pair);
        }
        asm.load_at(NUMBER, SP, KEPT_NUMBER);
    }
    /// In: `A` = where. The kernel copies a text's bytes to a place in the frame. Out: x0 = its answer; spoils all that is kept, and `B`.
    fn copy(self, asm: &mut Asm, to: u32) {
        match self.id {
            ThreadId::At(offset) => {
                asm.thread_pointer(0);
                asm.add_imm(0, 0, offset);
                asm.load32(0, 0, 0);
            }
            _ => {
                asm.number(NUMBER, nr::GETTID);
                asm.system_call();
            }
        }
        asm.add_imm(B, SP, to.cast_signed());
        asm.number(1, TEXT_BYTES as u32);
        asm.store_two(B, 1, SP, 0);
        asm.store_two(A, 1, SP, 16);
        asm.stack_pointer(1);
        asm.number(2, 1);
        asm.add_imm(3, SP, 16);
        asm.number(4, 1);
        asm.number(5, 0);
        asm.number(NUMBER, nr::PROCESS_VM_READV);
        asm.system_call();
    }
    /// Copies them into the record at `SLOT`. Spoils `A`.
    pub(super) fn fill(self, asm: &mut Asm) {
        for word in 0..self.count() * TEXT_WORDS as u32 {
            asm.load_at(A, SP, TEXTS + 8 * word);
            asm.store(A, SLOT, 8 * (FIRST_TEXT as u32 + word));
        }
    }
}
