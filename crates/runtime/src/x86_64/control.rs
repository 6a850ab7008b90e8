//! The control block of a glibc thread, as far as it contains the thread's number.
//!
//! In: a thread pointer. Out: the thread's number from its block, or none if there is no such block.
//! Does not: write.

use crate::kernel::{Word, read_word};

/// Offset of tid in `struct pthread`, in every glibc for x86-64.
const TID: u64 = 0x2d0;

/// The number in the block of a glibc thread: 0 when the thread has ended. `None`: there is no such block, or
/// it cannot be read.
pub(crate) fn tid(thread: u64) -> Option<u32> {
    let word = |at| if let Word::Is(word) = read_word(thread + at) { Some(word) } else { None };
    // The block contains its own address twice.
    let is_one = word(0)? == thread && word(16)? == thread;
    word(TID).filter(|_| is_one).map(|tid| tid as u32)
}

/// The words of such a block, for tests: (address, word), the number last.
#[cfg(all(test, not(loom)))]
pub(crate) fn words(thread: u64, tid: u64) -> std::vec::Vec<(u64, u64)> {
    std::vec![(thread, thread), (thread + 16, thread), (thread + TID, tid)]
}
