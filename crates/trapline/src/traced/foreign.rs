//! Patches that other tools change while they count: found a few times a second, repaired, and reported.
//!
//! In: what `patch` sees of its patches. Out: how many were changed, and for how long at most; a notice at
//! the first change. Invariant: FGN-1 a change that is still there at a look is reported, with a time that is
//! not shorter than the real one. A change that came and went between two looks leaves a trace if a kernel
//! uprobe made it, since that leaves a byte of the file. A breakpoint that a debugger removed is not seen,
//! and lost no hit: the debugger steps over the patch. Does not: look into forked children, or count hits
//! that were lost.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use trapline_patch::{Attached, Changed};
use trapline_record::RemoteAddr;
use trapline_tracee::Process;

use crate::summary::Overwritten;

/// Looks take at most this part of the time: one hundredth.
const SHARE: u32 = 100;

/// What is known of changes by other tools.
#[derive(Debug)]
pub(super) struct Foreign {
    /// Time of the last look at the patches.
    looked: Instant,
    /// Earliest time of the next look.
    again: Instant,
    /// Sites that are changed now, with the earliest time from which they may have been.
    since: HashMap<RemoteAddr, Instant>,
    /// Sites that held the file's bytes at the last look.
    file: HashSet<RemoteAddr>,
    /// All sites that were ever changed.
    ever: HashSet<RemoteAddr>,
    longest: Duration,
}

impl Foreign {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            looked: now,
            again: now,
            since: HashMap::new(),
            file: HashSet::new(),
            ever: HashSet::new(),
            longest: Duration::ZERO,
        }
    }
    /// Takes the result of a look at `now`. Returns whether something was changed for the first time.
    fn take(&mut self, changed: &[Changed], now: Instant) -> bool {
        let news = self.ever.is_empty();
        // A library that was mapped anew holds the file's bytes until it is patched again.
        let file: HashSet<RemoteAddr> = changed.iter().filter(|c| c.is_file).map(|c| c.addr).collect();
        let ours = changed.iter().filter(|c| !c.is_file || self.file.contains(&c.addr));
        let mut since = HashMap::new();
        for one in ours {
            let from = self.since.get(&one.addr).copied().unwrap_or(self.looked);
            self.ever.insert(one.addr);
            self.longest = self.longest.max(now - from);
            if !one.repaired {
                since.insert(one.addr, from);
            }
        }
        // A patch that is whole again became so at some moment after the last look.
        for (addr, from) in &self.since {
            if !changed.iter().any(|one| one.addr == *addr) {
                self.longest = self.longest.max(now - *from);
            }
        }
        (self.since, self.file, self.looked) = (since, file, now);
        news && !self.ever.is_empty()
    }
    /// Looks whether other tools changed the patches, if it is time to, and repairs what a kernel uprobe
    /// left. Returns a notice at the first change.
    pub(super) fn look(&mut self, process: &Process, attached: &Attached) -> Option<String> {
        if self.again <= Instant::now() { self.inspect(process, attached, true) } else { None }
    }
    /// The last look, before the patches are taken out.
    pub(super) fn look_once_more(&mut self, process: &Process, attached: &Attached) -> Option<String> {
        self.inspect(process, attached, false)
    }
    fn inspect(&mut self, process: &Process, attached: &Attached, repair: bool) -> Option<String> {
        if attached.segments().is_empty() {
            return None;
        }
        let start = Instant::now();
        let changed = attached.inspect(process, repair);
        let news = self.take(&changed, start);
        self.again = Instant::now() + start.elapsed() * SHARE;
        news.then(|| {
            format!(
                "another tool (a kernel uprobe or a debugger) changed code of process {} that is probed, at {:#x} for one; hits there \
                 may be missed while it is at work",
                process.pid(),
                changed.first().map_or(0, |one| one.addr.0)
            )
        })
    }
    /// Sites that were changed so far.
    pub(super) fn overwritten(&self) -> Overwritten {
        Overwritten { sites: self.ever.len() as u64, longest: self.longest }
    }
}

#[cfg(test)]
mod tests {
    use super::Foreign;
    use std::time::{Duration, Instant};
    use trapline_patch::Changed;
    use trapline_record::RemoteAddr;

    const STEP: Duration = Duration::from_millis(50);

    fn changed(addr: u64) -> Changed {
        Changed { addr: RemoteAddr(addr), repaired: false, is_file: false }
    }

    #[test]
    fn a_change_is_reported_from_the_last_look_without_it_to_the_first_without_it_again() {
        let began = Instant::now();
        let mut foreign = Foreign::new(began);
        assert!(!foreign.take(&[], began + STEP));
        assert!(foreign.take(&[changed(1)], began + 2 * STEP), "the first");
        assert!(!foreign.take(&[changed(1), changed(2)], began + 3 * STEP));
        assert!(!foreign.take(&[changed(2)], began + 4 * STEP));
        assert!(!foreign.take(&[], began + 9 * STEP));
        assert_eq!((foreign.overwritten().sites, foreign.overwritten().longest), (2, 7 * STEP));
    }

    #[test]
    fn what_is_repaired_is_changed_no_more() {
        let began = Instant::now();
        let mut foreign = Foreign::new(began);
        assert!(foreign.take(&[Changed { repaired: true, ..changed(1) }], began + STEP));
        assert!(!foreign.take(&[], began + 9 * STEP));
        assert_eq!((foreign.overwritten().sites, foreign.overwritten().longest), (1, STEP));
    }

    #[test]
    fn text_that_is_mapped_anew_is_nobodys_change() {
        let began = Instant::now();
        let mut foreign = Foreign::new(began);
        let file = Changed { is_file: true, ..changed(1) };
        assert!(!foreign.take(&[file], began + STEP));
        assert!(!foreign.take(&[], began + 2 * STEP));
        assert_eq!(foreign.overwritten().sites, 0);
        assert!(!foreign.take(&[file], began + 3 * STEP));
        assert!(foreign.take(&[file], began + 4 * STEP), "it stays so");
    }
}
