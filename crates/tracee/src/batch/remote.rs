//! Calls made by one of the target's own threads.
//!
//! Input: a seized process. Output: results of memfd_create, mmap, rt_sigaction and the like, and what the
//! calls cost the thread. Invariants: TGT-1, TGT-3. Does not: know what the memory is for.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use trapline_record::RemoteAddr;

use super::report::Served;
use super::serving::Serving;
use super::trap_actions::Guard;
use crate::error::TargetError;
use crate::handler::Handler;
use crate::numbers::CLOCK_MAY_BE_DENIED;
use crate::regs::Regs;
use crate::remote_options::{RemoteReport, Rseq};
use crate::session::Session;

/// A stopped thread that makes our calls. Dropping it releases the thread too.
#[derive(Debug)]
pub struct RemoteCaller<'b, 'p> {
    serving: &'b mut Serving<'p>,
    session: Option<Session>,
    /// Whether the thread goes on at the end. It does not while all threads are stopped.
    release: bool,
    report: RemoteReport,
}

impl<'b, 'p> RemoteCaller<'b, 'p> {
    /// Makes calls by a session that has begun. With `release` its thread goes on at the end.
    pub(super) fn new(serving: &'b mut Serving<'p>, session: Session, release: bool) -> Self {
        let report = session.report(serving.process());
        Self { serving, session: Some(session), release, report }
    }
    fn session(&mut self) -> Result<&mut Session, TargetError> {
        let gone = self.serving.process().gone("the session of remote calls is over");
        self.session.as_mut().ok_or(gone)
    }
    /// Makes a call.
    ///
    /// # Errors
    /// [`TargetError::RemoteCall`] when the call fails, [`TargetError::Gone`] when the thread ends.
    pub fn call(&mut self, name: &'static str, nr: i64, args: [u64; 6]) -> Result<u64, TargetError> {
        let process = self.serving.process();
        let result = self.session()?.call(process, nr, args)?;
        result.map_err(|source| {
            let hint = hint(&source).to_owned();
            TargetError::RemoteCall { pid: process.pid(), call: name, source, hint }
        })
    }
    /// The thread.
    #[must_use]
    pub const fn tid(&self) -> u32 {
        self.report.tid
    }
    /// Its registers when it was stopped.
    ///
    /// # Errors
    /// When the session is over.
    pub fn regs(&mut self) -> Result<Regs, TargetError> {
        Ok(self.session()?.original())
    }
    /// Its rseq area, if registered.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn rseq(&mut self) -> Result<Option<Rseq>, TargetError> {
        let process = self.serving.process();
        self.session()?.rseq(process)
    }
    /// Writes bytes (at most 256) where a call may read and write them. They are valid until the next use.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn argument(&mut self, bytes: &[u8]) -> Result<RemoteAddr, TargetError> {
        let process = self.serving.process();
        self.session()?.argument(process, bytes)
    }
    /// Calls memfd_create in the target and copies the descriptor here by pidfd_getfd. The descriptor in the
    /// target stays open and must be closed.
    ///
    /// # Errors
    /// As [`Self::call`], or when it cannot be fetched.
    pub fn memfd(&mut self, name: &str, executable: bool) -> Result<(i32, OwnedFd), TargetError> {
        let process = self.serving.process();
        let fail = |e| TargetError::system(process.pid(), "fetch the shared memory", e);
        let name = CString::new(name).map_err(|e| fail(e.into()))?;
        let at = self.argument(name.as_bytes_with_nul())?.0;
        let base = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let kind = if executable { libc::MFD_EXEC } else { libc::MFD_NOEXEC_SEAL };
        let create = |caller: &mut Self, flags: u32| {
            caller.call("memfd_create", libc::SYS_memfd_create, [at, u64::from(flags), 0, 0, 0, 0])
        };
        let remote = match create(self, base | kind) {
            // Kernels before 6.3 do not know the kinds.
            Err(TargetError::RemoteCall { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                create(self, base)?
            }
            other => other?,
        } as i32;
        match process.descriptor(remote) {
            Ok(local) => Ok((remote, local)),
            Err(error) => match std::fs::File::options()
                .read(true)
                .write(true)
                .open(process.folder().join(format!("fd/{remote}")))
            {
                Ok(file) => Ok((remote, file.into())),
                Err(_) => {
                    self.close(remote)?;
                    Err(fail(error))
                }
            },
        }
    }
    /// Calls mmap, with `prot` and `flags` as in libc.
    ///
    /// # Errors
    /// As [`Self::call`]; EEXIST when MAP_FIXED_NOREPLACE found a mapping there.
    pub fn mmap(
        &mut self,
        addr: RemoteAddr,
        len: u64,
        prot: i32,
        flags: i32,
        fd: i32,
        off: u64,
    ) -> Result<RemoteAddr, TargetError> {
        let args = [addr.0, len, prot as u64, flags as u64, i64::from(fd) as u64, off];
        self.call("mmap", libc::SYS_mmap, args).map(RemoteAddr)
    }
    /// Calls munmap.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn munmap(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError> {
        self.call("munmap", libc::SYS_munmap, [addr.0, len, 0, 0, 0, 0]).map(drop)
    }
    /// Calls madvise, so that forked children find zeros there.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn wipe_on_fork(&mut self, addr: RemoteAddr, len: u64) -> Result<(), TargetError> {
        let advice = libc::MADV_WIPEONFORK as u64;
        self.call("madvise", libc::SYS_madvise, [addr.0, len, advice, 0, 0, 0]).map(drop)
    }
    /// Calls close.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn close(&mut self, fd: i32) -> Result<(), TargetError> {
        self.call("close", libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]).map(drop)
    }
    /// Reads a signal's action, and changes it if `new` is given.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn sigaction(&mut self, signal: i32, new: Option<&Handler>) -> Result<Handler, TargetError> {
        const LEN: usize = 32;
        let mut bytes = [0u8; 2 * LEN];
        if let Some(new) = new {
            bytes[..LEN].copy_from_slice(&new.to_bytes());
        }
        let at = self.argument(&bytes)?;
        let from = if new.is_some() { at.0 } else { 0 };
        self.call("rt_sigaction", libc::SYS_rt_sigaction, [signal as u64, from, at.0 + LEN as u64, 8, 0, 0])?;
        let mut old = [0u8; LEN];
        self.serving.process().read(at + LEN as u64, &mut old)?;
        Ok(Handler::from_bytes(&old))
    }
    /// Calls membarrier(PRIVATE_EXPEDITED_SYNC_CORE), which is registered at the first use.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn sync_cores(&mut self) -> Result<(), TargetError> {
        const SYNC_CORE: u64 = 1 << 5;
        const REGISTER_SYNC_CORE: u64 = 1 << 6;
        if !self.session()?.mark_synced() {
            self.call("membarrier", libc::SYS_membarrier, [REGISTER_SYNC_CORE, 0, 0, 0, 0, 0])?;
        }
        self.call("membarrier", libc::SYS_membarrier, [SYNC_CORE, 0, 0, 0, 0, 0]).map(drop)
    }
    /// Whether the process may read the clock that stubs read (prctl PR_GET_TSC).
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn tsc_allowed(&mut self) -> Result<bool, TargetError> {
        if !CLOCK_MAY_BE_DENIED {
            return Ok(true);
        }
        let at = self.argument(&[0; 8])?;
        self.call("prctl", libc::SYS_prctl, [libc::PR_GET_TSC as u64, at.0, 0, 0, 0, 0])?;
        Ok(self.serving.process().read_u64(at)? as i32 == libc::PR_TSC_ENABLE)
    }
    /// Serves the other threads while this one is held.
    ///
    /// # Errors
    /// As [`Batch::serve`](crate::Batch::serve).
    pub fn serve(&mut self, guard: Guard<'_>) -> Result<Served, TargetError> {
        self.serving.serve(guard)
    }
    /// Restores the thread, repairs the call that was interrupted, and lets it run.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn finish(mut self) -> Result<RemoteReport, TargetError> {
        self.close_session()?;
        Ok(self.report)
    }
    fn close_session(&mut self) -> Result<(), TargetError> {
        let Some(session) = self.session.take() else { return Ok(()) };
        session.end(self.serving.process())?;
        if self.release {
            self.serving.tracees_mut().let_run(session.tid())?;
        }
        session.complete(&mut self.report);
        self.serving.sums().add_remote(&self.report);
        Ok(())
    }
}

impl Drop for RemoteCaller<'_, '_> {
    fn drop(&mut self) {
        // A drop cannot report an error; a thread that is gone needs nothing.
        drop(self.close_session());
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => {
            "; a seccomp filter or a security module (SELinux execmem) of the process forbids it"
        }
        Some(libc::ENOMEM) => "; the process has reached its limit of memory or of mappings",
        Some(libc::EMFILE | libc::ENFILE) => "; the process has reached its limit of open files",
        _ => "",
    }
}
