//! `pages`: what any code pays under churn that touches as much memory as our lookup, without looking
//! anything up.
//!
//! A repeated lookup of ours loads from the table's place, the entry, the region's mapping entry, and the
//! structures that lead to them. It stores to its thread's line. These are words of six pages, and most of
//! them are found through the one before. This code does the same: a chain of loads through as many pages of
//! its own, then a store. The speed that it loses against the bare loop is the price of memory (address
//! translation, caches) after an interprocessor interrupt, not the price of the lookup's protocol.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::operations::{Lookup, Mapped, PAGE};

/// Pages loaded from; one more page is stored to.
const LOADED: usize = 5;
const WORDS: usize = PAGE as usize / size_of::<u64>();

/// Each page uses one word: the index of the next page's word.
#[derive(Debug)]
pub(super) struct Pages {
    words: Vec<AtomicU64>,
    first: usize,
}

/// Index of the word of a page. Each lies in another cache set.
fn place(page: usize) -> usize {
    page * WORDS + page * 9 % 64 * 8
}

impl Pages {
    pub(super) fn new() -> Self {
        let words: Vec<AtomicU64> = (0..(LOADED + 2) * WORDS).map(|_| AtomicU64::new(0)).collect();
        // Align to pages of the system, whatever the allocator returned.
        let address = words.as_ptr() as usize;
        let first = (address.next_multiple_of(PAGE as usize) - address) / size_of::<u64>();
        for page in 0..LOADED {
            words[first + place(page)].store((first + place(page + 1)) as u64, Relaxed);
        }
        Self { words, first }
    }
}

impl Lookup for Pages {
    fn find(&self, addr: u64) -> Option<u64> {
        let mut at = self.first;
        for _ in 0..LOADED {
            at = self.words.get(at)?.load(Relaxed) as usize;
        }
        self.words.get(at)?.store(addr, Relaxed);
        Some(addr)
    }
    fn map(&self, _: Mapped) {}
    fn unmap(&self, _: Mapped) {}
    fn register(&self, _: u64, _: u64) -> u64 {
        0
    }
    fn unregister(&self, _: u64, _: u64) {}
    fn elsewhere(&self, change: &mut dyn FnMut()) {
        change();
    }
}

#[cfg(test)]
mod tests {
    use super::super::operations::{Lookup as _, PAGE};
    use super::{LOADED, Pages, place};
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn each_load_leads_to_another_page() {
        let pages = Pages::new();
        assert_eq!(pages.find(7), Some(7));
        let stored = &pages.words[pages.first + place(LOADED)];
        assert_eq!(stored.load(Relaxed), 7, "behind the whole chain");
        let number = |page| (&raw const pages.words[pages.first + place(page)]) as u64 / PAGE;
        let all: Vec<u64> = (0..=LOADED).map(number).collect();
        assert!(all.windows(2).all(|two| two[0] + 1 == two[1]), "{all:x?}");
    }
}
