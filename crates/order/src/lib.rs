//! Sorts slices of any type by one piece of code.
//!
//! In: a slice, and how its elements compare. Out: the same slice in order; equal elements keep their places among each
//! other. Does not: sort what is sorted again and again: `slice::sort` is about twice as fast, and takes 4 KiB of code for
//! each type and comparison. The command has a hundred of those, and 8 MB for everything.
//! It allocates, so code that patches, or that runs in the program itself, uses `slice::sort_unstable`.
#![forbid(unsafe_code)]

use std::cmp::Ordering;

/// Stable sorts for lists that are sorted now and then.
pub trait Order<T> {
    /// Sorts by `compare`, as `slice::sort_by` does.
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);
    /// Sorts by a key, as `slice::sort_by_key` does.
    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|a, b| key(a).cmp(&key(b)));
    }
    /// Sorts, as `slice::sort` does.
    fn order(&mut self)
    where
        T: Ord,
    {
        self.order_by(T::cmp);
    }
}

impl<T> Order<T> for [T] {
    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let mut places = places(self.len(), &mut |a, b| compare(&self[a], &self[b]));
        arrange(&mut places, &mut |a, b| self.swap(a, b));
    }
}

/// For each place in the sorted list, where its element is now.
fn places(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|a, b| compare(*a, *b));
    places
}

/// Moves each element to its place, circle by circle. What has been moved stands at its own place in `places`.
fn arrange(places: &mut [usize], swap: &mut dyn FnMut(usize, usize)) {
    for first in 0..places.len() {
        let mut at = first;
        while places[at] != first {
            let from = places[at];
            places[at] = at;
            swap(at, from);
            at = from;
        }
        places[at] = at;
    }
}

#[cfg(test)]
mod tests {
    use super::Order as _;

    /// Every list of up to six elements with up to three different keys, beside the standard library's sort.
    #[test]
    fn lists_are_sorted_as_the_standard_library_sorts_them() {
        for len in 0..=6_u32 {
            for number in 0..3_u32.pow(len) {
                let keys = (0..len).map(|nth| number / 3_u32.pow(nth) % 3);
                let list: Vec<(u32, usize)> = keys.zip(0..).collect();
                let (mut expected, mut found) = (list.clone(), list.clone());
                expected.sort_by_key(|one| one.0);
                found.order_by_key(|one| one.0);
                assert_eq!(found, expected, "{list:?}");
                expected.reverse();
                found.reverse();
                expected.sort();
                found.order();
                assert_eq!(found, expected, "{list:?}");
            }
        }
    }

    #[test]
    fn a_long_list_of_what_is_not_copied_is_sorted() {
        let mut list: Vec<String> = (0..5000_u64).map(|n| (n * 2_654_435_761 % 5000).to_string()).collect();
        let mut expected = list.clone();
        expected.sort();
        list.order();
        assert_eq!(list, expected);
        assert_eq!(list.len(), 5000);
    }
}
