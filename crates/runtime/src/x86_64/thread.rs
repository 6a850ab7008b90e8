//! What a thread is to itself: its number, its words, and the few system calls that are needed off the usual path.
//!
//! In: registers of the thread that runs. Out: plain numbers. Calls go to the kernel directly, so errno stays as it is.
//! Does not: keep anything.

use core::arch::asm;
use core::sync::atomic::AtomicU64;

/// The thread pointer: the address of the thread's control block, which holds its own address first (psABI, "Thread-Local
/// Storage", variant II). It tells threads apart without a thread-local slot. Tasks that share one (a child of `vfork`, or a raw
/// clone with CLONE_VM and without CLONE_SETTLS) are one thread here, as they are to their C library.
#[must_use]
#[inline]
pub fn thread_pointer() -> u64 {
    let tp: u64;
    // SAFETY: every thread that a C library or Rust's started has its control block at fs:0; only that word is read.
    unsafe { asm!("mov {}, fs:0", out(reg) tp, options(nostack, preserves_flags, readonly, pure)) };
    tp
}

/// Adds 1 to a word that only this thread writes, signal handlers on it included: one instruction, which no signal splits,
/// without a bus lock.
#[inline]
pub fn add_own(word: &AtomicU64) {
    // SAFETY: the word is alive and aligned (a reference); no other thread writes it, so the plain read-modify-write loses
    // nothing, and aligned 8-byte stores are seen whole.
    unsafe { asm!("add qword ptr [{}], 1", in(reg) word.as_ptr(), options(nostack)) };
}

const SYS_SIGALTSTACK: u64 = 131;
const SYS_PROCESS_VM_READV: u64 = 310;
const SYS_MEMBARRIER: u64 = 324;
const SYS_GETPID: u64 = 39;

/// A system call. The result is as the kernel gives it: negative for errors.
///
/// # Safety
/// As the call itself asks.
unsafe fn call(number: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller answers for number and arguments; the kernel changes rax, rcx, r11 and nothing else.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], out("rcx") _, out("r11") _, options(nostack));
    }
    result
}

/// Where signals run that ask for a stack of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlternateStack {
    start: u64,
    size: u64,
}

impl AlternateStack {
    /// Whether an address lies on it.
    #[must_use]
    pub const fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.start) < self.size
    }
}

/// This thread's alternate stack, if it has one.
#[must_use]
pub fn alternate_stack() -> Option<AlternateStack> {
    const SS_DISABLE: u64 = 2;
    let mut stack = [0_u64; 3];
    // SAFETY: sigaltstack(NULL, &stack) writes one `stack_t`: address, flags (32 bits, then padding), size.
    let result = unsafe { call(SYS_SIGALTSTACK, [0, (&raw mut stack) as u64, 0, 0, 0, 0]) };
    let [start, flags, size] = stack;
    (result == 0 && flags & SS_DISABLE == 0).then_some(AlternateStack { start, size })
}

/// What stands at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// This.
    Is(u64),
    /// Nothing is mapped there.
    Gone,
    /// The system refuses the question.
    Unknown,
}

/// Reads a word of our own that may be gone.
#[must_use]
pub fn read_word(at: u64) -> Word {
    const EFAULT: i64 = -14;
    let mut word = 0_u64;
    let (local, remote) = ([(&raw mut word) as u64, 8], [at, 8]);
    // SAFETY: process_vm_readv of ourselves writes 8 bytes to `word`, and nothing if it fails; getpid has no arguments.
    let read = unsafe {
        let pid = call(SYS_GETPID, [0; 6]);
        call(SYS_PROCESS_VM_READV, [pid as u64, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0])
    };
    match read {
        8 => Word::Is(word),
        EFAULT => Word::Gone,
        _ => Word::Unknown,
    }
}

const EXPEDITED: u64 = 1 << 3;
const REGISTER_EXPEDITED: u64 = 1 << 4;

/// Asks once for what [`membarrier`] needs (membarrier(2), MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED; Linux 4.14).
#[must_use]
pub fn register_membarrier() -> bool {
    // SAFETY: no pointers.
    unsafe { call(SYS_MEMBARRIER, [REGISTER_EXPEDITED, 0, 0, 0, 0, 0]) == 0 }
}

/// Makes every running thread of this process execute a full memory barrier. True if it did.
#[must_use]
pub fn membarrier() -> bool {
    // SAFETY: no pointers.
    unsafe { call(SYS_MEMBARRIER, [EXPEDITED, 0, 0, 0, 0, 0]) == 0 }
}
