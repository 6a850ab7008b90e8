//! What hits say: entries that hits put into a map, each with a place of its own, and that the reader takes.
//!
//! In: a map of all threads ([`Owner::Any`]) into which hits put entries and do nothing else. Out: each entry, once. Invariant:
//! HIT-5 what a hit says is read once, and whole; or it is counted.
//!
//! | step | what | others meanwhile |
//! |---|---|---|
//! | S1 | a hit claims the first even entry of its walk (P3 of `plan::programs::shared`) | another hit passes on to the next one |
//! | | No entry is left: one more update without an entry | - |
//! | S2 | it stores its words, then publishes: the state is odd (P4) | nobody else changes the entry now |
//! | S3 | the reader sees an odd state, and reads the words | no hit changes an odd entry: none looks for a key |
//! | | What they name is not known yet: the entry waits for the next look | - |
//! | S4 | the reader makes the state even and greater, by one store | a hit may claim it from here on |
//!
//! Two hits may put the same words: each has an entry. *Left*: a thread that ends between S1 and S2 leaves an entry claimed, which
//! is lost; the reader tells it at the end. *Forked*: a handler between S1 and S2 that forks makes a second thread that
//! publishes. If the reader took the entry in between, it is read twice, or the words of a hit that claimed it since are.
//! *The tracer dies*: what was not taken is gone with its memory.
//!
//! Does not: know what the words mean.

use core::ops::Range;

use crate::maps::{LIVE, MAX_KEYS, MAX_VALUES, MapArea, MapShape, Owner, TAKING, entries};
use crate::view::View;

impl MapArea {
    /// Takes a map's entries for whose words `take` holds: the key's, then the value's. `written`: as for [`MapArea::read`].
    /// The memory may hold anything: bounds are checked (REC-2).
    pub fn take(
        &self,
        view: View<'_>,
        map: MapShape,
        written: &[Range<u64>],
        mut take: impl FnMut(&[u64], &[u64]) -> bool,
    ) {
        let (keys, values) = (usize::from(map.keys), usize::from(map.values));
        let (Some(begin), true, Owner::Any) =
            (self.begin(map, 0), keys <= MAX_KEYS && values <= MAX_VALUES, map.owner)
        else {
            return;
        };
        entries(view, (begin, map), written, |entry, state| {
            if state & (LIVE | TAKING) != LIVE {
                return;
            }
            let words: [u64; MAX_KEYS + MAX_VALUES] =
                core::array::from_fn(
                    |word| {
                        if word < keys + values { view.get(entry + map.key(word)) } else { 0 }
                    },
                );
            if take(&words[..keys], &words[keys..keys + values]) {
                view.set(entry, (state + 1) & !TAKING);
            }
        });
    }
}

#[cfg(all(test, not(feature = "loom_words")))]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use crate::maps::{FIRST, LIVE, MapArea, MapBytes, MapShape, Owner, TAKING};
    use crate::sync::AtomicU64;
    use crate::view::View;

    #[test]
    fn an_entry_is_taken_once_and_what_is_not_published_stays() {
        let mut bytes = MapBytes::NONE;
        let shape = MapShape { at: 0, keys: 2, values: 2, bits: 4, owner: Owner::Any };
        let shape = bytes.put(shape);
        let area = MapArea { lines: 1, bytes, ..MapArea::default() };
        let words: Vec<AtomicU64> = (0..area.len() / 8).map(|_| AtomicU64::new(0)).collect();
        let (view, all) = (View::new(&words), std::iter::once(0..area.len()).collect::<Vec<_>>());
        let put = |nth: u64, state: u64| {
            let entry = FIRST + nth * shape.stride();
            (0..4).for_each(|word| _ = view.set(entry + shape.key(word as usize), nth * 10 + word));
            view.set(entry, state);
        };
        put(0, LIVE);
        put(1, LIVE | TAKING);
        put(2, 2);
        put(5, 7);
        let take = |known: u64| {
            let mut taken = Vec::new();
            area.take(view, shape, &all, |key, value| {
                let take = key[0] != known;
                taken.extend(take.then(|| (key.to_vec(), value.to_vec())));
                take
            });
            taken
        };
        // The last one waits; then it is taken, and nothing else is there.
        assert_eq!(take(50), [(vec![0, 1], vec![2, 3])]);
        assert_eq!(take(0), [(vec![50, 51], vec![52, 53])]);
        assert_eq!(take(0), []);
        let state = |nth: u64| view.get(FIRST + nth * shape.stride());
        assert_eq!([0, 1, 2, 5].map(state), [2, LIVE | TAKING, 2, 8]);
    }
}
