//! A thread of ours for which threads of others wait runs before them.
//!
//! In: nothing. Out: a thread of the highest priority (nice -20), as long as [`Hurry`] lives. Without the right to that
//! (CAP_SYS_NICE, or a limit of RLIMIT_NICE) nothing changes. Does not: choose who hurries.
//!
//! Threads that wait for an answer may spin (`plan`'s `stub::hold`), as many as there are processes. On a machine with
//! fewer CPUs the tracer would get its share of them only, and all would wait for one that has no CPU.

use std::marker::PhantomData;

use crate::sys::own;

/// What the kernel calls the highest priority of a thread that is not of real time.
const HIGHEST: i32 = -20;

/// The calling thread hurries until this is dropped. Threads that it starts meanwhile hurry as long as they live.
#[derive(Debug)]
pub struct Hurry {
    before: Option<i32>,
    /// Priorities belong to threads, so this stays in its own.
    of_thread: PhantomData<*const ()>,
}

impl Hurry {
    /// From now on.
    #[must_use]
    pub fn begin() -> Self {
        let before = own::niceness().filter(|before| *before != HIGHEST);
        let before = before.filter(|_| own::set_niceness(HIGHEST).is_ok());
        Self { before, of_thread: PhantomData }
    }
    /// From now on, as long as the calling thread lives.
    pub fn always() {
        // Without the right, it is as before.
        drop(own::set_niceness(HIGHEST));
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // A lower priority is always permitted.
            drop(own::set_niceness(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Hurry;
    use crate::sys::own;

    #[test]
    fn a_thread_hurries_for_a_while_and_others_do_not() {
        let before = own::niceness().expect("a thread has one");
        let hurry = Hurry::begin();
        let (during, nested) = (own::niceness(), Hurry::begin());
        if during == Some(before) {
            return eprintln!("SKIPPED priorities: not permitted");
        }
        assert_eq!(during, Some(super::HIGHEST));
        drop(nested);
        assert_eq!(own::niceness(), during, "the outer one goes on");
        drop(hurry);
        assert_eq!(own::niceness(), Some(before));
        std::thread::spawn(Hurry::always).join().expect("a thread");
        assert_eq!(own::niceness(), Some(before));
    }
}
