//! The journal: what was written where, so that any tracer can undo it later.
//!
//! An entry is written in full, and the count raised, before the first byte of its site changes (SAFE-3).
//! Entries are never reused. Restoring compares the live bytes with `new` first and leaves the site alone
//! when they differ (SAFE-4).

use crate::addr::RemoteAddr;
use crate::view::View;

/// Maximum length of a patch in bytes: an 8-byte word that holds a 5-byte jump, or an island.
pub const MAX_PATCH: usize = 8;
/// Length of an entry in bytes.
pub const ENTRY_LEN: u64 = 32;

/// One changed place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// First changed byte.
    pub addr: RemoteAddr,
    /// Number of bytes that changed, 1 to 8.
    pub len: u8,
    /// Kind of the change.
    pub kind: EntryKind,
    /// Bit n: an instruction that may run starts at byte n, which is not the first; `new` has a trapping
    /// opcode there.
    pub starts: u8,
    /// Bytes before the change; only the first `len` count.
    pub old: [u8; MAX_PATCH],
    /// Bytes after the change.
    pub new: [u8; MAX_PATCH],
}

/// Kind of the change that an entry undoes. Removal takes entries before exits, then islands, and handlers last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EntryKind {
    /// A patch at a function's entry or at any counted instruction.
    Entry = 1,
    /// A patch at an exit.
    Exit = 2,
    /// A jump in padding, which nothing but a short jump reaches.
    Island = 3,
    /// A USDT semaphore that was raised by one (u16 at `addr`).
    Semaphore = 4,
    /// A patch at the entry of a handler of faults.
    Handler = 5,
}

/// The journal of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Journal<'a> {
    view: View<'a>,
    off: u64,
}

impl<'a> Journal<'a> {
    /// The journal at byte offset `off` of a segment.
    #[must_use]
    pub const fn new(view: View<'a>, off: u64) -> Self {
        Self { view, off }
    }
    /// Byte offset in the segment of entry `index`; `None` if it is beyond all memory.
    fn at(&self, index: u64) -> Option<u64> {
        let at = self.off.checked_add(index.checked_mul(ENTRY_LEN)?)?;
        at.checked_add(ENTRY_LEN).map(|_| at)
    }
    /// Writes entry `index`; false if it is outside the view.
    pub fn put(&self, index: u64, entry: &Entry) -> bool {
        let Some(at) = self.at(index) else { return false };
        self.view.set(at, entry.addr.0)
            && self.view.set(at + 8, head_of(entry))
            && self.view.set(at + 16, u64::from_le_bytes(entry.old))
            && self.view.set(at + 24, u64::from_le_bytes(entry.new))
    }
    /// Reads entry `index`; `None` if its bytes are no valid entry.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<Entry> {
        let at = self.at(index)?;
        let head = self.view.get(at + 8);
        let kind = match (head >> 8) as u8 {
            1 => EntryKind::Entry,
            2 => EntryKind::Exit,
            3 => EntryKind::Island,
            4 => EntryKind::Semaphore,
            5 => EntryKind::Handler,
            _ => return None,
        };
        let len = head as u8;
        (1..=MAX_PATCH as u8).contains(&len).then(|| Entry {
            addr: RemoteAddr(self.view.get(at)),
            len,
            kind,
            starts: (head >> 16) as u8,
            old: self.view.get(at + 16).to_le_bytes(),
            new: self.view.get(at + 24).to_le_bytes(),
        })
    }
}

/// The word behind the address.
fn head_of(entry: &Entry) -> u64 {
    u64::from(entry.len) | (u64::from(entry.kind as u8) << 8) | (u64::from(entry.starts) << 16)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::{ENTRY_LEN, Entry, EntryKind, Journal};
    use crate::RemoteAddr;
    use crate::view::View;

    const ENTRY: Entry = Entry {
        addr: RemoteAddr(0x1000),
        len: 5,
        kind: EntryKind::Exit,
        starts: 0b1010,
        old: [1; 8],
        new: [2; 8],
    };

    #[test]
    fn what_was_put_is_got() {
        let words = [const { AtomicU64::new(0) }; 16];
        let journal = Journal::new(View::new(&words), ENTRY_LEN);
        assert!(journal.put(1, &ENTRY));
        assert_eq!((journal.get(1), journal.get(0)), (Some(ENTRY), None));
        assert!(!journal.put(3, &ENTRY), "three entries behind an offset of one");
    }

    #[test]
    fn an_offset_or_index_beyond_all_memory_is_no_entry() {
        // These words are a valid entry wherever an address that wraps around leads to.
        let words = [const { AtomicU64::new(0x0105) }; 16];
        for (off, index) in
            [(0, 1 << 59), (u64::MAX - 7, 0), (u64::MAX - 31, 1), (0, u64::MAX), (u64::MAX, u64::MAX)]
        {
            let journal = Journal::new(View::new(&words), off);
            assert_eq!(journal.get(index), None, "{off:#x}, {index:#x}");
            assert!(!journal.put(index, &ENTRY), "{off:#x}, {index:#x}");
        }
    }
}
