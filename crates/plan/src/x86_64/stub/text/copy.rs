//! Copies by the kernel, and the part of the frame that they need (the picture in `text`).
//!
//! In: an address, a length, a field's offsets. Out: code that lets the kernel copy, and leaves the result. A word of
//! memory that lies in one page with the hit's stack pointer is loaded directly, where that page was written to just
//! before, by the call or by the stub: the load cannot fault.

use crate::machine::ThreadId;
use crate::request::Read;
use crate::x86_64::stub::asm::{
    Alu, Asm, Cond, Mem, R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift,
};
use crate::x86_64::stub::threads;
use trapline_record::pages::PAGE_MASK;

/// Linux, x86-64.
const PROCESS_VM_READV: u32 = 310;
const EFAULT: i32 = 14;
/// Registers that a copy overwrites, and where they are kept.
pub(in crate::x86_64::stub) const KEPT: [(Reg, i32); 5] =
    [(RCX, 32), (RSI, 40), (RDI, 48), (R8, 56), (R9, 64)];

/// Copies one field. With offsets o0, o1, … on, p the register's value, and * a load of eight bytes. `stack`: offset
/// from the stack pointer of the hit's, if p may lie beside that. Without offsets, the result is p.
///
/// ```text
///   in    rax = p
///   out   [rsp + at] = the result;  [rsp + at + 8 …] = the bytes at *(*(p + o0) + o1) … + on
///   uses  the kept registers, rax, rdx, r10, r11, flags
/// ```
pub(super) fn field(asm: &mut Asm<'_>, id: (ThreadId, i32), at: i32, read: &Read, mut stack: Option<i32>) {
    let Some((last, before)) = read.offsets.split_last() else {
        asm.store(Mem::At(RSP, at + 8), RAX);
        asm.store_imm(Mem::At(RSP, at), read.bytes.into());
        return;
    };
    let mut broken = Vec::new();
    for offset in before {
        asm.lea(RAX, Mem::At(RAX, *offset));
        word(asm, id, (at + 8, 8), stack.take());
        asm.alu_imm(Alu::Cmp, RAX, 8, true);
        broken.push(asm.jcc_later(Cond::NotEqual));
        asm.load(RAX, Mem::At(RSP, at + 8));
    }
    asm.lea(RAX, Mem::At(RAX, *last));
    word(asm, id, (at + 8, read.bytes.into()), stack);
    asm.store(Mem::At(RSP, at), RAX);
    if !broken.is_empty() {
        let whole = asm.jmp_later();
        broken.into_iter().for_each(|fix| asm.bind(fix));
        asm.store_imm(Mem::At(RSP, at), -EFAULT);
        asm.bind(whole);
    }
}

/// As `copy`; eight bytes at most are loaded directly if they lie in one page with `stack`.
///
/// ```text
///   directly if  ((rax ^ S) | ((rax + 7) ^ S)) >> 12 = 0      S = rsp + stack
/// ```
fn word(asm: &mut Asm<'_>, id: (ThreadId, i32), (to, len): (i32, i32), stack: Option<i32>) {
    let Some(stack) = stack.filter(|_| len <= 8) else { return copy(asm, id, (to, len)) };
    asm.lea(R11, Mem::At(RSP, stack));
    asm.lea(RDX, Mem::At(RAX, 7));
    asm.mov(R10, RAX);
    asm.alu(Alu::Xor, RDX, R11);
    asm.alu(Alu::Xor, R10, R11);
    asm.alu(Alu::Or, RDX, R10);
    asm.shift(Shift::Right, RDX, PAGE_MASK.count_ones() as u8, true);
    let apart = asm.jcc_later(Cond::NotEqual);
    asm.load(RDX, Mem::At(RAX, 0));
    asm.store(Mem::At(RSP, to), RDX);
    asm.mov_imm32(RAX, len as u32);
    let done = asm.jmp_later();
    asm.bind(apart);
    copy(asm, id, (to, len));
    asm.bind(done);
}

/// Lets the kernel copy `len` bytes from the address in rax to rsp + `to`; rax = the result. Uses the kept
/// registers, rdx, r10 and r11.
pub(super) fn copy(asm: &mut Asm<'_>, id: (ThreadId, i32), (to, len): (i32, i32)) {
    copy_to(asm, id, (Mem::At(RSP, to), len));
}

/// The same to any place.
pub(in crate::x86_64::stub) fn copy_to(
    asm: &mut Asm<'_>,
    (id, depth): (ThreadId, i32),
    (to, len): (Mem, i32),
) {
    asm.store(Mem::At(RSP, 16), RAX);
    asm.lea(RAX, to);
    asm.store(Mem::At(RSP, 0), RAX);
    asm.store_imm(Mem::At(RSP, 8), len);
    asm.store_imm(Mem::At(RSP, 24), len);
    threads::load(id, asm, RDI, depth);
    asm.mov(RSI, RSP);
    asm.mov_imm32(RDX, 1);
    asm.lea(R10, Mem::At(RSP, 16));
    asm.mov_imm32(R8, 1);
    asm.mov_imm32(R9, 0);
    asm.mov_imm32(RAX, PROCESS_VM_READV);
    asm.syscall();
}
