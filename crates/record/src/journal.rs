//! The journal: what was written where, so that anyone can undo it later.
//!
//! An entry is written in full, and the count raised, before the first byte of its site changes (SAFE-3). Entries are
//! never reused. Restoring compares the live bytes with `new` first and leaves the site alone when they differ (SAFE-4).

use crate::addr::RemoteAddr;
use crate::view::View;

/// Longest patch: an 8-byte word that holds a 5-byte jump, or an island.
pub const MAX_PATCH: usize = 8;
/// Bytes of an entry.
pub const ENTRY_LEN: u64 = 32;

/// One changed place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// First changed byte.
    pub addr: RemoteAddr,
    /// How many bytes changed, 1 to 8.
    pub len: u8,
    /// What kind of change.
    pub kind: Kind,
    /// Bytes before; the first `len` count.
    pub old: [u8; MAX_PATCH],
    /// Bytes after.
    pub new: [u8; MAX_PATCH],
}

/// What kind of change an entry undoes. Removal takes entries before exits, and islands last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A patch at a function's entry or at any counted instruction.
    Entry = 1,
    /// A patch at an exit.
    Exit = 2,
    /// A jump in padding, which nothing but a short jump reaches.
    Island = 3,
    /// A USDT semaphore that was raised by one (u16 at `addr`).
    Semaphore = 4,
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
    /// Writes entry `index`.
    pub fn put(&self, index: u64, entry: &Entry) -> bool {
        let at = self.off + index * ENTRY_LEN;
        self.view.set(at, entry.addr.0)
            && self.view.set(at + 8, u64::from(entry.len) | (u64::from(entry.kind as u8) << 8))
            && self.view.set(at + 16, u64::from_le_bytes(entry.old))
            && self.view.set(at + 24, u64::from_le_bytes(entry.new))
    }
    /// Reads entry `index`; `None` when its bytes make no sense.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<Entry> {
        let at = self.off + index * ENTRY_LEN;
        let head = self.view.get(at + 8);
        let kind = match (head >> 8) as u8 {
            1 => Kind::Entry,
            2 => Kind::Exit,
            3 => Kind::Island,
            4 => Kind::Semaphore,
            _ => return None,
        };
        let len = head as u8;
        (1..=MAX_PATCH as u8).contains(&len).then(|| Entry {
            addr: RemoteAddr(self.view.get(at)),
            len,
            kind,
            old: self.view.get(at + 16).to_le_bytes(),
            new: self.view.get(at + 24).to_le_bytes(),
        })
    }
}
