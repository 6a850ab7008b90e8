//! Facts that differ between processors: system calls, the clock, ELF, features.

use crate::features::CpuFeatures;

/// arm64 does not have this call.
pub(crate) const EPOLL_WAIT: i64 = -1;
/// io_pgetevents, for which some versions of libc have no name.
pub(crate) const IO_PGETEVENTS: i64 = 292;
const TIMER_ABSTIME: u64 = 1;

/// Whether a finite timeout of a call that the kernel restarts by itself begins anew once the thread has made
/// calls of ours. It does where the kernel forgets how to continue the call before a tracer sees the thread
/// (`regs`).
pub(crate) const fn forgets_timeout(nr: i64, args: &[u64; 6]) -> bool {
    match nr {
        libc::SYS_nanosleep => true,
        libc::SYS_clock_nanosleep => args[1] & TIMER_ABSTIME == 0,
        // FUTEX_WAIT. FUTEX_WAIT_BITSET has an absolute time.
        libc::SYS_futex => args[1] & 0x7f == 0 && args[3] != 0,
        _ => false,
    }
}

/// Whether a thread in this call makes our calls only if no other thread can. In `restart_syscall` the kernel
/// continues a sleep that it broke off before, and the number of that call is forgotten. A session loses
/// nothing. But if the tracer dies in it, the way back through rt_sigreturn makes this call fail with EINTR.
pub(crate) const fn is_last_choice(nr: i64) -> bool {
    nr == libc::SYS_restart_syscall
}

/// Calls of this processor alone for [`waits_outside`](crate::calls::waits_outside): none.
pub(crate) const fn waits_outside_calls(_: i64) -> bool {
    false
}

/// `AUDIT_ARCH_AARCH64`.
pub(crate) const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Every process may read the virtual counter. Before 6.12 there is no prctl that could answer this.
pub(crate) const CLOCK_MAY_BE_DENIED: bool = false;

/// ELF's number of this processor, and the name of its 32-bit programs.
pub(crate) const MACHINE: u16 = 183;
pub(crate) const SMALL: &str = "ILP32";

/// `HWCAP_ATOMICS` (asm/hwcap.h).
const HWCAP_ATOMICS: u64 = 1 << 8;
/// `HWCAP_SVE`.
const HWCAP_SVE: u64 = 1 << 22;

/// The features that generated code may use, from AT_HWCAP of a process.
pub(crate) const fn features(hwcap: u64, _: u64, cpus: u32) -> CpuFeatures {
    CpuFeatures {
        rdpid: false,
        fsgsbase: false,
        lse: hwcap & HWCAP_ATOMICS != 0,
        sve: hwcap & HWCAP_SVE != 0,
        cpus,
    }
}

/// Calls that create a thread or a process.
pub(crate) const CREATING: [i64; 2] = [libc::SYS_clone, libc::SYS_clone3];

/// Whether a breakpoint's trap may come without its reason.
pub(crate) const fn may_lose_traps() -> bool {
    false
}
