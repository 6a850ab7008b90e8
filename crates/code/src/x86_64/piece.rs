//! A program's code, kept to be appended again.
//!
//! In: code that was just appended, with the jumps that leave it. Out: the same at another place. The code of a program
//! holds no address; but jumps neither cross nor end at multiples of 32 ([`Asm::unbroken`]), so the place must be as far
//! behind one. Does not: check what the code depends on.

use super::asm::{Asm, Fix};

/// Code, and the jumps that leave it.
#[derive(Clone, Debug)]
pub struct Piece {
    bytes: Vec<u8>,
    leave: Vec<Fix>,
}

impl Piece {
    /// Number of kinds of places.
    pub const PLACES: usize = 32;

    /// The kind of the place where code is appended next.
    #[must_use]
    pub fn place(asm: &Asm<'_>) -> usize {
        (asm.here() % Self::PLACES as u64) as usize
    }
    /// What was appended from the address `begin` on; nothing of `leave` is bound yet.
    #[must_use]
    pub fn since(asm: &Asm<'_>, begin: u64, leave: &[Fix]) -> Self {
        let begin = begin.wrapping_sub(asm.origin()) as usize;
        let leave = leave.iter().map(|fix| fix.moved(begin.wrapping_neg())).collect();
        Self { bytes: asm.since(begin).to_vec(), leave }
    }
    /// Offset of `numbers.0`, a number of four bytes, if `other`, the same code with `numbers.1`, differs there alone.
    #[must_use]
    pub fn place_of(&self, other: &[u8], numbers: (u32, u32)) -> Option<usize> {
        let differs = self.bytes.iter().zip(other).position(|(a, b)| a != b)?;
        let split = |bytes: &[u8], at: usize, number: u32| {
            let (before, rest) = bytes.split_at(at);
            Some((before.to_vec(), rest.strip_prefix(&number.to_le_bytes())?.to_vec()))
        };
        // Its lowest byte may be the same.
        (differs.saturating_sub(3)..=differs).find(|&at| {
            let mine = split(&self.bytes, at, numbers.0);
            mine.is_some() && mine == split(other, at, numbers.1)
        })
    }
    /// As [`append`](Self::append), with another number at this offset.
    pub fn append_with(&self, asm: &mut Asm<'_>, at: usize, number: u32) -> Vec<Fix> {
        let begin = asm.here().wrapping_sub(asm.origin()) as usize;
        let leave = self.append(asm);
        asm.replace(begin + at, &number.to_le_bytes());
        leave
    }
    /// Appends it, at a place of the same kind.
    pub fn append(&self, asm: &mut Asm<'_>) -> Vec<Fix> {
        let begin = asm.here().wrapping_sub(asm.origin()) as usize;
        asm.raw(&self.bytes);
        self.leave.iter().map(|fix| fix.moved(begin)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Piece;

    #[test]
    fn a_number_is_found_by_another_one() {
        let piece = Piece { bytes: vec![1, 7, 0, 0, 0, 9, 7, 0, 0, 0, 2], leave: Vec::new() };
        let other = |at: usize, byte: u8| {
            let mut other = piece.bytes.clone();
            other[at] = byte;
            other
        };
        assert_eq!(piece.place_of(&other(1, 8), (7, 8)), Some(1));
        assert_eq!(piece.place_of(&other(6, 8), (7, 8)), Some(6));
        assert_eq!(piece.place_of(&other(2, 1), (7, 0x107)), Some(1));
        assert_eq!(piece.place_of(&piece.bytes, (7, 8)), None, "it is not there");
        assert_eq!(piece.place_of(&other(5, 8), (7, 8)), None, "something else differs");
        assert_eq!(piece.place_of(&other(9, 8), (7, 8)), None, "at the end");
        let mut both = other(1, 8);
        both[6] = 8;
        assert_eq!(piece.place_of(&both, (7, 8)), None, "it is there twice");
        assert_eq!(piece.place_of(&other(1, 8)[..10], (7, 8)), None, "another length");
    }
}
