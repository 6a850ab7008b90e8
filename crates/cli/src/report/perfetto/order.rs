//! In which order begins and ends are told. Readers sort them by time, and keep those of one time as they were told: a clock's step may be longer
//! than a short call, so that a caller and what it calls at once begin together, or a call ends where it began.
//!
//! In: slices in the order in which they end. Out: their begins and ends, each track's slices one in the other: what ended before, and did not begin
//! before, lies inside. Does not: know of slices that were told before; one that began with the first of those, and ended later, is told too late.

use std::collections::HashMap;
use std::hash::Hash;

/// The begin or end of a slice, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Edge {
    Begin(usize),
    End(usize),
}

/// One track's edges, and its outermost slices so far: when each begins, and which edge that is.
#[derive(Default)]
struct Track {
    edges: Vec<Edge>,
    outermost: Vec<(u64, usize)>,
}

/// Begins and ends of slices, each the track that it lies on and when it begins.
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
    fn who_ends_later_begins_first_where_both_begin_together() {
        let told = |begins: &[u64]| nested(begins.iter().map(|&begin| ((), begin)));
        assert_eq!(told(&[5, 5]), [Begin(1), Begin(0), End(0), End(1)]);
        assert_eq!(told(&[5, 6]), [Begin(0), End(0), Begin(1), End(1)]);
        // The last holds the three before, of which the first two lie apart.
        let all = [Begin(0), End(0), Begin(4), Begin(1), End(1), Begin(3), Begin(2), End(2), End(3), End(4)];
        assert_eq!(told(&[1, 3, 7, 7, 3]), all);
    }
    #[test]
    fn tracks_do_not_hold_each_other() {
        let told = nested([(1, 5), (2, 5), (1, 4)].into_iter());
        assert_eq!(told, [Begin(2), Begin(0), End(0), End(2), Begin(1), End(1)]);
    }
}
