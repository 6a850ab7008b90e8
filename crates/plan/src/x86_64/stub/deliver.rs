//! At the entry of a program's handler of faults: a fault of a copy gets the address of the original.
//!
//! In: the address of a control block, within ±2 GiB; the guard tables of its segment and of those that follow
//! it also hold the copies (`record::control::delivery`); whether the kernel describes the signal to this handler
//! (SA_SIGINFO), else what lies there is none. Out: code that runs into the displaced code of the
//! handler's entry. Invariants: DLV-1 only the instruction pointer of a context changes that the kernel has just
//! made for a fault, and only from a copy to its original. DLV-2 a thread is never sent to a guard that it cannot
//! trap at. Registers need no change: a copy faults with the registers of the original.
//! Does not: know which handlers there are, or return from one. docs/design/faults.md has the protocol.
//!
//! The handler may be called as a function, with any arguments. So the frame is recognized by its form: the
//! kernel puts the context right above the return address, and the signal's description right above that.
//!
//! ```text
//!   at entry    S + 0     the restorer's address          rdx = S + 8                    (else: pass)
//!               S + 8     the context                     rsi = S + 312                  (else: pass)
//!               S + 312   the signal's description        its code > 0, if it is described (else: pass)
//! ```
//!
//! ```text
//!   rsp - 72   LEFT        segments left, of MAX_CHAIN
//!   rsp - 64   KEPT        r11, r10, r9, rdi, rsi, rcx
//!   rsp - 16   FLAGS       flags, 4 bytes
//!   rsp - 8    SAVED_RAX   rax
//!   rsp                    = S - RED_ZONE if a red zone may be live, else S
//!   r9                     the context's instruction pointer, with DELIVERY
//!   r10                    a segment's control block
//!   rdx                    the context
//! ```
//!
//! ```text
//!   [table + 16 · n] = rip + DELIVERY
//!   to = [table + 16 · n + 8]
//!   to has TRAPS, and the context's mask has SIGTRAP or SIGILL     rip stays     (DLV-2)
//!   else                                                           rip = to without TRAPS
//! ```

use trapline_record::control::{at, delivery};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::trap::{MAX_CHAIN, SI_CODE, UC_RIP, guards};

const RED_ZONE: i32 = 128;
const SAVED_RAX: i32 = -8;
const FLAGS: i32 = -16;
/// Registers that the search overwrites, and where they are kept.
const KEPT: [(Reg, i32); 6] = [(RCX, -24), (RSI, -32), (RDI, -40), (R9, -48), (R10, -56), (R11, -64)];
const LEFT: i32 = -72;
/// Offsets in the kernel's `rt_sigframe`: of the context, and from there of the signal's description.
const CONTEXT: i32 = 8;
const DESCRIPTION: i32 = 304;
/// `uc_sigmask` in the kernel's `ucontext_t`.
const UC_SIGMASK: i32 = 40 + 256;
/// SIGILL and SIGTRAP in a mask.
const TRAPS: i32 = 1 << 3 | 1 << 4;

/// Appends the whole stub. `red_zone`: the function's own red zone may be live.
pub fn deliver(out: &mut Vec<u8>, at: u64, (control, informed): (u64, bool), red_zone: bool) {
    let lowered = if red_zone { RED_ZONE } else { 0 };
    let asm = &mut Asm::new(out, at);
    if lowered != 0 {
        asm.lea(RSP, Mem::At(RSP, -lowered));
    }
    asm.store(Mem::At(RSP, SAVED_RAX), RAX);
    asm.flags_to_rax();
    asm.store32(Mem::At(RSP, FLAGS), RAX);
    let others = unless_fault(asm, lowered, informed);
    KEPT.into_iter().for_each(|(reg, to)| asm.store(Mem::At(RSP, to), reg));
    search(asm, control);
    KEPT.into_iter().for_each(|(reg, from)| asm.load(reg, Mem::At(RSP, from)));
    others.into_iter().for_each(|jump| asm.bind(jump));
    asm.load32(RAX, Mem::At(RSP, FLAGS));
    asm.flags_from_rax();
    asm.load(RAX, Mem::At(RSP, SAVED_RAX));
    if lowered != 0 {
        asm.lea(RSP, Mem::At(RSP, lowered));
    }
}

/// Jumps to the returned fixes if the kernel has not just called the handler for a fault. Uses rax and flags.
fn unless_fault(asm: &mut Asm<'_>, lowered: i32, informed: bool) -> Vec<Fix> {
    asm.lea(RAX, Mem::At(RSP, lowered + CONTEXT));
    asm.alu(Alu::Cmp, RAX, RDX);
    let no_context = asm.jcc_later(Cond::NotEqual);
    asm.lea(RAX, Mem::At(RDX, DESCRIPTION));
    asm.alu(Alu::Cmp, RAX, RSI);
    let mut others = vec![no_context, asm.jcc_later(Cond::NotEqual)];
    if informed {
        asm.load32(RAX, Mem::At(RSI, SI_CODE));
        asm.test(RAX, RAX, false);
        others.push(asm.jcc_later(Cond::LessEq));
    }
    others
}

/// Looks the context's instruction pointer up in the table of each segment. Uses rax, flags and KEPT.
fn search(asm: &mut Asm<'_>, control: u64) {
    asm.load(R9, Mem::At(RDX, UC_RIP));
    asm.mov_imm64(RAX, delivery::COPY);
    asm.alu(Alu::Or, R9, RAX);
    asm.lea(R10, Mem::Rip(control));
    asm.mov_imm32(RAX, MAX_CHAIN);
    asm.store(Mem::At(RSP, LEFT), RAX);
    let segment = asm.here();
    let hit = guards(asm);
    asm.load(R10, Mem::At(R10, at::NEXT_SEGMENT as i32));
    asm.test(R10, R10, true);
    let end = asm.jcc_later(Cond::Equal);
    asm.alu_mem_imm(Alu::Sub, Mem::At(RSP, LEFT), 1, false);
    asm.jcc(Cond::NotEqual, segment);
    let broken = asm.jmp_later();

    asm.bind(hit);
    asm.load(RAX, Mem::At(RCX, 8));
    asm.test(RAX, RAX, true);
    let untrapped = asm.jcc_later(Cond::NotSign);
    asm.load32(RDI, Mem::At(RDX, UC_SIGMASK));
    asm.alu_imm(Alu::And, RDI, TRAPS, false);
    let blocked = asm.jcc_later(Cond::NotEqual);
    asm.shift(Shift::Left, RAX, 1, true);
    asm.shift(Shift::Right, RAX, 1, true);
    asm.bind(untrapped);
    asm.store(Mem::At(RDX, UC_RIP), RAX);
    for jump in [end, broken, blocked] {
        asm.bind(jump);
    }
}
