//! The program's registers during a call: how `Regs` is filled on the stack, and how it is loaded again.
//!
//! In: a stack pointer that lies right below `Regs` (the picture in `call`). Out: code that completes `Regs`,
//! and code that goes back to the site with what the called function left there. Invariants: CALL-1, CALL-2.
//! Does not: call anything.
//!
//! ```text
//!   fill         rsp = S - 288        rsp - 8: the flags, for a moment
//!   fill_below   rsp = S at first     S - DOWN + FLAGS: the flags are pushed to their place; then rsp = S - 288
//!   both         rbx = rsp, rax = flags, rcx = S; all else as it was
//!   load_all     rsp = S - 288        rax = flags, then all from `Regs`
//! ```
//!
//! The flags in rax, and back (`Asm::flags_to_rax`, `flags_from_rax`, `bytes_to_flags`):
//!
//! ```text
//!   ah = SF ZF AF PF CF,  al = OF            al + 127 overflows if al = 1
//!   ax as `pushfq` stores it, rolled by 8: ah as above, bit 3 of al = OF;  (al & 8) + 0x78 overflows if it is set
//! ```

use super::super::asm::{Alu, Asm, Cond, Fix, Mem, RAX, RBX, RCX, RDI, RDX, RSI, RSP, Reg};

/// Bytes of `Regs`, and offsets in it.
const REGS: i32 = 144;
const RIP: i32 = 128;
const FLAGS: i32 = 136;
const RED_ZONE: i32 = 128;
/// Distance from the stack pointer at the site down to `Regs`.
pub(super) const DOWN: i32 = RED_ZONE + 8 + REGS;
/// Offset of `Regs` in the gate: it lies above the gate's return address.
pub(super) const FRAME: i32 = 8;
/// DF, NT, AC.
const SPECIAL: u32 = 1 << 10 | 1 << 14 | 1 << 18;

/// The answer that means: go on with the displaced instructions.
const DISPLACED: i32 = 2;
/// The answer that means: call the function for which the extended state is saved.
pub(super) const WITH_STATE: i32 = 3;
/// Length of the instruction behind a site's call, which raises the stack pointer again.
pub(super) const BACK_UP: i32 = 8;

pub(super) const fn gpr(n: u8) -> i32 {
    n as i32 * 8
}

/// Every general register but rsp.
fn gprs() -> impl Iterator<Item = Reg> {
    (0..16).filter(|&n| n != RSP.0).map(Reg)
}

pub(super) fn back_up(asm: &mut Asm<'_>) {
    let back = asm.here();
    asm.lea(RSP, Mem::At(RSP, DOWN));
    debug_assert_eq!(asm.here() - back, BACK_UP as u64);
}

/// Completes `Regs`, except for the instruction pointer if no register holds it. Returns the jump that is
/// taken if flags are set that must not be set in a call.
pub(super) fn fill(asm: &mut Asm<'_>, rip: Option<Reg>) -> Fix {
    // All by rbx: with rsp, a core inserts a micro-operation between a push and the next use as an address.
    let regs = |at: i32| Mem::At(RBX, FRAME + at);
    asm.store(Mem::At(RSP, FRAME + gpr(RBX.0)), RBX);
    asm.mov(RBX, RSP);
    asm.pushfq();
    fill_gprs(asm);
    rip.into_iter().for_each(|rip| asm.store(regs(RIP), rip));
    asm.pop(RAX);
    asm.store(regs(FLAGS), RAX);
    fill_sp(asm)
}

/// The same where nothing lies below yet, not even rdi and rsi: the flags are pushed to their place.
pub(super) fn fill_below(asm: &mut Asm<'_>) -> Fix {
    let regs = |at: i32| Mem::At(RBX, FRAME + at);
    let flags = FLAGS + 8 - DOWN;
    asm.lea(RSP, Mem::At(RSP, flags));
    asm.pushfq();
    asm.lea(RSP, Mem::At(RSP, 8 - flags - DOWN - FRAME));
    [RBX, RDI, RSI].into_iter().for_each(|reg| asm.store(Mem::At(RSP, FRAME + gpr(reg.0)), reg));
    asm.mov(RBX, RSP);
    fill_gprs(asm);
    asm.load32(RAX, regs(FLAGS));
    fill_sp(asm)
}

/// Stores all but rbx, rdi and rsi, which are stored already.
fn fill_gprs(asm: &mut Asm<'_>) {
    for reg in gprs().filter(|reg| ![RBX, RDI, RSI].contains(reg)) {
        asm.store(Mem::At(RBX, FRAME + gpr(reg.0)), reg);
    }
}

/// rcx = S, also in `Regs`. eax = flags; jumps if DF, NT or AC is set.
fn fill_sp(asm: &mut Asm<'_>) -> Fix {
    asm.lea(RCX, Mem::At(RBX, FRAME + DOWN));
    asm.store(Mem::At(RBX, FRAME + gpr(RSP.0)), RCX);
    asm.unbroken(|asm| {
        asm.test_imm32(RAX, SPECIAL);
        asm.jcc_later(Cond::NotEqual)
    })
}

/// Loads flags and general registers from `Regs`, then does `back` to the site. Returns the jump that is
/// taken if the flags need more, which changes no register, and the address to which that comes back.
pub(super) fn load_all(asm: &mut Asm<'_>, back: impl Fn(&mut Asm<'_>)) -> (Fix, u64) {
    /// Length of the test and its jump.
    const ASKED: u64 = 6 + 6;
    asm.load32(RAX, Mem::At(RSP, FRAME + FLAGS));
    let load = |asm: &mut Asm<'_>, reg: Reg| asm.load(reg, Mem::At(RSP, FRAME + gpr(reg.0)));
    let mut others = gprs().filter(|&reg| reg != RAX);
    // These loads align the test, in place of instructions that do nothing.
    while !asm.is_unbroken(ASKED) {
        let Some(reg) = others.next() else { break };
        load(asm, reg);
    }
    let unusual = asm.unbroken(|asm| {
        asm.test_imm32(RAX, SPECIAL);
        asm.jcc_later(Cond::NotEqual)
    });
    asm.bytes_to_flags();
    let rest = asm.here();
    std::iter::once(RAX).chain(others).for_each(|reg| load(asm, reg));
    back(asm);
    (unusual, rest)
}

/// Emits the code to which the jumps of [`fill`] and [`load_all`] lead, and which comes back from there.
pub(super) fn special_and_unusual(
    asm: &mut Asm<'_>,
    (special, called): (Fix, u64),
    (unusual, load): (Fix, u64),
) {
    asm.bind(special);
    asm.raw(&[0x6A, 0x02]); // push 2: all flags 0
    asm.popfq();
    asm.jmp(called);
    asm.bind(unusual);
    asm.push_mem(Mem::At(RSP, FRAME + FLAGS));
    asm.popfq();
    asm.jmp(load);
}

/// Loads all of `Regs`: eax = the answer, rbx + 8 = `Regs`, rsp = rbx, `[rsp]` = the return address to the
/// site's code.
///
/// What is popped at the end lies under the new red zone, which may be anywhere: above `Regs`, below, or
/// across it. So `Regs` is first copied to below both, then from there to its place. The stack pointer is
/// below everything that is in use throughout.
///
/// ```text
///   rsp                          the copy of `Regs`: min(slot - POPPED, rbx) - REGS
///   slot - POPPED  (- 128)       15 general registers, all but rsp, in the order of their numbers
///   slot - 8                     flags
///   slot                         rip
///   slot + 8                     the new red zone, 128 bytes
///   slot + 136                   the new stack pointer:  slot = gpr[rsp] - RED_ZONE - 8
///   rsi = Regs, rcx = slot, rdx = the lower of both ends, rax = the word that is copied
/// ```
pub(super) fn leave(asm: &mut Asm<'_>) {
    /// Distance from the word of rip, under the new red zone, down to the first register that is popped.
    const POPPED: i32 = 15 * 8 + 8;
    let (from, slot, copy) = (RSI, RCX, RSP);
    asm.alu_imm(Alu::Cmp, RAX, DISPLACED, false);
    let elsewhere = asm.jcc_later(Cond::NotEqual);
    asm.load(RAX, Mem::At(RBX, 0));
    asm.lea(RAX, Mem::At(RAX, BACK_UP));
    asm.store(Mem::At(RBX, FRAME + RIP), RAX);
    asm.bind(elsewhere);
    asm.lea(from, Mem::At(RBX, FRAME));
    asm.load(slot, Mem::At(from, gpr(RSP.0)));
    asm.lea(slot, Mem::At(slot, -RED_ZONE - 8));
    asm.lea(RDX, Mem::At(slot, -POPPED));
    asm.alu(Alu::Cmp, RDX, RBX);
    let below = asm.jcc_later(Cond::BelowEq);
    asm.mov(RDX, RBX);
    asm.bind(below);
    asm.lea(copy, Mem::At(RDX, -REGS));
    for at in (0..REGS).step_by(8) {
        asm.load(RAX, Mem::At(from, at));
        asm.store(Mem::At(copy, at), RAX);
    }
    let places = gprs().map(|reg| gpr(reg.0)).chain([FLAGS, RIP]);
    for (at, to) in places.zip((-POPPED..).step_by(8)) {
        asm.load(RAX, Mem::At(copy, at));
        asm.store(Mem::At(slot, to), RAX);
    }
    asm.lea(RSP, Mem::At(slot, -POPPED));
    for reg in gprs() {
        asm.pop(reg);
    }
    asm.popfq();
    asm.raw(&[0xC2, RED_ZONE as u8, 0]); // ret 128
}
