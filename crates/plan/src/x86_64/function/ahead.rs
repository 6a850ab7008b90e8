//! Work on a list by several threads, whose results one thread takes in the list's order.
//!
//! In: a list, and two functions. Out: `take` was called for each item with what `make` gave for it, in order, on the
//! calling thread. Does not: keep results back for long: helpers are some blocks of items ahead.
//!
//! Steps. `next` is the first block that no thread has begun; each block is begun once, by the thread that adds one.
//! 1. A helper begins a block, makes it, and sends it. It waits while the channel is full, and ends when no block is left.
//! 2. The calling thread takes the block that comes next in order, if it is there.
//! 3. Otherwise it receives what has been sent, or else makes a block itself, or else waits for a helper.
//! 4. It sends what it took back to the helper that made it, which frees it. The memory is from that helper's part of the
//!    heap, and two threads that allocate and free there wait for each other all the time. A helper that has ended gets
//!    nothing back, and the calling thread frees it.
//!
//! Helpers wait for the calling thread alone, which waits only when every block has been begun and the one that it needs
//! is with a helper. That one is sent, or the channel holds others, which step 3 receives first. What is sent back waits
//! for nobody.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

/// Items that a thread makes at a time.
const BLOCK: usize = 64;
/// Blocks that wait in the channel.
const WAITING: usize = 32;

/// The results of a block.
struct Made<R> {
    nth: usize,
    results: Vec<R>,
    /// Where they go when they were taken; `None` if this thread made them.
    back: Option<Sender<Vec<R>>>,
}

/// Makes a result of each item on several threads, and takes them in order on this one.
pub(super) fn in_order<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    make: impl Fn(&T) -> R + Sync,
    mut take: impl FnMut(&T, &R),
) {
    let blocks: Vec<&[T]> = items.chunks(BLOCK).collect();
    let next = AtomicUsize::new(0);
    let begin = |back: Option<&Sender<Vec<R>>>| {
        // The number alone is shared.
        let nth = next.fetch_add(1, Ordering::Relaxed);
        let results = blocks.get(nth)?.iter().map(&make).collect();
        Some(Made { nth, results, back: back.cloned() })
    };
    std::thread::scope(|scope| {
        // A panic in here closes the channel, before the scope waits for the helpers.
        let (to, from) = sync_channel(WAITING);
        for _ in 1..threads {
            let (to, begin) = (to.clone(), &begin);
            scope.spawn(move || {
                let (back, taken): (_, Receiver<Vec<R>>) = channel();
                while let Some(made) = begin(Some(&back)) {
                    // The other end is gone only when the calling thread panics.
                    drop(to.send(made));
                    taken.try_iter().for_each(drop);
                }
            });
        }
        drop(to);
        let mut waiting = BTreeMap::new();
        for (nth, block) in blocks.iter().enumerate() {
            let made = loop {
                if let Some(made) = waiting.remove(&nth) {
                    break made;
                }
                let found = from.try_recv().ok().or_else(|| begin(None)).or_else(|| from.recv().ok());
                // The helper that had it panicked, and so does the scope then.
                let Some(found) = found else { return };
                waiting.insert(found.nth, found);
            };
            block.iter().zip(&made.results).for_each(|(item, result)| take(item, result));
            if let Some(back) = made.back {
                drop(back.send(made.results));
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{BLOCK, in_order};

    #[test]
    fn each_is_taken_once_and_in_order() {
        for (len, threads) in [(0, 3), (1, 1), (BLOCK, 2), (5 * BLOCK + 7, 1), (100 * BLOCK + 1, 4)] {
            let items: Vec<usize> = (0..len).collect();
            let mut taken = Vec::new();
            in_order(&items, threads, |item| item * 3, |item, result| taken.push((*item, *result)));
            assert_eq!(taken, items.iter().map(|item| (*item, item * 3)).collect::<Vec<_>>());
        }
    }

    /// A helper's first block takes longer than three others, and this thread makes none before that is begun.
    #[test]
    fn a_slow_block_is_waited_for() {
        let items: Vec<usize> = (0..20 * BLOCK).collect();
        let (own, slow, made) = (std::thread::current().id(), OnceLock::new(), AtomicUsize::new(0));
        let make = |item: &usize| {
            let is_slow = std::thread::current().id() != own && *slow.get_or_init(|| *item) == *item;
            while slow.get().is_none() || is_slow && made.load(Ordering::Relaxed) < 3 * BLOCK {
                std::thread::yield_now();
            }
            made.fetch_add(1, Ordering::Relaxed);
            *item
        };
        let mut taken = 0;
        in_order(&items, 3, make, |item, result| {
            assert_eq!((*item, *result), (taken, taken));
            taken += 1;
        });
        assert_eq!(taken, items.len());
    }

    #[test]
    #[should_panic(expected = "scoped thread panicked")]
    fn a_helpers_panic_is_not_lost() {
        let items: Vec<usize> = (0..20 * BLOCK).collect();
        let (own, helped) = (std::thread::current().id(), AtomicUsize::new(0));
        in_order(
            &items,
            3,
            |_| {
                if std::thread::current().id() != own {
                    helped.fetch_add(1, Ordering::Relaxed);
                    panic!("a helper's");
                }
                while helped.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
            },
            |_, _| {},
        );
    }

    #[test]
    #[should_panic(expected = "taken")]
    fn a_panic_of_who_takes_ends_the_helpers() {
        let items: Vec<usize> = (0..100 * BLOCK).collect();
        in_order(&items, 3, |item| *item, |item, _| assert!(*item < BLOCK, "taken"));
    }
}
