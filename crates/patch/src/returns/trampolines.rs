//! Return trampolines, seen from outside: which ones are taken, and how they are put
//! out of use.
//!
//! In: a process, and where its trampolines lie (`record::trampolines`; steps A1 to B4 are those of `plan`'s
//! `stub::trampolines`). Out: the calls that are armed now; the real return addresses put back into their
//! stack words; trampolines given back that nothing names any more. Invariants: RET-1 a stack word is written
//! only while all threads are stopped, and only if it still holds the trampoline. RET-2 a trampoline is given
//! back only if no register, no word of memory and no thread in the trampolines' own code names it. Does not:
//! inform unwinders (see `unwinder`), or unmap.
//!
//! # Detach
//!
//! The entries' patches are out, and no thread is in a stub that was there before (R3, R4). Then all threads
//! are stopped. For each taken trampoline with a WORD other than 0:
//!
//! | the stack word holds | what |
//! |---|---|
//! | this trampoline | := the real return address, through all trampolines that lie under it |
//! | a trampoline that lies over this one (a tail call) | done with that one |
//! | anything else: a `longjmp`, or the stack is copied away | nothing; if it comes back, the trampoline is still there |
//!
//! On arm64 WORD is only the stack pointer at the entry, and the address may be signed. There
//! `aarch64::returns` says which words are examined, and which calls are left to return through their
//! trampolines. If there are any, unwinders keep what they were given.
//!
//! A thread between A3 and A4, or in the trampolines' code, goes on there. Code and entries stay mapped and
//! go on working. If the tracer dies in the middle of this, each word holds the one or the other, and both
//! lead to the same place.
//!
//! # Giving back trampolines to which no call returns
//!
//! Calls left by `longjmp`, exceptions and the ends of threads leave their trampolines taken. A stack pointer
//! proves nothing: some programs copy stacks away and back (greenlets). So if trampolines run short, all
//! threads are stopped. What private writable memory or a register names stays taken, signed or not, with all
//! that lies under it (tail calls). So does the trampoline on which a thread in the trampolines' code is
//! working (its number is at the thread's stack pointer, on arm64 in x30). So does one that is only half
//! taken (WORD is 0: A1 to A4, B3). If a signal frame holds an address in the shared code, nothing is given
//! back this time.

use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;
use trapline_record::trampolines::{self, CHAIN, Trampolines, at as entry};
use trapline_tracee::{Batch, BatchOptions, Process, StoppedAll};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::native::returns::{BELOW, number_in, put_back};
use crate::returns::armed::{Armed, PutBack, armed, lent, on_shared_stacks};
use crate::threads::still::words_in;

/// Stops all threads and puts return addresses back, if any are replaced.
pub(crate) fn disarm(
    batch: &mut Batch<'_>,
    all: &[Trampolines],
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<PutBack, PatchError> {
    let process = batch.process();
    // A child that was forked before they were made does not map them.
    let in_use = |trampolines: &&Trampolines| lent(process, trampolines).is_ok_and(|lent| !lent.is_empty());
    let all: Vec<&Trampolines> = all.iter().filter(in_use).collect();
    let mut sum = PutBack::default();
    if all.is_empty() {
        return Ok(sum);
    }
    let mut stopped = batch.stop_all(guard)?;
    let done: Result<(), PatchError> = all.iter().try_for_each(|trampolines| {
        let done = put_back(process, &mut stopped, trampolines)?;
        sum.restored += done.restored;
        sum.left += done.left;
        Ok(())
    });
    stopped.resume()?;
    done.map(|()| sum)
}

/// Result of a search for trampolines to which no call returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Number of trampolines taken before.
    pub lent: u32,
    /// Number of trampolines given back.
    pub freed: u32,
    /// How long all threads were stopped.
    pub stopped: Duration,
}

/// Gives back the trampolines of calls that were left without a return. Each is counted as unreturned.
pub(crate) fn reclaim(batches: &Batches, process: &Process) -> Result<Reclaimed, PatchError> {
    let Some(trampolines) = batches.trampolines else { return Ok(Reclaimed::default()) };
    let made = batches.segments.iter().find_map(|segment| segment.trampolines);
    let shared = made.map_or((0, 0), |made| made.shared);
    let mut found = Reclaimed::default();
    let left = Batch::run(process, BatchOptions { hold_children: false }, |batch| {
        let guard = |addr| batches.resume(addr);
        let start = Instant::now();
        let stopped = batch.stop_all(&guard)?;
        let calls = armed(process, &trampolines)?;
        found.lent = calls.len() as u32;
        let left = match named(process, &stopped, &trampolines, &calls, shared)? {
            Some(named) => {
                calls.into_iter().filter(|c| c.word != 0 && !named[c.trampoline as usize]).collect()
            }
            None => Vec::new(),
        };
        let given =
            left.iter().try_for_each(|call: &Armed| give_back(process, &trampolines, call.trampoline));
        stopped.resume()?;
        found.stopped = start.elapsed();
        given.map(|()| left)
    })??;
    found.freed = left.len() as u32;
    for call in &left {
        batches.segments.iter().for_each(|segment| segment.count_unreturned(call.what));
    }
    Ok(found)
}

/// For each trampoline, whether something names it; `None` if that cannot be known now.
fn named(
    process: &Process,
    stopped: &StoppedAll<'_, '_>,
    trampolines: &Trampolines,
    calls: &[Armed],
    shared: (u64, u64),
) -> Result<Option<Vec<bool>>, PatchError> {
    let mut named = vec![false; trampolines.count as usize];
    let address = !stopped.signature();
    let mut name = |word: u64| {
        if let Some(trampoline) = trampolines.number_of(word & address) {
            named[trampoline as usize] = true;
        }
    };
    let is_shared = |word: u64| (shared.0..shared.1).contains(&word);
    let mut known = true;
    for tid in stopped.threads() {
        let Ok(regs) = stopped.regs(tid) else { continue };
        regs.general().into_iter().for_each(&mut name);
        if is_shared(regs.pc()) {
            match number_in(process, &regs) {
                Ok(trampoline) => name(trampolines.code + trampoline.wrapping_mul(trampolines::CODE)),
                Err(_) => known = false,
            }
        }
    }
    let all = words_in(process, &mut |map, _, word| {
        if map.start.0 != trampolines.table {
            name(word);
            known &= !is_shared(word);
        }
    })?;
    on_shared_stacks(process, calls, BELOW)?
        .into_iter()
        .for_each(|trampoline| name(trampolines.address(trampoline)));
    name_under(&mut named, trampolines, calls);
    Ok((all && known).then_some(named))
}

/// A call that was entered by a jump from an armed one returns through that one's trampoline. Only its own
/// trampoline's entry names that.
fn name_under(named: &mut [bool], trampolines: &Trampolines, calls: &[Armed]) {
    for _ in 0..CHAIN {
        for call in calls {
            if let Some(under) = trampolines.number_of(call.real).filter(|_| named[call.trampoline as usize])
            {
                named[under as usize] = true;
            }
        }
    }
}

/// Step B3, for a call that will never reach it.
fn give_back(process: &Process, trampolines: &Trampolines, trampoline: u32) -> Result<(), PatchError> {
    process.write_text(RemoteAddr(trampolines.entry(trampoline) + entry::WORD), &[0; 8])?;
    Ok(process
        .write_text(RemoteAddr(trampolines.table + Trampolines::LENT_OFF + u64::from(trampoline)), &[0])?)
}
