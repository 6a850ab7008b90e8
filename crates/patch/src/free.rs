//! Code unmapped, once it is proven that nobody is in it or can come back to it (PATCH-10).
//!
//! In: segments whose patches are out and whose actions are put back. Out: bytes unmapped, bytes that stay. The proof, with
//! every thread stopped: no pc lies in the code, and no word of private writable memory points into it, signed or not; where a register
//! may be all that holds a return address (arm64's x30), no general register does either. Such a word may be a signal frame's pc or return address, an rseq descriptor's address in a thread's area, a saved context, or an action that
//! the program remembers. A stale one costs memory, never a crash.
//! Does not: take patches out.

use trapline_record::RemoteAddr;
use trapline_record::control::at;
use trapline_record::latency::Stamps;
use trapline_target::{Batch, Process, RemoteCaller, RemoteOptions, StoppedAll};

use crate::error::PatchError;
use crate::find::Found;
use crate::native::returns::IN_REGISTERS;
use crate::slots::slots_of;
use crate::still::words_in;
use crate::words::Block;

/// What became of the mappings, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Freed {
    pub(crate) unmapped: u64,
    pub(crate) stays: u64,
}

/// Unmaps what is proven to be unused.
pub(crate) fn free(
    batch: &mut Batch<'_>,
    found: &[Found],
    guard: &dyn Fn(u64) -> Option<u64>,
    remote: &RemoteOptions,
) -> Result<Freed, PatchError> {
    let process = batch.process();
    let mut stopped = batch.stop_all(guard)?;
    let unused = unused(process, &stopped, found)?;
    let mut freed = Freed::default();
    if unused.contains(&true) {
        let mut caller = stopped.remote(remote)?;
        for segment in found.iter().zip(&unused).filter_map(|(f, unused)| unused.then_some(f)) {
            unmap(&mut caller, segment)?;
            freed.unmapped += segment.mapped();
        }
        caller.finish()?;
    }
    freed.stays = found.iter().map(Found::mapped).sum::<u64>() - freed.unmapped;
    stopped.resume()?;
    Ok(freed)
}

fn unmap(caller: &mut RemoteCaller<'_, '_>, segment: &Found) -> Result<(), PatchError> {
    for map in &segment.mappings {
        caller.munmap(map.start, map.end - map.start)?;
    }
    if let Some(slots) = slots_of(&segment.block) {
        caller.munmap(RemoteAddr(slots.table), slots.table_len())?;
    }
    let stamps = segment.block.get(at::STAMPS_ADDR);
    let len = segment.block.get(at::STAMPS_LEN);
    if stamps != 0 && Stamps::is_len(len) {
        caller.munmap(RemoteAddr(stamps), len)?;
    }
    Ok(())
}

/// For each segment, whether nobody is in its code and nothing points into it.
fn unused(process: &Process, stopped: &StoppedAll<'_, '_>, found: &[Found]) -> Result<Vec<bool>, PatchError> {
    let mut unused = vec![true; found.len()];
    // What an unwinder of this process may still be told of stays (UNW-1).
    for (unused, segment) in unused.iter_mut().zip(found) {
        let told = Block::read(process, segment.control)?.is_none_or(|now| now.get(at::UNWIND_TOLD) != 0);
        let inherited = segment.owner() != process.pid();
        *unused &= slots_of(&segment.block).is_none() || !(told || inherited);
    }
    let mut point = |word: u64| {
        for (unused, segment) in unused.iter_mut().zip(found) {
            *unused &= !segment.is_code(word);
        }
    };
    let (address, mut stacks) = (!stopped.signature(), Vec::new());
    for tid in stopped.threads() {
        let Ok(regs) = stopped.regs(tid) else { continue };
        point(regs.pc());
        if IN_REGISTERS {
            regs.general().into_iter().for_each(|word| point(word & address));
        }
        stacks.push(regs.sp());
    }
    let code = found.iter().flat_map(|f| &f.mappings).filter(|m| m.perms.exec);
    let low = code.clone().map(|m| m.start.0).min().unwrap_or(0);
    let high = code.map(|m| m.end.0).max().unwrap_or(0);
    // Private memory of ours is no context of the program's.
    let tables = found.iter().filter_map(|f| slots_of(&f.block)).map(|slots| slots.table);
    let stamps: Vec<u64> = found.iter().map(|f| f.block.get(at::STAMPS_ADDR)).chain(tables).collect();
    let all = words_in(process, &mut |map, at, word| {
        let word = word & address;
        if (low..high).contains(&word) && !stamps.contains(&map.start.0) {
            // What lies below all stack pointers of a stack is no longer anybody's.
            let lowest = stacks.iter().filter(|sp| (map.start.0..map.end.0).contains(sp)).min();
            if lowest.is_none_or(|sp| at >= sp - 128) {
                point(word);
            }
        }
    })?;
    if !all {
        unused.fill(false);
    }
    Ok(unused)
}
