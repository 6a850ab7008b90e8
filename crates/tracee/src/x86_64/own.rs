//! What is done to our own process on x86-64 alone: signal actions by the kernel's structure, words of code
//! by stores, the extended state.
//!
//! In: plain values. Out: the system's results. Does not: decide anything.
#![allow(unsafe_code, reason = "the patching code keeps the preconditions of these calls")]

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::handler::Handler;
use crate::own::{OwnCaller, failed};
use crate::sys::x86_64 as own;

impl OwnCaller {
    /// Reads or replaces a signal action.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn sigaction(&mut self, signal: i32, new: Option<&Handler>) -> Result<Handler, TargetError> {
        let new = new.map(|action| action.to_bytes());
        // SAFETY: only `trapline_patch` calls this, with its generated handler (it never unmaps that code
        // here), or with an action that was in force before.
        let old = unsafe { own::sigaction(signal, new.as_ref()) };
        old.map(|old| Handler::from_bytes(&old)).map_err(failed(format!("set the action of signal {signal}")))
    }
    /// Writes words of code where writes to /proc/self/mem were refused (`mem`), by making the pages writable
    /// for a moment. Other threads run on in them. Each word changes at once if it is aligned or lies inside
    /// one cache line.
    ///
    /// # Errors
    /// [`TargetError::Locked`]. Where nothing is mapped: the error `mem` of the first write.
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
        // SAFETY: only `trapline_patch` calls this, with words of code that it compared a moment ago.
        let written = unsafe { own::write_words(addr.0, bytes) };
        let Err(rights) = written else { return Ok(()) };
        match mem {
            TargetError::Memory { source, .. } if rights.raw_os_error() != Some(libc::ENOMEM) => {
                Err(TargetError::Locked { addr, mem: source, rights })
            }
            mem => Err(mem),
        }
    }
}

/// The components of a thread's extended state that compiled code uses, among those that the system has
/// enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtendedState {
    /// Component bits: of x87, SSE, AVX, AVX-512 (Intel SDM 1, 13.1).
    pub mask: u32,
    /// Bytes of their XSAVE area in the compacted format.
    pub len: u32,
    /// Whether XGETBV shows which components are in use (SDM 1, 13.2), and opmasks, if there are any, have 64
    /// bits (AVX512BW).
    pub shows_use: bool,
}

impl ExtendedState {
    /// The state of this machine; `None` without XSAVEC.
    #[must_use]
    pub fn here() -> Option<Self> {
        /// Tiles, protection keys and supervisor components are not saved: compiled code does not touch them
        /// by itself.
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
        let shows_use = own::xsave_leaf(1).eax & XGETBV_1 != 0 && whole;
        Some(Self { mask: mask as u32, len, shows_use })
    }
}

#[cfg(test)]
mod tests {
    use super::ExtendedState;

    #[test]
    fn the_area_holds_what_the_cpu_says() {
        let Some(state) = ExtendedState::here() else { return };
        assert_eq!(state.mask & 3, 3, "x87 and SSE are always there");
        // CPUID.(13,1):EBX is the size of the area of all enabled components, so it is no smaller than ours.
        // 4 KiB hold AVX-512.
        assert!((576..=4096).contains(&state.len), "{state:?}");
        assert!(state.len <= crate::sys::x86_64::xsave_leaf(1).ebx, "{state:?}");
    }
}
