//! Assembles the code of a stub: the handful of x86-64 encodings that it needs, appended to a byte vector.
//! `access` adds the instructions that read and write memory, `arithmetic` those that compute.
//!
//! In: registers and memory operands as values. Out: bytes at known addresses. Jumps forward return a [`Fix`]
//! that is bound later; nothing else is remembered, so that emitting costs a few nanoseconds.
//! Does not: choose encodings by iteration, check ranges beyond `debug_assert` (addresses come from the
//! planner, which lays out a module's code and data within ±2 GiB).
#![allow(missing_docs, reason = "a name without a sentence is its instruction's")]

pub use super::reg::{R8, R9, R10, R11, R12, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::word::Word;
use crate::unsound::NoCode;

/// A memory operand.
#[derive(Clone, Copy, Debug)]
pub enum Mem {
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
pub enum Cond {
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
pub enum Alu {
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
pub enum Shift {
    Left = 4,
    Right = 5,
    /// Shifts in copies of the sign.
    SignedRight = 7,
}

/// A displacement that waits for its target.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub enum Fix {
    Near(usize),
    Short(usize),
}

impl Fix {
    /// The same so many bytes further on.
    pub(super) const fn moved(self, by: usize) -> Self {
        match self {
            Self::Near(end) => Self::Near(end.wrapping_add(by)),
            Self::Short(end) => Self::Short(end.wrapping_add(by)),
        }
    }
}

/// An appending emitter.
#[derive(Debug)]
pub struct Asm<'a> {
    out: &'a mut Vec<u8>,
    /// Address of `out[0]`, wrapping.
    origin: u64,
    /// Where the code begins that lies elsewhere than what is before it, and how many bytes later it lies than
    /// it would behind that; both 0 if all lies together.
    apart: (usize, i32),
    /// Why something that belongs here is missing.
    lacks: Option<NoCode>,
}

impl<'a> Asm<'a> {
    /// Emits at the end of `out`. Its next byte will lie at `at`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, at: u64) -> Self {
        let origin = at.wrapping_sub(out.len() as u64);
        Self { out, origin, apart: (0, 0), lacks: None }
    }
    /// Address of the vector's first byte, wrapping.
    #[inline]
    pub const fn origin(&self) -> u64 {
        self.origin
    }
    /// Continues at the end of `out`. Its first byte lies at `origin`.
    #[inline]
    pub const fn resume(out: &'a mut Vec<u8>, origin: u64) -> Self {
        Self { out, origin, apart: (0, 0), lacks: None }
    }
    /// Continues at the end of `out` with code that lies apart: what `out` holds from `split` on lies at `at`.
    /// The bytes before that have the first byte at `origin`. Both lie within ±2 GiB.
    #[inline]
    pub const fn resume_apart(out: &'a mut Vec<u8>, origin: u64, split: usize, at: u64) -> Self {
        let here = at.wrapping_sub(split as u64);
        Self { out, origin: here, apart: (split, here.wrapping_sub(origin) as i32), lacks: None }
    }
    /// Notes that a program has no code here.
    #[cold]
    pub const fn lack(&mut self, why: NoCode) {
        self.lacks = Some(why);
    }
    /// Why something is missing, if something is.
    #[must_use]
    pub const fn lacks(&self) -> Option<NoCode> {
        self.lacks
    }
    #[inline]
    pub fn here(&self) -> u64 {
        self.origin.wrapping_add(self.out.len() as u64)
    }
    /// The bytes from an offset on.
    pub(super) fn since(&self, begin: usize) -> &[u8] {
        &self.out[begin..]
    }
    /// Replaces bytes at an offset.
    pub(super) fn replace(&mut self, at: usize, bytes: &[u8]) {
        self.out[at..at + bytes.len()].copy_from_slice(bytes);
    }
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }
    /// Pads with int3 up to a multiple of `to`, a power of two.
    #[inline]
    pub fn align(&mut self, to: u64) {
        self.skip(self.here().wrapping_neg() & (to - 1));
    }
    /// Appends bytes that never run.
    #[inline]
    pub fn skip(&mut self, len: u64) {
        self.out.resize(self.out.len() + len as usize, 0xCC);
    }
    /// Appends instructions without effect, up to a multiple of `to`.
    #[inline]
    pub fn fill_to(&mut self, to: u64) {
        self.nop((self.here().wrapping_neg() & (to - 1)) as usize);
    }
    /// Emits a jump, with the compare with which it may fuse, so that it neither crosses nor ends at a
    /// 32-byte boundary. On Intel cores before Ice Lake, a jump that does is kept out of the decoded cache,
    /// which costs up to 3 ns a stub.
    #[inline]
    pub fn unbroken<T>(&mut self, emit: impl Fn(&mut Self) -> T) -> T {
        self.unbroken_behind(0, emit)
    }
    /// Does the same, but leaves out the first `behind` bytes.
    #[inline]
    pub fn unbroken_behind<T>(&mut self, behind: u64, emit: impl Fn(&mut Self) -> T) -> T {
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
    #[inline]
    pub fn is_unbroken(&self, len: u64) -> bool {
        self.here() % 32 + len <= 31
    }
    #[inline]
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
    #[inline]
    fn rel32_to(&mut self, target: u64, after: u64) {
        let rel = target.wrapping_sub(self.here() + 4 + after).cast_signed();
        debug_assert!(i32::try_from(rel).is_ok(), "{target:#x} is out of reach from {:#x}", self.here());
        self.raw(&(rel as i32).to_le_bytes());
    }

    /// Emits one instruction with a memory operand; the caller appends `imm` immediate bytes.
    #[inline]
    pub fn mem(&mut self, lock: bool, wide: bool, op: &[u8], reg: u8, mem: Mem, imm: u64) {
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
    #[inline]
    pub fn regs(&mut self, wide: bool, op: &[u8], reg: u8, rm: Reg) {
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
    #[inline]
    fn put(&mut self, code: Word) {
        let end = self.out.len() + code.len as usize;
        self.out.extend_from_slice(&code.bits.to_le_bytes());
        self.out.truncate(end);
    }
    /// `call qword [at]`.
    #[inline]
    pub fn call_mem(&mut self, at: Mem) {
        self.mem(false, false, &[0xFF], 2, at, 0);
    }
    /// `jmp qword [at]`.
    #[inline]
    pub fn jmp_mem(&mut self, at: Mem) {
        self.mem(false, false, &[0xFF], 4, at, 0);
    }
    /// `lsl`: limit of the segment that `selector` names. `to` stays as it is if there is no such segment.
    #[inline]
    pub fn segment_limit(&mut self, to: Reg, selector: Reg) {
        self.regs(false, &[0x0F, 0x03], to.0, selector);
    }
    #[inline]
    pub fn rdtsc(&mut self) {
        self.raw(&[0x0F, 0x31]);
    }
    #[inline]
    pub fn rdpid(&mut self, to: Reg) {
        let rex = if to.0 >= 8 { &[0x41][..] } else { &[] };
        self.raw(&[0xF3]);
        self.raw(rex);
        self.raw(&[0x0F, 0xC7, 0xF8 | to.0 & 7]);
    }
    /// Moves SF ZF AF PF CF into ah, and OF into al: the flags in one register, without changing them.
    #[inline]
    pub fn flags_to_rax(&mut self) {
        self.raw(&[0x9F, 0x0F, 0x90, 0xC0]);
    }
    /// Restores the flags from there: `add al, 127` overflows exactly if al is 1.
    #[inline]
    pub fn flags_from_rax(&mut self) {
        self.raw(&[0x04, 0x7F, 0x9E]);
    }
    /// Restores the flags from ax as `pushfq` stores it. `rol ax, 8` moves SF ZF AF PF CF into ah. OF becomes
    /// bit 3 of al, and `add al, 0x78` overflows exactly if it is set.
    #[inline]
    pub fn bytes_to_flags(&mut self) {
        self.raw(&[0x66, 0xC1, 0xC0, 8, 0x24, 8, 0x04, 0x78, 0x9E]);
    }
    #[inline]
    pub fn syscall(&mut self) {
        self.raw(&[0x0F, 0x05]);
    }
    #[inline]
    pub fn ret(&mut self) {
        self.raw(&[0xC3]);
    }

    #[inline]
    pub fn pushfq(&mut self) {
        self.raw(&[0x9C]);
    }
    #[inline]
    pub fn popfq(&mut self) {
        self.raw(&[0x9D]);
    }
    #[inline]
    pub fn call(&mut self, target: u64) {
        self.raw(&[0xE8]);
        self.rel32_to(target, 0);
    }
    #[inline]
    pub fn call_reg(&mut self, reg: Reg) {
        self.regs(false, &[0xFF], 2, reg);
    }
    #[inline]
    pub fn jmp_reg(&mut self, reg: Reg) {
        self.regs(false, &[0xFF], 4, reg);
    }
    #[inline]
    pub fn jmp(&mut self, target: u64) {
        self.raw(&[0xE9]);
        self.rel32_to(target, 0);
    }
    #[inline]
    pub fn jcc(&mut self, cond: Cond, target: u64) {
        self.raw(&[0x0F, 0x80 | cond as u8]);
        self.rel32_to(target, 0);
    }
    #[inline]
    fn later(&mut self) -> Fix {
        self.raw(&[0; 4]);
        Fix::Near(self.out.len())
    }
    #[inline]
    pub fn jmp_later(&mut self) -> Fix {
        self.raw(&[0xE9]);
        self.later()
    }
    #[inline]
    pub fn jcc_later(&mut self, cond: Cond) -> Fix {
        self.jcc_raw_later(cond as u8)
    }
    /// `jcc` by the low nibble of its opcode.
    #[inline]
    pub fn jcc_raw_later(&mut self, condition: u8) -> Fix {
        self.raw(&[0x0F, 0x80 | condition & 15]);
        self.later()
    }
    /// `jrcxz`: the only conditional jump that reads no flag.
    #[inline]
    pub fn jrcxz_later(&mut self) -> Fix {
        self.raw(&[0xE3, 0]);
        Fix::Short(self.out.len())
    }
    /// `lea to, [rip + later]`.
    #[inline]
    pub fn lea_later(&mut self, to: Reg) -> Fix {
        self.raw(&[0x48 | (to.0 >> 3) << 2, 0x8D, (to.0 & 7) << 3 | 5]);
        self.later()
    }
    /// `op to, [rip + later]`.
    #[inline]
    pub fn alu_load_later(&mut self, op: Alu, to: Reg) -> Fix {
        self.raw(&[0x48 | (to.0 >> 3) << 2, (op as u8) << 3 | 3, (to.0 & 7) << 3 | 5]);
        self.later()
    }
    /// Makes `fix` refer to the next byte.
    #[inline]
    pub fn bind(&mut self, fix: Fix) {
        let here = self.out.len();
        match fix {
            Fix::Near(end) => {
                let (split, later) = self.apart;
                let rel = (here - end) as i32 + if end <= split { later } else { 0 };
                self.out[end - 4..end].copy_from_slice(&rel.to_le_bytes());
            }
            Fix::Short(end) => {
                debug_assert!(here - end < 128 && end > self.apart.0, "short jump over {} bytes", here - end);
                self.out[end - 1] = (here - end) as u8;
            }
        }
    }
}
