//! The pass-over table: threads that a filter excludes by their names, so that generated code passes over
//! their hits (`trace --comm`).
//!
//! In: numbers of threads, as they see themselves. Out: the table's place and its words. A thread's name is
//! in no memory of the program, and asking the kernel at each hit costs more than recording the hit. So the
//! reader, which reads names anyway, notes here which threads it would exclude. A thread's place depends on
//! the lowest bits of its number; the word there is the number + 1, or 0. Invariant: NAM-1 a word names a
//! thread with a name that no filter accepts, as far as the reader knew at its last round. A thread without a
//! word may match or be unknown: its hits are recorded, and the reader decides.
//! Does not: read names.
//!
//! # Protocol
//!
//! Only the reader writes. The target compares one word with its own number + 1, and rejects the hit if they
//! are equal. In each round, in this order:
//!
//! N1 Read what the kernel reports about threads (PERF_RECORD_COMM, FORK, EXIT): the word of each thread in
//! it is cleared, and its name is looked up again.
//! N2 Take records from the rings; if threads are new in them, read their names from /proc.
//! N3 For the threads of N2, and for all threads right after an attach: a thread with an excluded name gets
//! its place, unless another thread has it.
//!
//! # Interleavings
//!
//! - *A thread is renamed before N1*: N2 reads the new name. *Between N1 and N3, or later*: the next round's
//!   N1 clears the word. So hits under a new name are passed over from the renaming until the N1 behind it,
//!   and no longer. They are counted as rejected.
//! - *It is renamed to a name that is excluded*: its hits are recorded, and the reader rejects them, until
//!   N3.
//! - *It ends, and its number is reused*: EXIT and FORK clear the word, long before numbers wrap round. A
//!   thread that was gone before N2 has no name there, and gets no word.
//! - *Records of one thread come from two CPUs' rings in any order*: all that they do is clear words, and the
//!   name is that of /proc.
//! - *Records were lost*: all words are cleared.
//! - *The kernel lets us read no such records*: N1 reads the names of all threads that have words, in each
//!   look (50 ms). It clears the words of threads that are gone or have another name than before.
//! - *Two threads share a place*: the second has none, and the reader decides about it.
//! - *A forked child* has the table too, and a number of its own. In a PID namespace of its own it may have
//!   the number of a thread here, and be mistaken for it, as it is where hits are split by thread.
//! - *The tracer dies*: words stay. But no records are read then, either.

use crate::view::View;

/// Number of places; a power of two. Numbers are given out one after the other, so few threads share a place.
pub const PLACES: u32 = 1 << 14;

/// The table in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NameArea {
    /// Byte offset of the area in the segment; whole lines.
    pub off: u64,
    /// Number of places: [`PLACES`], or 0 when no filter depends on threads' names.
    pub places: u32,
}

impl NameArea {
    /// Length of the area in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.places as u64 * 8
    }
    /// Whether no filter depends on threads' names.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.places == 0
    }
    const fn word(&self, tid: u32) -> u64 {
        self.off + (tid % PLACES) as u64 * 8
    }
    /// N3. False if another thread has the place.
    pub fn pass_over(&self, view: View<'_>, tid: u32) -> bool {
        let own = u64::from(tid) + 1;
        let there = view.get(self.word(tid));
        let free = !self.is_empty() && tid != 0 && (there == 0 || there == own);
        free && view.set(self.word(tid), own)
    }
    /// N1, for one thread: clears its word.
    pub fn take_back(&self, view: View<'_>, tid: u32) {
        if !self.is_empty() && view.get(self.word(tid)) == u64::from(tid) + 1 {
            view.set(self.word(tid), 0);
        }
    }
    /// Whether this thread's hits are passed over.
    #[must_use]
    pub fn passes_over(&self, view: View<'_>, tid: u32) -> bool {
        !self.is_empty() && view.get(self.word(tid)) == u64::from(tid) + 1
    }
}

#[cfg(all(test, not(feature = "loom_words")))]
mod tests {
    use super::{NameArea, PLACES};
    use crate::sync::AtomicU64;
    use crate::view::View;

    #[test]
    fn a_place_is_one_threads_until_it_is_taken_back() {
        let words = [const { AtomicU64::new(0) }; PLACES as usize + 8];
        let (view, area) = (View::new(&words), NameArea { off: 64, places: PLACES });
        let other = 7 + PLACES;
        assert!(area.pass_over(view, 7) && area.pass_over(view, 7) && !area.pass_over(view, other));
        assert_eq!([7, other, 8].map(|tid| area.passes_over(view, tid)), [true, false, false]);
        area.take_back(view, other);
        assert!(area.passes_over(view, 7), "another's word is left alone");
        area.take_back(view, 7);
        assert!(area.pass_over(view, other) && !area.pass_over(view, 0), "0 is no thread's number");
        let none = NameArea::default();
        assert!(!none.pass_over(view, 9) && !none.passes_over(view, 9) && view.get(0) == 0);
    }
}
