//! What a straight line of instructions is sure to overwrite, so that a stub need not save it.

use super::decode::Insn;

/// True when OF, SF, ZF, AF, CF and PF are each written before any is read, along the straight line `insns` (whose
/// bytes are `bytes`, the first instruction's first). Ends at the first instruction that does not simply fall
/// through. Flags left undefined count as not written. False when in doubt.
#[must_use]
pub fn flags_dead_after(insns: &[Insn], bytes: &[u8]) -> bool {
    let _ = (insns, bytes);
    todo!()
}

/// The general registers that the straight line is sure to overwrite, in full, before reading any part of them: bit
/// `n` is register `n` in hardware order. Writes of 32 bits count as full (they zero-extend), of 8 or 16 do not.
#[must_use]
pub fn overwritten_gprs(insns: &[Insn], bytes: &[u8]) -> u16 {
    let _ = (insns, bytes);
    todo!()
}
