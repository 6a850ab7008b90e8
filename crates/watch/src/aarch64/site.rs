//! Which instruction makes an access: the one at the sample's address.
//!
//! In: code bytes. Out: the instruction, if it accesses memory. Does not: read code.

use trapline_insn::aarch64::Accessor;

pub use crate::trap_state::Code;

/// Bytes that are needed in front of an address.
pub const BACK: u64 = 0;
/// Bytes that are needed from an address on.
pub const AHEAD: u64 = 4;

/// The instruction at `ip`, if it accesses memory.
#[must_use]
pub fn accessors(code: Code<'_>, ip: u64) -> Vec<Accessor> {
    let word = || {
        let at = usize::try_from(ip.checked_sub(code.addr)?).ok()?;
        let bytes = code.bytes.get(at..)?.first_chunk()?;
        Accessor::decode(u32::from_le_bytes(*bytes), ip)
    };
    word().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::{Code, accessors};

    #[test]
    fn the_instruction_that_is_named_is_found() {
        // nop; str x0, [x1]; ret
        let words = [0xD503_201F_u32, 0xF900_0020, 0xD65F_03C0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let found = |ip| accessors(Code { bytes: &bytes, addr: 0x1000, in_step: true }, ip);
        assert_eq!(
            found(0x1004).iter().map(|one| (one.addr(), one.writes())).collect::<Vec<_>>(),
            [(0x1004, true)]
        );
        for none in [0x1000, 0x1008, 0x100C, 0xFFC, 0x1009, u64::MAX] {
            assert!(found(none).is_empty(), "{none:#x}");
        }
    }
}
