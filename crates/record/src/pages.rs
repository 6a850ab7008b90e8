//! Page notes: pages that the kernel has read for us, so that generated code may load from them itself.
//!
//! In: nothing. Out: the place of each CPU's table; the reader empties it here. A table is a page. It has
//! entries, found by a hash of the page's address; an entry is the page's last address with the thread's
//! number in the bits above (0: none). Then comes one word that says whether there are any. An entry is true
//! of one moment: the kernel has copied from that page in that thread, where a fault would be served. The
//! page may be gone since, so code that loads from it relies on that service too (`plan::x86_64::stub::text`
//! has the protocol). Invariant: PAGE-1 an entry is stored whole, and says nothing about any other page or
//! thread. So a table may be written to and emptied by any thread at any time.
//! Does not: order anything.

use crate::view::View;

/// Number of entries in a table.
pub const ENTRIES: u64 = 256;
/// Number of bits of an entry's index, the highest of the hash.
pub const BITS: u8 = 8;
/// Byte offset in a table of the word that says whether it contains entries.
pub const FILLED: u64 = ENTRIES * 8;
/// Distance from one CPU's table to the next in bytes, as a power of two.
pub const STRIDE_BITS: u8 = 12;
/// Bits of an address inside its page.
pub const PAGE_MASK: u64 = 0xfff;
/// First bit of the thread's number in an entry: above the address space that programs have. The lowest 17
/// bits of the number fit.
pub const THREAD_SHIFT: u8 = 47;

/// The tables in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageArea {
    /// Byte offset of the area in the segment; whole pages.
    pub off: u64,
    /// Number of tables: CPUs that may run the process. 0 when no text is copied.
    pub tables: u32,
}

impl PageArea {
    /// Length of the area in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        (self.tables as u64) << STRIDE_BITS
    }
    /// Whether no text is copied.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.tables == 0
    }
    /// Forgets all entries, so that the kernel reads each page again before generated code loads from it.
    /// First the word is cleared, so that an entry stored meanwhile is forgotten now or sets the word again.
    /// Untouched tables stay so.
    pub fn forget(&self, view: View<'_>) {
        for table in (0..u64::from(self.tables)).map(|n| self.off + (n << STRIDE_BITS)) {
            if view.get(table + FILLED) != 0 {
                view.set(table + FILLED, 0);
                for n in 0..ENTRIES {
                    view.set(table + n * 8, 0);
                }
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom_words")))]
mod tests {
    use super::{BITS, ENTRIES, FILLED, PageArea, STRIDE_BITS};
    use crate::sync::AtomicU64;
    use crate::view::View;

    #[test]
    fn what_is_filled_is_forgotten_and_nothing_else() {
        assert_eq!((1 << BITS, FILLED < 1 << STRIDE_BITS), (ENTRIES, true));
        let words = [const { AtomicU64::new(7) }; 3 * 512];
        let view = View::new(&words);
        let area = PageArea { off: 4096, tables: 2 };
        assert_eq!(area.len(), 8192);
        view.set(8192 + FILLED, 0);
        area.forget(view);
        let sum = |table: u64| (0..512).map(|n| view.get(table * 4096 + n * 8)).sum::<u64>();
        let entries = ENTRIES * 7;
        assert_eq!([sum(0), sum(1), sum(2)], [512 * 7, 512 * 7 - entries - 7, 512 * 7 - 7]);
    }
}
