//! The control block of a thread of glibc's, as far as it says which thread it is.
//!
//! In: a thread pointer. Out: the thread's number as its block has it, or none where no such block is told. Does not: write.

use crate::kernel::{Word, read_word};

/// `struct pthread`'s tid, in every glibc for x86-64.
const TID: u64 = 0x2d0;

/// The number in the block of a thread of glibc's: 0 when the thread has ended. `None`: this is no such block, or cannot be read.
pub(crate) fn tid(thread: u64) -> Option<u32> {
    let word = |at| if let Word::Is(word) = read_word(thread + at) { Some(word) } else { None };
    // It names itself twice.
    let is_one = word(0)? == thread && word(16)? == thread;
    word(TID).filter(|_| is_one).map(|tid| tid as u32)
}

/// What makes one, for tests: (address, word), the number last.
#[cfg(all(test, not(loom)))]
pub(crate) fn words(thread: u64, tid: u64) -> std::vec::Vec<(u64, u64)> {
    std::vec![(thread, thread), (thread + 16, thread), (thread + TID, tid)]
}
