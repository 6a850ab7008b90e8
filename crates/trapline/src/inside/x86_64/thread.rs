//! A thread's number, by its thread pointer.

/// What a thread pointer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::inside) enum Number {
    /// Its thread has ended.
    Gone,
    /// It has this number, or had.
    Is(u32),
    /// It is no C library's that is known.
    Unknown,
}

/// `struct pthread`'s tid, in every glibc for x86-64; 0 when the thread has ended and its stack is kept for another.
const TID: u64 = 0x2d0;

/// The number of the thread with that thread pointer; `word` reads what may be gone.
pub(in crate::inside) fn number(thread: u64, word: impl Fn(u64) -> Option<u64>) -> Number {
    // glibc's control block names itself at 0 and 16; musl's at 0 only. Unmapped, its thread is gone with it.
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
