//! Calls made by one of the target's own threads.

use std::os::fd::OwnedFd;
use std::time::Duration;

use trapline_record::RemoteAddr;

use crate::batch::{Batch, Handler, Served};
use crate::error::TargetError;
use crate::regs::Regs;

/// How to choose the thread and where its frame may lie.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Readable memory of at least [`RemoteOptions::FRAME_ROOM`] bytes that nobody uses, when stacks are too small
    /// (Go). Its bytes are saved and put back.
    pub scratch: Option<RemoteAddr>,
    /// How long to wait for a thread to leave a call with a finite timeout before one is restarted.
    pub patience: Duration,
}

impl RemoteOptions {
    /// Bytes of scratch that a caller must offer.
    pub const FRAME_ROOM: u64 = 16384;
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self { scratch: None, patience: Duration::from_millis(20) }
    }
}

/// A thread's rseq area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rseq {
    /// Its address.
    pub addr: RemoteAddr,
    /// Its distance from the thread pointer.
    pub offset: i32,
    /// Bytes registered.
    pub len: u32,
    /// The word before an abort handler.
    pub signature: u32,
}

/// What a session of remote calls cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteReport {
    /// The thread.
    pub tid: u32,
    /// Calls made.
    pub calls: u32,
    /// From its stop to its release.
    pub stopped: Duration,
    /// It saw EINTR because of us.
    pub interrupted: bool,
    /// Its call had a finite timeout and was restarted in full.
    pub restarted_timeout: bool,
}

/// A stopped thread that makes our calls. Dropping it releases the thread too.
#[derive(Debug)]
pub struct RemoteCaller<'b, 'p> {
    batch: &'b mut Batch<'p>,
}

impl<'b, 'p> RemoteCaller<'b, 'p> {
    /// Makes a call.
    ///
    /// # Errors
    /// [`TargetError::RemoteCall`] when the call fails, [`TargetError::Gone`] when the thread ends.
    pub fn call(&mut self, name: &'static str, nr: i64, args: [u64; 6]) -> Result<u64, TargetError> {
        let _ = (name, nr, args);
        todo!()
    }
    /// The thread.
    #[must_use]
    pub fn tid(&self) -> u32 {
        todo!()
    }
    /// Its registers when it was stopped.
    #[must_use]
    pub fn regs(&self) -> &Regs {
        todo!()
    }
    /// Its rseq area, if registered.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn rseq(&self) -> Result<Option<Rseq>, TargetError> {
        todo!()
    }
    /// Puts bytes (at most 256) where a call may read them, and where it may write; valid until the next one.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn argument(&mut self, bytes: &[u8]) -> Result<RemoteAddr, TargetError> {
        let _ = bytes;
        todo!()
    }
    /// memfd_create in the target, fetched here by pidfd_getfd. The remote fd stays open: close it.
    ///
    /// # Errors
    /// As [`Self::call`], or when it cannot be fetched.
    pub fn memfd(&mut self, name: &str, executable: bool) -> Result<(i32, OwnedFd), TargetError> {
        let _ = (name, executable);
        todo!()
    }
    /// mmap. `prot` and `flags` as libc's.
    ///
    /// # Errors
    /// As [`Self::call`]; EEXIST when MAP_FIXED_NOREPLACE found something there.
    pub fn mmap(
        &mut self,
        addr: RemoteAddr,
        len: u64,
        prot: i32,
        flags: i32,
        fd: i32,
        off: u64,
    ) -> Result<RemoteAddr, TargetError> {
        let _ = (addr, len, prot, flags, fd, off);
        todo!()
    }
    /// munmap.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn munmap(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError> {
        let _ = (addr, len);
        todo!()
    }
    /// close.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn close(&mut self, fd: i32) -> Result<(), TargetError> {
        let _ = fd;
        todo!()
    }
    /// Reads a disposition and, with `new`, changes it.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn sigaction(&mut self, signal: i32, new: Option<&Handler>) -> Result<Handler, TargetError> {
        let _ = (signal, new);
        todo!()
    }
    /// membarrier(PRIVATE_EXPEDITED_SYNC_CORE), registered at the first use.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn sync_cores(&mut self) -> Result<(), TargetError> {
        todo!()
    }
    /// Whether the process may read the time-stamp counter (prctl PR_GET_TSC).
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn tsc_allowed(&mut self) -> Result<bool, TargetError> {
        todo!()
    }
    /// Serves the other threads meanwhile.
    ///
    /// # Errors
    /// As [`Batch::serve`].
    pub fn serve(&mut self, guard: &dyn Fn(u64) -> Option<u64>) -> Result<Served, TargetError> {
        self.batch.serve(guard)
    }
    /// Restores the thread, repairs the call that was interrupted, and lets it run.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn finish(self) -> Result<RemoteReport, TargetError> {
        todo!()
    }
}
