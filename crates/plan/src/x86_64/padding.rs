//! Padding that is claimed already, and islands in the rest: five bytes that nothing runs into, within reach
//! of a short jump.
//!
//! An island is used by one site, and never lies in a function's body (PLAN-3), nor where an earlier patch is.

use super::env::Env;
use super::jump::{JUMP, TRAPPING};
use std::collections::BTreeMap;
use trapline_record::Svma;

/// Length of `jmp rel8`.
pub(crate) const SHORT: u64 = 2;

/// Ranges of padding that windows and islands take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    taken: BTreeMap<Svma, Svma>,
    order: Vec<Svma>,
    /// Where islands may lie that are not right behind their site's own code; everywhere if `None`.
    within: Option<(Svma, Svma)>,
}

impl Claims {
    pub(crate) fn is_free(&self, start: Svma, end: Svma) -> bool {
        self.taken.range(..end).next_back().is_none_or(|(_, &last)| last <= start)
    }
    pub(crate) fn claim(&mut self, start: Svma, end: Svma) {
        if start < end {
            self.taken.insert(start, end);
            self.order.push(start);
        }
    }
    /// Keeps islands to a range, because another planner plans the functions outside. The padding right behind a
    /// function's own parts is used outside too.
    pub(crate) fn keep_within(&mut self, low: Svma, high: Svma) {
        self.within = Some((low, high));
    }
    fn may_host(&self, start: Svma, end: Svma) -> bool {
        self.within.is_none_or(|(low, high)| low <= start && end <= high)
    }
    /// Whether another planner claims other bytes.
    pub(crate) fn is_apart_from(&self, other: &Self) -> bool {
        other.taken.iter().all(|(&start, &end)| self.is_free(start, end))
    }
    /// A point to return to.
    pub(crate) fn mark(&self) -> usize {
        self.order.len()
    }
    pub(crate) fn rollback(&mut self, mark: usize) {
        for start in self.order.drain(mark..) {
            self.taken.remove(&start);
        }
    }
}

/// Finds and claims an island for a short jump at `site`. With `traps`, an instruction may start at the
/// jump's second byte, so that byte must trap.
pub(crate) fn island(env: &Env<'_>, claims: &mut Claims, site: Svma, traps: bool) -> Option<Svma> {
    let from = site + SHORT;
    let fits = |at: u64| {
        let rel = i8::try_from(at.wrapping_sub(from.0).cast_signed()).ok()?;
        (!traps || TRAPPING.contains(&rel.cast_unsigned())).then_some(Svma(at))
    };
    let behind = env.map.part_at(site).ok().map(|part| part.end);
    let found = env.map.holes(env.image, site, 160).find_map(|(start, len)| {
        let last = (start.0 + len).checked_sub(JUMP)?;
        let may_host = |at: Svma| behind == Some(start) || claims.may_host(at, at + JUMP);
        let is_free = |at: Svma| claims.is_free(at, at + JUMP) && env.is_unpatched(at, at + JUMP);
        (start.0..=last).filter_map(fits).find(|&at| may_host(at) && is_free(at))
    })?;
    claims.claim(found, found + JUMP);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::Claims;
    use trapline_record::Svma;

    #[test]
    fn two_planners_may_claim_neighbours_but_no_byte_twice() {
        let claimed = |spans: &[(u64, u64)]| {
            let mut claims = Claims::default();
            spans.iter().for_each(|&(start, end)| claims.claim(Svma(start), Svma(end)));
            claims
        };
        let first = claimed(&[(0x10, 0x15), (0x30, 0x35)]);
        assert!(first.is_apart_from(&claimed(&[(0x15, 0x1a), (0x2b, 0x30)])));
        for shared in [(0x14, 0x19), (0x0c, 0x11), (0x11, 0x12), (0x2f, 0x40)] {
            assert!(!first.is_apart_from(&claimed(&[(0x20, 0x25), shared])), "{shared:x?}");
        }
    }
}
