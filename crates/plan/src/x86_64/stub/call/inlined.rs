//! Fast paths that a gate inlines: the common path of a call with one consumer, which waits for the return
//! (`runtime::x86_64::general::inlined` and `trampolines`).
//!
//! In: an [`InlinedPath`], which was compiled elsewhere and is executed here. Out: a path with a copy of it,
//! between the code that stores the registers which it may overwrite and the code that loads them again. So
//! the common path costs no call and no return. If the copy needs more, it has done nothing yet, and a
//! function is called as if there were no copy. Stack and invariants: as in `call`.
//! Does not: know what the copy does.
//!
//! The registers where the copy begins. Those of `SPOILT` are in `Regs`, or all are (`fill`):
//!
//! ```text
//!                    rdi       rsi     rdx   rax    rcx    r12     rbx       rsp
//!   begin_inlined    number    site    S     flags  any    any     any       S - 288, [rsp] = way back
//!   arm_inlined      number    site    S     flags  [rsp]  any     any       S - 288, [rsp] = displaced code
//!   end_inlined      number    Regs    any   flags  S      number  S - 288   a multiple of 16 below rbx
//!   return_path      any       Regs    any   flags  S      number  S - 288   a multiple of 16 below rbx
//! ```
//!
//! Where it goes on, and what is loaded:
//!
//! ```text
//!                    common path                               other path
//!   begin_inlined    SPOILT, rdi, rsi; `ret`                   SPOILT; on to `begin`
//!   arm_inlined      SPOILT, rdi, rsi; rsp = S + 8, jmp [S]    SPOILT; [rsp] -= BACK_UP; on to `general`
//!   end_inlined      all of `Regs`; `ret`                      eax: GoOn, on to `moved`; WITH_STATE, `function`
//!   return_path      all of `Regs`; rsp = S, `ret` to [S]      eax: GoOn, on to `moved`; WITH_STATE, `again`
//! ```

use super::super::asm::{Alu, Asm, Cond, Mem, R8, R9, R12, RAX, RBX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::regs::{
    BACK_UP, DOWN, FRAME, WITH_STATE, back_up, fill, fill_below, gpr, load_all, special_and_unusual,
};
use crate::calls::InlinedPath;

/// What the code of return trampolines needs from a gate: the path to `functions.exit`.
pub(in crate::x86_64::stub) struct ReturnPath {
    /// Address to be called.
    pub(in crate::x86_64::stub) exit: u64,
    pub(super) again: u64,
    pub(super) moved: u64,
}

/// Registers that the copy at an entry may overwrite, and rax, which holds the flags; they are in `Regs`.
const SPOILT: [Reg; 5] = [RAX, RCX, RDX, R8, R9];
fn place(reg: Reg) -> Mem {
    Mem::At(RSP, FRAME + gpr(reg.0))
}

/// The path of `begin` with inlined code. If that did nothing, all registers are as they were, and it goes on
/// to `begin`.
pub(super) fn begin_inlined(asm: &mut Asm<'_>, inlined: &InlinedPath, begin: u64) -> u64 {
    let head = |asm: &mut Asm<'_>| {
        let start = asm.here();
        SPOILT.into_iter().for_each(|reg| asm.store(place(reg), reg));
        asm.flags_to_rax();
        asm.lea(RDX, Mem::At(RSP, FRAME + DOWN));
        start
    };
    let start = inline(asm, inlined, head, |asm| {
        asm.flags_from_rax();
        [RDI, RSI].into_iter().chain(SPOILT).for_each(|reg| asm.load(reg, place(reg)));
        asm.unbroken(Asm::ret);
    });
    asm.flags_from_rax();
    SPOILT.into_iter().for_each(|reg| asm.load(reg, place(reg)));
    asm.jmp(begin);
    start
}

/// The path of [`call_arming`](super::call_arming), which jumps here. rcx is stored in `Regs`, and holds the
/// address of the displaced instructions. That address is put where a return address would be. A call that is
/// armed goes on at its return trampoline; another one goes on to `general`, with a way back.
pub(super) fn arm_inlined(asm: &mut Asm<'_>, inlined: &InlinedPath, general: u64) -> u64 {
    let head = |asm: &mut Asm<'_>| {
        let start = asm.here();
        asm.store(Mem::At(RSP, 0), RCX);
        SPOILT.into_iter().filter(|&reg| reg != RCX).for_each(|reg| asm.store(place(reg), reg));
        asm.flags_to_rax();
        asm.lea(RDX, Mem::At(RSP, FRAME + DOWN));
        start
    };
    let start = inline(asm, inlined, head, |asm| {
        asm.flags_from_rax();
        [RDI, RSI].into_iter().chain(SPOILT).for_each(|reg| asm.load(reg, place(reg)));
        asm.lea(RSP, Mem::At(RSP, FRAME + DOWN + 8));
        asm.unbroken(|asm| asm.jmp_mem(Mem::At(RSP, -8)));
    });
    asm.alu_mem_imm(Alu::Sub, Mem::At(RSP, 0), BACK_UP as i8, false);
    asm.flags_from_rax();
    SPOILT.into_iter().for_each(|reg| asm.load(reg, place(reg)));
    asm.jmp(general);
    start
}

/// [`way`](super::way) for exits, with inlined code before the function.
pub(super) fn end_inlined(
    asm: &mut Asm<'_>,
    inlined: &InlinedPath,
    function: u64,
    (again, moved): (u64, u64),
) -> u64 {
    let regs = |at: i32| Mem::At(RBX, FRAME + at);
    let head = |asm: &mut Asm<'_>| {
        let start = asm.here();
        let special = fill(asm, Some(RSI));
        let called = asm.here();
        asm.lea(RSI, regs(0));
        asm.mov(R12, RDI);
        asm.alu_imm(Alu::And, RSP, -16, true);
        (start, called, special)
    };
    let mut back = None;
    let (start, called, special) = inline(asm, inlined, head, |asm| {
        let done = asm.here();
        asm.mov(RSP, RBX);
        back = Some((done, load_all(asm, |asm| asm.unbroken(Asm::ret))));
    });
    asm.alu_imm(Alu::Cmp, RAX, WITH_STATE, false);
    let answered = asm.jcc_later(Cond::NotEqual);
    asm.lea(RSI, regs(0));
    asm.mov(RDI, R12);
    asm.mov(RSP, RBX);
    asm.alu_imm(Alu::And, RSP, -16, true);
    asm.mov_imm64(RAX, function);
    asm.call_reg(RAX);
    asm.test(RAX, RAX, false);
    let Some((done, loaded)) = back else { unreachable!("the piece was taken in") };
    asm.jcc(Cond::Equal, done);
    asm.bind(answered);
    asm.mov(RSP, RBX);
    asm.mov(RDI, R12);
    asm.alu_imm(Alu::Cmp, RAX, WITH_STATE, false);
    asm.jcc(Cond::Equal, again);
    asm.jmp(moved);
    special_and_unusual(asm, (special, called), loaded);
    start
}

/// Appends `head`, then the inlined code with `done` in its gap.
fn inline<T>(
    asm: &mut Asm<'_>,
    inlined: &InlinedPath,
    head: impl Fn(&mut Asm<'_>) -> T,
    done: impl FnOnce(&mut Asm<'_>),
) -> T {
    const ALIGN: u64 = 64;
    let ends_at = |start: u64| {
        let mut out = Vec::new();
        let mut asm = Asm::new(&mut out, start);
        head(&mut asm);
        asm.here()
    };
    let fits = |pad: &u64| ends_at(asm.here() + pad).is_multiple_of(ALIGN);
    // Choose the head's start so that it ends at a multiple of 64: then nothing is skipped behind it.
    let pad = (0..ALIGN).find(fits).unwrap_or(0);
    asm.skip(pad);
    let headed = head(asm);
    asm.fill_to(ALIGN);
    let (room, len) = inlined.room;
    asm.raw(&inlined.text[..room]);
    let end = asm.here() + len as u64;
    done(asm);
    asm.skip(end.checked_sub(asm.here()).expect("the room is large enough"));
    asm.raw(&inlined.text[room + len..]);
    headed
}

/// Appends the code for return trampolines with inlined code that ends the call, to lie at `at`, and returns
/// where it begins. No code calls it: its common path ends in a `ret` at the stack pointer that it found. The
/// instruction pointer of `Regs` is undefined until that code, or `exit`, has put the real one there.
pub(in crate::x86_64::stub) fn return_path(
    out: &mut Vec<u8>,
    at: u64,
    inlined: &InlinedPath,
    argument: u64,
    gate: &ReturnPath,
) -> u64 {
    let mut asm = Asm::new(out, at);
    let asm = &mut asm;
    let back = asm.here();
    back_up(asm);
    asm.ret();
    let head = |asm: &mut Asm<'_>| {
        let start = asm.here();
        let special = fill_below(asm);
        let called = asm.here();
        asm.lea(RSI, Mem::At(RBX, FRAME));
        asm.mov_imm64(R12, argument);
        asm.alu_imm(Alu::And, RSP, -16, true);
        (start, called, special)
    };
    let mut loaded = None;
    let (start, called, special) = inline(asm, inlined, head, |asm| {
        asm.mov(RSP, RBX);
        loaded = Some(load_all(asm, |asm| {
            asm.lea(RSP, Mem::At(RSP, FRAME + DOWN));
            asm.unbroken(Asm::ret);
        }));
    });
    asm.mov(RSP, RBX);
    asm.lea(RDI, Mem::Rip(back));
    asm.store(Mem::At(RSP, 0), RDI);
    asm.mov(RDI, R12);
    asm.alu_imm(Alu::Cmp, RAX, WITH_STATE, false);
    asm.jcc(Cond::Equal, gate.again);
    asm.jmp(gate.moved);
    let Some(loaded) = loaded else { unreachable!("the piece was taken in") };
    special_and_unusual(asm, (special, called), loaded);
    start
}
