//! Our patches changed by other tools while they are in place: this is detected, and repaired if that is
//! safe.
//!
//! In: patches that were published, the process. Out: which of them another tool has changed, and which were
//! repaired. Invariants: PATCH-14.
//! Does not: stop a thread, seize the process, or examine forked children, whose text is their own.
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
//! | some are another tool's int3, the others ours | a probe or breakpoint is there | reported; its owner may still need the int3 |
//! | some are the file's | a kernel uprobe has gone | those are written again, one by one |
//! | all are the file's | the text was mapped anew, or another tool put back all of it | reported if it stays so; the session attaches to what is mapped anew |
//! | anything else | other text is mapped there, or another patcher was there | left alone; reported at the end |
//!
//! # One byte written again while threads run
//!
//! The byte of the file becomes ours by a store of one byte, so a thread that fetches it gets one or the
//! other:
//! - *the head, the file's byte*: with a prefix before our int3 the thread traps at head + 1, and the guard
//!   there leads to the stub. With an instruction of one byte it runs that, and traps at the boundary behind
//!   it, whose guard leads to the copy. If the head is neither, the thread runs astray; the store puts an end
//!   to that (docs/guide/foreign-patches.md says when that can be).
//! - *the head, ours*: the jump, whole.
//! - *a byte inside*: with the file's byte the jump leads astray, with ours to the stub.
//! - *a byte inside*: with the file's the jump leads astray, with ours to the stub.
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

use crate::attached::Attached;
use crate::space::staged::INT3;

/// Bytes of text that are read at once.
const RUN: u64 = 16 * 1024;

/// What a patch looks like now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sight {
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

impl Attached {
    /// Patches that other tools have changed, sorted by address. With `repair`, bytes that a kernel uprobe
    /// put back are written again.
    #[must_use]
    pub fn inspect(&self, process: &Process, repair: bool) -> Vec<Changed> {
        let mut changed = Vec::new();
        let mut bytes = Vec::new();
        let mut rest = &self.held[..];
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
}

fn end_of(patch: &Patch) -> u64 {
    patch.addr.0 + u64::from(patch.len)
}

/// Patches whose text is `bytes`, from the first one's address on.
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

fn sight(patch: &Patch, present: &[u8]) -> Sight {
    let len = present.len();
    let (old, new) = (&patch.old[..len], &patch.new[..len]);
    if present == new {
        return Sight::Whole;
    }
    if present == old {
        return Sight::File;
    }
    let is_lost = |n: usize| present[n] != new[n] && present[n] == old[n];
    let explained = (0..len).all(|n| present[n] == new[n] || is_lost(n) || present[n] == INT3);
    // Too little may be left of a patch of one or two bytes to recognize it.
    let known = (0..len).any(|n| present[n] == new[n] && present[n] != old[n]);
    match (0..len).any(is_lost) {
        _ if !explained || !known => Sight::Whole,
        true => Sight::PutBack,
        false => Sight::Covered,
    }
}

/// Indices of the bytes that are the file's where ours should be.
fn lost<'a>(patch: &'a Patch, present: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    (0..present.len()).filter(|&n| present[n] != patch.new[n] && present[n] == patch.old[n])
}

/// Whether everything that is not lost is as published.
fn is_ours_but_lost(patch: &Patch, present: &[u8]) -> bool {
    (0..present.len()).all(|n| present[n] == patch.new[n] || present[n] == patch.old[n])
}

#[cfg(test)]
mod tests {
    use super::{Sight, lost, sight};
    use trapline_plan::{Patch, PatchRole, Tactic};
    use trapline_record::RemoteAddr;

    const OLD: [u8; 8] = [0x48, 0x83, 0xEC, 0x18, 0xF0, 0, 0, 0];
    const NEW: [u8; 8] = [0xE9, 0xCC, 0xCC, 0xCC, 0x60, 0, 0, 0];

    fn patch(len: u8) -> Patch {
        Patch {
            probe: 0,
            request: 0,
            role: PatchRole::Entry,
            tactic: Tactic::Jump,
            addr: RemoteAddr(0x1000),
            len,
            relies: len,
            old: OLD,
            new: NEW,
            head: RemoteAddr(0),
            crosses_line: false,
            starts: 0,
            faults: false,
        }
    }

    #[test]
    fn what_others_leave_is_told_apart() {
        let seen = |present: &[u8]| sight(&patch(present.len() as u8), present);
        assert_eq!(seen(&NEW[..5]), Sight::Whole);
        assert_eq!(seen(&OLD[..5]), Sight::File);
        assert_eq!(seen(&[0xCC, 0xCC, 0xCC, 0xCC, 0x60]), Sight::Covered, "a uprobe on the head");
        assert_eq!(seen(&[0xE9, 0xCC, 0xCC, 0xCC, 0xCC]), Sight::Covered, "a breakpoint on the last byte");
        assert_eq!(seen(&[0x48, 0xCC, 0xCC, 0xCC, 0x60]), Sight::PutBack, "it has gone");
        assert_eq!(seen(&[0xE9, 0xCC, 0xEC, 0xCC, 0x60]), Sight::PutBack, "one inside has gone");
        assert_eq!(seen(&[0x48, 0xCC, 0xCC, 0xCC, 0xCC]), Sight::PutBack, "one has gone, another is there");
        assert_eq!(seen(&[0x90, 0xCC, 0xCC, 0xCC, 0x60]), Sight::Whole, "no tool's byte that we know");
        assert_eq!(seen(&[0x55, 0x48, 0x89, 0xE5, 0x53]), Sight::Whole, "other text");
        assert_eq!(
            seen(&[0xCC, 0x83, 0xEC, 0x18, 0xF0]),
            Sight::Whole,
            "the file's, and a breakpoint: not ours"
        );
    }

    #[test]
    fn only_the_files_bytes_are_written_again() {
        let lost = |present: &[u8]| lost(&patch(present.len() as u8), present).collect::<Vec<_>>();
        assert_eq!(lost(&[0x48, 0xCC, 0xCC, 0xCC, 0x60]), [0]);
        assert_eq!(lost(&[0x48, 0xCC, 0xEC, 0xCC, 0x60]), [0, 2]);
        assert_eq!(lost(&[0xCC, 0xCC, 0xEC, 0xCC, 0x60]), [2], "the int3 is somebody's");
    }
}
