//! Whether a frame was left without an exit: by its own thread, or by the end of that thread.
//! [`instances`](super) lists the rules.
//!
//! In: stack pointers, thread pointers. Out: yes, or no where it cannot be decided. Makes system calls, so it
//! is off the fast path.
//! Does not: claim.

use crate::kernel::{Word, alternate_stack, are_readable, is_thread, read_word};
use crate::native::control::tid;

/// Longest stack that is considered, in bytes.
const FAR: u64 = 8 << 20;

/// Whether a frame lies below the calling thread's stack pointer `sp`, on the same stack.
pub(super) fn is_below(frame: u64, sp: u64) -> bool {
    if frame >= sp || sp - frame > FAR {
        return false;
    }
    let on_alternate = |at| alternate_stack().is_some_and(|stack| stack.contains(at));
    on_alternate(frame) == on_alternate(sp) && are_readable(frame, sp)
}

/// Whether the thread has ended that owned the stack with this frame.
pub(super) fn has_ended(thread: u64, frame: u64) -> bool {
    if read_word(thread) == Word::Gone {
        return read_word(frame) == Word::Gone;
    }
    // glibc's control block lies at the top of its thread's stack.
    let is_its = frame < thread && thread - frame <= FAR;
    let Some(tid) = tid(thread).filter(|_| is_its) else { return false };
    are_readable(frame, thread) && (tid == 0 || !is_thread(tid))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{FAR, has_ended, is_below};
    use crate::native::control::words;
    use crate::native::thread::{Word, read_word};

    const PAGE: u64 = 4096;

    /// Readable pages, all 0. The pages below and above cannot be read.
    struct Pages(u64, u64);

    impl Pages {
        fn new(len: u64) -> Self {
            // SAFETY: a new mapping; all but its first and last page are opened.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let at = libc::mmap(core::ptr::null_mut(), (len + 2 * PAGE) as usize, 0, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                let pages = Self(at as u64 + PAGE, len);
                pages.protect(0, len, libc::PROT_READ | libc::PROT_WRITE);
                pages
            }
        }
        fn protect(&self, at: u64, len: u64, protection: i32) {
            // SAFETY: in our own mapping, which holds no Rust object.
            assert_eq!(unsafe { libc::mprotect((self.0 + at) as *mut _, len as usize, protection) }, 0);
        }
        fn close(&self, at: u64) {
            self.protect(at, PAGE, libc::PROT_NONE);
        }
        fn set(&self, at: u64, word: u64) {
            assert!(at + 8 <= self.1);
            // SAFETY: inside our own mapping, which is writable here.
            unsafe { ((self.0 + at) as *mut u64).write(word) };
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: our own mapping, which is no longer used.
            unsafe { libc::munmap((self.0 - PAGE) as *mut _, (self.1 + 2 * PAGE) as usize) };
        }
    }

    fn cannot_read() -> bool {
        let word = 1_u64;
        let unknown = read_word(core::ptr::from_ref(&word) as u64) == Word::Unknown;
        if unknown {
            std::println!("SKIP: process_vm_readv is not to be had here");
        }
        unknown
    }

    #[test]
    fn below_on_one_stack() {
        if cannot_read() {
            return;
        }
        let pages = Pages::new(FAR + 4 * PAGE);
        let sp = pages.0 + pages.1 - 8;
        for below in [8, PAGE, FAR - 8, FAR] {
            assert!(is_below(sp - below, sp), "{below}");
        }
        for other in [sp, sp + 8, sp - FAR - 8] {
            assert!(!is_below(other, sp), "{:#x}", sp.wrapping_sub(other));
        }
        // A guard page anywhere between, also as the 33rd page.
        for page in [1, 31, 32, 33, 100] {
            let low = sp - page * PAGE;
            pages.close(low / PAGE * PAGE + PAGE * (page / 2) - pages.0);
            assert!(!is_below(low, sp), "page {page}");
            pages.protect(0, pages.1, libc::PROT_READ | libc::PROT_WRITE);
            assert!(is_below(low, sp));
        }
    }

    /// The alternate signal stack may touch another one.
    #[test]
    fn below_on_a_signal_stack() {
        if cannot_read() {
            return;
        }
        let asked = || {
            let pages = Pages::new(64 * PAGE);
            let middle = pages.0 + 32 * PAGE;
            let set = |start: u64, flags: i32| {
                let size = (32 * PAGE) as usize;
                let stack = libc::stack_t { ss_sp: start as *mut _, ss_flags: flags, ss_size: size };
                // SAFETY: this thread's stack; its handlers use it only if the test dies.
                assert_eq!(unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) }, 0);
            };
            let pairs =
                [(middle + 64, middle + 128), (middle - 128, middle - 64), (middle - 64, middle + 64)];
            let bytes_at = |start| {
                set(start, 0);
                pairs.map(|(frame, sp)| is_below(frame, sp))
            };
            let all = [bytes_at(pages.0), bytes_at(middle)];
            set(0, libc::SS_DISABLE);
            (all, pairs.map(|(frame, sp)| is_below(frame, sp)))
        };
        let (with, without) = std::thread::spawn(asked).join().expect("it ends");
        assert_eq!(with, [[true, true, false]; 2], "each within one, or from one into the other");
        assert_eq!(without, [true; 3]);
    }

    /// A thread's control block and its stack, made by hand.
    struct Thread {
        pages: Pages,
        at: u64,
    }

    impl Thread {
        fn new(tid: u64) -> Self {
            let pages = Pages::new(FAR + 4 * PAGE);
            // The control block reaches less than a page below this.
            let at = FAR + 3 * PAGE + 128;
            let one = Self { at: pages.0 + at, pages };
            words(one.at, tid).into_iter().for_each(|(at, word)| one.word(at, word));
            one
        }
        fn word(&self, at: u64, word: u64) {
            self.pages.set(at - self.pages.0, word);
        }
        fn ended(&self, below: u64) -> bool {
            has_ended(self.at, self.at.wrapping_sub(below))
        }
    }

    /// A number that no thread has: the kernel's numbers end at 2^22.
    const NO_THREAD: u64 = 1 << 24;

    #[test]
    fn threads_that_have_ended() {
        if cannot_read() {
            return;
        }
        // SAFETY: no pointers.
        let own = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
        assert!(Thread::new(0).ended(64), "it says so");
        assert!(Thread::new(NO_THREAD).ended(64), "the kernel says so");
        assert!(!Thread::new(own).ended(64), "it runs");
        // The bits beside the number are not part of it.
        assert!(Thread::new(own << 32).ended(64) && !Thread::new(own | 1 << 32).ended(64));
    }

    #[test]
    fn frames_that_are_not_on_the_threads_stack_stay() {
        if cannot_read() {
            return;
        }
        let thread = Thread::new(0);
        assert!(thread.ended(FAR) && thread.ended(8));
        for other in [FAR + 8, 0, 8_u64.wrapping_neg()] {
            assert!(!thread.ended(other), "{other:#x}");
        }
        thread.pages.close(FAR + PAGE);
        assert!(!thread.ended(3 * PAGE) && thread.ended(64), "between lies what cannot be read");
        let all = words(thread.at, 0);
        for (at, _) in &all[..all.len() - 1] {
            let other = Thread::new(0);
            other.word(other.at + at - thread.at, 1);
            assert!(!other.ended(64), "no control block: {:#x}", thread.at.wrapping_sub(*at));
        }
    }

    #[test]
    fn what_is_gone_was_left_if_its_thread_is_gone_too() {
        if cannot_read() {
            return;
        }
        let (gone, there) = (Thread::new(0), Thread::new(0));
        let stack = Pages::new(PAGE);
        let (frame, lone) = (gone.at - 64, stack.0 + PAGE - 8);
        gone.pages.protect(0, gone.pages.1, libc::PROT_NONE);
        assert!(has_ended(gone.at, frame));
        assert!(!has_ended(gone.at, stack.0), "the stack is there");
        assert!(!has_ended(there.at, frame), "the thread is there");
        // A thread pointer with nothing mapped behind it: that is no control block, but it is not gone
        // either.
        stack.set(PAGE - 8, lone);
        assert!(!has_ended(lone, frame) && !has_ended(lone, lone - 64));
    }
}
