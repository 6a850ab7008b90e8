//! The extended state around a consumer's call.
//!
//! In: which components to keep, where the function lies. Out: code that saves them below the stack pointer,
//! calls the function, and loads them again; the answer is in rax. Invariants: CALL-2; components that are in
//! their initial configuration before the call are in it after the call too.
//! Does not: save general registers. The function keeps rbx and r12, as the psABI says, and may overwrite
//! those that the psABI lets it (the program's values are in `Regs`).
//!
//! ```text
//!   rsp                  a multiple of 64; the area is max(state.len, QUICK) bytes, rounded up to 64
//!   rsp + MXCSR    24    MXCSR                                Q (and the legacy region of an XSAVE area)
//!   rsp + XMM     160    xmm0 to xmm15, 16 bytes each         Q (their places in an XSAVE area)
//!   rsp + HEADER  512    64 bytes: zeros where XRSTOR reads; Q writes them only for an XRSTOR of nothing
//!   rsp + MASKS   576    k0 to k7, 8 bytes each               Q;  in an XSAVE area: the other components
//!   rsp + ZMM     640    zmm16 to zmm31, 64 bytes each        Q
//!   rsp + QUICK  1664    behind Q's last byte
//!   rbx                  the earlier stack pointer: rsp = rbx at the end
//!   r12                  Q: XINUSE before the call; otherwise the answer, during XRSTOR
//!   r13                  Q: the answer, from the call on
//!   rax                  at the end: the answer
//! ```
//!
//! XSAVEC and XRSTOR are microcode: they take 57 ns for SSE alone on a 3 GHz core of 2019. They take 73 ns
//! with what a C library's string functions leave in use on a processor with AVX-512: opmasks, and registers
//! 16 to 31, which VZEROUPPER does not touch. Plain stores and loads of the same take 6 and 18 ns. XGETBV
//! reports which components are in use (Intel SDM 1, 13.2). If these are only SSE and those two, they are
//! saved one by one (Q below); otherwise all by XSAVEC. At a function's entry it is nearly always Q: x87 is
//! empty there, and the upper halves of registers 0 to 15 are clean, or the caller would pay for it.
//!
//! | step | what |
//! |---|---|
//! | Q1 | XINUSE before the call; if anything else is in use: XSAVEC, the call, XRSTOR |
//! | Q2 | MXCSR and SSE registers; opmasks and registers 16 to 31 if they are in use |
//! | Q3 | the call |
//! | Q4 | XINUSE after the call: what the function brought into use, and was not in use before, goes back to |
//! | | its initial configuration: upper halves by VZEROUPPER, the rest by XRSTOR from an area that holds nothing |
//! | Q5 | loads what Q2 stored |
//!
//! XINUSE may report a component in use that is in its initial configuration, but never the other way round.
//! So Q never loses a component, and saves at most one too many. SSE and MXCSR are kept whatever it reports.

use super::asm::{Alu, Asm, Cond, Fix, Mem, R12, RAX, RBX, RCX, RDX, RSP, Reg};
use crate::calls::ExtendedState;

const R13: Reg = Reg(13);
const SSE: u32 = 1 << 1;
const UPPER: u32 = 1 << 2 | 1 << 6;
const OPMASKS: u32 = 1 << 5;
const HIGH: u32 = 1 << 7;
/// The header of an XSAVE area, behind the legacy region. XSAVEC does not write words behind the first two,
/// and XRSTOR requires them to be 0.
const HEADER: core::ops::Range<i32> = 512..576;
const RESERVED: i32 = 16;
/// Offset at which Q2 saves MXCSR. Q2 uses the places of an XSAVE area as far as that has some, without its
/// header.
const MXCSR: i32 = 24;
const XMM: i32 = 160;
const MASKS: i32 = HEADER.end;
const ZMM: i32 = MASKS + 64;
const QUICK: u32 = ZMM as u32 + 16 * 64;

/// Appends the call. rbx = rsp before it, and rsp = rbx behind it; rax = the answer.
pub(super) fn call_saved(asm: &mut Asm<'_>, state: ExtendedState, call: impl Fn(&mut Asm<'_>)) {
    let room = state.len.max(QUICK).next_multiple_of(64);
    asm.alu_imm(Alu::And, RSP, -64, true);
    asm.lea(RSP, Mem::At(RSP, -(room as i32)));
    let done = state.shows_use.then(|| quick(asm, state.mask, &call));
    for at in HEADER.step_by(8).filter(|at| *at >= HEADER.start + RESERVED) {
        asm.store_imm(Mem::At(RSP, at), 0);
    }
    asm.mov_imm32(RAX, state.mask);
    asm.mov_imm32(RDX, 0);
    asm.xsavec(Mem::At(RSP, 0));
    call(asm);
    asm.mov(R12, RAX);
    asm.mov_imm32(RAX, state.mask);
    asm.mov_imm32(RDX, 0);
    asm.xrstor(Mem::At(RSP, 0));
    asm.mov(RAX, R12);
    done.into_iter().for_each(|done| asm.bind(done));
    asm.mov(RSP, RBX);
}

/// Emits Q1 to Q5, and a jump to what follows. Falls through if Q cannot be used.
fn quick(asm: &mut Asm<'_>, mask: u32, call: &impl Fn(&mut Asm<'_>)) -> Fix {
    let kept = mask & (SSE | OPMASKS | HIGH);
    in_use(asm);
    let others = asm.unbroken(|asm| {
        asm.test_imm32(RAX, mask & !kept);
        asm.jcc_later(Cond::NotEqual)
    });
    asm.mov32(R12, RAX);
    each(asm, kept, Way::Store);
    call(asm);
    asm.mov(R13, RAX);
    in_use(asm);
    if mask & UPPER != 0 {
        asm.raw(&[0xC5, 0xF8, 0x77]); // vzeroupper
    }
    // What is in use now, and was not before. SSE is left out, since it is loaded anyway, and so are the
    // upper halves, which are clean.
    asm.mov32(RCX, R12);
    asm.not(RCX);
    asm.alu(Alu::And, RAX, RCX);
    asm.alu_imm(Alu::And, RAX, (mask & !SSE & !UPPER) as i32, false);
    let clean = asm.unbroken(|asm| asm.jcc_later(Cond::Equal));
    for at in HEADER.step_by(8) {
        asm.store_imm(Mem::At(RSP, at), 0);
    }
    asm.mov_imm32(RDX, 0);
    asm.xrstor(Mem::At(RSP, 0));
    asm.bind(clean);
    each(asm, kept, Way::Load);
    asm.mov(RAX, R13);
    let done = asm.unbroken(Asm::jmp_later);
    asm.bind(others);
    done
}

/// edx:eax = XINUSE. Uses ecx.
fn in_use(asm: &mut Asm<'_>) {
    asm.mov_imm32(RCX, 1);
    asm.raw(&[0x0F, 0x01, 0xD0]);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Store,
    Load,
}

/// Stores or loads the components; other ones than SSE only if r12 shows that they were in use.
fn each(asm: &mut Asm<'_>, kept: u32, way: Way) {
    for (component, one) in [(OPMASKS, opmask as fn(&mut Asm<'_>, u8, Way)), (HIGH, zmm)] {
        if kept & component != 0 {
            let unused = asm.unbroken(|asm| {
                asm.test_imm32(R12, component);
                asm.jcc_later(Cond::Equal)
            });
            (0..if component == HIGH { 16 } else { 8 }).for_each(|n| one(asm, n, way));
            asm.bind(unused);
        }
    }
    // stmxcsr, ldmxcsr
    asm.raw(&[0x0F, 0xAE, if way == Way::Store { 0x5C } else { 0x54 }, 0x24, MXCSR as u8]);
    (0..16).for_each(|n| xmm(asm, n, way));
}

/// `movaps` of xmm0 to xmm15.
fn xmm(asm: &mut Asm<'_>, n: u8, way: Way) {
    if n >= 8 {
        asm.raw(&[0x44]);
    }
    asm.raw(&[0x0F, if way == Way::Store { 0x29 } else { 0x28 }, 0x84 | (n & 7) << 3, 0x24]);
    asm.raw(&(XMM + i32::from(n) * 16).to_le_bytes());
}

/// `kmovq` of k0 to k7.
fn opmask(asm: &mut Asm<'_>, n: u8, way: Way) {
    asm.raw(&[0xC4, 0xE1, 0xF8, if way == Way::Store { 0x91 } else { 0x90 }, 0x84 | n << 3, 0x24]);
    asm.raw(&(MASKS + i32::from(n) * 8).to_le_bytes());
}

/// `vmovaps` of zmm16 to zmm31.
fn zmm(asm: &mut Asm<'_>, n: u8, way: Way) {
    let high = if n >= 8 { 0x61 } else { 0xE1 };
    asm.raw(&[
        0x62,
        high,
        0x7C,
        0x48,
        if way == Way::Store { 0x29 } else { 0x28 },
        0x44 | (n & 7) << 3,
        0x24,
    ]);
    // The displacement is in units of 64 bytes.
    asm.raw(&[(ZMM / 64) as u8 + n]);
}
