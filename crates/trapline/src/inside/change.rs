//! A change of patches that is being prepared: the sites that it is about, and what is to be written.
//!
//! In: the sites that were requested; neighbours with patches that are in their way. Out: each of them once.
//! Does not: patch (`probes`).

use std::collections::HashSet;

use super::site_request::SiteRequest;

/// A change of patches that is being prepared.
#[derive(Debug)]
pub(super) struct Change {
    /// Sites to be settled: those requested, sorted, and behind them neighbours.
    queue: Vec<u32>,
    /// Number of those requested.
    asked: usize,
    /// Index of the next one to be looked at.
    next: usize,
    /// The neighbours.
    seen: HashSet<u32>,
    pub(super) site_requests: Vec<SiteRequest>,
    /// Number of sites that are in place already.
    pub(super) found: usize,
}

impl Change {
    pub(super) fn new(mut queue: Vec<u32>, found: usize) -> Self {
        queue.sort_unstable();
        let (asked, site_requests) = (queue.len(), Vec::with_capacity(queue.len()));
        Self { queue, asked, next: 0, seen: HashSet::new(), site_requests, found }
    }
    /// Next site that is to be looked at.
    pub(super) fn next(&mut self) -> Option<u32> {
        let next = self.queue.get(self.next).copied();
        self.next += usize::from(next.is_some());
        next
    }
    /// Neighbours that are to be settled too.
    pub(super) fn also(&mut self, others: Vec<u32>) {
        let Self { queue, asked, seen, .. } = self;
        let is_asked = |other: &u32| queue[..*asked].binary_search(other).is_ok();
        let new: Vec<u32> = others.into_iter().filter(|other| !is_asked(other)).collect();
        queue.extend(new.into_iter().filter(|&other| seen.insert(other)));
    }
    /// All sites that it is about.
    pub(super) fn queue(&self) -> &[u32] {
        &self.queue
    }
}
