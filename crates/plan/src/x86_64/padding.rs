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
    /// Where islands may lie; everywhere if `None`.
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
    /// Keeps islands to a range, because another planner plans what is outside.
    pub(crate) fn keep_within(&mut self, low: Svma, high: Svma) {
        self.within = Some((low, high));
    }
    fn may_host(&self, start: Svma, end: Svma) -> bool {
        self.within.is_none_or(|(low, high)| low <= start && end <= high) && self.is_free(start, end)
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
    let found = env.map.holes(env.image, site, 160).find_map(|(start, len)| {
        let last = (start.0 + len).checked_sub(JUMP)?;
        (start.0..=last)
            .filter_map(fits)
            .find(|&at| claims.may_host(at, at + JUMP) && env.is_unpatched(at, at + JUMP))
    })?;
    claims.claim(found, found + JUMP);
    Some(found)
}
