//! What Rust has no words for on arm64: a system call, the thread pointer, an addition that no signal splits.
//! Also the address that a signal's handler returns to.
//!
//! In: numbers and arguments; registers of the calling thread. Out: plain numbers. System calls are made
//! directly, without the C library. So errno stays as it is, and code that wraps the C library's calls does
//! not see it.
//!
//! ```text
//!   call             x8 = number, x0 to x5 = arguments; then x0 = result, and no other register changes
//!   thread_pointer   any register = tpidr_el0
//!   add_own          [word] = [word] + 1; two registers are used, flags and stack are not
//! ```
//!
//! Does not: keep anything, or know what a system call does (`kernel`).

use core::arch::asm;
use core::sync::atomic::AtomicU64;

pub use crate::kernel::{DEFAULT, IGNORE, SignalAction, flags};
pub(crate) use crate::kernel::{MaskChange, action, mask, raise, set_action};

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

/// The thread pointer: TPIDR_EL0, the address of the thread's control block (AAELF64, "Thread Local Storage",
/// variant I). It distinguishes threads without a thread-local slot. Tasks that share one (a child of
/// `vfork`, or a raw clone with CLONE_VM and without CLONE_SETTLS) are one thread here, as they are for their
/// C library.
#[must_use]
#[inline]
pub fn thread_pointer() -> u64 {
    let tp: u64;
    // SAFETY: reads a register that user space may read.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) tp, options(nostack, preserves_flags, nomem, pure)) };
    tp
}

/// Adds 1 to a word that only this thread and its signal handlers write. If a signal arrives between load and
/// store, the store fails, and both are repeated. Runs on processors without FEAT_LSE; with it, one
/// instruction would do.
#[inline]
pub fn add_own(word: &AtomicU64) {
    // SAFETY: the word is alive and aligned (a reference), and is an atomic.
    unsafe {
        asm!("2: ldxr {old}, [{word}]", "add {old}, {old}, #1", "stxr {failed:w}, {old}, [{word}]", "cbnz {failed:w}, 2b",
            word = in(reg) word.as_ptr(), old = out(reg) _, failed = out(reg) _, options(nostack, preserves_flags));
    }
}

/// No flag: handlers return to the vDSO's own rt_sigreturn, which unwinders recognize.
pub(crate) const RESTORER: u64 = 0;

/// The address that our handlers return to: 0, so that the kernel chooses.
pub(crate) const fn restorer() -> u64 {
    0
}
