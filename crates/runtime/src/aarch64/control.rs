//! The control block of a glibc thread, as far as it contains the thread's number.
//!
//! In: a thread pointer. Out: the thread's number from its block, or none if there is no such block.
//! Does not: write.
//!
//! On arm64 `struct pthread` ends where the thread pointer points to, and its length depends on glibc's
//! release. What is known is its beginning: the number is right behind the links of the list of all stacks.
//! So the distance from the thread pointer down to the number is searched for once, in the block of the
//! calling thread. It is where that thread's number is, with links before it to words that link back. Other
//! threads' blocks are recognized by those links, too. (No word in a block contains the block's own address
//! here.) glibc keeps the links when a thread ends, and in a forked child. (musl has no links there, so no
//! distance is found, and there is never a number.) While glibc changes the list, links may not lead back.
//! Then the block is not recognized, and the caller tries again later.
//!
//! ```text
//!   at = tpidr_el0 - DISTANCE
//!   at - 16   NEXT: the next block's links       [[at - NEXT] + 8] = at - 16
//!   at -  8   PREVIOUS: the previous one's       [[at - PREVIOUS]] = at - 16
//!   at        the thread's number, 32 bits
//! ```

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::sys::thread_pointer;
use crate::kernel::{self, Read, Word, read_word, read_words};

/// Maximum length of `struct pthread` in bytes (it is 0x740 in glibc 2.36).
const LONGEST: u64 = 0x1000;
/// Distances from the links, next and previous, up to the number, in bytes.
const NEXT: u64 = 16;
const PREVIOUS: u64 = 8;

/// Distance from the thread pointer down to the number, in bytes; 0: not known yet. It is the same for all
/// threads of a process, whichever finds it.
static DISTANCE: AtomicU64 = AtomicU64::new(0);

/// The number in the block of a glibc thread: 0 when the thread has ended. `None`: there is no such block, or
/// it cannot be read.
pub(crate) fn tid(thread: u64) -> Option<u32> {
    let at = thread.checked_sub(distance()?)?;
    is_linked(at).then(|| word(at)).flatten().map(|tid| tid as u32)
}

/// Distance from a thread pointer down to its thread's number, in bytes.
fn distance() -> Option<u64> {
    match DISTANCE.load(Relaxed) {
        0 => {
            let found = find()?;
            DISTANCE.store(found, Relaxed);
            Some(found)
        }
        known => Some(known),
    }
}

/// Searches for it in the block of this thread, downwards, until it is found or memory cannot be read any
/// more.
fn find() -> Option<u64> {
    /// Bytes read at once. A piece is aligned to this, so it lies within a page.
    const PIECE: u64 = 512;
    let own = kernel::tid() as u32;
    let here = thread_pointer();
    let mut end = here;
    while end > here.saturating_sub(LONGEST) {
        let mut words = [0_u64; (PIECE / 8) as usize];
        let start = (end - 8) / PIECE * PIECE;
        let words = words.get_mut(..((end - start) / 8) as usize)?;
        if read_words(start, words) != Read::All {
            return None;
        }
        let is_own = |&(at, tid): &(u64, u64)| tid as u32 == own && is_linked(at);
        let found = (start..).step_by(8).zip(words.iter().copied()).find(is_own);
        if let Some((at, _)) = found {
            return Some(here - at);
        }
        end = start;
    }
    None
}

/// Whether the links before a number lead to others that lead back.
fn is_linked(at: u64) -> bool {
    let links = at.wrapping_sub(NEXT);
    let leads_back = |by: u64, back: u64| {
        word(at.wrapping_sub(by)).is_some_and(|other| word(other.wrapping_add(NEXT - back)) == Some(links))
    };
    leads_back(NEXT, PREVIOUS) && leads_back(PREVIOUS, NEXT)
}

fn word(at: u64) -> Option<u64> {
    if let Word::Is(word) = read_word(at) { Some(word) } else { None }
}

/// The words of such a block, for tests: (address, word), the number last.
#[cfg(all(test, not(loom)))]
pub(crate) fn words(thread: u64, tid: u64) -> std::vec::Vec<(u64, u64)> {
    let at = thread - distance().expect("glibc");
    // It is the only one in its list.
    std::vec![(at - NEXT, at - NEXT), (at - PREVIOUS, at - NEXT), (at, tid)]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{distance, find, tid};
    use crate::kernel::{Word, read_word};
    use crate::native::thread::thread_pointer;

    #[test]
    fn each_thread_has_its_number_at_the_same_distance() {
        let word = 1_u64;
        if read_word(core::ptr::from_ref(&word) as u64) == Word::Unknown {
            std::println!("SKIP: process_vm_readv is not to be had here");
            return;
        }
        // The number as the system shows it: PID/task/TID.
        let own = || {
            let link = std::fs::read_link("/proc/thread-self").expect("the system shows it");
            link.file_name().and_then(|tid| tid.to_str()?.parse().ok()).expect("a number")
        };
        let own_is_reported = move || {
            let thread = thread_pointer();
            // Other threads start and end meanwhile, and change the list.
            while find().is_none() || tid(thread) != Some(own()) {
                std::thread::yield_now();
            }
            (find().or_else(distance), thread)
        };
        let first = own_is_reported();
        let others: std::vec::Vec<_> = (0..4).map(|_| std::thread::spawn(own_is_reported)).collect();
        for other in others {
            let (at, thread) = other.join().expect("it ends");
            assert!(at == first.0 && thread != first.1);
        }
        // Not every pair of words is a pair of links.
        assert_eq!(tid(first.1 - 64), None);
    }
}
