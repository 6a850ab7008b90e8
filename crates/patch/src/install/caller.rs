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
    /// Has forked children find zeros there.
    fn wipe_on_fork(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError>;
    /// Reads or replaces a signal action.
    fn sigaction(&mut self, signal: i32, new: Option<&Handler>) -> Result<Handler, TargetError>;
}

/// Implements [`Caller`] for a type by its methods of the same names. Two of them differ from type to type.
macro_rules! impl_caller {
    ($caller:ty, memfd: $memfd:expr, close: $close:expr) => {
        impl $crate::install::caller::Caller for $caller {
            fn memfd(
                &mut self,
                name: &str,
            ) -> Result<(i32, std::os::fd::OwnedFd), trapline_tracee::TargetError> {
                $memfd(self, name)
            }
            fn close(&mut self, fd: i32) -> Result<(), trapline_tracee::TargetError> {
                $close(self, fd)
            }
            fn mmap(
                &mut self,
                addr: trapline_record::RemoteAddr,
                len: u64,
                prot: i32,
                flags: i32,
                fd: i32,
                off: u64,
            ) -> Result<(), trapline_tracee::TargetError> {
                <$caller>::mmap(self, addr, len, prot, flags, fd, off).map(drop)
            }
            fn munmap(
                &mut self,
                addr: trapline_record::RemoteAddr,
                len: u64,
            ) -> Result<(), trapline_tracee::TargetError> {
                <$caller>::munmap(self, addr, len)
            }
            fn wipe_on_fork(
                &mut self,
                addr: trapline_record::RemoteAddr,
                len: u64,
            ) -> Result<(), trapline_tracee::TargetError> {
                <$caller>::wipe_on_fork(self, addr, len)
            }
            fn sigaction(
                &mut self,
                signal: i32,
                new: Option<&trapline_tracee::Handler>,
            ) -> Result<trapline_tracee::Handler, trapline_tracee::TargetError> {
                <$caller>::sigaction(self, signal, new)
            }
        }
    };
}
#[allow(unused_imports, reason = "on arm64 no code calls on behalf of our own process")]
pub(crate) use impl_caller;

impl_caller!(
    RemoteCaller<'_, '_>,
    memfd: |caller: &mut RemoteCaller<'_, '_>, name| caller.memfd(name, true),
    close: |caller: &mut RemoteCaller<'_, '_>, fd| caller.close(fd)
);
