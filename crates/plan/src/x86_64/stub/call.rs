//! A hit that calls a consumer: the machine's state goes into an `insn::x86_64::Regs` on the stack, a function is called with a
//! number and that, and the state, as the function left it, goes back.
//!
//! Input: the functions' addresses, the number, which components of the extended state to keep (as numbers, from CPUID and XGETBV).
//! Output: a *gate* for each segment, code that does all of that; and for each site a few instructions that lead through it.
//! Invariants: CALL-1 nothing is stored into the 128 bytes below the stack pointer, nor below the stack pointer of the moment (a
//! signal may come at any instruction); CALL-2 without a change by the function, registers, flags, vectors and red zone are
//! bit-identical behind it; CALL-3 nothing is kept anywhere but on the stack, so a function that never comes back holds nothing.
//! Does not: know what is called. Shadow stacks: calls and returns here are paired, but a moved instruction pointer is reached by
//! a `ret`, which a shadow stack forbids.
//!
//! The stack, S being the stack pointer at the site:
//!
//! | where | what |
//! |---|---|
//! | S − 128 .. S | the program's red zone |
//! | S − 280 .. S − 136 | `Regs` |
//! | S − 288 | way back from the gate to the site's code |
//! | below, from a multiple of 64 down | XSAVE area, way back from the function |
//!
//! A function that is called without the extended state saved may answer that it needs that; the gate then begins anew, from the same
//! `Regs`, with the function that may use it. Otherwise the function answers 0: go on with the displaced instructions, with the general registers and flags of `Regs` (the stack
//! pointer stays); 1: all of `Regs` holds, and control goes to its rip; or 2: all of `Regs` holds, and control goes to the displaced
//! instructions. In the last two the last step is `ret 128` from a slot under the
//! new red zone: one instruction that loads rip and rsp at once, so that no signal can come in between.
//!
//! Flags come back by `sahf` and an addition, not by `popfq`, which alone would take a third of a hit. Bits that `sahf` does not
//! know (DF, AC, NT) are 0 in nearly all code; if one is set, it is cleared for the call, as the ABI wants it, and `popfq` it is.

use super::asm::{Alu, Asm, Cond, Mem, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};

/// What is called: `extern "C" fn(number, *mut Regs) -> u64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallFunctions {
    /// At entries and single instructions, with the extended state saved.
    pub entry: u64,
    /// Called there first, without it, for those that do not ask for it. It leaves the extended state as it is, may change all general
    /// registers but rbx, rbp, rsp and r12, in which it finds the number too, and may answer 3: call `entry` after all.
    pub general: u64,
    /// At exits, with the extended state saved.
    pub exit: u64,
    /// What is saved.
    pub state: ExtendedState,
}

/// Components of the extended state, and the room they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtendedState {
    /// Component bits, as XSAVEC takes them in eax. x87, SSE, AVX and AVX-512 have bits 0, 1, 2, 5, 6, 7.
    pub mask: u32,
    /// Bytes of their XSAVE area in the compacted format; rounded up to a multiple of 64 here.
    pub len: u32,
}

/// Where calls of one segment go through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    general: u64,
    entry: u64,
    exit: u64,
}

impl Gate {
    /// The address to be called: at an exit or not, with the extended state saved from the first or not.
    #[must_use]
    pub const fn way(&self, exit: bool, saves_state: bool) -> u64 {
        match (exit, saves_state) {
            (true, _) => self.exit,
            (false, true) => self.entry,
            (false, false) => self.general,
        }
    }
}

const RBX: Reg = Reg(3);
const R12: Reg = Reg(12);
/// Bytes of `Regs`, and offsets in it.
const REGS: i32 = 144;
const RIP: i32 = 128;
const FLAGS: i32 = 136;
const RED_ZONE: i32 = 128;
/// From the stack pointer at the site down to `Regs`.
const DOWN: i32 = RED_ZONE + 8 + REGS;
/// `Regs` as the gate sees it: above its return address.
const FRAME: i32 = 8;
/// DF, NT, AC.
const SPECIAL: u32 = 1 << 10 | 1 << 14 | 1 << 18;
/// The header of an XSAVE area, behind the legacy region: XSAVEC leaves these words, which XRSTOR wants to be 0.
const RESERVED: core::ops::Range<i32> = 528..576;

/// The answer that means the displaced instructions.
const DISPLACED: i32 = 2;
/// The answer that means the other function.
const WITH_STATE: i32 = 3;
/// Bytes of the instruction behind a site's call, which takes the stack pointer back up.
const BACK_UP: i32 = 8;

const fn gpr(n: u8) -> i32 {
    n as i32 * 8
}

/// Every general register but rsp.
fn gprs() -> impl Iterator<Item = Reg> {
    (0..16).filter(|&n| n != RSP.0).map(Reg)
}

/// Appends what leads a site at `ip` through the gate. `way` must lie within ±2 GiB.
pub fn call(out: &mut Vec<u8>, at: u64, way: u64, argument: u64, ip: u64) {
    let mut asm = Asm::new(out, at);
    asm.lea(RSP, Mem::At(RSP, -DOWN));
    asm.store(Mem::At(RSP, gpr(RDI.0)), RDI);
    asm.store(Mem::At(RSP, gpr(RSI.0)), RSI);
    asm.mov_imm64(RDI, argument);
    asm.lea(RSI, Mem::Rip(ip));
    asm.call(way);
    let back = asm.here();
    asm.lea(RSP, Mem::At(RSP, DOWN));
    debug_assert_eq!(asm.here() - back, BACK_UP as u64);
}

/// Appends the gate, to lie at `at`.
pub fn gate(out: &mut Vec<u8>, at: u64, functions: &CallFunctions) -> Gate {
    let mut asm = Asm::new(out, at);
    asm.align(16);
    let moved = asm.here();
    leave(&mut asm);
    let entry = way(&mut asm, functions.entry, &Kind::Saved(functions.state), moved);
    let exit = way(&mut asm, functions.exit, &Kind::Saved(functions.state), moved);
    let general = way(&mut asm, functions.general, &Kind::General { again: entry.called }, moved);
    Gate { general: general.start, entry: entry.start, exit: exit.start }
}

/// Whether the extended state is saved.
enum Kind {
    Saved(ExtendedState),
    /// Not; if it must be after all, that way goes on here.
    General {
        again: u64,
    },
}

/// One way through.
struct Way {
    start: u64,
    /// Where `Regs` is complete.
    called: u64,
}

/// In: `Regs` with rdi and rsi stored, rdi = number, rsi = rip, the return address under it.
fn way(asm: &mut Asm<'_>, function: u64, kind: &Kind, moved: u64) -> Way {
    asm.align(64);
    let start = asm.here();
    asm.pushfq();
    for reg in gprs().filter(|reg| ![RDI, RSI].contains(reg)) {
        asm.store(Mem::At(RSP, FRAME + 8 + gpr(reg.0)), reg);
    }
    asm.store(Mem::At(RSP, FRAME + 8 + RIP), RSI);
    asm.pop(RAX);
    asm.store(Mem::At(RSP, FRAME + FLAGS), RAX);
    asm.lea(RCX, Mem::At(RSP, FRAME + DOWN));
    asm.store(Mem::At(RSP, FRAME + gpr(RSP.0)), RCX);
    asm.test_imm32(RAX, SPECIAL);
    let special = asm.jcc_later(Cond::NotEqual);
    let called = asm.here();
    asm.mov(RBX, RSP);
    asm.lea(RSI, Mem::At(RSP, FRAME));
    match kind {
        Kind::General { .. } => {
            asm.mov(R12, RDI);
            asm.alu_imm(Alu::And, RSP, -16, true);
        }
        Kind::Saved(state) => save(asm, *state),
    }
    asm.mov_imm64(RAX, function);
    asm.call_reg(RAX);
    if let Kind::Saved(state) = kind {
        asm.mov(R12, RAX);
        asm.mov_imm32(RAX, state.mask);
        asm.mov_imm32(RDX, 0);
        asm.xrstor(Mem::At(RSP, 0));
        asm.mov(RAX, R12);
    }
    asm.mov(RSP, RBX);
    asm.test(RAX, RAX, false);
    let not_on = asm.jcc_later(Cond::NotEqual);
    asm.test_mem_imm32(Mem::At(RSP, FRAME + FLAGS), SPECIAL);
    let unusual = asm.jcc_later(Cond::NotEqual);
    asm.load_byte(RAX, Mem::At(RSP, FRAME + FLAGS + 1));
    asm.shift(Shift::Right, RAX, 3, false);
    asm.alu_imm(Alu::And, RAX, 1, false);
    asm.load_ah(Mem::At(RSP, FRAME + FLAGS));
    asm.flags_from_rax();
    let load = asm.here();
    for reg in gprs() {
        asm.load(reg, Mem::At(RSP, FRAME + gpr(reg.0)));
    }
    asm.ret();

    asm.bind(not_on);
    if let Kind::General { again } = kind {
        asm.mov(RDI, R12);
        asm.alu_imm(Alu::Cmp, RAX, WITH_STATE, false);
        asm.jcc(Cond::Equal, *again);
    }
    asm.jmp(moved);
    asm.bind(special);
    asm.raw(&[0x6A, 0x02]); // push 2: all flags 0
    asm.popfq();
    asm.jmp(called);
    asm.bind(unusual);
    asm.push_mem(Mem::At(RSP, FRAME + FLAGS));
    asm.popfq();
    asm.jmp(load);
    Way { start, called }
}

fn save(asm: &mut Asm<'_>, state: ExtendedState) {
    asm.alu_imm(Alu::And, RSP, -64, true);
    asm.lea(RSP, Mem::At(RSP, -(state.len.next_multiple_of(64) as i32)));
    asm.mov_imm32(RDX, 0);
    for at in RESERVED.step_by(8) {
        asm.store(Mem::At(RSP, at), RDX);
    }
    asm.mov_imm32(RAX, state.mask);
    asm.xsavec(Mem::At(RSP, 0));
}

/// All of `Regs` holds. In: eax = the answer, rbx + 8 = `Regs`, rsp = rbx, at which the way back to the site's code lies.
///
/// What is popped at the end lies under the new red zone, which may be anywhere: above `Regs`, below, or across it. So `Regs` is
/// first copied to below both, then from there to its place; the stack pointer is below all that is in use throughout.
fn leave(asm: &mut Asm<'_>) {
    /// From the slot of rip, under the new red zone, down to the first register popped.
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
