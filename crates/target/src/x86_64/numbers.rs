//! System calls that are this processor's own affair.

pub(crate) const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;
/// io_pgetevents, which libc does not name everywhere.
pub(crate) const IO_PGETEVENTS: i64 = 333;

/// Whether a call that the kernel restarts by itself has a finite timeout that begins anew: never here, a restart block is gone on with.
pub(crate) const fn forgets_timeout(_: i64, _: &[u64; 6]) -> bool {
    false
}

/// Whether a thread in this call is taken for calls of ours only if no other will do.
pub(crate) const fn is_last_choice(_: i64) -> bool {
    false
}

/// FUTEX_WAIT_BITSET, which conditions, semaphores and joins wait with; the low bits of the operation.
const WAIT_BITSET: u64 = 9;

/// Whether a thread that waits in this call holds no lock of the allocator, the loader or the unwinder.
pub(crate) const fn waits_outside(nr: i64, args: &[u64; 6]) -> bool {
    match nr {
        libc::SYS_futex => args[1] & 0x7f == WAIT_BITSET,
        libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        | libc::SYS_poll
        | libc::SYS_ppoll
        | libc::SYS_select
        | libc::SYS_pselect6
        | libc::SYS_epoll_wait
        | libc::SYS_epoll_pwait
        | libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_pause
        | libc::SYS_rt_sigsuspend
        | libc::SYS_rt_sigtimedwait
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg => true,
        _ => false,
    }
}

/// `AUDIT_ARCH_X86_64`.
pub(crate) const AUDIT_ARCH: u32 = 0xc000_003e;

/// A process may be forbidden to read the time-stamp counter.
pub(crate) const CLOCK_MAY_BE_DENIED: bool = true;

/// ELF's number of this processor, and what its programs of 32 bits are called.
pub(crate) const MACHINE: u16 = 62;
pub(crate) const SMALL: &str = "x32";
