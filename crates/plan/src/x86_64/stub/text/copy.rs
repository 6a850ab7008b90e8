//! Copies by the kernel, and the part of the frame that they need (the picture in `text`).
//!
//! In: an address, a length, a field's offsets. Out: code that lets the kernel copy, and leaves the result.

use crate::machine::ThreadId;
use crate::request::Read;
use crate::x86_64::stub::asm::{Alu, Asm, Cond, Mem, R8, R9, R10, RAX, RCX, RDI, RDX, RSI, RSP, Reg};
use crate::x86_64::stub::threads;

/// Linux, x86-64.
const PROCESS_VM_READV: u32 = 310;
const EFAULT: i32 = 14;
/// Registers that a copy overwrites, and where they are kept.
pub(super) const KEPT: [(Reg, i32); 5] = [(RCX, 32), (RSI, 40), (RDI, 48), (R8, 56), (R9, 64)];

/// Copies one field. With offsets o0, o1, … on, p the register's value, and * a load of eight bytes:
///
/// ```text
///   in    rax = p
///   out   [rsp + at] = the result;  [rsp + at + 8 …] = the bytes at *(*(p + o0) + o1) … + on
///   uses  the kept registers, rax, rdx, r10, r11, flags
/// ```
pub(super) fn field(asm: &mut Asm<'_>, id: (ThreadId, i32), at: i32, read: &Read) {
    let Some((last, before)) = read.offsets.split_last() else { return };
    let mut broken = Vec::new();
    for offset in before {
        asm.lea(RAX, Mem::At(RAX, *offset));
        copy(asm, id, (at + 8, 8));
        asm.alu_imm(Alu::Cmp, RAX, 8, true);
        broken.push(asm.jcc_later(Cond::NotEqual));
        asm.load(RAX, Mem::At(RSP, at + 8));
    }
    asm.lea(RAX, Mem::At(RAX, *last));
    copy(asm, id, (at + 8, read.bytes.into()));
    asm.store(Mem::At(RSP, at), RAX);
    if !broken.is_empty() {
        let whole = asm.jmp_later();
        broken.into_iter().for_each(|fix| asm.bind(fix));
        asm.store_imm(Mem::At(RSP, at), -EFAULT);
        asm.bind(whole);
    }
}

/// Lets the kernel copy `len` bytes from the address in rax to rsp + `to`; rax = the result. Uses the kept
/// registers, rdx, r10 and r11.
pub(super) fn copy(asm: &mut Asm<'_>, (id, depth): (ThreadId, i32), (to, len): (i32, i32)) {
    asm.store(Mem::At(RSP, 16), RAX);
    asm.lea(RAX, Mem::At(RSP, to));
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
