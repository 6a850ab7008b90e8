//! Slots of our own process: a call that comes back to one calls a consumer, as an exit does.
//!
//! In: where slots lie ([`Slots`]), and what is called there. Out: the slots' code with a gate behind it, and what unwinders are told. It is an
//! exit's stub, with the slot in the place of the `ret`: the one called finds the stack pointer of the entry in `Regs`, and the slot's
//! number where that points to. It leaves the real return address there (B4). Does not: take slots or give them back (`trapline_runtime::slots`).
//!
//! # Returns that the CPU foresees
//!
//! A CPU keeps a stack of its own of where calls will return to. A return to a slot is not what that says, which costs some 20 cycles, and the
//! caller's entry has been used up: so the last instruction here *jumps* to the real address, as a `ret` would use up that of the caller's caller.
//!
//! Where the stub itself puts the slot in (`call`'s way of `arms`), it leaves that to the CPU: it takes the stack pointer to above the stack word, as if the call were
//! over, and goes to the slot at [`ENTER`](trapline_record::slots::ENTER), where a *call* puts the return address back, now one in the slot, and leads through the
//! entry's `GO` to the function. The function's `ret` is foreseen then, and so is the `ret` that ends this landing, whose entry is the caller's.
//!
//! | step | stack pointer | stack word | who looks then |
//! |---|---|---|---|
//! | at the stub, all registers as they were | below the word | the slot, at `ENTER` | SLOT-2 |
//! | `lea rsp`, `jmp [rsp − 8]`, at `ENTER` | above it | the same | a signal handler lies 128 bytes below the stack pointer: the word is kept. An unwinder finds a frame of the slot, or code of ours, as in any stub |
//! | the call; then the displaced instructions and the function | below it | the slot, at [`PAIRED`](trapline_record::slots::PAIRED) | SLOT-2 |
//! | back at `PAIRED` | above it | anything | as behind any return to a slot |
//!
//! What is 128 bytes below the stack pointer at a function's entry is nobody's: there eight bytes less are kept for three instructions. `GO` and `REAL` are the call's own until it is back, as all of its
//! entry is. Both ways through a slot have one number, and one key. With a shadow stack this way would be right, too; slots are not lent there.

use trapline_record::slots::Slots;

use super::asm::{Asm, Mem, RSP};
use super::call::{landing, landing_gate};
use super::slots::lay;
use super::{CallFunctions, call};
use crate::unwind::{SlotCode, X86_64, unwind_info};

/// Bytes of the piece of code that slots lead to whose call was not entered from there.
const COMMON: u64 = 64;

/// Bytes that [`landing_code`] makes, at most: a gate saves the extended state component by component.
#[must_use]
pub const fn landing_code_len(slots: &Slots) -> u64 {
    slots.code_len() + 3 * 4096
}

/// The code of a process' slots, to lie at `slots.code`; `functions.exit` is called with `argument`. Calls that were entered from their slots come to
/// `functions.ends`, with the same, which is taken in before that. Nothing else of `functions` is used.
#[must_use]
pub fn landing_code(slots: &Slots, functions: &CallFunctions, argument: u64) -> SlotCode {
    let common = slots.code + slots.code_len();
    let mut behind = Vec::new();
    let gate = landing_gate(&mut behind, common + COMMON, functions);
    let at = common + COMMON + behind.len() as u64;
    let paired = functions.ends.as_ref().map(|piece| landing(&mut behind, at, piece, argument, &gate));
    let mut bytes = Vec::with_capacity(slots.code_len() as usize + behind.len() + 256);
    lay(&mut bytes, slots, common, paired);
    // B1 is done: the number lies where the stack pointer points to.
    call(&mut bytes, common, gate.exit, argument, common);
    let at = slots.code + bytes.len() as u64;
    let mut asm = Asm::new(&mut bytes, at);
    asm.lea(RSP, Mem::At(RSP, 8));
    asm.unbroken(|asm| asm.jmp_mem(Mem::At(RSP, -8)));
    debug_assert!(asm.here() <= common + COMMON, "the common code has its place");
    bytes.resize((common + COMMON - slots.code) as usize, 0xCC);
    bytes.append(&mut behind);
    let end = slots.code + bytes.len() as u64;
    bytes.resize(bytes.len().next_multiple_of(64), 0xCC);
    let unwind = slots.code + bytes.len() as u64;
    unwind_info(&mut bytes, slots, X86_64);
    debug_assert!(bytes.len() as u64 <= landing_code_len(slots), "as long as was said");
    SlotCode { bytes, shared: (common, end), unwind }
}
