//! Which instructions the kernel accepts a uprobe on. One that it refuses takes the whole link with it.
//!
//! In: an instruction's bytes. Out: whether the kernel's decoder accepts it for stepping out of line. As
//! measured on Linux 6.18 with each opcode; if versions differ, the answer is no. Does not: know file systems
//! or permissions.

/// Prefixes that the kernel refuses in a probed instruction: es, cs, ss, ds, lock.
const REFUSED_PREFIXES: [u8; 5] = [0x26, 0x2E, 0x36, 0x3E, 0xF0];
/// Prefixes that are accepted before an opcode.
const OTHER_PREFIXES: [u8; 6] = [0x64, 0x65, 0x66, 0x67, 0xF2, 0xF3];
/// First opcode bytes that the kernel refuses in 64-bit code, as (first, last).
const REFUSED_OPCODES: [(u8, u8); 20] = [
    (0x06, 0x07),
    (0x0E, 0x0E),
    (0x16, 0x17),
    (0x1E, 0x1F),
    (0x27, 0x27),
    (0x2F, 0x2F),
    (0x37, 0x37),
    (0x3F, 0x3F),
    (0x60, 0x62),
    (0x6C, 0x6F),
    (0x82, 0x82),
    (0x8E, 0x8E),
    (0x9A, 0x9A),
    (0xC4, 0xC5),
    (0xCC, 0xCF),
    (0xD4, 0xD6),
    (0xE4, 0xE7),
    (0xEA, 0xEA),
    (0xEC, 0xF1),
    (0xF4, 0xF4),
];
/// The same for `cli` and `sti`.
const REFUSED_FLAGS: (u8, u8) = (0xFA, 0xFB);

/// Whether the kernel accepts a uprobe on the first instruction of `bytes`. Vector encodings are all refused
/// here, since the kernel judges them by a table of other opcodes.
pub(crate) fn takes_uprobe(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let [first, more @ ..] = rest {
        match first {
            p if REFUSED_PREFIXES.contains(p) => return false,
            p if OTHER_PREFIXES.contains(p) => rest = more,
            0x40..=0x4F => rest = more,
            opcode => {
                let is_in = |range: &(u8, u8)| (range.0..=range.1).contains(opcode);
                return !REFUSED_OPCODES.iter().any(is_in) && !is_in(&REFUSED_FLAGS);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::takes_uprobe;

    #[test]
    fn what_the_kernel_refuses_is_not_asked_for() {
        let taken: [&[u8]; 5] =
            [&[0x55], &[0x48, 0x83, 0xEC, 8], &[0xF3, 0x0F, 0x1E, 0xFA], &[0xC3], &[0x66, 0x90]];
        let refused: [&[u8]; 6] = [
            &[0xF0, 0x48, 0x0F, 0xC1, 0x07], // lock xadd
            &[0x3E, 0x90],
            &[0xCC],
            &[0xC5, 0xF8, 0x77], // vzeroupper
            &[0xF4],
            &[],
        ];
        assert!(taken.iter().all(|bytes| takes_uprobe(bytes)));
        assert!(!refused.iter().any(|bytes| takes_uprobe(bytes)));
    }
}
