//! Does two things at a time.
//!
//! In: two functions. Out: their results. Does not: check whether a thread may be created; code that holds
//! the loader's lock creates none ([`Options::alone`](crate::Options::alone)). Does not choose which signals
//! the other thread may take: it has the mask of the thread that creates it.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

/// From this number of sites on, a thread pays.
pub(crate) const MANY: usize = 2000;

/// Calls both functions, the second in another thread; if no thread can be created, one after the other.
pub(crate) fn both<A, B: Send>(first: impl FnOnce() -> A, second: impl Fn() -> B + Sync) -> (A, B) {
    scope(|scope| {
        let other = Builder::new().spawn_scoped(scope, &second);
        let a = first();
        let b = match other {
            Ok(other) => other.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => second(),
        };
        (a, b)
    })
}
