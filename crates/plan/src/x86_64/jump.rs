//! The jumps that patches consist of, and the bytes that trap.

use trapline_record::RemoteAddr;

/// Length of `jmp rel32`.
pub(crate) const JUMP: u64 = 5;

/// Distance that a rel32 certainly reaches, whichever instruction it ends.
pub(crate) const REACH: u64 = (1 << 31) - (64 << 10);

/// One-byte opcodes that trap in 64-bit mode: `int3`, then those that no processor runs.
pub(crate) const TRAPPING: [u8; 20] = [
    0xCC, 0x60, 0x61, 0x3F, 0x37, 0x2F, 0x27, 0x1F, 0x1E, 0x17, 0x16, 0x0E, 0x07, 0x06, 0xCE, 0xD4, 0xD6,
    0xEA, 0x9A, 0x82,
];

/// `jmp rel32`
pub(crate) const E9: u8 = 0xE9;
/// `jmp rel8`
pub(crate) const EB: u8 = 0xEB;
/// `int3`
pub(crate) const INT3: u8 = 0xCC;

/// `jmp rel32` from one address to another: rel32 = to - (from + JUMP).
pub(crate) fn jump(from: RemoteAddr, to: RemoteAddr) -> [u8; 5] {
    let rel = (to.distance_from(from + JUMP) as i32).to_le_bytes();
    [E9, rel[0], rel[1], rel[2], rel[3]]
}
