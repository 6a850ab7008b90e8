//! What a session holds in one process: its segments, and the handler that serves guard traps there.
//!
//! In: segments as they are made. Out: where a trapped thread goes on; the memory to read counts from, which
//! can be read after the process has ended.
//! Does not: touch the process.

use std::collections::HashSet;
use std::time::Duration;

use trapline_plan::{Patch, RseqTraits, ThreadId};
use trapline_record::RemoteAddr;
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{FileId, Handler, Process, TargetError};

use crate::install::map::SERVED;
use crate::memory::segment::{MadeTrampolines, Segment};
use crate::threads::library::LibraryThreads;

/// Time between two looks at the threads; births and ends of threads take less.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// The handler that the first segment holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Installed {
    pub(crate) entry: u64,
    pub(crate) restorer: u64,
    /// The actions that we set, in the order of `map::SERVED`.
    pub(crate) actions: [Option<Handler>; SERVED.len()],
}

impl Installed {
    /// The action of SIGTRAP that we set.
    pub(crate) const fn trap(&self) -> Option<Handler> {
        self.actions[0]
    }
    /// The action of SIGILL that we set.
    pub(crate) const fn illegal(&self) -> Option<Handler> {
        self.actions[1]
    }
    /// The actions of SIGSEGV and SIGBUS that we set.
    pub(crate) const fn faults(&self) -> [Option<Handler>; 2] {
        [self.actions[2], self.actions[3]]
    }
}

/// What earlier batches have placed in a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before<'a> {
    pub(crate) held: &'a [Patch],
    pub(crate) trampolines: Option<Trampolines>,
}

/// Patches in place in one process.
#[derive(Debug, Default)]
pub struct Attached {
    pub(crate) segments: Vec<Segment>,
    pub(crate) guards: Vec<(u64, u64)>,
    pub(crate) installed: Option<Installed>,
    /// The process serves its traps itself, so no handler of ours is installed.
    pub(crate) serves_itself: bool,
    /// Whether threads have rseq areas, and where; `None` until a stopped thread has shown it, once.
    pub(crate) rseq: Option<Option<RseqTraits>>,
    /// Which threads the C library made, if it made any.
    pub(crate) library_threads: Option<LibraryThreads>,
    /// How a thread's number is read; found out together with `rseq`.
    pub(crate) thread_id: ThreadId,
    /// Where threads' control blocks say where their stacks are; found out with `rseq`, if it is needed.
    pub(crate) stack_block: Option<i32>,
    pub(crate) clock_allowed: bool,
    /// Both actions for faults are ours, and the program had none; checked before each batch.
    pub(crate) only_our_faults: bool,
    /// Return trampolines of the process, once a segment brought them.
    pub(crate) trampolines: Option<Trampolines>,
    /// Return trampolines that our own process has outside its segments.
    pub(crate) own_trampolines: Option<MadeTrampolines>,
    /// The last publication did not complete.
    pub(crate) is_unfinished: bool,
    /// Published patches, by address. Some may be gone with their library.
    pub(crate) held: Vec<Patch>,
    /// Facts that patches rely on (`hold`).
    pub(crate) relied: u64,
    /// Facts that have changed, or are about to.
    pub(crate) changed: u64,
    /// Facts whose waiting threads were released.
    pub(crate) answered: u64,
    /// Number of bytes that may be charged to the process, by what its group had left; `None` if it has no
    /// limit.
    pub(crate) may_grow: Option<u64>,
    /// Addresses at which threads wait before they change a fact.
    pub(crate) holds: HashSet<u64>,
    /// Segments of the process from which this one was forked; only in our own process.
    pub(crate) inherited: Vec<FileId>,
}

impl Attached {
    /// Its segments, oldest first. Each batch that placed a patch has one.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// Whether the counts are final: no process maps the segments any more, neither this one nor one that was
    /// forked from it. From then on nothing can be written there. For a process that has ended, or runs
    /// another program.
    ///
    /// # Errors
    /// If the kernel refuses to answer.
    pub fn settle(&mut self) -> Result<bool, TargetError> {
        self.segments.iter_mut().try_fold(true, |all, segment| Ok(segment.map.settle()? && all))
    }
    /// Where a thread that trapped at `addr` goes on, if that is one of our guards.
    #[must_use]
    pub fn resume(&self, addr: u64) -> Option<u64> {
        resume(&self.guards, addr)
    }
    /// Number of bytes of its segments that were charged to the process, plus `besides`. `None` if that is no
    /// more than the share of what its control group had left, or if there is no limit.
    #[must_use]
    pub fn overgrown(&self, besides: impl FnOnce() -> u64) -> Option<u64> {
        let most = self.may_grow?;
        let grown: u64 = self.segments.iter().map(|one| one.resident().saturating_sub(one.paid)).sum();
        let grown = grown + besides();
        (grown > most).then_some(grown)
    }
    /// Whether counter lines belong to CPUs, since threads have rseq areas. Otherwise any CPU may have used
    /// any line.
    #[must_use]
    pub fn counts_by_cpu(&self) -> bool {
        self.rseq.flatten().is_some()
    }
    /// Threads that the C library did not make, if stubs treat all threads as the library's. Their hits may
    /// be lost, or may have harmed the process. Takes some milliseconds if there are any.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn strangers(&mut self, process: &Process) -> Result<Vec<u32>, TargetError> {
        let relied_on = self.counts_by_cpu() || matches!(self.thread_id, ThreadId::At(_));
        let Some(library) = self.library_threads.as_mut().filter(|_| relied_on) else {
            return Ok(Vec::new());
        };
        library.strangers(process, &mut || {
            std::thread::sleep(BETWEEN_LOOKS);
            Ok(())
        })
    }
    /// Whether counting by thread takes a system call at each hit.
    #[must_use]
    pub fn asks_for_thread(&self) -> bool {
        self.thread_id == ThreadId::Call
    }
    /// Number of bytes of address space that are taken in the process.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.segments.iter().map(Segment::mapped).sum()
    }
    /// What a plan has to respect.
    pub(crate) fn before(&self) -> Before<'_> {
        Before { held: &self.held, trampolines: self.trampolines }
    }
    /// The return trampolines of the process, if some calls use them.
    #[must_use]
    pub const fn trampolines(&self) -> Option<Trampolines> {
        self.trampolines
    }
    /// Notes patches that are published now, in place of those that were there before.
    pub(crate) fn hold(&mut self, patches: impl Iterator<Item = Patch>) {
        let mut fresh: Vec<Patch> = patches.collect();
        fresh.sort_unstable_by_key(|p| p.addr);
        // Inserted one by one, if they are few.
        if fresh.len() < 16 {
            for patch in fresh {
                let (start, end) = patch.needs();
                let from = self.held.partition_point(|old| old.needs().1 <= start);
                let to = from + self.held[from..].partition_point(|old| old.addr < end);
                self.held.splice(from..to, [patch]);
            }
            return;
        }
        self.held.retain(|old| conflict(&fresh, old).is_none());
        // The shorter list is inserted into the longer one.
        if fresh.len() > self.held.len() {
            std::mem::swap(&mut self.held, &mut fresh);
        }
        let (Some(first), Some(last)) = (fresh.first(), fresh.last()) else { return };
        let (first, last) = (first.addr, last.addr);
        // Mostly the patches of one module lie between those of others.
        let at = self.held.partition_point(|old| old.addr < first);
        if self.held.get(at).is_none_or(|next| last < next.addr) {
            self.held.splice(at..at, fresh);
            return;
        }
        self.held.append(&mut fresh);
        self.held.sort_unstable_by_key(|p| p.addr);
    }
    /// Whether the patch with this address and head is still the latest one there.
    pub(crate) fn is_held(&self, addr: RemoteAddr, head: RemoteAddr) -> bool {
        let at = self.held.partition_point(|patch| patch.addr < addr);
        self.held.get(at).is_some_and(|patch| patch.addr == addr && patch.head == head)
    }
    pub(crate) fn memfds(&self) -> Vec<FileId> {
        self.segments.iter().map(Segment::memfd).chain(self.inherited.iter().copied()).collect()
    }
    pub(crate) fn push(&mut self, segment: Segment) {
        self.trampolines = self.trampolines.or(segment.trampolines.map(|made| made.trampolines));
        self.guards.extend_from_slice(&segment.guards);
        self.guards.sort_by_key(|&guard| guard);
        self.segments.push(segment);
    }
}

/// The patch among `held` (sorted, disjoint) that needs bytes which `patch` needs too.
pub(crate) fn conflict<'a>(held: &'a [Patch], patch: &Patch) -> Option<&'a Patch> {
    let (start, end) = patch.needs();
    let before = held.partition_point(|h| h.addr < end);
    held[..before].last().filter(|last| last.needs().1 > start)
}

/// Looks an address up in a sorted guard table.
pub(crate) fn resume(guards: &[(u64, u64)], addr: u64) -> Option<u64> {
    let found = guards.binary_search_by_key(&addr, |g| g.0).ok()?;
    Some(guards[found].1)
}

#[cfg(test)]
mod tests {
    use super::{Attached, conflict};
    use trapline_plan::{Patch, PatchRole, Tactic};
    use trapline_record::RemoteAddr;

    fn patch(addr: u64, len: u8, relies: u8) -> Patch {
        Patch {
            probe: 0,
            request: 0,
            role: PatchRole::Entry,
            tactic: Tactic::Pun,
            addr: RemoteAddr(addr),
            len,
            relies,
            old: [0; 8],
            new: [0; 8],
            head: RemoteAddr(0),
            crosses_line: false,
            starts: 0,
            faults: false,
        }
    }

    #[test]
    fn who_was_displaced_is_not_held() {
        let mut attached = Attached::default();
        attached.hold([patch(0x100, 2, 5), patch(0x200, 5, 5)].into_iter());
        let holds = |attached: &Attached, at: u64| {
            let head = patch(at, 5, 5).head;
            attached.is_held(RemoteAddr(at), head)
        };
        assert!(holds(&attached, 0x100) && holds(&attached, 0x200) && !holds(&attached, 0x104));
        attached.hold([patch(0x104, 5, 5)].into_iter());
        assert!(
            !holds(&attached, 0x100) && holds(&attached, 0x104),
            "it ended in bytes that are another's now"
        );
        assert!(!attached.is_held(RemoteAddr(0x200), RemoteAddr(1)), "another stub");
    }
    /// Few, or many, among fewer or more, before, between or behind them; some in the place of others.
    #[test]
    fn as_many_as_came_are_held_in_order() {
        let batches: [&[u64]; 6] = [&[7, 900], &[100, 101, 102], &[50], &[99, 5000, 6000], &[103, 104], &[]];
        for first in batches {
            for (from, step) in [(8, 2), (100, 1), (901, 3), (1, 450)] {
                let second: Vec<u64> = (0..20).map(|n| from + n * step).collect();
                for (one, other) in [(first, second.as_slice()), (&second, first)] {
                    let mut attached = Attached::default();
                    attached.hold(one.iter().map(|n| patch(n * 8, 5, 5)));
                    // The later ones reach into what lies before them.
                    attached.hold(other.iter().map(|n| patch(n * 8 - 4, 8, 8)));
                    let gone = |n: &u64| other.iter().any(|m| m * 8 - 4 < n * 8 + 5 && n * 8 < m * 8 + 4);
                    let mut wanted: Vec<u64> = one.iter().filter(|n| !gone(n)).map(|n| n * 8).collect();
                    wanted.extend(other.iter().map(|n| n * 8 - 4));
                    wanted.sort_unstable();
                    let held: Vec<u64> = attached.held.iter().map(|patch| patch.addr.0).collect();
                    assert_eq!(held, wanted);
                }
            }
        }
    }
    #[test]
    fn what_a_pun_ends_in_is_held() {
        let mut attached = Attached::default();
        attached.hold([patch(0x100, 2, 5), patch(0x200, 5, 5)].into_iter());
        let meets = |at: u64| conflict(&attached.held, &patch(at, 5, 5)).map(|p| p.addr.0);
        assert_eq!(meets(0x104), Some(0x100), "the pun's tail");
        assert_eq!(meets(0x105), None);
        assert_eq!(meets(0xfc), Some(0x100));
        assert_eq!(meets(0x1fb), None);
        assert_eq!(meets(0x204), Some(0x200));
    }

    #[test]
    fn a_new_patch_takes_the_place_of_one_that_went_with_its_library() {
        let mut attached = Attached::default();
        attached.hold([patch(0x100, 5, 5), patch(0x200, 5, 5)].into_iter());
        attached.hold([patch(0x103, 5, 5)].into_iter());
        let addrs: Vec<u64> = attached.held.iter().map(|p| p.addr.0).collect();
        assert_eq!(addrs, [0x103, 0x200]);
    }
}
