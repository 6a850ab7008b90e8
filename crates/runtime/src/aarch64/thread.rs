//! A thread's pointer, and words that only one thread writes.
//!
//! In: registers of the calling thread. Out: plain numbers.
//! Does not: keep anything, or ask the kernel (`kernel`).

use core::arch::asm;
use core::sync::atomic::AtomicU64;

use crate::kernel::barrier;
pub use crate::kernel::{
    AlternateStack, Word, alternate_stack, membarrier, read_word, register_core_sync, register_membarrier,
};

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

const SYNC_CORE: u64 = 1 << 5;
const REGISTER_SYNC_CORE: u64 = 1 << 6;

/// Makes every running thread of this process synchronise its context (membarrier(2),
/// MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE; Linux 4.16). After that, each thread fetches code whose cache
/// lines were cleaned before. True if it succeeded.
#[must_use]
pub fn synchronise_cores() -> bool {
    // A forked child may have to register itself.
    barrier(SYNC_CORE) || (barrier(REGISTER_SYNC_CORE) && barrier(SYNC_CORE))
}
