//! Two things at a time.
//!
//! In: what to do. Out: what came of it. Does not: ask whether a thread may be made; whoever is above the loader's lock makes none
//! ([`Options::alone`](crate::Options::alone)); nor which signals the other thread may take: those that its maker may.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

/// From so many sites on, a thread pays.
pub(crate) const MANY: usize = 2000;

/// Does both, the second in another thread; if none can be had, behind the first.
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
