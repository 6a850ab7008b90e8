//! Instructions that read and write memory.
//!
//! In: registers and memory operands. Out: bytes ([`Asm`]).
#![allow(missing_docs, reason = "a name without a sentence is its instruction's")]

use super::asm::{Alu, Asm, Mem, RAX, Reg};

impl Asm<'_> {
    #[inline]
    pub fn load(&mut self, to: Reg, from: Mem) {
        self.mem(false, true, &[0x8B], to.0, from, 0);
    }
    #[inline]
    pub fn load32(&mut self, to: Reg, from: Mem) {
        self.mem(false, false, &[0x8B], to.0, from, 0);
    }
    #[inline]
    pub fn load_byte(&mut self, to: Reg, from: Mem) {
        self.mem(false, false, &[0x0F, 0xB6], to.0, from, 0);
    }
    #[inline]
    pub fn store(&mut self, to: Mem, from: Reg) {
        self.mem(false, true, &[0x89], from.0, to, 0);
    }
    #[inline]
    pub fn store32(&mut self, to: Mem, from: Reg) {
        self.mem(false, false, &[0x89], from.0, to, 0);
    }
    /// `mov qword [to], imm32` sign-extended.
    #[inline]
    pub fn store_imm(&mut self, to: Mem, value: i32) {
        self.mem(false, true, &[0xC7], 0, to, 4);
        self.raw(&value.to_le_bytes());
    }
    #[inline]
    pub fn lea(&mut self, to: Reg, of: Mem) {
        self.mem(false, true, &[0x8D], to.0, of, 0);
    }
    #[inline]
    pub fn alu_load(&mut self, op: Alu, to: Reg, with: Mem) {
        self.mem(false, true, &[(op as u8) << 3 | 3], to.0, with, 0);
    }
    /// `imul to, [with]`: the low 64 bits.
    #[inline]
    pub fn multiply_load(&mut self, to: Reg, with: Mem) {
        self.mem(false, true, &[0x0F, 0xAF], to.0, with, 0);
    }
    #[inline]
    pub fn alu_store(&mut self, op: Alu, to: Mem, with: Reg, lock: bool) {
        self.mem(lock, true, &[(op as u8) << 3 | 1], with.0, to, 0);
    }
    /// `op qword [to], imm8` sign-extended.
    #[inline]
    pub fn alu_mem_imm(&mut self, op: Alu, to: Mem, value: i8, lock: bool) {
        self.mem(lock, true, &[0x83], op as u8, to, 1);
        self.raw(&value.to_le_bytes());
    }
    /// `add qword [to], imm`, in its shortest form.
    #[inline]
    pub fn add_mem_imm(&mut self, to: Mem, value: i32, lock: bool) {
        match i8::try_from(value) {
            Ok(value) => self.alu_mem_imm(Alu::Add, to, value, lock),
            Err(_) => {
                self.mem(lock, true, &[0x81], Alu::Add as u8, to, 4);
                self.raw(&value.to_le_bytes());
            }
        }
    }
    /// Adds one to a word that many threads write, wherever it lies. Uses rax and flags.
    #[inline]
    pub fn add_one(&mut self, word: u64) {
        self.mov_imm64(RAX, word);
        self.alu_mem_imm(Alu::Add, Mem::At(RAX, 0), 1, true);
    }
    /// `cmp qword [with], imm32` sign-extended.
    #[inline]
    pub fn cmp_mem_imm(&mut self, with: Mem, value: i32) {
        self.mem(false, true, &[0x81], Alu::Cmp as u8, with, 4);
        self.raw(&value.to_le_bytes());
    }
    /// `cmp dword [with], imm32`.
    #[inline]
    pub fn cmp_mem_imm32(&mut self, with: Mem, value: u32) {
        self.mem(false, false, &[0x81], Alu::Cmp as u8, with, 4);
        self.raw(&value.to_le_bytes());
    }
    /// `movlps`: does the same to memory.
    #[inline]
    pub fn store_vector(&mut self, to: Mem, vector: u8) {
        self.mem(false, false, &[0x0F, 0x13], vector, to, 0);
    }
    /// `movq to, xmm`: the low half of a vector register.
    #[inline]
    pub fn load_of_vector(&mut self, to: Reg, vector: u8) {
        self.raw(&[0x66]);
        self.regs(true, &[0x0F, 0x7E], vector, to);
    }
    /// `xchg [at], al`, which is locked by itself.
    #[inline]
    pub fn exchange_al(&mut self, at: Mem) {
        self.mem(false, false, &[0x86], 0, at, 0);
    }
    #[inline]
    pub fn store_byte_imm(&mut self, to: Mem, value: u8) {
        self.mem(false, false, &[0xC6], 0, to, 1);
        self.raw(&[value]);
    }
    /// `push imm32`, sign-extended to a word.
    #[inline]
    pub fn push_imm(&mut self, value: i32) {
        self.raw(&[0x68]);
        self.raw(&value.to_le_bytes());
    }
    /// `lock cmpxchg [to], with`, comparing with rax.
    #[inline]
    pub fn cmpxchg(&mut self, to: Mem, with: Reg) {
        self.mem(true, true, &[0x0F, 0xB1], with.0, to, 0);
    }
    /// `lock xadd [to], with`: `with` gets the previous value.
    #[inline]
    pub fn exchange_add(&mut self, to: Mem, with: Reg) {
        self.mem(true, true, &[0x0F, 0xC1], with.0, to, 0);
    }
    #[inline]
    pub fn push(&mut self, reg: Reg) {
        if reg.0 >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[0x50 | reg.0 & 7]);
    }
    #[inline]
    pub fn pop(&mut self, reg: Reg) {
        if reg.0 >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[0x58 | reg.0 & 7]);
    }
    /// `prefetchw [at]`: without effect on processors that do not have it, and never a fault.
    #[inline]
    pub fn prefetchw(&mut self, at: Mem) {
        self.mem(false, false, &[0x0F, 0x0D], 1, at, 0);
    }
    /// `push qword [from]`; the address is computed before the push.
    #[inline]
    pub fn push_mem(&mut self, from: Mem) {
        self.mem(false, false, &[0xFF], 6, from, 0);
    }
    /// `test dword [at], bits`.
    #[inline]
    pub fn test_mem_imm32(&mut self, at: Mem, bits: u32) {
        self.mem(false, false, &[0xF7], 0, at, 4);
        self.raw(&bits.to_le_bytes());
    }
    /// `xsavec64`, components in edx:eax.
    #[inline]
    pub fn xsavec(&mut self, to: Mem) {
        self.mem(false, true, &[0x0F, 0xC7], 4, to, 0);
    }
    /// `xrstor64`, components in edx:eax.
    #[inline]
    pub fn xrstor(&mut self, from: Mem) {
        self.mem(false, true, &[0x0F, 0xAE], 5, from, 0);
    }
}
