//! What gives a process memory and signal actions: one of its stopped threads or, for our own process, we
//! ourselves.
//!
//! In: addresses and plain values. Out: the system's results. Does not: choose any of them.

use std::os::fd::OwnedFd;

use trapline_record::RemoteAddr;
use trapline_tracee::{Handler, RemoteCaller, TargetError};

/// Arguments of [`Caller::mmap`]: libc's constants, so that this crate does not need libc.
pub(crate) mod flags {
    pub(crate) const READ: i32 = 1;
    pub(crate) const WRITE: i32 = 2;
    pub(crate) const EXEC: i32 = 4;
    pub(crate) const SHARED: i32 = 0x01;
    pub(crate) const PRIVATE: i32 = 0x02;
    pub(crate) const ANONYMOUS: i32 = 0x20;
    pub(crate) const NORESERVE: i32 = 0x4000;
    pub(crate) const FIXED_NOREPLACE: i32 = 0x10_0000;
}

/// Calls that change a process' memory map and signal actions.
pub(crate) trait Caller {
    /// Makes a memfd. Returns its number in the process, and a descriptor of our own.
    fn memfd(&mut self, name: &str) -> Result<(i32, OwnedFd), TargetError>;
    /// Closes that number in the process.
    fn close(&mut self, fd: i32) -> Result<(), TargetError>;
    /// Maps at exactly this address.
    fn mmap(
        &mut self,
        addr: RemoteAddr,
        len: u64,
        prot: i32,
        flags: i32,
        fd: i32,
        off: u64,
    ) -> Result<(), TargetError>;
    /// Unmaps.
    fn munmap(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError>;
    /// Reads or replaces a signal action.
    fn sigaction(&mut self, signal: i32, new: Option<&Handler>) -> Result<Handler, TargetError>;
}

impl Caller for RemoteCaller<'_, '_> {
    fn memfd(&mut self, name: &str) -> Result<(i32, OwnedFd), TargetError> {
        RemoteCaller::memfd(self, name, true)
    }
    fn close(&mut self, fd: i32) -> Result<(), TargetError> {
        RemoteCaller::close(self, fd)
    }
    fn mmap(
        &mut self,
        addr: RemoteAddr,
        len: u64,
        prot: i32,
        flags: i32,
        fd: i32,
        off: u64,
    ) -> Result<(), TargetError> {
        RemoteCaller::mmap(self, addr, len, prot, flags, fd, off).map(drop)
    }
    fn munmap(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError> {
        RemoteCaller::munmap(self, addr, len)
    }
    fn sigaction(&mut self, signal: i32, new: Option<&Handler>) -> Result<Handler, TargetError> {
        RemoteCaller::sigaction(self, signal, new)
    }
}
