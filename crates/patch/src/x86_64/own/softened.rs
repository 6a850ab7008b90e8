//! Traps that stand while patches change, so that no hit is missed: steps S1 and S3 of
//! [`protocol`](super::protocol).
//!
//! In: windows that are taken out, instructions in them that are probed. Out: changes of bytes that leave or remove
//! traps. Invariants: a trap is known here before it is written, until it is removed or covered.
//! Does not: write.

use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, EntryKind};
use trapline_tracee::{Process, TargetError};

use crate::native::traps::INT3;
use crate::space::change::Outcome;
use crate::space::soft::{Soft, unmask};

/// Traps that stand while patches change, and the windows that were written since then.
#[derive(Debug, Default)]
pub(super) struct Softened {
    traps: Soft,
    fresh: Vec<Entry>,
}

impl Softened {
    /// The traps, with the bytes that they stand for.
    pub(super) const fn traps(&self) -> &Soft {
        &self.traps
    }
    /// Changes the windows that are taken out (`entries`) so that each of `traps` is left; adds entries for those
    /// that lie in none.
    pub(super) fn leave(
        &mut self,
        process: &Process,
        entries: &mut Vec<Entry>,
        traps: &[RemoteAddr],
    ) -> Result<(), TargetError> {
        for &at in traps {
            let window = entries.iter_mut().find(|e| at.0.wrapping_sub(e.addr.0) < u64::from(e.len));
            let byte = if let Some(entry) = window {
                let n = (at - entry.addr) as usize;
                std::mem::replace(&mut entry.old[n], INT3)
            } else {
                // It is displaced, but lies behind the bytes that changed.
                let mut byte = [0];
                process.read(at, &mut byte)?;
                unmask(&self.traps, at, &mut byte);
                entries.push(single(at, INT3, byte[0]));
                byte[0]
            };
            self.traps.insert(at.0, byte);
        }
        Ok(())
    }
    /// Notes windows that are written again.
    pub(super) fn cover(&mut self, entries: &[Entry], outcomes: &[Outcome]) {
        if !self.traps.is_empty() {
            let placed = entries.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_in_place());
            self.fresh.extend(placed.map(|(entry, _)| *entry));
        }
    }
    /// Notes windows that were taken out.
    pub(super) fn uncover(&mut self, entries: &[Entry]) {
        self.fresh.retain(|fresh| !entries.iter().any(|entry| entry.addr == fresh.addr));
    }
    /// Forgets all traps. Returns changes that remove those which no window covers now, and for which `stay` is
    /// false.
    pub(super) fn take(&mut self, stay: impl Fn(u64) -> bool) -> Vec<Entry> {
        let Self { traps, fresh } = std::mem::take(self);
        let covered = |at: u64| fresh.iter().any(|e| at.wrapping_sub(e.addr.0) < u64::from(e.len));
        let left = traps.iter().filter(|(at, _)| !covered(**at) && !stay(**at));
        left.map(|(&at, &byte)| single(RemoteAddr(at), byte, INT3)).collect()
    }
}

/// A change of one byte: `old` is the file's (or a trap in its place), `new` is ours.
const fn single(addr: RemoteAddr, old: u8, new: u8) -> Entry {
    Entry {
        addr,
        len: 1,
        kind: EntryKind::Entry,
        starts: 0,
        old: [old, 0, 0, 0, 0, 0, 0, 0],
        new: [new, 0, 0, 0, 0, 0, 0, 0],
    }
}
