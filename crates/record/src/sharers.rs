//! Processes that share a segment: the program that was probed, and its forked children.
//!
//! A thread sees a number of itself, and so do all threads of its PID namespace. A child in another namespace may have a
//! thread of the same number: by `unshare` or `setns` before a fork, or by `clone`. No call tells a thread the number that
//! the tracer sees. So each process takes a number of its own in the segment, and a thread is known by both.
//!
//! ```text
//!   word of a key    process << 32 | the thread's number, as it sees itself
//!   OWN_PAGE         a private page, which the kernel clears in a forked child (MADV_WIPEONFORK)
//!   page + 0         process << 32; 0: it has no number yet
//! ```
//!
//! Invariant: SHR-1 two threads of different processes have different words, unless these processes share their memory.
//!
//! # A process takes its number
//!
//! | step | what | another thread of it, or a signal handler, meanwhile |
//! |---|---|---|
//! | H1 | the page's word is looked at: not 0, so it is the process' | - |
//! | H2 | 0: the next number is taken by one atomic addition to the control block's word | it takes one, too |
//! | H3 | the page's word becomes that number, if it is still 0 | the first one counts |
//! | H4 | the page's word is loaded, where the program asks for it: not 0 from H3 on | the same |
//!
//! - *A thread ends between H2 and H3*: no process has that number.
//! - *A fork between any two steps*, by another thread: the child's page is 0, and the child begins at H1. The forking
//!   thread itself is in no step. A handler that forks between H3 and H4 returns twice, and the child's H4 finds 0. Its hit has
//!   then the process 0, which no process has: it is counted, and known to be unknown.
//! - *`vfork`, or `clone` with CLONE_VM*: the page is the parent's, and so is the C library's number of the thread. The two
//!   are one thread here. (The parent of a `vfork` sleeps meanwhile.)
//! - *`unshare`, `setns`*: the thread stays where it is; only its later children are elsewhere, and begin at H1.
//! - *exec*: the segment is gone.
//! - *Several segments* have pages and numbers of their own. A word means something in its segment alone.
//!
//! The tracer reads the pages of the processes that it finds (`trapline::sharers`). It needs no answer, and neither does
//! a hit: no thread waits.

/// Length of the page.
pub const PAGE: u64 = 4096;

/// The process' number in a word of a key, and the thread's, as it sees itself.
#[must_use]
pub const fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
