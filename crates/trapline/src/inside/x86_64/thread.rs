//! A thread's number, from its thread pointer.

/// Result for a thread pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::inside) enum Number {
    /// The thread has ended.
    Gone,
    /// The thread has, or had, this number.
    Is(u32),
    /// No known C library made the thread's control block.
    Unknown,
}

/// Offset of tid in `struct pthread`, in every glibc for x86-64. The word is 0 when the thread has ended and
/// its stack is kept for another.
const TID: u64 = 0x2d0;

/// Number of the thread with that thread pointer. `word` reads memory that may be unmapped.
pub(in crate::inside) fn number(thread: u64, word: impl Fn(u64) -> Option<u64>) -> Number {
    // glibc's control block holds its own address at 0 and 16, musl's only at 0. If it is unmapped, its
    // thread is gone.
    let Some(own) = word(thread) else { return Number::Gone };
    if own != thread || word(thread + 16) != Some(thread) {
        return Number::Unknown;
    }
    match word(thread + TID).map(|word| word as u32) {
        None => Number::Unknown,
        Some(0) => Number::Gone,
        Some(tid) => Number::Is(tid),
    }
}
