//! A program's code, kept for each kind of place that it is appended at.
//!
//! In: code that was emitted once, with the outcomes of its jumps. Out: the same code again, as a processor's piece
//! appends it. Does not: know processors, or which code is the same everywhere.

use std::cell::RefCell;

/// Code, and the outcomes of its jumps, in their order.
type Leaving<P> = (P, Vec<u8>);

/// Code by kind of place.
#[derive(Debug)]
pub(crate) struct Pieces<P>(RefCell<Vec<Option<Leaving<P>>>>);

impl<P> Pieces<P> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }
    /// Appends what is kept for this kind of place. Returns the jumps of its outcomes; `None` if nothing is kept.
    pub(crate) fn append<F>(&self, place: usize, append: impl FnOnce(&P) -> Vec<F>) -> Option<Vec<(u8, F)>> {
        let pieces = self.0.borrow();
        let (piece, outcomes) = pieces.get(place)?.as_ref()?;
        Some(outcomes.iter().copied().zip(append(piece)).collect())
    }
    /// Keeps what `leave` leaves, as `piece` takes it.
    pub(crate) fn keep<F: Copy>(&self, place: usize, leave: &[(u8, F)], piece: impl FnOnce(&[F]) -> P) {
        let (outcomes, jumps): (Vec<u8>, Vec<F>) = leave.iter().copied().unzip();
        let mut pieces = self.0.borrow_mut();
        let len = pieces.len().max(place + 1);
        pieces.resize_with(len, || None);
        pieces[place] = Some((piece(&jumps), outcomes));
    }
}

#[cfg(test)]
mod tests {
    use super::Pieces;

    #[test]
    fn each_kind_of_place_has_its_own_piece() {
        let pieces = Pieces::new();
        assert_eq!(pieces.append(3, |piece: &Vec<i32>| piece.clone()), None);
        pieces.keep(3, &[(1, 10), (0, 20)], <[i32]>::to_vec);
        assert_eq!(pieces.append(3, Vec::clone), Some(vec![(1, 10), (0, 20)]));
        assert_eq!(pieces.append(2, Vec::clone), None);
        assert_eq!(pieces.append(4, Vec::clone), None);
        pieces.keep(0, &[(5, 30)], <[i32]>::to_vec);
        assert_eq!(pieces.append(0, |piece| vec![piece[0] + 1]), Some(vec![(5, 31)]));
        assert_eq!(pieces.append(3, Vec::clone), Some(vec![(1, 10), (0, 20)]));
    }
}
