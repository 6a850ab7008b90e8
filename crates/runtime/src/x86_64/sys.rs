//! What Rust has no words for on x86-64: a system call, the thread pointer, an addition that no signal splits,
//! and the address that a signal's handler returns to.
//!
//! In: numbers and arguments; registers of the calling thread. Out: plain numbers. System calls are made
//! directly, without the C library. So errno stays as it is, and code that wraps the C library's calls does not
//! see it.
//! Does not: keep anything, or know what a system call does (`kernel`).
//!
//! ```text
//!   call             rax = number;  rdi, rsi, rdx, r10, r8, r9 = arguments
//!                    rax = result;  uses rcx, r11, flags; the stack stays as it is
//!   thread_pointer   fs:0, which holds its own address
//!   add_own          [word] += 1, one instruction;  uses flags
//!   the restorer     rsp = the signal frame behind its first word;  rax = 15, rt_sigreturn
//! ```

use core::arch::{asm, global_asm};
use core::sync::atomic::AtomicU64;

pub use crate::kernel::{DEFAULT, IGNORE, SignalAction, flags};
pub(crate) use crate::kernel::{MaskChange, action, mask, raise, set_action};

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

/// The thread pointer: the address of the thread's control block, which begins with its own address (psABI,
/// "Thread-Local Storage", variant II). It distinguishes threads without a thread-local slot. A child
/// of `vfork` shares its parent's, as does a raw clone with CLONE_VM and without CLONE_SETTLS. Such tasks are
/// one thread here, as they are for their C library.
#[must_use]
#[inline]
pub fn thread_pointer() -> u64 {
    let tp: u64;
    // SAFETY: every thread that a C library or Rust's standard library started has its control block at fs:0;
    // only that word is read.
    unsafe { asm!("mov {}, fs:0", out(reg) tp, options(nostack, preserves_flags, readonly, pure)) };
    tp
}

/// Adds 1 to a word that only this thread and its signal handlers write: one instruction, which no signal
/// splits, without a bus lock.
#[inline]
pub fn add_own(word: &AtomicU64) {
    // SAFETY: the word is alive and aligned (a reference); no other thread writes it, so the plain
    // read-modify-write loses nothing, and aligned 8-byte stores are seen whole.
    unsafe { asm!("add qword ptr [{}], 1", in(reg) word.as_ptr(), options(nostack)) };
}

/// `SA_RESTORER`: the action contains the address that its handler returns to, which x86-64 requires.
pub(crate) const RESTORER: u64 = 0x0400_0000;

// The bytes are those of the usual C libraries: unwinders recognize a signal's frame by them.
global_asm!(
    ".pushsection .text.trapline_restorer, \"ax\", @progbits",
    ".hidden trapline_runtime_restorer",
    ".globl trapline_runtime_restorer",
    ".type trapline_runtime_restorer, @function",
    ".balign 16",
    "nop",
    "trapline_runtime_restorer:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", // mov rax, 15
    "syscall",
    ".size trapline_runtime_restorer, . - trapline_runtime_restorer",
    ".popsection",
);

unsafe extern "C" {
    fn trapline_runtime_restorer();
}

/// The address that our handlers return to: rt_sigreturn.
pub(crate) fn restorer() -> u64 {
    trapline_runtime_restorer as *const () as u64
}
