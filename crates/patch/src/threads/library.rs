//! Which threads of a process the C library made, and which it did not.
//!
//! In: the control block of one thread, read while it was stopped; the memory of the process. Out: threads
//! that have no control block of the C library, "strangers". Generated code reads three things at a distance
//! from the thread pointer: the rseq area, the thread's number, the bounds of its stack. What one thread
//! shows there, others have only if the same library made them. A thread of `clone` without CLONE_SETTLS
//! shares another's block, so two threads announce sequences in one area and the kernel restarts only one of
//! them: hits are lost. A thread has no area there at all if its runtime sets the thread pointer itself, and
//! a store hits other memory. Does not: stop a thread.
//!
//! # How they are distinguished
//!
//! All control blocks of a library are linked in rings of both directions. glibc has three, with their heads
//! side by side: one ring for stacks that it allocated, one for others (the main thread's), one for stacks to
//! be used again. musl has one ring. A thread is the library's if a block in such a ring holds its number.
//! The rings are read while threads run:
//!
//! - *A thread is born*: the library links the block before it calls `clone`, and the kernel writes the
//!   number before the thread runs.
//! - *A thread ends*: it moves its block to the ring of free stacks, where the number stays until the kernel
//!   clears it, at its end.
//! - *A link is changed while we read*: the ring does not close, or a back link does not fit. That look gives
//!   no result, and the caller looks again.
//! - *A number is given to a new thread between our list of threads and our reading of a ring*: the block is
//!   the new thread's, which is the library's too. Or the ring has no such number, and the next look decides.
//!
//! So a stranger is a thread that appears as one at several looks in a row. A thread that is the library's
//! and moves its thread pointer later is not seen.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;
use trapline_tracee::{Process, TargetError};

use crate::native::{number, threads};

/// More blocks than any process has.
const MOST: usize = 1 << 20;
/// Distances between the heads of glibc's rings, which are neighbours.
const HEADS: [i64; 4] = [16, -16, 32, -32];
/// How long a thread may look like a stranger because it is being born, or ends.
const TRANSIENT: Duration = Duration::from_millis(20);
const LOOKS: u32 = 4;

/// Where a library's blocks are linked.
#[derive(Clone, Debug)]
pub(crate) struct LibraryThreads {
    /// Offsets of the links, from the word of a thread's number: to the next block and to the previous one.
    links: (i64, i64),
    /// Addresses to begin from. For each ring: where its head, taken as a block, would have its number, since
    /// heads stay. Until heads are known: the word of one thread's number.
    begins: Vec<u64>,
}

impl LibraryThreads {
    /// `thread` is a thread pointer; the number of its thread is stored `kept` bytes from there.
    pub(crate) fn of(process: &Process, thread: u64, kept: i32) -> Option<Self> {
        let at = thread.checked_add_signed(kept.into())?;
        let word = |at| process.read_u64(RemoteAddr(at)).ok();
        let closes = |links: &(i64, i64)| ring(at, *links, &word).is_some();
        let links = number::links(kept).into_iter().find(closes)?;
        Some(Self { links, begins: vec![at] })
    }
    /// The threads that the library did not make, as seen at several looks in a row. `meanwhile` is called
    /// between two looks.
    ///
    /// # Errors
    /// If the process is gone, or if `meanwhile` fails.
    pub(crate) fn strangers<E: From<TargetError>>(
        &mut self,
        process: &Process,
        meanwhile: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<Vec<u32>, E> {
        let start = Instant::now();
        let mut looks = 0;
        loop {
            let found = self.look(process)?;
            looks += 1;
            match found {
                Some(strangers) if strangers.is_empty() => return Ok(strangers),
                // Its memory is gone: the process ends, and its threads run nothing.
                None if self.begins.first().is_some_and(|&at| process.read_u64(RemoteAddr(at)).is_err()) => {
                    return Ok(Vec::new());
                }
                found if looks >= LOOKS && start.elapsed() >= TRANSIENT => {
                    // Rings that never close prove nothing about any thread.
                    return Ok(found.map_or_else(|| process.threads(), Ok)?);
                }
                _ => meanwhile()?,
            }
        }
    }
    /// One look; `None` if a ring was being changed.
    fn look(&mut self, process: &Process) -> Result<Option<Vec<u32>>, TargetError> {
        // The list of threads comes before the rings: a block is linked before its thread is born.
        let alive = process.threads()?;
        let Some(kept) = self.numbers(&|at| process.read_u64(RemoteAddr(at)).ok()) else { return Ok(None) };
        let is_stranger = |tid: &u32| !kept.contains(tid) && is_stranger(process, *tid, &kept);
        Ok(Some(alive.into_iter().filter(is_stranger).collect()))
    }
    /// All thread numbers in the rings.
    fn numbers(&mut self, word: &impl Fn(u64) -> Option<u64>) -> Option<HashSet<u32>> {
        let mut seen: HashSet<u64> = HashSet::new();
        let mut numbers = HashSet::new();
        let mut heads = Vec::new();
        for (n, &begin) in self.begins.iter().enumerate() {
            // The first ring must exist. The others are looked for beside it.
            match ring(begin, self.links, word) {
                Some(ring) => take(ring, &mut seen, &mut numbers, word),
                None if n == 0 => return None,
                None => {}
            }
        }
        if self.begins.len() == 1 {
            let first: Vec<u64> = seen.iter().copied().collect();
            for (at, distance) in first.iter().flat_map(|&at| HEADS.map(|distance| (at, distance))) {
                let Some(beside) = at.checked_add_signed(distance).filter(|at| !seen.contains(at)) else {
                    continue;
                };
                if let Some(ring) = ring(beside, self.links, word) {
                    heads.extend([at, beside]);
                    take(ring, &mut seen, &mut numbers, word);
                }
            }
        }
        if !heads.is_empty() {
            heads.sort_unstable();
            heads.dedup();
            self.begins = heads;
        }
        Some(numbers)
    }
}

/// Whether a thread with a number that is in no ring still runs the program's code.
fn is_stranger(process: &Process, tid: u32, kept: &HashSet<u32>) -> bool {
    let Ok(status) = process.thread_status(tid) else { return false };
    let inner = status.ns_pids.last().is_some_and(|inner| kept.contains(inner));
    let runs = !matches!(status.state, 'Z' | 'X') && !threads::runs_nothing(process, &status);
    !inner && runs
}

fn take(
    ring: Vec<u64>,
    seen: &mut HashSet<u64>,
    numbers: &mut HashSet<u32>,
    word: &impl Fn(u64) -> Option<u64>,
) {
    numbers.extend(ring.iter().filter_map(|&at| word(at)).map(|word| word as u32));
    seen.extend(ring);
}

/// The words of a ring, from one on; `None` if it does not close, or if some link does not lead back.
fn ring(from: u64, (next, before): (i64, i64), word: &impl Fn(u64) -> Option<u64>) -> Option<Vec<u64>> {
    // Links point to the other block's links (glibc), or to the block (musl): the distance from the number is
    // the same in each.
    let link = |at: u64, which: i64| word(at.checked_add_signed(which)?);
    let base = base_of(from, (next, before), word)?;
    let mut all = vec![from];
    let mut at = from;
    while all.len() < MOST {
        let to = link(at, next)?.checked_add_signed(base)?;
        if link(to, before)?.checked_add_signed(base)? != at {
            return None;
        }
        if to == from {
            return Some(all);
        }
        all.push(to);
        at = to;
    }
    None
}

/// Distance from where links point to, to the word of the number, found by the next block's link back.
fn base_of(from: u64, (next, before): (i64, i64), word: &impl Fn(u64) -> Option<u64>) -> Option<i64> {
    // glibc's links point to the first of the two links; musl's point to the block, which begins with a
    // pointer to itself.
    let candidates = [-next.min(before), -(next.min(before) - 8), -(next.min(before) - 16)];
    candidates.into_iter().find(|&base| {
        let to = word(from.wrapping_add_signed(next)).and_then(|to| to.checked_add_signed(base));
        let back =
            to.and_then(|to| word(to.checked_add_signed(before)?)).and_then(|at| at.checked_add_signed(base));
        back == Some(from)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::LibraryThreads;

    /// Memory of a few words.
    fn numbers(begin: u64, links: (i64, i64), words: &[(u64, u64)]) -> Option<HashSet<u32>> {
        let memory: HashMap<u64, u64> = words.iter().copied().collect();
        LibraryThreads { links, begins: vec![begin] }.numbers(&|at| memory.get(&at).copied())
    }
    /// Rings of (address of the links, number behind them).
    fn glibc(rings: &[&[(u64, u64)]]) -> Vec<(u64, u64)> {
        let mut words = Vec::new();
        for ring in rings {
            for (n, &(at, number)) in ring.iter().enumerate() {
                let (next, before) =
                    (ring[(n + 1) % ring.len()].0, ring[(n + ring.len() - 1) % ring.len()].0);
                words.extend([(at, next), (at + 8, before)]);
                words.extend((number != 0).then_some((at + 16, number)));
            }
        }
        words
    }
    const GLIBC: (i64, i64) = (-16, -8);

    #[test]
    fn threads_in_both_rings_are_the_librarys() {
        // Heads at 0x100 (used) and 0x110 (the main thread's) and 0x120 (free stacks).
        let words = glibc(&[
            &[(0x100, 0), (0x5000, 12), (0x6000, 13)],
            &[(0x110, 0), (0x7000, 11)],
            &[(0x120, 0), (0x8000, 14)],
        ]);
        for begin in [0x5010, 0x6010, 0x7010] {
            let all = numbers(begin, GLIBC, &words).expect("closed rings");
            assert!([11, 12, 13, 14].iter().all(|tid| all.contains(tid)), "{all:?} from {begin:x}");
            assert!(!all.contains(&15));
        }
    }
    #[test]
    fn a_ring_that_is_being_changed_says_nothing() {
        let mut words = glibc(&[&[(0x100, 0), (0x5000, 12), (0x6000, 13)], &[(0x110, 0), (0x7000, 11)]]);
        words.retain(|&(at, _)| at != 0x6008);
        assert_eq!(numbers(0x5010, GLIBC, &words), None);
        words.push((0x6008, 0x100));
        assert_eq!(numbers(0x5010, GLIBC, &words), None, "a link that does not lead back");
    }
    #[test]
    fn musls_ring_names_blocks() {
        // Number at 48, the one before at 16, the next at 24 of a block.
        let block = |at: u64, before: u64, next: u64, tid: u64| {
            [(at, at), (at + 16, before), (at + 24, next), (at + 48, tid)]
        };
        let words = [block(0x1000, 0x2000, 0x2000, 21), block(0x2000, 0x1000, 0x1000, 22)].concat();
        let all = numbers(0x1000 + 48, (-24, -32), &words).expect("a closed ring");
        assert_eq!(all, HashSet::from([21, 22]));
    }
}
