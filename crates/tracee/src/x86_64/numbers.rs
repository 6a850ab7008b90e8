//! Facts that differ between processors: system calls, the clock, ELF, features.

use crate::features::CpuFeatures;
use crate::sys::x86_64::{has_rdpid, is_guest_on_intel};

pub(crate) const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;
/// io_pgetevents, for which some versions of libc have no name.
pub(crate) const IO_PGETEVENTS: i64 = 333;

/// Whether a finite timeout of a call that the kernel restarts by itself begins anew. Never on x86-64: the
/// kernel continues a restart block.
pub(crate) const fn forgets_timeout(_: i64, _: &[u64; 6]) -> bool {
    false
}

/// Whether a thread in this call makes our calls only if no other thread can.
pub(crate) const fn is_last_choice(_: i64) -> bool {
    false
}

/// Calls of this processor alone for [`waits_outside`](crate::calls::waits_outside).
pub(crate) const fn waits_outside_calls(nr: i64) -> bool {
    matches!(nr, libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait | libc::SYS_pause)
}

/// `AUDIT_ARCH_X86_64`.
pub(crate) const AUDIT_ARCH: u32 = 0xc000_003e;

/// A process may lose the right to read the time-stamp counter.
pub(crate) const CLOCK_MAY_BE_DENIED: bool = true;

/// ELF's number of this processor, and the name of its 32-bit programs.
pub(crate) const MACHINE: u16 = 62;
pub(crate) const SMALL: &str = "x32";

/// The features that generated code may use, from AT_HWCAP2 of a process and from CPUID.
pub(crate) fn features(_: u64, hwcap2: u64, cpus: u32) -> CpuFeatures {
    CpuFeatures { rdpid: has_rdpid(), fsgsbase: hwcap2 & 2 != 0, lse: false, sve: false, cpus }
}

/// Calls that create a thread or a process.
pub(crate) const CREATING: [i64; 4] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork, libc::SYS_vfork];

/// Whether a breakpoint's trap may come without its reason ([`crate::shield`]).
pub(crate) fn may_lose_traps() -> bool {
    is_guest_on_intel()
}
