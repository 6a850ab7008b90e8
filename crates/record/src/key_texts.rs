//! The table of texts that keys of a script's maps name.
//!
//! In: an area of maps. Out: where the table lies, and the texts that the reader finds there. An entry that has a text keeps it,
//! so the entry's place is the text's number. Invariant: HIT-4 (`plan::programs::texts`, which is what hits do).
//!
//! ```text
//!   … behind the stacks   the table: a map whose keys have 2 + 8 words ([`TextTable::shape`])
//!   entry + 0             state, as of a map that is added up
//!   entry + 8             hash of the bytes and the length
//!   entry + 16            length in bytes
//!   entry + 24            the bytes; zeros behind the last one
//! ```
//!
//! Does not: know what texts are for.

use core::ops::Range;

use crate::maps::{BITS, LIVE, MapArea, MapShape, Owner, entries};
use crate::ring::TEXT_BYTES;
use crate::view::View;

/// Words of an entry before the bytes, behind the state.
pub const FIRST_WORDS: usize = 2;

/// Whether there is a table of texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TextTable {
    /// There is.
    pub is_there: bool,
}

/// A text that keys name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedText<'a> {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl TextTable {
    /// As a map: the key is the text.
    #[must_use]
    pub const fn shape(self) -> MapShape {
        let keys = (FIRST_WORDS + TEXT_BYTES / 8) as u8;
        MapShape { at: 0, keys, values: 0, bits: BITS, owner: Owner::Cpu }
    }
    /// Length in bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        if self.is_there { self.shape().end() as u64 } else { 0 }
    }
    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !self.is_there
    }
}

impl MapArea {
    /// Byte offset in the area of the table of texts.
    #[must_use]
    pub const fn before_texts(&self) -> u64 {
        self.before_stacks() + self.stacks.len()
    }
    /// Calls `each` with the texts that keys name. `written`: as in [`MapArea::read`]. Returns how many hits found no room
    /// for their text. The memory may hold anything: bounds are checked (REC-2).
    pub fn read_texts(
        &self,
        view: View<'_>,
        written: &[Range<u64>],
        mut each: impl FnMut(KeyedText<'_>),
    ) -> u64 {
        if self.texts.is_empty() {
            return 0;
        }
        let begin = self.off + self.before_texts();
        entries(view, (begin, self.texts.shape()), written, |entry, state| {
            if state != LIVE {
                return;
            }
            let word = |nth: usize| view.get(entry + 8 + nth as u64 * 8);
            let length = usize::try_from(word(1)).map_or(TEXT_BYTES, |length| length.min(TEXT_BYTES));
            let mut bytes = [0; TEXT_BYTES];
            let words = bytes.as_chunks_mut::<8>().0.iter_mut();
            words.enumerate().for_each(|(nth, to)| *to = word(FIRST_WORDS + nth).to_le_bytes());
            each(KeyedText { number: entry - begin, bytes: &bytes[..length] });
        })
    }
}
