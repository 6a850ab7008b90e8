//! Which of a thread's tracks a slice goes to, so that the slices of each lie apart or one in the other.
//!
//! A viewer ends the innermost open slice, whatever its name, so slices that overlap must not share a track. Calls of one stack
//! never do; those of coroutines that take turns on a thread may, and so may those of threads that cannot be told apart.
//!
//! In: slices in about the order in which they end. Out: lanes, 0 the usual one. Of each lane the outermost slices are kept, as far as
//! [`KEPT`] reaches: one that began before them all is taken to hold them.

/// Outermost slices remembered in each lane.
const KEPT: usize = 4096;

/// Begin and end, nanoseconds.
type Slice = (u64, u64);

/// The lanes of one thread.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<Vec<Slice>>);

impl Lanes {
    /// The first lane that the slice fits into.
    pub(super) fn place(&mut self, begin: u64, end: u64) -> usize {
        for (n, lane) in self.0.iter_mut().enumerate() {
            if put(lane, (begin, end)) {
                return n;
            }
        }
        self.0.push(vec![(begin, end)]);
        self.0.len() - 1
    }
    /// Whether nothing ends behind this moment in that lane.
    pub(super) fn is_over(&self, lane: usize, at: u64) -> bool {
        self.0.get(lane).and_then(|lane| lane.last()).is_none_or(|&(_, end)| end <= at)
    }
}

/// Puts a slice among the outermost ones of a lane, which lie apart and in order, if it fits.
fn put(lane: &mut Vec<Slice>, (begin, end): Slice) -> bool {
    let from = lane.partition_point(|&(_, other)| other <= begin);
    let to = from.max(lane.partition_point(|&(other, _)| other < end));
    let touched = &lane[from..to];
    let inside = |&(other_begin, other_end): &Slice| begin <= other_begin && other_end <= end;
    match touched {
        &[(other_begin, other_end)] if other_begin <= begin && end <= other_end => return true,
        touched if touched.iter().all(inside) => drop(lane.splice(from..to, [(begin, end)])),
        _ => return false,
    }
    if lane.len() > KEPT {
        lane.drain(..KEPT / 2);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Lanes};

    #[test]
    fn what_nests_shares_a_lane_and_what_overlaps_does_not() {
        let mut lanes = Lanes::default();
        let placed: Vec<usize> = [
            (10, 20),
            (30, 40),
            (5, 50), // around both
            (50, 60),
            (55, 70), // across the end of the one before
            (4, 80),  // around all
            (60, 80),
            (90, 90),
            (85, 95),
        ]
        .map(|(begin, end)| lanes.place(begin, end))
        .to_vec();
        assert_eq!(placed, [0, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert!(lanes.is_over(0, 95) && !lanes.is_over(0, 94) && lanes.is_over(1, 70) && lanes.is_over(7, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut lanes = Lanes::default();
        for n in 0..100_000 {
            assert_eq!(lanes.place(10 * n, 10 * n + 5), 0);
        }
        assert!(lanes.0[0].len() <= KEPT);
        assert_eq!((lanes.place(1, 2_000_000), lanes.0[0].len()), (0, 1));
    }
}
