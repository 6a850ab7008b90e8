//! Works on a process while all its threads are stopped: moves pcs out of windows, and finds saved contexts
//! that point into them.
//!
//! In: stopped threads, boundaries. Out: threads at the matching place in the copies; boundaries that some
//! word of memory names (PATCH-9). A signal frame, a preempted goroutine, or any other saved context is a
//! word in private writable memory, so all of that memory is read. A word that only looks like one costs a
//! refusal, never a crash.
//! Does not: write code.

use std::fs::File;
use std::os::unix::fs::FileExt;

use trapline_record::RemoteAddr;
use trapline_tracee::{Batch, Mapping, Process, StoppedAll, TargetError};

use crate::error::PatchError;
use crate::signals::TRAPS;
use crate::threads::quiesce::has_trap_waiting;

const PAGE: u64 = 4096;
/// Upper bound of the memory that is read, perhaps while all threads are stopped: about a third of a second.
/// With more, nothing is proven.
const MOST: u64 = 1 << 30;
/// Upper bound of the pages of a mapping that are looked up at once.
const ASK: u64 = 1 << 16;
/// Bits 63 and 62 of a pagemap word: in memory, or swapped out.
const PRESENT: u64 = 3 << 62;

/// A word of memory, and what lies around it.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "on some processors any word counts, whatever lies around it")]
pub(crate) struct Word {
    /// Its address.
    pub(crate) at: u64,
    /// The word before it.
    pub(crate) before: Option<u64>,
    pub(crate) value: u64,
    /// The two words behind it.
    pub(crate) next: [Option<u64>; 2],
}

/// Moves each thread that stands at a boundary to the copy (PATCH-17). A thread that has trapped and not received the
/// signal yet is left alone: its pc is behind the trap, maybe at the next boundary. It is moved when the trap is answered.
pub(crate) fn move_out(
    process: &Process,
    stopped: &mut StoppedAll<'_, '_>,
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<(), PatchError> {
    for tid in stopped.threads() {
        if has_trap_waiting(process, tid) {
            continue;
        }
        let moved = stopped.regs(tid).and_then(|mut regs| match guard(regs.pc()) {
            Some(resume) => {
                regs.set_pc(resume);
                stopped.set_regs(tid, &regs)
            }
            None => Ok(()),
        });
        match moved {
            // A thread that is gone stands at no boundary.
            Err(error) if process.thread_status(tid).is_ok() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Moves threads that stand at a boundary and cannot take the trap there, because they block it at the moment
/// (PATCH-15). Their windows hold the patch already, so no other thread reaches such a place.
pub(crate) fn move_blocked_out(
    batch: &mut Batch<'_>,
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<(), PatchError> {
    let process = batch.process();
    let blocks = |tid| process.thread_status(tid).is_ok_and(|status| status.blocked & TRAPS != 0);
    if process.threads()?.into_iter().any(blocks) {
        let mut stopped = batch.stop_all(guard)?;
        move_out(process, &mut stopped, guard)?;
        stopped.resume()?;
    }
    Ok(())
}

/// The boundaries (first of each pair, sorted) that some word of private writable memory names.
pub(crate) fn saved_contexts(process: &Process, guards: &[(u64, u64)]) -> Result<Vec<u64>, PatchError> {
    let (Some(first), Some(last)) = (guards.first(), guards.last()) else { return Ok(Vec::new()) };
    let bounds = first.0..=last.0;
    let mut caught = Vec::new();
    let all = words_in(process, &mut |_, _, word| {
        if bounds.contains(&word) && guards.binary_search_by_key(&word, |g| g.0).is_ok() {
            caught.push(word);
        }
    })?;
    if !all {
        return Ok(guards.iter().map(|g| g.0).collect());
    }
    caught.sort_unstable();
    caught.dedup();
    Ok(caught)
}

/// Calls `see` with every aligned word of private writable memory: its mapping, its address, itself. False if
/// there is too much of it.
pub(crate) fn words_in(
    process: &Process,
    see: &mut dyn FnMut(&Mapping, u64, u64),
) -> Result<bool, TargetError> {
    runs_in(process, &mut |map, from, bytes| {
        for (word, at) in bytes.chunks_exact(8).zip((from..).step_by(8)) {
            see(map, at, word.try_into().map_or(0, u64::from_le_bytes));
        }
    })
}

/// The same, with whole stretches at a time.
pub(crate) fn runs_in(
    process: &Process,
    see: &mut dyn FnMut(&Mapping, u64, &[u8]),
) -> Result<bool, TargetError> {
    let pagemap = File::open(process.folder().join("pagemap")).ok();
    let mut read = 0;
    let mut bytes = Vec::new();
    for map in process.maps()?.iter().filter(|m| m.perms.write && m.perms.read && !m.perms.shared) {
        let mut at = map.start.0;
        while at < map.end.0 {
            let end = map.end.0.min(at + ASK * PAGE);
            for (from, to) in present(pagemap.as_ref(), at, end) {
                read += to - from;
                if read > MOST {
                    return Ok(false);
                }
                bytes.resize((to - from) as usize, 0);
                // A page that went away meanwhile holds no words.
                if process.read(RemoteAddr(from), &mut bytes).is_ok() {
                    see(map, from, &bytes);
                }
            }
            at = end;
        }
    }
    Ok(true)
}

/// The parts of a range that were ever written, as far as the kernel reports it; otherwise all of it.
fn present(pagemap: Option<&File>, from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut words = vec![0; ((to - from) / PAGE * 8) as usize];
    let Some(Ok(())) = pagemap.map(|file| file.read_exact_at(&mut words, from / PAGE * 8)) else {
        return vec![(from, to)];
    };
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (n, word) in words.chunks_exact(8).enumerate() {
        if word.try_into().map_or(0, u64::from_le_bytes) & PRESENT == 0 {
            continue;
        }
        let page = from + n as u64 * PAGE;
        match runs.last_mut() {
            Some(run) if run.1 == page => run.1 += PAGE,
            _ => runs.push((page, page + PAGE)),
        }
    }
    runs
}
