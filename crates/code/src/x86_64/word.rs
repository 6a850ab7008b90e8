//! One instruction, put together in a register so that emitting it takes one store.
//!
//! In: prefixes, opcode, operands. Out: its bytes, the first one lowest. Does not: know addresses.

use super::reg::Reg;

/// An unfinished instruction without its immediate: at most 15 bytes, the first one lowest.
#[derive(Clone, Copy, Default)]
pub(super) struct Word {
    pub(super) bits: u128,
    pub(super) len: u32,
}

impl Word {
    #[inline]
    pub(super) fn byte(&mut self, byte: u8) {
        self.bits |= u128::from(byte) << (8 * self.len);
        self.len += 1;
    }
    #[inline]
    pub(super) fn dword(&mut self, value: i32) {
        self.bits |= u128::from(value.cast_unsigned()) << (8 * self.len);
        self.len += 4;
    }
    /// ModRM, SIB and displacement of `[base + index · 2^scale + disp]`.
    #[inline]
    pub(super) fn based(&mut self, reg: u8, base: Reg, index: Option<(Reg, u8)>, disp: i32) {
        let low = base.0 & 7;
        let short = i8::try_from(disp);
        let mode = match (disp, short) {
            (0, _) if low != 5 => 0x00,
            (_, Ok(_)) => 0x40,
            _ => 0x80,
        };
        match index {
            Some((index, scale)) => {
                self.byte(mode | reg | 4);
                self.byte(scale << 6 | (index.0 & 7) << 3 | low);
            }
            None if low == 4 => {
                self.byte(mode | reg | 4);
                self.byte(0x24);
            }
            None => self.byte(mode | reg | low),
        }
        match (mode, short) {
            (0x40, Ok(byte)) => self.byte(byte.cast_unsigned()),
            (0x80, _) => self.dword(disp),
            _ => {}
        }
    }
}
