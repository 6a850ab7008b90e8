//! The order in which begins and ends are written. Readers sort them by time, and keep the written order
//! where times are equal. A clock's step may be longer than a short call. So a caller and its first callee
//! may begin together, or a call may end at the time at which it began.
//!
//! In: slices in the order in which they end. Out: their begins and ends, with the slices of each track
//! nested: a slice that ended earlier, and did not begin earlier, lies inside. Does not: know slices of
//! earlier batches. If a slice began with the first of those and ended later, its begin is written too late.

use std::collections::HashMap;
use std::hash::Hash;

/// The begin or end of a slice, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Edge {
    Begin(usize),
    End(usize),
}

/// One track's edges, and its outermost slices so far: the begin of each, and the index of its begin among
/// the edges.
#[derive(Default)]
struct Track {
    edges: Vec<Edge>,
    outermost: Vec<(u64, usize)>,
}

/// The begins and ends of slices. Each slice is given as its track and its begin.
pub(super) fn nested<T: Hash + Eq>(slices: impl Iterator<Item = (T, u64)>) -> Vec<Edge> {
    let mut numbers: HashMap<T, usize> = HashMap::new();
    let mut tracks: Vec<Track> = Vec::new();
    for (slice, (track, begin)) in slices.enumerate() {
        let number = *numbers.entry(track).or_insert(tracks.len());
        tracks.resize_with(tracks.len().max(number + 1), Track::default);
        let Track { edges, outermost } = &mut tracks[number];
        let apart = outermost.iter().rposition(|&(other, _)| other < begin).map_or(0, |last| last + 1);
        let at = outermost.get(apart).map_or(edges.len(), |&(_, at)| at);
        outermost.truncate(apart);
        outermost.push((begin, at));
        edges.insert(at, Edge::Begin(slice));
        edges.push(Edge::End(slice));
    }
    tracks.into_iter().flat_map(|track| track.edges).collect()
}

#[cfg(test)]
mod tests {
    use super::Edge::{Begin, End};
    use super::nested;

    #[test]
    fn the_slice_that_ends_later_begins_first_where_both_begin_together() {
        let order = |begins: &[u64]| nested(begins.iter().map(|&begin| ((), begin)));
        assert_eq!(order(&[5, 5]), [Begin(1), Begin(0), End(0), End(1)]);
        assert_eq!(order(&[5, 6]), [Begin(0), End(0), Begin(1), End(1)]);
        // The last slice encloses the three before it, of which the first two are disjoint.
        let all = [Begin(0), End(0), Begin(4), Begin(1), End(1), Begin(3), Begin(2), End(2), End(3), End(4)];
        assert_eq!(order(&[1, 3, 7, 7, 3]), all);
    }
    #[test]
    fn tracks_do_not_hold_each_other() {
        let order = nested([(1, 5), (2, 5), (1, 4)].into_iter());
        assert_eq!(order, [Begin(2), Begin(0), End(0), End(2), Begin(1), End(1)]);
    }
}
