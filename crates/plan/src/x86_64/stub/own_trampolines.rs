//! Return trampolines of our own process: a call that returns to one calls a consumer,
//! as an exit does.
//!
//! In: where the trampolines lie ([`Trampolines`]), and what is called there. Out: the trampolines' code with
//! a gate behind it, and the unwind information. The code is an exit's stub, with the trampoline in place of
//! the `ret`. The called function finds in `Regs` the stack pointer of the entry, and the trampoline's number
//! where that points to. It leaves the real return address there (B4). Does not: take trampolines or give
//! them back (`trapline_runtime::trampolines`).
//!
//! # Returns that the CPU predicts
//!
//! A CPU keeps its own stack of the addresses to which calls will return. A return to a trampoline does not
//! match it, which costs some 20 cycles, and uses up the caller's entry. So the last instruction here *jumps*
//! to the real address, since a `ret` would use up the entry of the caller's caller.
//!
//! If the stub itself puts in the trampoline (`call`'s way of `arms`), it lets the CPU do this. It raises the
//! stack pointer above the stack word, as if the call were over, and goes to the trampoline at
//! [`ENTER`](trapline_record::trampolines::ENTER). There a *call* puts the return address back, now one in
//! the trampoline, and leads through the entry's `GO` to the function. Then the CPU predicts the function's
//! `ret`, and also the `ret` that ends the code here: its entry is the caller's.
//!
//! | step | stack pointer | stack word | what code sees that looks then |
//! |---|---|---|---|
//! | at the stub, all registers as they were | below the word | the trampoline, at `ENTER` | SLOT-2 |
//! | `lea rsp`, `jmp [rsp − 8]`, at `ENTER` | above it | the same | a signal handler lies 128 bytes |
//! | | | | below the stack pointer: the word is kept. |
//! | | | | An unwinder finds a frame of the trampoline, |
//! | | | | or code of ours, as in any stub |
//! | the call; then the displaced instructions and the function | below it | the trampoline, at `PAIRED` | SLOT-2 |
//! | back at `PAIRED` | above it | anything | as behind any return to a trampoline |
//!
//! The 128 bytes below the stack pointer at a function's entry are unused; here eight bytes less are kept
//! free, for three instructions. `GO` and `REAL` belong to the call until it is back, as all of its entry
//! does. Both ways through a trampoline have one number, and one key. With a shadow stack this would be
//! right, too, but no trampolines are used there.
//!
//! # Pictures
//!
//! ```text
//!   trampolines.code                   trampolines, CODE bytes each (`trampolines::lay`)
//!   common = code + code_len           the call of gate.exit; lea rsp, [rsp + 8]; jmp [rsp - 8]
//!   common + COMMON                    the gate: `moved`, then the path to `functions.exit`
//!                                      paired: the path with `functions.ends` inlined
//!   a multiple of 64                   unwind information
//! ```
//!
//! ```text
//!   at common        rsp = S          [S] = number of the trampoline (B1)
//!   in the function  Regs.rsp = S     [S] = the real return address, from B4 on
//!   at the end       rsp = S + 8      rip = [S]
//! ```

use trapline_record::trampolines::Trampolines;

use super::asm::{Asm, Mem, RSP};
use super::call::{call, return_gate, return_path};
use super::trampolines::lay;
use crate::calls::CallFunctions;
use crate::unwind::{TrampolineCode, X86_64, unwind_info};

/// Bytes of the code that trampolines lead to if their call was not entered from there.
const COMMON: u64 = 64;

/// Upper bound of the bytes that [`own_trampoline_code`] makes: its gate saves the extended state component
/// by component.
#[must_use]
pub const fn own_trampoline_code_len(trampolines: &Trampolines) -> u64 {
    trampolines.code_len() + 3 * 4096
}

/// The code of a process' return trampolines, to lie at `trampolines.code`; `functions.exit` is called with
/// `argument`. Calls that were entered from their trampolines come to `functions.ends`, with the same
/// argument, which is inlined before that. No other member of `functions` is used.
#[must_use]
pub fn own_trampoline_code(
    trampolines: &Trampolines,
    functions: &CallFunctions,
    argument: u64,
) -> TrampolineCode {
    let common = trampolines.code + trampolines.code_len();
    let mut behind = Vec::new();
    let gate = return_gate(&mut behind, common + COMMON, functions);
    let at = common + COMMON + behind.len() as u64;
    let paired = functions.ends.as_ref().map(|piece| return_path(&mut behind, at, piece, argument, &gate));
    let mut bytes = Vec::with_capacity(trampolines.code_len() as usize + behind.len() + 256);
    lay(&mut bytes, trampolines, common, paired);
    // B1 is done: the number is in the word at the stack pointer.
    call(&mut bytes, common, gate.exit, argument, common);
    let at = trampolines.code + bytes.len() as u64;
    let mut asm = Asm::new(&mut bytes, at);
    asm.lea(RSP, Mem::At(RSP, 8));
    asm.unbroken(|asm| asm.jmp_mem(Mem::At(RSP, -8)));
    debug_assert!(asm.here() <= common + COMMON, "the common code has its place");
    bytes.resize((common + COMMON - trampolines.code) as usize, 0xCC);
    bytes.append(&mut behind);
    let end = trampolines.code + bytes.len() as u64;
    bytes.resize(bytes.len().next_multiple_of(64), 0xCC);
    let unwind = trampolines.code + bytes.len() as u64;
    unwind_info(&mut bytes, trampolines, X86_64);
    debug_assert!(bytes.len() as u64 <= own_trampoline_code_len(trampolines), "as long as was promised");
    TrampolineCode { bytes, shared: (common, end), unwind }
}
