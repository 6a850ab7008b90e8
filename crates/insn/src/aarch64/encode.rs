//! The few instruction words that relocation and stubs write.
//!
//! In: addresses and registers. Out: words, or `None` if the distance does not fit the form.
//! Does not: choose between forms.

use super::gpr::Gpr;

/// `nop`.
pub const NOP: u32 = 0xD503_201F;
/// `brk #0`.
pub const BRK: u32 = 0xD420_0000;
/// `str x16, [sp, #-16]!`.
pub(crate) const PUSH_X16: u32 = 0xF81F_0FF0;
/// `ldr x16, [sp], #16`.
pub(crate) const POP_X16: u32 = 0xF841_07F0;

/// The distance in units of `1 << shift` bytes, cut to `bits` bits; `None` unless it is whole and fits `bits`
/// bits, signed.
const fn distance(from: u64, to: u64, shift: u32, bits: u32) -> Option<u32> {
    let bytes = to.wrapping_sub(from).cast_signed();
    let units = bytes >> shift;
    let bound = 1 << (bits - 1);
    if units << shift != bytes || units < -bound || units >= bound {
        return None;
    }
    Some((units as u32) & ((1 << bits) - 1))
}

/// `b` at `from`, to a target within ±128 MiB.
#[must_use]
pub const fn b(from: u64, to: u64) -> Option<u32> {
    match distance(from, to, 2, 26) {
        Some(units) => Some(0x1400_0000 | units),
        None => None,
    }
}

/// `word`, a form with a 19-bit distance (`b.cond`, `cbz`, literal loads) at `from`, changed to lead to `to`:
/// ±1 MiB.
#[must_use]
pub const fn with_imm19(word: u32, from: u64, to: u64) -> Option<u32> {
    match distance(from, to, 2, 19) {
        Some(units) => Some(word & !0x00FF_FFE0 | units << 5),
        None => None,
    }
}

/// `adr` of `value` at `from`: ±1 MiB.
#[must_use]
pub const fn adr(to: Gpr, from: u64, value: u64) -> Option<u32> {
    match distance(from, value, 0, 21) {
        Some(bytes) => Some(0x1000_0000 | (bytes & 3) << 29 | (bytes >> 2) << 5 | to.number()),
        None => None,
    }
}

/// `adrp` of the page of `value` at `from`: ±4 GiB.
#[must_use]
pub const fn adrp(to: Gpr, from: u64, value: u64) -> Option<u32> {
    match distance(from & !0xFFF, value & !0xFFF, 12, 21) {
        Some(pages) => Some(0x9000_0000 | (pages & 3) << 29 | (pages >> 2) << 5 | to.number()),
        None => None,
    }
}

/// `add to, from, #amount`, of which the low 12 bits count; 31 is sp.
#[must_use]
pub const fn add(to: Gpr, from: Gpr, amount: u32) -> u32 {
    0x9100_0000 | (amount & 0xFFF) << 10 | from.number() << 5 | to.number()
}

/// `mov to, from`; 31 is zero.
#[must_use]
pub const fn mov(to: Gpr, from: Gpr) -> u32 {
    0xAA00_03E0 | from.number() << 16 | to.number()
}

/// `movz to, #half, lsl #(16 * position)`.
#[must_use]
pub const fn movz(to: Gpr, half: u16, position: u32) -> u32 {
    0xD280_0000 | (position & 3) << 21 | (half as u32) << 5 | to.number()
}

/// `movk to, #half, lsl #(16 * position)`.
#[must_use]
pub const fn movk(to: Gpr, half: u16, position: u32) -> u32 {
    0xF280_0000 | (position & 3) << 21 | (half as u32) << 5 | to.number()
}

/// `br to`.
#[must_use]
pub const fn br(to: Gpr) -> u32 {
    0xD61F_0000 | to.number() << 5
}

/// `ret to`.
#[must_use]
pub const fn ret(to: Gpr) -> u32 {
    0xD65F_0000 | to.number() << 5
}
