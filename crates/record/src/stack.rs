//! Stacks in records: what a hit's record holds behind its first words, if a stack was requested.
//!
//! In: the words of a record, as the target wrote them: hostile input. Out: [`Stack`]: return addresses that
//! were found by frame pointers, or the top of the stack itself.
//! Does not: walk, or unwind (`plan::x86_64::stub::stack` walks, and its documentation contains the
//! protocol).
//!
//! ```text
//!   word 3   bytes of the record that are used, from its first word on: it takes so many whole slots of its ring
//!        4   frame pointer: where the walk ended, or as it was at the hit
//!        5   end of what was known to be the thread's stack; odd where only the end of the page was known
//!        6 … return addresses, innermost first; or the words of the stack, from the stack pointer on
//! ```

use crate::ring::{FIRST_VALUE, LEAST_SLOT, Record};

/// Word with the number of bytes of the record that are used.
pub const USED: u64 = FIRST_VALUE;
/// Word of the frame pointer.
pub const FRAME: u64 = FIRST_VALUE + 1;
/// Word of the stack's end.
pub const END: u64 = FIRST_VALUE + 2;
/// Word of the first return address.
pub const FIRST: u64 = FIRST_VALUE + 3;
/// Maximum number of return addresses in a record.
pub const MAX_FRAMES: u8 = 122;
/// Maximum length of a record in bytes.
pub const MAX_RECORD: u32 = 64 << 10;

/// A record's stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stack {
    /// Number of return addresses, or of words of the stack.
    pub words: u64,
    /// Frame pointer: where the walk ended, or as it was at the hit.
    pub frame: u64,
    /// End of what was known to be the thread's stack.
    pub end: u64,
    /// Whether the stack's end is known; if not, `end` is the end of a page.
    pub bounded: bool,
}

impl Stack {
    /// The stack in a record that has room for `room` words in all. No count leads outside of it.
    #[must_use]
    pub fn new(record: &Record, room: u64) -> Self {
        let word = |n: u64| record.values[(n - FIRST_VALUE) as usize];
        Self::of(word(USED), (word(FRAME), word(END)), room)
    }
    /// The same from the words USED, FRAME and END.
    #[must_use]
    pub fn of(used: u64, (frame, end): (u64, u64), room: u64) -> Self {
        let words = (used / 8).clamp(FIRST, room.max(FIRST)) - FIRST;
        Self { words, frame, end: end & !1, bounded: end & 1 == 0 }
    }
    /// Whether a walk ended although the stack goes on, because there was no room, or no more of it was
    /// known.
    #[must_use]
    pub const fn is_cut(&self, frames: u8) -> bool {
        let full = self.words >= frames as u64 && self.frame != 0;
        full || !self.bounded && self.frame > self.end.saturating_sub(17) && self.frame & 7 == 0
    }
}

/// Length in bytes of a record with so many return addresses.
#[must_use]
pub const fn room_for_frames(frames: u8) -> u32 {
    room((FIRST as u32 + frames as u32) * 8)
}

/// Length in bytes of a record with the top of a stack of so many bytes; it may hold a few words less.
#[must_use]
pub const fn room_for_copy(bytes: u32) -> u32 {
    room(bytes)
}

const fn room(bytes: u32) -> u32 {
    if bytes <= LEAST_SLOT {
        LEAST_SLOT
    } else if bytes >= MAX_RECORD {
        MAX_RECORD
    } else {
        bytes.next_power_of_two()
    }
}

#[cfg(all(test, not(feature = "loom_words")))]
mod tests {
    use super::{END, FIRST, FRAME, MAX_FRAMES, Stack, USED, room_for_copy, room_for_frames};
    use crate::ring::{MAX_VALUES, Record, RecordKind};

    fn record(used: u64, frame: u64, end: u64) -> Record {
        let mut values = [0; MAX_VALUES];
        values[..3].copy_from_slice(&[used, frame, end]);
        Record { kind: RecordKind::Entry, probe: 0, tid: 1, ticks: 2, sp: 3, values }
    }

    #[test]
    fn the_layout_is_a_contract() {
        assert_eq!((USED, FRAME, END, FIRST, MAX_FRAMES), (3, 4, 5, 6, 122));
        assert_eq!([0, 2, 3, 58, 59, 122].map(room_for_frames), [64, 64, 128, 512, 1024, 1024]);
        assert_eq!([1, 64, 8192, 8193, u32::MAX].map(room_for_copy), [64, 64, 8192, 16384, 65536]);
    }

    #[test]
    fn no_count_leads_out_of_a_record() {
        for (used, words) in [(0, 0), (47, 0), (48, 0), (56, 1), (1024, 122), (1032, 122), (u64::MAX, 122)] {
            assert_eq!(Stack::new(&record(used, 0, 0), 128).words, words, "{used}");
        }
        assert_eq!(Stack::new(&record(u64::MAX, 0, 0), 0).words, 0);
    }

    #[test]
    fn a_walk_that_had_to_end_is_reported() {
        let cut = |used: u64, frame, end| Stack::new(&record(used, frame, end), 128).is_cut(16);
        assert!(!cut(56, 0, 0x8000) && !cut(56, 0x9000, 0x8000), "the stack ends, or the chain");
        assert!(cut(48 + 16 * 8, 0x7000, 0x8000) && !cut(48 + 16 * 8, 0, 0x8000), "no room");
        assert!(cut(56, 0x8010, 0x8001) && !cut(56, 0x7010, 0x8001), "a page's end");
    }
}
