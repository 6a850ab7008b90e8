//! Our own process as one that can be given memory and signal actions: what
//! [`RemoteCaller`](crate::RemoteCaller) does in another process, done here. What differs between processors
//! is in the twin folders.
//!
//! In: addresses and plain values. Out: the system's results. Like its remote twin it carries out what is
//! asked. The caller (`trapline_patch`, PATCH-10 and I5) ensures that what is unmapped is not in use, and
//! that a handler is code. Does not: decide anything, stop a thread.
#![allow(unsafe_code, reason = "the patching code keeps the preconditions of two calls")]

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::sys::own;

/// Makes calls in our own process.
#[derive(Debug, Default)]
pub struct OwnCaller {
    open: Vec<OwnedFd>,
}

pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> TargetError {
    move |source| TargetError::system(std::process::id(), what.into(), source)
}

impl OwnCaller {
    /// Makes a memfd. Returns its number, for a caller that maps it here, and a descriptor to keep.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn memfd(&mut self, name: &str) -> Result<(i32, OwnedFd), TargetError> {
        let name = CString::new(name).unwrap_or_default();
        let fd = own::memfd(&name).map_err(failed("make shared memory"))?;
        let kept = fd.try_clone().map_err(failed("make shared memory"))?;
        let number = fd.as_raw_fd();
        self.open.push(fd);
        Ok((number, kept))
    }
    /// Closes a number that [`memfd`](Self::memfd) returned.
    pub fn close(&mut self, fd: i32) {
        self.open.retain(|open| open.as_raw_fd() != fd);
    }
    /// Maps memory at an address where nothing is mapped.
    ///
    /// # Errors
    /// When something is mapped there, or the system refuses.
    pub fn mmap(
        &mut self,
        addr: RemoteAddr,
        len: u64,
        prot: i32,
        flags: i32,
        fd: i32,
        off: u64,
    ) -> Result<(), TargetError> {
        own::mmap(addr.0, len, prot, flags, fd, off).map_err(failed(format!("map {len} bytes at {addr}")))
    }
    /// Unmaps what was mapped here before and is not in use.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn munmap(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError> {
        // SAFETY: only `trapline_patch` calls this, with regions that it mapped a moment ago and that nothing
        // leads to yet.
        unsafe { own::munmap(addr.0, len) }.map_err(failed(format!("unmap {len} bytes at {addr}")))
    }
    /// Has forked children find zeros there.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn wipe_on_fork(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError> {
        own::wipe_on_fork(addr.0, len).map_err(failed(format!("have forked children find zeros at {addr}")))
    }
    /// Makes every CPU that runs a thread of ours serialise before it returns.
    ///
    /// # Errors
    /// When the kernel has no such membarrier.
    pub fn sync_cores(&mut self) -> Result<(), TargetError> {
        own::sync_cores().map_err(failed("make all CPUs serialise"))
    }
}

#[cfg(test)]
mod tests {
    use super::OwnCaller;
    use trapline_record::RemoteAddr;

    #[test]
    fn nothing_that_is_mapped_is_replaced() {
        let mut own = OwnCaller::default();
        let (fd, _kept) = own.memfd("trapline-test").expect("a memfd");
        let taken = RemoteAddr(std::ptr::from_ref(&own) as u64 & !4095);
        let error = own.mmap(taken, 4096, 3, 1, fd, 0).expect_err("our own stack");
        assert!(error.to_string().contains("File exists"), "{error}");
        own.close(fd);
    }

    #[test]
    fn all_cores_can_be_made_to_serialise() {
        OwnCaller::default().sync_cores().expect("membarrier");
    }
}
