//! Bytes between functions that never run.

use super::decode::{Insn, sweep};

/// Number of bytes at the start of `bytes` that are whole padding instructions: `nop` of any length and
/// `int3`. An instruction cut off by the end of `bytes` does not count.
#[must_use]
pub fn padding_len(bytes: &[u8], addr: u64) -> usize {
    sweep(bytes, addr).take_while(Insn::is_padding).map(|insn| usize::from(insn.len)).sum()
}
