//! A system call, made directly, without the C library. So errno stays as it is, and code that wraps the C
//! library's calls does not see it.
//!
//! In: a number of [`nr`] and arguments. Out: the kernel's result.
//! Does not: know what a call does (`kernel`, `trap::signals`).

use core::arch::asm;

/// Numbers on arm64 (asm-generic/unistd.h).
pub(crate) mod nr {
    pub(crate) const TGKILL: u64 = 131;
    pub(crate) const SIGALTSTACK: u64 = 132;
    pub(crate) const RT_SIGACTION: u64 = 134;
    pub(crate) const RT_SIGPROCMASK: u64 = 135;
    pub(crate) const GETPID: u64 = 172;
    pub(crate) const GETTID: u64 = 178;
    pub(crate) const RT_TGSIGQUEUEINFO: u64 = 240;
    pub(crate) const PROCESS_VM_READV: u64 = 270;
    pub(crate) const MEMBARRIER: u64 = 283;
}

/// Makes a system call. The result is the kernel's: negative for errors.
///
/// # Safety
/// As the system call itself requires.
pub(crate) unsafe fn call(number: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller guarantees number and arguments; the kernel changes x0 and nothing else.
    unsafe {
        asm!("svc #0", in("x8") number, inlateout("x0") args[0].cast_signed() => result, in("x1") args[1], in("x2") args[2],
            in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    result
}
