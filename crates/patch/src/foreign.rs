//! Our patches changed by other tools while they are in place: this is detected, and repaired if that is
//! safe.
//!
//! In: patches that were published, the process. Out: which of them another tool has changed, and which were
//! repaired. Invariants: PATCH-14.
//! Does not: stop a thread, seize the process, or examine forked children: their text is their own.
//!
//! # What other tools do to a patch
//!
//! `new` are our bytes, `old` the file's. A kernel uprobe writes one int3. When it goes, it writes the
//! *file's* byte, whatever stood there before; but only over an int3. A debugger writes one int3 and puts
//! back what it read. So each byte of a patch is ours, the file's, or an int3:
//!
//! | bytes | what that is | what is done |
//! |---|---|---|
//! | all ours | no tool was there, or a debugger that has gone | nothing |
//! | some are another tool's int3, the others ours | a probe or breakpoint is there | reported; its |
//! | | | owner may still need the int3 |
//! | some are the file's | a kernel uprobe has gone | those are written again, one by one |
//! | all are the file's | the text was mapped anew, | reported if it stays so; |
//! | | or another tool put back all of it | the session attaches to what is mapped anew |
//! | anything else | other text is mapped there, or another patcher was there | left alone; reported at the end |
//!
//! # One byte written again while threads run
//!
//! The byte of the file becomes ours by a store of one byte, so a thread that fetches it gets one or the
//! other:
//! - *the head, the file's byte*: with a prefix before our int3 the thread traps at head + 1, and the guard
//!   there leads to the stub. With an instruction of one byte it runs that, and traps at the boundary behind
//!   it; the guard of that boundary leads to the copy. If the head is neither, the thread runs astray; the
//!   store puts an end to that (docs/guide/foreign-patches.md says when that can be).
//! - *the head, ours*: the jump, whole.
//! - *a byte inside*: with the file's byte the jump leads astray, with ours to the stub.
//!
//! What may come between our look and our store?
//! - *A kernel uprobe that comes anew*: its int3 is overwritten. The kernel finds no int3 when that probe
//!   goes, and writes nothing; until then it sees no hits. Microseconds; stated, not solved.
//! - *A batch of ours*: never, it is the same thread (PATCH-1).
//! - *The tracer's death*: the journal names the site, and `recover` takes each of these bytes for one of
//!   ours.

use trapline_plan::Patch;
use trapline_record::RemoteAddr;
use trapline_tracee::Process;

use crate::native::traps::is_trap;

/// Bytes of text that are read at once.
const RUN: u64 = 16 * 1024;

/// What a patch looks like now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sight {
    /// It is as it was published, or can no longer be recognized as ours.
    Whole,
    /// Another tool's int3 is in it.
    Covered,
    /// Some bytes are the file's again.
    PutBack,
    /// All bytes are the file's again.
    File,
}

/// A patch that does not hold what was published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Address of the patch.
    pub addr: RemoteAddr,
    /// It holds all that was published again, because we repaired it.
    pub repaired: bool,
    /// It holds only the file's bytes, as text does that was just mapped.
    pub is_file: bool,
}

/// Those of the held patches that other tools have changed, sorted by address. With `repair`, bytes that a kernel uprobe
/// put back are written again.
pub(crate) fn inspect(held: &[Patch], process: &Process, repair: bool) -> Vec<Changed> {
    let mut changed = Vec::new();
    let mut bytes = Vec::new();
    let mut rest = held;
    while let Some(first) = rest.first() {
        let near = rest.partition_point(|patch| end_of(patch) <= first.addr.0 + RUN).max(1);
        let (run, others) = rest.split_at(near);
        bytes.resize((end_of(&run[near - 1]) - first.addr.0) as usize, 0);
        rest = others;
        if process.read(first.addr, &mut bytes).is_ok() {
            inspect_run(process, run, &bytes, repair, &mut changed);
        } else {
            // Some of it is unmapped, so each is read by itself.
            for patch in run {
                let window = &mut bytes[..usize::from(patch.len)];
                if process.read(patch.addr, window).is_ok() {
                    inspect_run(process, std::slice::from_ref(patch), window, repair, &mut changed);
                }
            }
        }
    }
    changed
}
fn end_of(patch: &Patch) -> u64 {
    patch.addr.0 + u64::from(patch.len)
}

/// Patches with the text `bytes`, from the first one's address on.
fn inspect_run(process: &Process, run: &[Patch], bytes: &[u8], repair: bool, changed: &mut Vec<Changed>) {
    for patch in run {
        let at = (patch.addr - run[0].addr) as usize;
        let present = &bytes[at..at + usize::from(patch.len)];
        let sight = sight(patch, present);
        if sight == Sight::Whole {
            continue;
        }
        let write = |n: usize| process.write_text(patch.addr + n as u64, &patch.new[n..=n]).is_ok();
        let mut written = repair && sight == Sight::PutBack;
        if written {
            // Each byte is written, whatever the result for the one before.
            lost(patch, present).for_each(|n| written &= write(n));
        }
        let repaired = written && is_ours_but_lost(patch, present);
        let is_file = sight == Sight::File;
        changed.push(Changed { addr: patch.addr, repaired, is_file });
    }
}

pub(crate) fn sight(patch: &Patch, present: &[u8]) -> Sight {
    let len = present.len();
    let (old, new) = (&patch.old[..len], &patch.new[..len]);
    if present == new {
        return Sight::Whole;
    }
    if present == old {
        return Sight::File;
    }
    let is_lost = |n: usize| present[n] != new[n] && present[n] == old[n];
    let explained = (0..len).all(|n| present[n] == new[n] || is_lost(n) || is_trap(present[n]));
    // Too little may be left of a patch of one or two bytes to recognize it.
    let known = (0..len).any(|n| present[n] == new[n] && present[n] != old[n]);
    match (0..len).any(is_lost) {
        _ if !explained || !known => Sight::Whole,
        true => Sight::PutBack,
        false => Sight::Covered,
    }
}

/// Indices of the bytes that are the file's where ours should be.
pub(crate) fn lost<'a>(patch: &'a Patch, present: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    (0..present.len()).filter(|&n| present[n] != patch.new[n] && present[n] == patch.old[n])
}

/// Whether everything that is not lost is as published.
fn is_ours_but_lost(patch: &Patch, present: &[u8]) -> bool {
    (0..present.len()).all(|n| present[n] == patch.new[n] || present[n] == patch.old[n])
}
