//! One displaced instruction: how it is carried out without a copy, or its copy.
//!
//! In: an instruction, its address, and the address of the memory for its copy. Out: a step; the bytes of
//! that memory. Invariant: COPY-1. Two kinds of copies have more than one word: that of a vector's
//! literal load that is out of reach, and those of simulated instructions, if these are copied all the same.
//!
//! ```text
//!   to          the moved words (`relocate`)
//!   to + done   b next, if they fall through
//!   then        brk #0, up to to + SLOT
//! ```
//!
//! No register but those of the instruction changes, except what `relocate` may use by its options.
//! Does not: claim memory, or write it. The way back is one `b`, since no register is free; so a copy must be
//! within 128 MiB of its instruction.

use trapline_insn::aarch64::{Immovable, Options, Verdict, decode, encode, relocate};

use crate::trap::{Copy, PART_LEN, Step};

/// Why an instruction has no copy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyError {
    /// It cannot be moved.
    #[error(transparent)]
    Relocate(#[from] Immovable),
    /// The bytes are less than a word.
    #[error("{len} bytes are no instruction")]
    TooShort {
        /// Number of bytes.
        len: usize,
    },
    /// The way back is too long for a `b`.
    #[error("{next:#x} is out of reach from a copy at {to:#x}")]
    OutOfReach {
        /// Address of the copy.
        to: u64,
        /// Address where it goes on.
        next: u64,
    },
}

/// How the `word` at `at` is carried out without a copy, if it can be; all that can be decided beforehand is
/// decided here. A `nop` is carried out by going on behind it. (It is no landing pad, so BTYPE is 0 at it, or
/// is not checked.)
#[must_use]
pub const fn without_copy(word: u32, at: u64) -> Option<Step> {
    match decode(word) {
        _ if word == encode::NOP => Some(Step::At(at.wrapping_add(4))),
        Verdict::Simulate(op) => Some(Step::Simulate(op)),
        _ => None,
    }
}

/// The copy at `to` of the first word of `bytes`; the original is at `original`.
///
/// # Errors
/// Why there is no copy.
pub fn copy(bytes: &[u8], original: u64, to: u64, options: Options) -> Result<Copy, CopyError> {
    let Some(word) = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
        return Err(CopyError::TooShort { len: bytes.len() });
    };
    let moved = relocate(word, original, to, options)?;
    let done = 4 * moved.words().len() as u64;
    let back = if moved.falls_through {
        let reach = CopyError::OutOfReach { to, next: moved.next };
        Some(encode::b(to.wrapping_add(done), moved.next).ok_or(reach)?)
    } else {
        None
    };
    let mut whole = [0; PART_LEN as usize];
    let words = moved.words().iter().copied().chain(back).chain(core::iter::repeat(encode::BRK));
    for (room, word) in whole.chunks_exact_mut(4).zip(words) {
        room.copy_from_slice(&word.to_le_bytes());
    }
    Ok(Copy { bytes: whole, len: 4, done: done as u8 })
}

#[cfg(test)]
mod tests {
    use super::{CopyError, Options, PART_LEN, copy};
    use trapline_insn::aarch64::encode;

    #[test]
    fn a_copy_goes_back_or_is_refused() {
        let (from, near) = (0x40_0000, 0x50_0000);
        let made = copy(&0xD503_233F_u32.to_le_bytes(), from, near, Options::default()).expect("paciasp");
        let word = |at: usize| u32::from_le_bytes(made.bytes[at..at + 4].try_into().expect("four"));
        assert_eq!((word(0), Some(word(4)), made.done), (0xD503_233F, encode::b(near + 4, from + 4), 4));
        assert!((8..PART_LEN as usize).step_by(4).all(|at| word(at) == encode::BRK));
        let far = from + (1 << 28);
        let refused = copy(&0xD503_233F_u32.to_le_bytes(), from, far, Options::default());
        assert_eq!(refused, Err(CopyError::OutOfReach { to: far, next: from + 4 }));
        // retaa does not come back.
        assert!(copy(&0xD65F_0BFF_u32.to_le_bytes(), from, far, Options::default()).is_ok());
        assert_eq!(copy(&[0; 3], from, near, Options::default()), Err(CopyError::TooShort { len: 3 }));
    }
}
