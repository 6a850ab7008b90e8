//! Taking turns: more watchpoints than debug registers.
//!
//! In: the number of points and lanes, the length of a slice, the time. Out: which lane moves to which point,
//! and how long each point was covered. Each lane is one debug register; lane `l` serves the points `l, l +
//! lanes, l + 2·lanes, …` in turn. Does not: move anything.

use std::time::Duration;

/// The points that are covered now, and how long each was covered.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    lanes: usize,
    slice_ns: u64,
    /// The point of each lane.
    now: Vec<usize>,
    since_ns: u64,
    covered_ns: Vec<u64>,
}

impl Rotation {
    pub(crate) fn new(points: usize, lanes: usize, slice: Duration) -> Self {
        Self {
            lanes,
            slice_ns: slice.as_nanos() as u64,
            now: (0..lanes.min(points)).collect(),
            since_ns: 0,
            covered_ns: vec![0; points],
        }
    }
    /// Begins the first slice.
    pub(crate) const fn begin(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
    }
    /// The points that are covered now, by lane.
    pub(crate) fn now(&self) -> &[usize] {
        &self.now
    }
    /// The lanes to move, with the points to which they move, if the slice is over; otherwise nothing.
    pub(crate) fn turn(&mut self, now_ns: u64) -> Vec<(usize, usize)> {
        if now_ns.saturating_sub(self.since_ns) < self.slice_ns {
            return Vec::new();
        }
        self.account(now_ns);
        let points = self.covered_ns.len();
        let mut moves = Vec::new();
        for (lane, point) in self.now.iter_mut().enumerate() {
            let next = if *point + self.lanes < points { *point + self.lanes } else { lane };
            if next != *point {
                *point = next;
                moves.push((lane, next));
            }
        }
        moves
    }
    /// Notes that a lane could not be moved, and still covers `point`.
    pub(crate) fn stay(&mut self, lane: usize, point: usize) {
        self.now[lane] = point;
    }
    /// Adds the time up to now to the points that are covered.
    pub(crate) fn account(&mut self, now_ns: u64) {
        let spent = now_ns.saturating_sub(self.since_ns);
        self.now.iter().for_each(|&point| self.covered_ns[point] += spent);
        self.since_ns = now_ns;
    }
    /// Nanoseconds for which each point was covered.
    pub(crate) fn covered_ns(&self) -> &[u64] {
        &self.covered_ns
    }
}

#[cfg(test)]
mod tests {
    use super::Rotation;
    use std::time::Duration;

    #[test]
    fn every_point_has_its_turn_and_all_time_is_accounted() {
        let mut rotation = Rotation::new(5, 2, Duration::from_nanos(10));
        assert_eq!(rotation.now(), [0, 1]);
        assert_eq!(rotation.turn(9), []);
        assert_eq!(rotation.turn(10), [(0, 2), (1, 3)]);
        assert_eq!(rotation.turn(25), [(0, 4), (1, 1)]);
        assert_eq!(rotation.turn(35), [(0, 0), (1, 3)]);
        rotation.account(40);
        // Lane 0 covered 0, 2, 4 and 0; lane 1 covered 1, 3, 1 and 3.
        assert_eq!(rotation.covered_ns(), [15, 20, 15, 20, 10]);
        assert_eq!(rotation.covered_ns().iter().sum::<u64>(), 2 * 40);
    }

    #[test]
    fn a_lane_that_stays_goes_on_from_there() {
        let mut rotation = Rotation::new(4, 2, Duration::from_nanos(10));
        assert_eq!(rotation.turn(10), [(0, 2), (1, 3)]);
        rotation.stay(0, 0);
        assert_eq!(rotation.turn(20), [(0, 2), (1, 1)]);
        assert_eq!(rotation.covered_ns(), [20, 10, 0, 10]);
    }

    #[test]
    fn one_point_in_a_lane_stays() {
        let mut rotation = Rotation::new(2, 2, Duration::from_nanos(10));
        assert_eq!(rotation.turn(10), []);
        assert_eq!(rotation.covered_ns(), [10, 10]);
    }
}
