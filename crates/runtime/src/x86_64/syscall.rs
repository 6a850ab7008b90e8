//! A system call, made directly, without the C library. So errno stays as it is, and code that wraps the C
//! library's calls does not see it.
//!
//! In: a number of [`nr`] and arguments. Out: the kernel's result.
//! Does not: know what a call does (`kernel`, `trap::signals`).

use core::arch::asm;

/// Numbers on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl).
pub(crate) mod nr {
    pub(crate) const RT_SIGACTION: u64 = 13;
    pub(crate) const RT_SIGPROCMASK: u64 = 14;
    pub(crate) const GETPID: u64 = 39;
    pub(crate) const SIGALTSTACK: u64 = 131;
    pub(crate) const GETTID: u64 = 186;
    pub(crate) const TGKILL: u64 = 234;
    pub(crate) const RT_TGSIGQUEUEINFO: u64 = 297;
    pub(crate) const PROCESS_VM_READV: u64 = 310;
    pub(crate) const MEMBARRIER: u64 = 324;
}

/// Makes a system call. The result is the kernel's: negative for errors.
///
/// # Safety
/// As the system call itself requires.
pub(crate) unsafe fn call(number: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller guarantees number and arguments; the kernel changes rax, rcx, r11 and nothing else.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], out("rcx") _, out("r11") _, options(nostack));
    }
    result
}
