//! Code that holds traps of ours while patches there change: windows look as if there were no traps.
//!
//! In: a [`CodeSpace`], the traps. Out: the same space, in which a window is compared as if each trap were
//! the byte that it stands for. Reads and writes concern what is really there: traps around a window stay,
//! those inside go with its bytes.
//! Does not: know which handler serves the traps.

use std::collections::BTreeMap;

use trapline_record::RemoteAddr;

use crate::native::traps::is_trap;
use crate::space::{CodeSpace, SpaceError};

/// Traps by address, with the bytes that they stand for.
pub(crate) type Soft = BTreeMap<u64, u8>;

/// Makes a window that was read look as if there were no traps.
pub(crate) fn unmask(soft: &Soft, at: RemoteAddr, bytes: &mut [u8]) {
    for (addr, byte) in soft.range(at.0..at.0 + bytes.len() as u64) {
        let present = &mut bytes[(addr - at.0) as usize];
        if is_trap(*present) {
            *present = *byte;
        }
    }
}

/// A space, and the traps in it.
pub(crate) struct Masked<'a, S> {
    pub(crate) space: S,
    pub(crate) soft: &'a Soft,
}

impl<S: CodeSpace> CodeSpace for Masked<'_, S> {
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError> {
        self.space.read(at, into)
    }
    fn look_past_traps(&self, at: RemoteAddr, bytes: &mut [u8]) {
        unmask(self.soft, at, bytes);
    }
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.space.write(at, bytes)
    }
    fn write_parts(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.space.write_parts(at, bytes)
    }
    fn takes_words(&self) -> bool {
        self.space.takes_words()
    }
    fn takes_runs(&self) -> bool {
        self.space.takes_runs()
    }
    fn sync(&mut self) -> Result<(), SpaceError> {
        self.space.sync()
    }
    fn serve(&mut self) -> Result<(), SpaceError> {
        self.space.serve()
    }
}
