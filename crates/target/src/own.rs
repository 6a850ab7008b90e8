//! This very process, as something that can be given memory and signal actions: what [`RemoteCaller`](crate::RemoteCaller) does
//! in another process, done in our own.
//!
//! In: addresses and plain values. Out: what the system said. Like its remote twin it does what it is told: that what is unmapped is
//! not in use, and that a handler is code, is the caller's business (`trapline_patch`, PATCH-10 and I5).
//! Does not: decide anything, stop anybody.
#![allow(unsafe_code, reason = "two calls whose preconditions the patching room keeps")]

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use trapline_record::RemoteAddr;

use crate::batch::Handler;
use crate::error::TargetError;
use crate::sys::own;

/// Calls of our own.
#[derive(Debug, Default)]
pub struct OwnCaller {
    open: Vec<OwnedFd>,
}

fn failed(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> TargetError {
    move |source| TargetError::system(std::process::id(), what.into(), source)
}

impl OwnCaller {
    /// A memfd: its number, as one who maps it here needs it, and a descriptor to keep.
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
    /// Closes a number that [`memfd`](Self::memfd) gave.
    pub fn close(&mut self, fd: i32) {
        self.open.retain(|open| open.as_raw_fd() != fd);
    }
    /// Maps where nothing is mapped.
    ///
    /// # Errors
    /// When something is there, or the system refuses.
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
        // SAFETY: only the patching room calls this, with regions that it mapped a moment ago and that nothing leads to yet.
        unsafe { own::munmap(addr.0, len) }.map_err(failed(format!("unmap {len} bytes at {addr}")))
    }
    /// Reads or replaces a signal action.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn sigaction(&mut self, signal: i32, new: Option<&Handler>) -> Result<Handler, TargetError> {
        let new = new.map(|action| action.to_bytes());
        // SAFETY: only the patching room calls this, with its generated handler, whose code it never unmaps here, or with an
        // action that was in force before.
        let old = unsafe { own::sigaction(signal, new.as_ref()) };
        old.map(|old| Handler::from_bytes(&old)).map_err(failed(format!("set the action of signal {signal}")))
    }
    /// Writes words of code where writes to /proc/self/mem were refused (`mem`), by making the pages writable for the moment: other threads
    /// run on in them, and each aligned word, or one inside a line, changes at once.
    ///
    /// # Errors
    /// [`TargetError::Locked`]. Where nothing is mapped: what was in the way of the first write.
    pub fn write_code(
        &mut self,
        addr: RemoteAddr,
        bytes: &[u8],
        mem: TargetError,
    ) -> Result<(), TargetError> {
        let TargetError::Memory { source: refused, .. } = &mem else { return Err(mem) };
        if !matches!(refused.raw_os_error(), Some(libc::EIO | libc::EPERM | libc::EACCES)) {
            return Err(mem);
        }
        // SAFETY: only the patching room calls this, with words of code that it has compared a moment ago.
        let written = unsafe { own::write_words(addr.0, bytes) };
        let Err(rights) = written else { return Ok(()) };
        match mem {
            TargetError::Memory { source, .. } if rights.raw_os_error() != Some(libc::ENOMEM) => {
                Err(TargetError::Locked { addr, mem: source, rights })
            }
            mem => Err(mem),
        }
    }
    /// When it returns, every CPU that runs a thread of ours has serialised since the call.
    ///
    /// # Errors
    /// When the kernel has no such membarrier.
    pub fn sync_cores(&mut self) -> Result<(), TargetError> {
        own::sync_cores().map_err(failed("make all CPUs serialise"))
    }
}

/// The components of a thread's extended state that compiled code uses, among those that the system has enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtendedState {
    /// Component bits: of x87, SSE, AVX, AVX-512 (Intel SDM 1, 13.1).
    pub mask: u32,
    /// Bytes of their XSAVE area in the compacted format.
    pub len: u32,
    /// XGETBV tells what is in use (SDM 1, 13.2), and if there are opmasks, they have 64 bits (AVX512BW).
    pub tells_use: bool,
}

impl ExtendedState {
    /// What this machine has; `None` without XSAVEC.
    #[must_use]
    pub fn here() -> Option<Self> {
        /// Tiles, protection keys and supervisor components stay as they are: compiled code does not touch them by itself.
        const USED: u64 = 0b1110_0111;
        const HEADER_END: u32 = 576;
        const OPMASKS: u64 = 1 << 5;
        const XSAVEC: u32 = 1 << 1;
        const XGETBV_1: u32 = 1 << 2;
        const ALIGNED: u32 = 1 << 1;
        let mask = own::enabled_components()? & USED;
        if own::xsave_leaf(1).eax & XSAVEC == 0 {
            return None;
        }
        let len = (2..32).filter(|n| mask >> n & 1 == 1).fold(HEADER_END, |end, n| {
            let leaf = own::xsave_leaf(n);
            (if leaf.ecx & ALIGNED != 0 { end.next_multiple_of(64) } else { end }) + leaf.eax
        });
        let whole = mask & OPMASKS == 0 || std::arch::is_x86_feature_detected!("avx512bw");
        let tells_use = own::xsave_leaf(1).eax & XGETBV_1 != 0 && whole;
        Some(Self { mask: mask as u32, len, tells_use })
    }
}

#[cfg(test)]
mod tests {
    use super::{ExtendedState, OwnCaller};
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

    #[test]
    fn the_area_holds_what_the_cpu_says() {
        let Some(state) = ExtendedState::here() else { return };
        assert_eq!(state.mask & 3, 3, "x87 and SSE are always there");
        // CPUID.(13,1):EBX is the area of all enabled components, so no smaller than ours; 4 KiB holds AVX-512.
        assert!((576..=4096).contains(&state.len), "{state:?}");
        assert!(state.len <= crate::sys::own::xsave_leaf(1).ebx, "{state:?}");
    }
}
