//! Chooses a track of a thread for each slice, so that the slices of one track are disjoint or nested.
//!
//! A viewer ends the innermost open slice, whatever its name, so slices that overlap must not share a track.
//! Calls of one stack never overlap. Those of coroutines that take turns on a thread may, and so may those of
//! threads that cannot be distinguished.
//!
//! In: slices, roughly in the order in which they end. Out: lanes, where 0 is the usual one. For each lane
//! the last outermost slices are remembered, at most [`KEPT`]. A slice that began before all of these is
//! taken to enclose them.

/// Limit for the outermost slices remembered in each lane.
const KEPT: usize = 4096;

/// Begin and end, nanoseconds.
type Slice = (u64, u64);

/// The lanes of one thread.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<Vec<Slice>>);

impl Lanes {
    /// The first lane in which the slice fits.
    pub(super) fn place(&mut self, begin: u64, end: u64) -> usize {
        for (n, lane) in self.0.iter_mut().enumerate() {
            if put(lane, (begin, end)) {
                return n;
            }
        }
        self.0.push(vec![(begin, end)]);
        self.0.len() - 1
    }
    /// Whether no slice of that lane ends after this moment.
    pub(super) fn is_over(&self, lane: usize, at: u64) -> bool {
        self.0.get(lane).and_then(|lane| lane.last()).is_none_or(|&(_, end)| end <= at)
    }
}

/// Inserts a slice among the outermost ones of a lane, which are disjoint and in order. Returns false if it
/// does not fit.
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
