//! Facts that differ between processors: system calls, the clock, ELF.

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

/// FUTEX_WAIT_BITSET, in the low bits of the operation. Conditions, semaphores and joins wait with it.
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

/// A process may lose the right to read the time-stamp counter.
pub(crate) const CLOCK_MAY_BE_DENIED: bool = true;

/// ELF's number of this processor, and the name of its 32-bit programs.
pub(crate) const MACHINE: u16 = 62;
pub(crate) const SMALL: &str = "x32";
