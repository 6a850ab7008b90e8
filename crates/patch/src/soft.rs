//! Code with traps of ours in it, for as long as patches there change: read as if it had none.
//!
//! In: a [`CodeSpace`], the traps, the windows that are about to be written. Out: the same, in which a trap reads as the byte that it stands
//! for, and stays where a write goes on both sides of it. A window that is written covers it, as it covers the byte.
//! Does not: know who serves the traps.

use std::collections::BTreeMap;

use trapline_record::RemoteAddr;
use trapline_record::journal::Entry;

use crate::space::{CodeSpace, SpaceError};

pub(crate) const INT3: u8 = 0xcc;

/// Traps by address, with the bytes that they stand for.
pub(crate) type Soft = BTreeMap<u64, u8>;

/// The traps that lie in a range.
fn within(soft: &Soft, at: RemoteAddr, len: usize) -> impl Iterator<Item = (usize, u64, u8)> {
    soft.range(at.0..at.0 + len as u64).map(move |(addr, byte)| ((addr - at.0) as usize, *addr, *byte))
}

/// Makes bytes that were read look as if there were no traps.
pub(crate) fn unmask(soft: &Soft, at: RemoteAddr, bytes: &mut [u8]) {
    for (n, _, byte) in within(soft, at, bytes.len()) {
        if bytes[n] == INT3 {
            bytes[n] = byte;
        }
    }
}

pub(crate) struct Masked<'a, S> {
    pub(crate) space: S,
    pub(crate) soft: &'a Soft,
    /// What is written.
    pub(crate) entries: &'a [Entry],
}

impl<S: CodeSpace> CodeSpace for Masked<'_, S> {
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError> {
        self.space.read(at, into)?;
        unmask(self.soft, at, into);
        Ok(())
    }
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        let mut all = bytes.to_vec();
        let covered = |addr: u64| self.entries.iter().any(|e| addr.wrapping_sub(e.addr.0) < u64::from(e.len));
        for (n, addr, byte) in within(self.soft, at, bytes.len()) {
            if all[n] == byte && !covered(addr) {
                all[n] = INT3;
            }
        }
        self.space.write(at, &all)
    }
    fn takes_runs(&self) -> bool {
        self.soft.is_empty() && self.space.takes_runs()
    }
    fn sync(&mut self) -> Result<(), SpaceError> {
        self.space.sync()
    }
    fn serve(&mut self) -> Result<(), SpaceError> {
        self.space.serve()
    }
}
