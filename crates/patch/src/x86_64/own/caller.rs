//! Our own process as the one that changes its memory map and signal actions.

use std::os::fd::OwnedFd;

use trapline_record::RemoteAddr;
use trapline_tracee::{Handler, OwnCaller, TargetError};

use crate::install::caller::Caller;

impl Caller for OwnCaller {
    fn memfd(&mut self, name: &str) -> Result<(i32, OwnedFd), TargetError> {
        Self::memfd(self, name)
    }
    fn close(&mut self, fd: i32) -> Result<(), TargetError> {
        Self::close(self, fd);
        Ok(())
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
        Self::mmap(self, addr, len, prot, flags, fd, off)
    }
    fn munmap(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError> {
        Self::munmap(self, addr, len)
    }
    fn sigaction(&mut self, signal: i32, new: Option<&Handler>) -> Result<Handler, TargetError> {
        Self::sigaction(self, signal, new)
    }
}
