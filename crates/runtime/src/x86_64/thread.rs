//! A thread's pointer, and words that only one thread writes.
//!
//! In: registers of the calling thread. Out: plain numbers.
//! Does not: keep anything, or ask the kernel (`kernel`).

use core::arch::asm;
use core::sync::atomic::AtomicU64;

pub use crate::kernel::{
    AlternateStack, Word, alternate_stack, membarrier, read_word, register_core_sync, register_membarrier,
};

/// The thread pointer: the address of the thread's control block, which begins with its own address (psABI,
/// "Thread-Local Storage", variant II). It distinguishes threads without a thread-local slot. Tasks that
/// share one (a child of `vfork`, or a raw clone with CLONE_VM and without CLONE_SETTLS) are one thread here,
/// as they are for their C library.
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
