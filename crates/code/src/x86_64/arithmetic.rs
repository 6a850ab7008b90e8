//! Instructions that compute, from registers and constants.
//!
//! In: registers and numbers. Out: bytes ([`Asm`]).
#![allow(missing_docs, reason = "a name without a sentence is its instruction's")]

use super::asm::{Alu, Asm, RAX, RDX, Reg, Shift};

impl Asm<'_> {
    #[inline]
    pub fn mov(&mut self, to: Reg, from: Reg) {
        self.regs(true, &[0x89], from.0, to);
    }
    #[inline]
    pub fn exchange(&mut self, one: Reg, other: Reg) {
        self.regs(true, &[0x87], one.0, other);
    }
    #[inline]
    pub fn mov32(&mut self, to: Reg, from: Reg) {
        self.regs(false, &[0x89], from.0, to);
    }
    #[inline]
    pub fn mov_imm32(&mut self, to: Reg, value: u32) {
        if to.0 >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[0xB8 | to.0 & 7]);
        self.raw(&value.to_le_bytes());
    }
    #[inline]
    pub fn mov_imm64(&mut self, to: Reg, value: u64) {
        match u32::try_from(value) {
            Ok(value) => self.mov_imm32(to, value),
            Err(_) => {
                self.raw(&[0x48 | to.0 >> 3, 0xB8 | to.0 & 7]);
                self.u64(value);
            }
        }
    }
    #[inline]
    pub fn alu(&mut self, op: Alu, to: Reg, with: Reg) {
        self.regs(true, &[(op as u8) << 3 | 1], with.0, to);
    }
    #[inline]
    pub fn alu_imm(&mut self, op: Alu, to: Reg, value: i32, wide: bool) {
        if let Ok(byte) = i8::try_from(value) {
            self.regs(wide, &[0x83], op as u8, to);
            self.raw(&byte.to_le_bytes());
        } else {
            self.regs(wide, &[0x81], op as u8, to);
            self.raw(&value.to_le_bytes());
        }
    }
    #[inline]
    pub fn test(&mut self, a: Reg, b: Reg, wide: bool) {
        self.regs(wide, &[0x85], b.0, a);
    }
    /// `movq`: the low 64 bits of a vector register. The vector register stays as it is.
    #[inline]
    pub fn vector_to(&mut self, to: Reg, vector: u8) {
        self.raw(&[0x66]);
        self.regs(true, &[0x0F, 0x7E], vector, to);
    }
    /// Complements the highest bit.
    #[inline]
    pub fn flip_sign(&mut self, reg: Reg) {
        self.regs(true, &[0x0F, 0xBA], 7, reg);
        self.raw(&[63]);
    }
    #[inline]
    pub fn not(&mut self, reg: Reg) {
        self.regs(true, &[0xF7], 2, reg);
    }
    #[inline]
    pub fn negate(&mut self, reg: Reg) {
        self.regs(true, &[0xF7], 3, reg);
    }
    /// Extends the low `bits` of a register to all of another one.
    #[inline]
    pub fn extend(&mut self, to: Reg, from: Reg, bits: u8, signed: bool) {
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
    #[inline]
    pub fn multiply(&mut self, to: Reg, by: Reg) {
        self.regs(true, &[0x0F, 0xAF], to.0, by);
    }
    /// `rdx:rax = rax * by`.
    #[inline]
    pub fn multiply_wide(&mut self, by: Reg) {
        self.regs(true, &[0xF7], 4, by);
    }
    /// `shrd`: shifts right by less than 64, and fills in the bits of `from`.
    #[inline]
    pub fn shift_from(&mut self, to: Reg, from: Reg, by: u8) {
        self.regs(true, &[0x0F, 0xAC], from.0, to);
        self.raw(&[by]);
    }
    /// Signed division of rax alone; otherwise as `div`.
    #[inline]
    pub fn divide_signed(&mut self, by: Reg) {
        self.raw(&[0x48, 0x99]);
        self.regs(true, &[0xF7], 7, by);
    }
    /// `rdx:rax / by`: quotient to rax, remainder to rdx.
    #[inline]
    pub fn div(&mut self, by: Reg) {
        self.regs(true, &[0xF7], 6, by);
    }
    #[inline]
    pub fn shift(&mut self, op: Shift, reg: Reg, by: u8, wide: bool) {
        self.regs(wide, &[0xC1], op as u8, reg);
        self.raw(&[by]);
    }
    /// Shifts by `cl`.
    #[inline]
    pub fn shift_cl(&mut self, op: Shift, reg: Reg) {
        self.regs(true, &[0xD3], op as u8, reg);
    }
    #[inline]
    pub fn bsr(&mut self, to: Reg, from: Reg) {
        self.regs(true, &[0x0F, 0xBD], to.0, from);
    }
    #[inline]
    pub fn bsf(&mut self, to: Reg, from: Reg) {
        self.regs(true, &[0x0F, 0xBC], to.0, from);
    }
    /// `to`, which is rax or rdx, = the time-stamp counter. Uses the other one and flags.
    #[inline]
    pub fn clock(&mut self, to: Reg) {
        self.rdtsc();
        self.shift(Shift::Left, RDX, 32, true);
        self.alu(Alu::Or, to, if to == RAX { RDX } else { RAX });
    }
    /// `test al, al`.
    #[inline]
    pub fn test_al(&mut self) {
        self.raw(&[0x84, 0xC0]);
    }
    #[inline]
    pub fn imul_imm(&mut self, to: Reg, from: Reg, by: i32, wide: bool) {
        self.regs(wide, &[0x69], to.0, from);
        self.raw(&by.to_le_bytes());
    }
    /// `test reg, imm32` of the low half.
    #[inline]
    pub fn test_imm32(&mut self, reg: Reg, bits: u32) {
        self.regs(false, &[0xF7], 0, reg);
        self.raw(&bits.to_le_bytes());
    }
    /// Copies bit `bit` of a register to CF.
    #[inline]
    pub fn bit_test(&mut self, reg: Reg, bit: u8) {
        self.regs(true, &[0x0F, 0xBA], 4, reg);
        self.raw(&[bit]);
    }
}
