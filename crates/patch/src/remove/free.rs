//! Unmaps code and data once it is proven that no thread is in the code or can come back to it (PATCH-10).
//!
//! In: segments, after their patches are out and their actions put back. Out: bytes unmapped, bytes that
//! stay.
//! Does not: take patches out.
//!
//! # What can lead into the code of a segment that is removed
//!
//! No byte of the program's text leads there any more, and no handler. So a thread gets there only if it is
//! there already, or by something that it has saved, or that the kernel has saved for it. On x86-64 that is
//! (`contexts`):
//!
//! - F1 its own instruction pointer;
//! - F2 the context that the kernel saves when it delivers a signal, or a copy of it: the instruction
//!   pointer, behind which the flags and the code segment lie. Nothing else holds such an address: a
//!   displaced call pushes the original's return address (`insn`'s `relocate`), and stubs call nothing;
//! - F3 a return trampoline's address in place of a return address that could not be put back;
//! - F4 the descriptor of a restartable sequence, named by a thread's area, where the kernel reads it;
//! - F5 our handler's address and its restorer's, which the program may have asked for and stored;
//! - F6 a taken return trampoline: its code leads on to code or data of any segment of its tracer (`plan`'s
//!   `stub::trampolines`).
//!
//! Data is named by code alone. On arm64 x30 or any word may hold a return address. There each word that
//! points into the code counts, and all threads are stopped meanwhile.
//!
//! # The proof on x86-64, while threads run
//!
//! | step | what | why it stays true |
//! |---|---|---|
//! | P1 | no other process runs on this memory | a child of `vfork` that begins later begins in the program's own text |
//! | P2 | for each thread: its pc is not in the code. | it can come back by F2 alone |
//! | | For a blocked one /proc shows it, another is stopped for a moment | |
//! | P3 | private memory is read: none of F2 to F5 is there, except below all stack pointers of P2 | see below |
//! | P4 | one thread unmaps | |
//!
//! A thread that was in a handler at P2, above a context of F2, may return while P3 reads. Its context stays
//! readable where it was until something is written over it, which only this thread does on its stack. Before
//! it does, it has left the code or has a newer context. So either P3 finds one, or the thread is out for
//! good. A context below all stack pointers of its stack is a dead one. A program that moves saved contexts
//! from one place to another just then (a scheduler that switches coroutines within signal handlers) could
//! hide one from P3 for these milliseconds: stated, not solved.
//!
//! A false match costs memory, never a crash: the segment stays, and the next detach or attach tries again.
//! The tracer may die at any step: mappings that are left are those of a removed segment.

use trapline_record::RemoteAddr;
use trapline_record::control::{MAX_UNWINDERS, at};
use trapline_record::latency::Stamps;
use trapline_record::sharers;
use trapline_tracee::{
    Batch, BatchOptions, Mapping, Process, RemoteCaller, RemoteOptions, StoppedAll, TargetError,
};

use crate::error::PatchError;
use crate::memory::find::{FoundSegment, left_behind};
use crate::memory::words::{Block, SegmentWords};
use crate::native::contexts::leads_into;
use crate::native::returns::IN_REGISTERS;
use crate::request::Options;
use crate::returns::armed::lent;
use crate::returns::unwinder::take_back;
use crate::space::remote::Seizure;
use crate::threads::still::{Word, runs_in, words_in};

/// Number of looks at the threads before giving up: a thread in a stub is out of it in a moment.
const TRIES: u32 = 5;

/// What became of the mappings, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Freed {
    /// Unmapped.
    pub unmapped: u64,
    /// Left.
    pub stays: u64,
}

/// Unmaps what this session and earlier ones left in the process, as far as it is proven that no thread can be
/// in it.
pub(crate) fn free_removed(process: &Process, options: &Options) -> Result<Freed, PatchError> {
    let found = left_behind(process, &[])?;
    if found.is_empty() || IN_REGISTERS {
        return Ok(Freed { unmapped: 0, stays: found.iter().map(FoundSegment::mapped).sum() });
    }
    let remote = RemoteOptions { patience: options.patience, ..RemoteOptions::default() };
    Batch::run(process, BatchOptions { hold_children: false }, |batch| {
        free(batch, &found, Seizure { guard: &|_| None, remote: &remote })
    })?
}

/// Unmaps what is proven to be unused.
pub(crate) fn free(
    batch: &mut Batch<'_>,
    found: &[FoundSegment],
    Seizure { guard, remote }: Seizure<'_>,
) -> Result<Freed, PatchError> {
    let process = batch.process();
    take_back_rest(batch, found, guard)?;
    let all: u64 = found.iter().map(FoundSegment::mapped).sum();
    let unmapped = if IN_REGISTERS {
        let mut stopped = batch.stop_all(guard)?;
        let unused = unused_by_words(process, &stopped, found)?;
        let unmapped = unmap_all(found, &unused, || stopped.remote(remote))?;
        stopped.resume()?;
        unmapped
    } else {
        let unused = unused_by_contexts(batch, found, guard)?;
        unmap_all(found, &unused, || batch.remote(remote, guard))?
    };
    Ok(Freed { unmapped, stays: all - unmapped })
}

/// Takes back what unwinders were given, where a detach could not: some call was still to come back through its
/// trampoline, or no thread was fit.
fn take_back_rest(
    batch: &mut Batch<'_>,
    found: &[FoundSegment],
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<(), PatchError> {
    let process = batch.process();
    if is_lent(process, found) {
        return Ok(());
    }
    let own =
        |segment: &&FoundSegment| segment.owner() == process.pid() && segment.block.trampolines().is_some();
    let maps = process.maps()?;
    for segment in found.iter().filter(own) {
        // The library of another unwinder may be gone since, and other code be in its place.
        let now = Block::read(process, segment.control)?.filter(|now| {
            let functions = (0..MAX_UNWINDERS).map(|n| now.get(at::UNWIND_TAKE_BACK + n * 8));
            functions.filter(|function| *function != 0).all(|function| is_of_libgcc(&maps, function))
        });
        if let Some(now) = now {
            take_back(batch, &now, &SegmentWords(process, segment.control), guard)?;
        }
    }
    Ok(())
}

/// Whether an address lies in libgcc_s, which is never unloaded.
fn is_of_libgcc(maps: &[Mapping], address: u64) -> bool {
    let holds = |map: &&Mapping| map.perms.exec && map.contains(RemoteAddr(address));
    maps.iter()
        .find(holds)
        .is_some_and(|map| map.path.rsplit('/').next().is_some_and(|name| name.starts_with("libgcc_s")))
}

fn unmap_all<'b, 'p>(
    found: &[FoundSegment],
    unused: &[bool],
    caller: impl FnOnce() -> Result<RemoteCaller<'b, 'p>, TargetError>,
) -> Result<u64, PatchError>
where
    'p: 'b,
{
    if !unused.contains(&true) {
        return Ok(0);
    }
    let (mut caller, mut unmapped) = (caller()?, 0);
    for segment in found.iter().zip(unused).filter_map(|(f, unused)| unused.then_some(f)) {
        unmap(&mut caller, segment)?;
        unmapped += segment.mapped();
    }
    caller.finish()?;
    Ok(unmapped)
}

/// Memory of the segment, then its control block, then private memory. Until the block goes, the segment can be
/// found. Private memory is known by the block's words alone, so it goes when no tracer can find them any more:
/// if this ends in between, it stays mapped, and is never unmapped twice. The words stay for forked children,
/// which share them and have private memory of their own.
fn unmap(caller: &mut RemoteCaller<'_, '_>, segment: &FoundSegment) -> Result<(), PatchError> {
    let (block, others): (Vec<_>, Vec<_>) =
        segment.mappings.iter().partition(|map| map.start == segment.control);
    for map in others.into_iter().chain(block) {
        caller.munmap(map.start, map.end - map.start)?;
    }
    if let Some(trampolines) = segment.block.trampolines() {
        caller.munmap(RemoteAddr(trampolines.table), trampolines.table_len())?;
    }
    let (stamps, len) = (segment.block.get(at::STAMPS_ADDR), segment.block.get(at::STAMPS_LEN));
    if stamps != 0 && Stamps::is_len(len) {
        caller.munmap(RemoteAddr(stamps), len)?;
    }
    let own = segment.block.get(at::OWN_PAGE);
    if own != 0 && own.is_multiple_of(sharers::PAGE) {
        caller.munmap(RemoteAddr(own), sharers::PAGE)?;
    }
    Ok(())
}

/// Which segments no unwinder of this process may still refer to; the others stay (UNW-1).
fn unregistered(process: &Process, found: &[FoundSegment]) -> Result<Vec<bool>, PatchError> {
    let one = |segment: &FoundSegment| {
        let registered =
            Block::read(process, segment.control)?.is_none_or(|now| now.get(at::UNWIND_REGISTERED) != 0);
        let inherited = segment.owner() != process.pid();
        Ok(segment.block.trampolines().is_none() || !(registered || inherited))
    };
    found.iter().map(one).collect()
}

/// Private memory of ours, which holds no context of the program's.
fn own_memory(found: &[FoundSegment]) -> Vec<u64> {
    let tables = found.iter().filter_map(|f| f.block.trampolines()).map(|trampolines| trampolines.table);
    let words = [at::STAMPS_ADDR, at::OWN_PAGE];
    found.iter().flat_map(|f| words.map(|at| f.block.get(at))).chain(tables).collect()
}

/// Whether an address lies below all stack pointers of its stack, so that no thread uses it any more.
fn is_dead(stacks: &[u64], map: (u64, u64), at: u64) -> bool {
    let lowest = stacks.iter().filter(|sp| (map.0..map.1).contains(sp)).min();
    lowest.is_some_and(|sp| at < sp - 128)
}

/// First address of all code, and last one.
fn bounds(found: &[FoundSegment]) -> (u64, u64) {
    let code = found.iter().flat_map(|f| &f.mappings).filter(|m| m.perms.exec);
    (code.clone().map(|m| m.start.0).min().unwrap_or(0), code.map(|m| m.end.0).max().unwrap_or(0))
}

/// Steps P1 to P3: for each segment, whether no thread is in its code or can come back to it.
fn unused_by_contexts(
    batch: &mut Batch<'_>,
    found: &[FoundSegment],
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<Vec<bool>, PatchError> {
    let process = batch.process();
    let (may_go, is_lent) = (unregistered(process, found)?, is_lent(process, found));
    if process.is_shared() {
        return Ok(vec![false; found.len()]);
    }
    let (inside, stacks) = inside(batch, found, guard)?;
    let (own, (low, high)) = (own_memory(found), bounds(found));
    let mut leads = vec![false; found.len()];
    let all = runs_in(process, &mut |map, from, bytes| {
        if own.contains(&map.start.0) {
            return;
        }
        let word = |nth: usize| {
            let bytes = bytes.get(nth * 8..nth * 8 + 8)?;
            bytes.try_into().ok().map(u64::from_le_bytes)
        };
        for nth in 0..bytes.len() / 8 {
            let Some(value) = word(nth).filter(|value| (low..high).contains(value)) else { continue };
            if is_dead(&stacks, (map.start.0, map.end.0), from + nth as u64 * 8) {
                continue;
            }
            for (leads, segment) in leads.iter_mut().zip(found).filter(|(leads, _)| !**leads) {
                let at = from + nth as u64 * 8;
                let before = nth.checked_sub(1).and_then(word);
                let found = Word { at, before, value, next: [word(nth + 1), word(nth + 2)] };
                *leads = segment.is_code(value) && leads_into(&found, process, segment);
            }
        }
    })?;
    let used = inside.into_iter().zip(leads).map(|(inside, leads)| inside || leads);
    let unused = used.map(|used| all && !used).collect();
    Ok(with_trampolines(found, unused, is_lent, &may_go))
}

/// Step P2: for each segment, whether a thread is in its code; and the stack pointers of all threads that are in
/// none.
fn inside(
    batch: &mut Batch<'_>,
    found: &[FoundSegment],
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<(Vec<bool>, Vec<u64>), PatchError> {
    let (mut all, mut stacks) = (vec![false; found.len()], Vec::new());
    for tid in batch.process().threads()? {
        let mut inside = Vec::new();
        for _ in 0..TRIES {
            let Some((pc, sp)) = batch.place_of(tid, guard)? else { break };
            inside = found.iter().map(|segment| segment.is_code(pc)).collect();
            if !inside.contains(&true) {
                stacks.push(sp);
                break;
            }
        }
        all.iter_mut().zip(inside).for_each(|(all, inside)| *all |= inside);
    }
    Ok((all, stacks))
}

/// Whether a return trampoline is taken, or that cannot be known.
fn is_lent(process: &Process, found: &[FoundSegment]) -> bool {
    let mut all = found.iter().filter_map(|f| f.block.trampolines());
    all.any(|trampolines| !lent(process, &trampolines).is_ok_and(|lent| lent.is_empty()))
}

/// F6: a return trampoline leads on to code and data of any segment of its tracer. So all segments stay while
/// a trampoline is taken, which was checked first. They also stay while the trampolines' own code is in use:
/// a thread that gave back its trampoline since then is still there, or where it leads.
fn with_trampolines(
    found: &[FoundSegment],
    mut unused: Vec<bool>,
    is_lent: bool,
    may_go: &[bool],
) -> Vec<bool> {
    let in_use = found.iter().zip(&unused).any(|(f, unused)| f.block.trampolines().is_some() && !unused);
    unused.iter_mut().zip(may_go).for_each(|(unused, may_go)| *unused &= may_go & !(in_use || is_lent));
    unused
}

/// The same if any word may be a return address.
fn unused_by_words(
    process: &Process,
    stopped: &StoppedAll<'_, '_>,
    found: &[FoundSegment],
) -> Result<Vec<bool>, PatchError> {
    let (may_go, is_lent) = (unregistered(process, found)?, is_lent(process, found));
    let mut unused = vec![true; found.len()];
    let mut point = |word: u64| {
        for (unused, segment) in unused.iter_mut().zip(found) {
            *unused &= !segment.is_code(word);
        }
    };
    let (address, mut stacks) = (!stopped.signature(), Vec::new());
    for tid in stopped.threads() {
        let Ok(regs) = stopped.regs(tid) else { continue };
        point(regs.pc());
        regs.general().into_iter().for_each(|word| point(word & address));
        stacks.push(regs.sp());
    }
    let (own, (low, high)) = (own_memory(found), bounds(found));
    let all = words_in(process, &mut |map, at, word| {
        let word = word & address;
        if (low..high).contains(&word)
            && !own.contains(&map.start.0)
            && !is_dead(&stacks, (map.start.0, map.end.0), at)
        {
            point(word);
        }
    })?;
    if !all {
        unused.fill(false);
    }
    Ok(with_trampolines(found, unused, is_lent, &may_go))
}
