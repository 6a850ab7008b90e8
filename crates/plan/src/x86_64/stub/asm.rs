//! The handful of x86-64 encodings that generated code needs, appended to a byte vector.
//!
//! In: registers and memory operands as values. Out: bytes at known addresses. Jumps forward return a [`Fix`]
//! that is bound later; nothing else is remembered, so that emitting costs a few nanoseconds.
//! Does not: choose encodings by iteration, check ranges beyond `debug_assert` (addresses come from the
//! planner, which lays out a module's code and data within ±2 GiB).

pub(super) use super::reg::{R8, R9, R10, R11, R12, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::word::Word;

/// A memory operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mem {
    /// `[base + disp]`
    At(Reg, i32),
    /// `[base + index · 2^scale + disp]`
    Sum(Reg, Reg, u8, i32),
    /// `fs:[disp]`
    Fs(i32),
    /// `[rip + …]`, given by the address that it means.
    Rip(u64),
}

/// Condition codes, as the low nibble of `jcc`.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Cond {
    Below = 2,
    AboveEq = 3,
    Equal = 4,
    NotEqual = 5,
    BelowEq = 6,
    Above = 7,
    Sign = 8,
    NotSign = 9,
    Less = 12,
    GreaterEq = 13,
    LessEq = 14,
    Greater = 15,
}

/// Two-operand arithmetic, as the `/n` of opcode 81 and the base of 01/03.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Alu {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// Shifts, as the `/n` of opcode C1.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Shift {
    Left = 4,
    Right = 5,
    /// Shifts in copies of the sign.
    SignedRight = 7,
}

/// A displacement that waits for its target.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) enum Fix {
    Near(usize),
    Short(usize),
}

/// An appending emitter.
#[derive(Debug)]
pub(super) struct Asm<'a> {
    out: &'a mut Vec<u8>,
    /// Address of `out[0]`, wrapping.
    origin: u64,
}

impl<'a> Asm<'a> {
    /// Emits at the end of `out`, whose next byte will lie at `at`.
    pub(super) fn new(out: &'a mut Vec<u8>, at: u64) -> Self {
        let origin = at.wrapping_sub(out.len() as u64);
        Self { out, origin }
    }
    /// Address of the vector's first byte, wrapping.
    pub(super) const fn origin(&self) -> u64 {
        self.origin
    }
    /// Continues at the end of `out`, whose first byte lies at `origin`.
    pub(super) const fn resume(out: &'a mut Vec<u8>, origin: u64) -> Self {
        Self { out, origin }
    }
    pub(super) fn here(&self) -> u64 {
        self.origin.wrapping_add(self.out.len() as u64)
    }
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
    pub(super) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }
    /// Pads with int3 up to a multiple of `to`, a power of two.
    pub(super) fn align(&mut self, to: u64) {
        self.skip(self.here().wrapping_neg() & (to - 1));
    }
    /// Appends bytes that never run.
    pub(super) fn skip(&mut self, len: u64) {
        self.out.resize(self.out.len() + len as usize, 0xCC);
    }
    /// Appends instructions without effect, up to a multiple of `to`.
    pub(super) fn fill_to(&mut self, to: u64) {
        self.nop((self.here().wrapping_neg() & (to - 1)) as usize);
    }
    /// Emits a jump, with the compare with which it may fuse, so that it neither crosses nor ends at a
    /// 32-byte boundary. On Intel cores before Ice Lake, a jump that does is kept out of the decoded cache,
    /// which costs up to 3 ns a stub.
    pub(super) fn unbroken<T>(&mut self, emit: impl Fn(&mut Self) -> T) -> T {
        self.unbroken_behind(0, emit)
    }
    /// Does the same, but leaves out the first `behind` bytes.
    pub(super) fn unbroken_behind<T>(&mut self, behind: u64, emit: impl Fn(&mut Self) -> T) -> T {
        let (start, at) = (self.out.len(), self.here());
        let done = emit(self);
        let len = self.here() - at - behind;
        if (at + behind) % 32 + len <= 31 {
            return done;
        }
        self.out.truncate(start);
        self.nop((32 - (at + behind) % 32) as usize);
        emit(self)
    }
    /// Whether `len` bytes from here would neither cross nor end at a 32-byte boundary.
    pub(super) fn is_unbroken(&self, len: u64) -> bool {
        self.here() % 32 + len <= 31
    }
    fn nop(&mut self, mut len: usize) {
        const LONG: [u8; 9] = [0x66, 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0];
        const SHORT: [&[u8]; 9] = [
            &[],
            &[0x90],
            &[0x66, 0x90],
            &[0x0F, 0x1F, 0x00],
            &[0x0F, 0x1F, 0x40, 0],
            &[0x0F, 0x1F, 0x44, 0, 0],
            &[0x66, 0x0F, 0x1F, 0x44, 0, 0],
            &[0x0F, 0x1F, 0x80, 0, 0, 0, 0],
            &[0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0],
        ];
        while len >= LONG.len() {
            self.raw(&LONG);
            len -= LONG.len();
        }
        self.raw(SHORT[len]);
    }
    fn rel32_to(&mut self, target: u64, after: u64) {
        let rel = target.wrapping_sub(self.here() + 4 + after).cast_signed();
        debug_assert!(i32::try_from(rel).is_ok(), "{target:#x} is out of reach from {:#x}", self.here());
        self.raw(&(rel as i32).to_le_bytes());
    }

    /// Emits one instruction with a memory operand; the caller appends `imm` immediate bytes.
    fn mem(&mut self, lock: bool, wide: bool, op: &[u8], reg: u8, mem: Mem, imm: u64) {
        let mut code = Word::default();
        if lock {
            code.byte(0xF0);
        }
        if matches!(mem, Mem::Fs(_)) {
            code.byte(0x64);
        }
        let (base, index) = match mem {
            Mem::At(base, _) => (base.0, 0),
            Mem::Sum(base, index, ..) => (base.0, index.0),
            Mem::Fs(_) | Mem::Rip(_) => (0, 0),
        };
        let rex = u8::from(wide) << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | base >> 3;
        if rex != 0 {
            code.byte(0x40 | rex);
        }
        op.iter().for_each(|&byte| code.byte(byte));
        let reg = (reg & 7) << 3;
        match mem {
            Mem::Rip(addr) => {
                code.byte(reg | 5);
                self.put(code);
                self.rel32_to(addr, imm);
                return;
            }
            Mem::Fs(disp) => {
                code.byte(reg | 4);
                code.byte(0x25);
                code.dword(disp);
            }
            Mem::At(base, disp) => code.based(reg, base, None, disp),
            Mem::Sum(base, index, scale, disp) => code.based(reg, base, Some((index, scale)), disp),
        }
        self.put(code);
    }
    fn regs(&mut self, wide: bool, op: &[u8], reg: u8, rm: Reg) {
        let mut code = Word::default();
        let rex = u8::from(wide) << 3 | (reg >> 3) << 2 | rm.0 >> 3;
        if rex != 0 {
            code.byte(0x40 | rex);
        }
        op.iter().for_each(|&byte| code.byte(byte));
        code.byte(0xC0 | (reg & 7) << 3 | rm.0 & 7);
        self.put(code);
    }
    /// Appends a whole instruction by one store of sixteen bytes.
    fn put(&mut self, code: Word) {
        let end = self.out.len() + code.len as usize;
        self.out.extend_from_slice(&code.bits.to_le_bytes());
        self.out.truncate(end);
    }

    pub(super) fn load(&mut self, to: Reg, from: Mem) {
        self.mem(false, true, &[0x8B], to.0, from, 0);
    }
    pub(super) fn load32(&mut self, to: Reg, from: Mem) {
        self.mem(false, false, &[0x8B], to.0, from, 0);
    }
    pub(super) fn load_byte(&mut self, to: Reg, from: Mem) {
        self.mem(false, false, &[0x0F, 0xB6], to.0, from, 0);
    }
    pub(super) fn store(&mut self, to: Mem, from: Reg) {
        self.mem(false, true, &[0x89], from.0, to, 0);
    }
    pub(super) fn store32(&mut self, to: Mem, from: Reg) {
        self.mem(false, false, &[0x89], from.0, to, 0);
    }
    /// `mov qword [to], imm32` sign-extended.
    pub(super) fn store_imm(&mut self, to: Mem, value: i32) {
        self.mem(false, true, &[0xC7], 0, to, 4);
        self.raw(&value.to_le_bytes());
    }
    pub(super) fn lea(&mut self, to: Reg, of: Mem) {
        self.mem(false, true, &[0x8D], to.0, of, 0);
    }
    pub(super) fn mov(&mut self, to: Reg, from: Reg) {
        self.regs(true, &[0x89], from.0, to);
    }
    pub(super) fn exchange(&mut self, one: Reg, other: Reg) {
        self.regs(true, &[0x87], one.0, other);
    }
    pub(super) fn mov32(&mut self, to: Reg, from: Reg) {
        self.regs(false, &[0x89], from.0, to);
    }
    pub(super) fn mov_imm32(&mut self, to: Reg, value: u32) {
        if to.0 >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[0xB8 | to.0 & 7]);
        self.raw(&value.to_le_bytes());
    }
    pub(super) fn mov_imm64(&mut self, to: Reg, value: u64) {
        match u32::try_from(value) {
            Ok(value) => self.mov_imm32(to, value),
            Err(_) => {
                self.raw(&[0x48 | to.0 >> 3, 0xB8 | to.0 & 7]);
                self.u64(value);
            }
        }
    }
    pub(super) fn alu(&mut self, op: Alu, to: Reg, with: Reg) {
        self.regs(true, &[(op as u8) << 3 | 1], with.0, to);
    }
    pub(super) fn alu_load(&mut self, op: Alu, to: Reg, with: Mem) {
        self.mem(false, true, &[(op as u8) << 3 | 3], to.0, with, 0);
    }
    pub(super) fn alu_store(&mut self, op: Alu, to: Mem, with: Reg, lock: bool) {
        self.mem(lock, true, &[(op as u8) << 3 | 1], with.0, to, 0);
    }
    /// `op qword [to], imm8` sign-extended.
    pub(super) fn alu_mem_imm(&mut self, op: Alu, to: Mem, value: i8, lock: bool) {
        self.mem(lock, true, &[0x83], op as u8, to, 1);
        self.raw(&value.to_le_bytes());
    }
    pub(super) fn alu_imm(&mut self, op: Alu, to: Reg, value: i32, wide: bool) {
        if let Ok(byte) = i8::try_from(value) {
            self.regs(wide, &[0x83], op as u8, to);
            self.raw(&byte.to_le_bytes());
        } else {
            self.regs(wide, &[0x81], op as u8, to);
            self.raw(&value.to_le_bytes());
        }
    }
    /// `cmp qword [with], imm32` sign-extended.
    pub(super) fn cmp_mem_imm(&mut self, with: Mem, value: i32) {
        self.mem(false, true, &[0x81], Alu::Cmp as u8, with, 4);
        self.raw(&value.to_le_bytes());
    }
    /// `cmp dword [with], imm32`.
    pub(super) fn cmp_mem_imm32(&mut self, with: Mem, value: u32) {
        self.mem(false, false, &[0x81], Alu::Cmp as u8, with, 4);
        self.raw(&value.to_le_bytes());
    }
    pub(super) fn test(&mut self, a: Reg, b: Reg, wide: bool) {
        self.regs(wide, &[0x85], b.0, a);
    }
    /// `movq`: the low 64 bits of a vector register. The vector register stays as it is.
    pub(super) fn vector_to(&mut self, to: Reg, vector: u8) {
        self.raw(&[0x66]);
        self.regs(true, &[0x0F, 0x7E], vector, to);
    }
    /// `movlps`: does the same to memory.
    pub(super) fn store_vector(&mut self, to: Mem, vector: u8) {
        self.mem(false, false, &[0x0F, 0x13], vector, to, 0);
    }
    /// Complements the highest bit.
    pub(super) fn flip_sign(&mut self, reg: Reg) {
        self.regs(true, &[0x0F, 0xBA], 7, reg);
        self.raw(&[63]);
    }
    pub(super) fn not(&mut self, reg: Reg) {
        self.regs(true, &[0xF7], 2, reg);
    }
    pub(super) fn negate(&mut self, reg: Reg) {
        self.regs(true, &[0xF7], 3, reg);
    }
    /// Extends the low `bits` of a register to all of another one.
    pub(super) fn extend(&mut self, to: Reg, from: Reg, bits: u8, signed: bool) {
        let op: &[u8] = match (bits, signed) {
            (8, false) => &[0x0F, 0xB6],
            (8, true) => &[0x0F, 0xBE],
            (16, false) => &[0x0F, 0xB7],
            (16, true) => &[0x0F, 0xBF],
            (32, true) => &[0x63],
            (32, false) => return self.mov32(to, from),
            _ => return self.mov(to, from),
        };
        self.regs(true, op, to.0, from);
    }
    /// `to *= by`, the low 64 bits.
    pub(super) fn multiply(&mut self, to: Reg, by: Reg) {
        self.regs(true, &[0x0F, 0xAF], to.0, by);
    }
    /// `rdx:rax = rax * by`.
    pub(super) fn multiply_wide(&mut self, by: Reg) {
        self.regs(true, &[0xF7], 4, by);
    }
    /// `shrd`: shifts right by less than 64, and fills in the bits of `from`.
    pub(super) fn shift_from(&mut self, to: Reg, from: Reg, by: u8) {
        self.regs(true, &[0x0F, 0xAC], from.0, to);
        self.raw(&[by]);
    }
    /// Signed division of rax alone; otherwise as `div`.
    pub(super) fn divide_signed(&mut self, by: Reg) {
        self.raw(&[0x48, 0x99]);
        self.regs(true, &[0xF7], 7, by);
    }
    /// `rdx:rax / by`: quotient to rax, remainder to rdx.
    pub(super) fn div(&mut self, by: Reg) {
        self.regs(true, &[0xF7], 6, by);
    }
    pub(super) fn shift(&mut self, op: Shift, reg: Reg, by: u8, wide: bool) {
        self.regs(wide, &[0xC1], op as u8, reg);
        self.raw(&[by]);
    }
    /// Shifts by `cl`.
    pub(super) fn shift_cl(&mut self, op: Shift, reg: Reg) {
        self.regs(true, &[0xD3], op as u8, reg);
    }
    pub(super) fn bsr(&mut self, to: Reg, from: Reg) {
        self.regs(true, &[0x0F, 0xBD], to.0, from);
    }
    pub(super) fn bsf(&mut self, to: Reg, from: Reg) {
        self.regs(true, &[0x0F, 0xBC], to.0, from);
    }
    /// `xchg [at], al`, which is locked by itself.
    pub(super) fn exchange_al(&mut self, at: Mem) {
        self.mem(false, false, &[0x86], 0, at, 0);
    }
    pub(super) fn store_byte_imm(&mut self, to: Mem, value: u8) {
        self.mem(false, false, &[0xC6], 0, to, 1);
        self.raw(&[value]);
    }
    /// `test al, al`.
    pub(super) fn test_al(&mut self) {
        self.raw(&[0x84, 0xC0]);
    }
    /// `call qword [at]`.
    pub(super) fn call_mem(&mut self, at: Mem) {
        self.mem(false, false, &[0xFF], 2, at, 0);
    }
    /// `jmp qword [at]`.
    pub(super) fn jmp_mem(&mut self, at: Mem) {
        self.mem(false, false, &[0xFF], 4, at, 0);
    }
    /// `push imm32`, sign-extended to a word.
    pub(super) fn push_imm(&mut self, value: i32) {
        self.raw(&[0x68]);
        self.raw(&value.to_le_bytes());
    }
    pub(super) fn imul_imm(&mut self, to: Reg, from: Reg, by: i32, wide: bool) {
        self.regs(wide, &[0x69], to.0, from);
        self.raw(&by.to_le_bytes());
    }
    /// `lock cmpxchg [to], with`, comparing with rax.
    pub(super) fn cmpxchg(&mut self, to: Mem, with: Reg) {
        self.mem(true, true, &[0x0F, 0xB1], with.0, to, 0);
    }
    /// `lock xadd [to], with`: `with` gets the previous value.
    pub(super) fn exchange_add(&mut self, to: Mem, with: Reg) {
        self.mem(true, true, &[0x0F, 0xC1], with.0, to, 0);
    }
    /// `lsl`: limit of the segment that `selector` names. `to` stays as it is if there is no such segment.
    pub(super) fn segment_limit(&mut self, to: Reg, selector: Reg) {
        self.regs(false, &[0x0F, 0x03], to.0, selector);
    }
    pub(super) fn push(&mut self, reg: Reg) {
        if reg.0 >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[0x50 | reg.0 & 7]);
    }
    pub(super) fn pop(&mut self, reg: Reg) {
        if reg.0 >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[0x58 | reg.0 & 7]);
    }
    /// `prefetchw [at]`: without effect on processors that do not have it, and never a fault.
    pub(super) fn prefetchw(&mut self, at: Mem) {
        self.mem(false, false, &[0x0F, 0x0D], 1, at, 0);
    }
    pub(super) fn rdtsc(&mut self) {
        self.raw(&[0x0F, 0x31]);
    }
    pub(super) fn rdpid(&mut self, to: Reg) {
        let rex = if to.0 >= 8 { &[0x41][..] } else { &[] };
        self.raw(&[0xF3]);
        self.raw(rex);
        self.raw(&[0x0F, 0xC7, 0xF8 | to.0 & 7]);
    }
    /// Moves SF ZF AF PF CF into ah, and OF into al: the flags in one register, without changing them.
    pub(super) fn flags_to_rax(&mut self) {
        self.raw(&[0x9F, 0x0F, 0x90, 0xC0]);
    }
    /// Restores the flags from there: `add al, 127` overflows exactly if al is 1.
    pub(super) fn flags_from_rax(&mut self) {
        self.raw(&[0x04, 0x7F, 0x9E]);
    }
    /// Restores the flags from ax as `pushfq` stores it. `rol ax, 8` moves SF ZF AF PF CF into ah. OF becomes
    /// bit 3 of al, and `add al, 0x78` overflows exactly if it is set.
    pub(super) fn bytes_to_flags(&mut self) {
        self.raw(&[0x66, 0xC1, 0xC0, 8, 0x24, 8, 0x04, 0x78, 0x9E]);
    }
    pub(super) fn syscall(&mut self) {
        self.raw(&[0x0F, 0x05]);
    }
    pub(super) fn ret(&mut self) {
        self.raw(&[0xC3]);
    }

    pub(super) fn pushfq(&mut self) {
        self.raw(&[0x9C]);
    }
    pub(super) fn popfq(&mut self) {
        self.raw(&[0x9D]);
    }
    /// `push qword [from]`, whose address is computed before the push.
    pub(super) fn push_mem(&mut self, from: Mem) {
        self.mem(false, false, &[0xFF], 6, from, 0);
    }
    /// `test reg, imm32` of the low half.
    pub(super) fn test_imm32(&mut self, reg: Reg, bits: u32) {
        self.regs(false, &[0xF7], 0, reg);
        self.raw(&bits.to_le_bytes());
    }
    /// `test dword [at], bits`.
    pub(super) fn test_mem_imm32(&mut self, at: Mem, bits: u32) {
        self.mem(false, false, &[0xF7], 0, at, 4);
        self.raw(&bits.to_le_bytes());
    }
    /// `xsavec64`, components in edx:eax.
    pub(super) fn xsavec(&mut self, to: Mem) {
        self.mem(false, true, &[0x0F, 0xC7], 4, to, 0);
    }
    /// `xrstor64`, components in edx:eax.
    pub(super) fn xrstor(&mut self, from: Mem) {
        self.mem(false, true, &[0x0F, 0xAE], 5, from, 0);
    }
    pub(super) fn call(&mut self, target: u64) {
        self.raw(&[0xE8]);
        self.rel32_to(target, 0);
    }
    pub(super) fn call_reg(&mut self, reg: Reg) {
        self.regs(false, &[0xFF], 2, reg);
    }

    /// Copies bit `bit` of a register to CF.
    pub(super) fn bit_test(&mut self, reg: Reg, bit: u8) {
        self.regs(true, &[0x0F, 0xBA], 4, reg);
        self.raw(&[bit]);
    }
    pub(super) fn jmp_reg(&mut self, reg: Reg) {
        self.regs(false, &[0xFF], 4, reg);
    }
    pub(super) fn jmp(&mut self, target: u64) {
        self.raw(&[0xE9]);
        self.rel32_to(target, 0);
    }
    pub(super) fn jcc(&mut self, cond: Cond, target: u64) {
        self.raw(&[0x0F, 0x80 | cond as u8]);
        self.rel32_to(target, 0);
    }
    fn later(&mut self) -> Fix {
        self.raw(&[0; 4]);
        Fix::Near(self.out.len())
    }
    pub(super) fn jmp_later(&mut self) -> Fix {
        self.raw(&[0xE9]);
        self.later()
    }
    pub(super) fn jcc_later(&mut self, cond: Cond) -> Fix {
        self.jcc_raw_later(cond as u8)
    }
    /// `jcc` by the low nibble of its opcode.
    pub(super) fn jcc_raw_later(&mut self, condition: u8) -> Fix {
        self.raw(&[0x0F, 0x80 | condition & 15]);
        self.later()
    }
    /// `jrcxz`: the only conditional jump that reads no flag.
    pub(super) fn jrcxz_later(&mut self) -> Fix {
        self.raw(&[0xE3, 0]);
        Fix::Short(self.out.len())
    }
    /// `lea to, [rip + later]`.
    pub(super) fn lea_later(&mut self, to: Reg) -> Fix {
        self.raw(&[0x48 | (to.0 >> 3) << 2, 0x8D, (to.0 & 7) << 3 | 5]);
        self.later()
    }
    /// `op to, [rip + later]`.
    pub(super) fn alu_load_later(&mut self, op: Alu, to: Reg) -> Fix {
        self.raw(&[0x48 | (to.0 >> 3) << 2, (op as u8) << 3 | 3, (to.0 & 7) << 3 | 5]);
        self.later()
    }
    /// Makes `fix` refer to the next byte.
    pub(super) fn bind(&mut self, fix: Fix) {
        let here = self.out.len();
        match fix {
            Fix::Near(end) => {
                let rel = (here - end) as u32;
                self.out[end - 4..end].copy_from_slice(&rel.to_le_bytes());
            }
            Fix::Short(end) => {
                debug_assert!(here - end < 128, "short jump over {} bytes", here - end);
                self.out[end - 1] = (here - end) as u8;
            }
        }
    }
}
