//! The last values of a function, the latest first: what a module's sites ask for again and again.
//!
//! In: a question, and how its answer is made. Out: the answer, as it was made before if it is still there. The function is
//! pure: its answer depends on the question alone. Does not: know programs or code.

use std::cell::RefCell;
use std::thread::LocalKey;

/// How many are kept.
const KEPT: usize = 8;

/// Questions with their answers.
pub(crate) type Kept<K, T> = RefCell<Vec<(K, T)>>;

/// The value for which `is` holds; else the one that `make` makes, if it makes one.
pub(crate) fn latest<T>(
    kept: &mut Vec<T>,
    is: impl FnMut(&T) -> bool,
    make: impl FnOnce() -> Option<T>,
) -> Option<&T> {
    if let Some(found) = kept.iter().position(is) {
        kept[..=found].rotate_right(1);
    } else {
        kept.truncate(KEPT - 1);
        kept.insert(0, make()?);
    }
    kept.first()
}

/// Passes the answer to `with`; `None` if none could be made.
pub(crate) fn answer<K: Copy + PartialEq, T, R>(
    kept: &'static LocalKey<Kept<K, T>>,
    question: K,
    make: impl FnOnce() -> Option<T>,
    with: impl FnOnce(&T) -> R,
) -> Option<R> {
    kept.with_borrow_mut(|kept| {
        let found = latest(kept, |(known, _)| *known == question, || Some((question, make()?)));
        found.map(|(_, answer)| with(answer))
    })
}
