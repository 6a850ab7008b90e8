//! A thread's number, from its thread pointer; and whether the calling thread has a guarded stack.
//!
//! glibc keeps it in the thread's `struct pthread`, which is below the thread pointer (AAELF64, TLS variant
//! I) and differs in size between versions. So the distance is searched once, in the calling thread: the word
//! that is its own number, after the two links of the list of all threads (nptl/descr.h). The links are
//! checked again for each thread: a block that is not glibc's has none that lead back.
#![allow(unsafe_code, reason = "what the system knows of the calling thread")]

use std::sync::OnceLock;

use trapline_runtime::aarch64::thread::thread_pointer;

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

/// Bytes below the thread pointer that are searched; `struct pthread` has some 1800.
const FAR: u64 = 8192;

/// Number of the thread with that thread pointer. `word` reads memory that may be unmapped.
pub(in crate::inside) fn number(thread: u64, word: impl Fn(u64) -> Option<u64>) -> Number {
    static DISTANCE: OnceLock<Option<u64>> = OnceLock::new();
    if word(thread).is_none() {
        return Number::Gone;
    }
    let Some(distance) = *DISTANCE.get_or_init(|| distance(thread_pointer(), own_number(), &word)) else {
        return Number::Unknown;
    };
    let at = thread - distance;
    match word(at).filter(|_| is_linked(at - 16, &word)) {
        None => Number::Unknown,
        Some(tid) if tid as u32 == 0 => Number::Gone,
        Some(tid) => Number::Is(tid as u32),
    }
}

/// Number of the calling thread.
fn own_number() -> u32 {
    // SAFETY: it only returns a number.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// `prctl` option that asks for a guarded control stack, and the first bit of its answer (Linux 6.13,
/// include/uapi/linux/prctl.h).
const PR_GET_SHADOW_STACK_STATUS: libc::c_int = 74;
const PR_SHADOW_STACK_ENABLE: u64 = 1;

/// Whether the calling thread has a guarded control stack.
pub(super) fn has_guarded_stack() -> bool {
    let mut status = 0_u64;
    // SAFETY: it writes one word, or fails as an unknown option.
    let answered = unsafe { libc::prctl(PR_GET_SHADOW_STACK_STATUS, &raw mut status, 0_u64, 0_u64, 0_u64) };
    answered == 0 && status & PR_SHADOW_STACK_ENABLE != 0
}

/// Bytes from a thread's pointer down to its number.
fn distance(thread: u64, tid: u32, word: &impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let mut found = (4..=FAR).step_by(4).filter(|distance| {
        let at = thread - distance;
        word(at).is_some_and(|word| word as u32 == tid) && is_linked(at - 16, word)
    });
    // Two candidates would leave it unclear.
    found.next().filter(|_| found.next().is_none())
}

/// Whether there is a list element at this address: the second word of the next one leads back to it.
fn is_linked(at: u64, word: &impl Fn(u64) -> Option<u64>) -> bool {
    word(at).filter(|next| *next != 0).and_then(|next| word(next.wrapping_add(8))) == Some(at)
}

#[cfg(test)]
mod tests {
    use super::{Number, distance, number};
    use trapline_record::RemoteAddr;
    use trapline_tracee::Process;

    /// Reads memory that may be gone, as the engine does.
    fn reader() -> impl Fn(u64) -> Option<u64> {
        let process = Process::open(std::process::id()).expect("ourselves");
        move |at| process.read_u64(RemoteAddr(at)).ok()
    }

    #[test]
    fn own_number_and_that_of_another_thread_are_found() {
        let own = || (super::thread_pointer(), super::own_number());
        let (thread, tid) = own();
        assert!(distance(thread, tid, &reader()).is_some());
        assert_eq!(number(thread, reader()), Number::Is(tid));
        std::thread::spawn(move || {
            let (other, other_tid) = own();
            assert_eq!(
                (number(other, reader()), number(thread, reader())),
                (Number::Is(other_tid), Number::Is(tid))
            );
        })
        .join()
        .expect("no panic");
        assert_eq!(number(8, |_| None), Number::Gone);
        let room = [0_u64; 2048];
        assert_eq!(number(room.as_ptr() as u64 + 8192 + 4096, reader()), Number::Unknown);
    }
}
