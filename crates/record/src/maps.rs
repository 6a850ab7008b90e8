//! Tables of a script's maps, which hits read and write in the target.
//!
//! In: which maps there are. Out: where each entry lies, and what the reader finds there. Invariant: HIT-1
//! (`plan::programs::maps`, which is what hits do).
//!
//! ```text
//!   area + line · bytes      a line: all maps, once for each CPU and once for all others
//!   map + 0                  updates that found no entry
//!   map + FIRST 16           entries, 8 · (1 + keys + values) bytes each
//!   entry + 0                state: 0 free; TAKING; LIVE; GONE: deleted, the key stays
//!   entry + 8                keys, a word each
//!   entry + 8 + 8 · keys     values, a word each
//!
//!   area + lines · bytes     stacks that are parts of keys, once: a map of its own ([`StackTable`])
//!   entry + 8                the stack's number, which keys hold
//!   entry + 16               probe << 32 | bytes, as `stack`'s USED; then its FRAME and END
//!   entry + 40               return addresses, innermost first
//! ```
//!
//! An entry that has a key keeps it. What is added up (`count()` and others) has entries on all lines; the reader
//! adds those of one key. A value that is assigned has its entry on line 0 alone.
//!
//! Does not: know what keys and values mean.

use core::ops::Range;

use crate::counters::LINE;
use crate::stack::{self, Stack};
use crate::tally::{PHI, PROBES};
use crate::view::View;

/// Offset of the first entry behind a map's begin.
pub const FIRST: u64 = 16;
/// State of an entry whose key is being stored.
pub const TAKING: u64 = 1 << 63;
/// State of an entry that has values.
pub const LIVE: u64 = 1;
/// State of an entry that was deleted, or that has a key and no value yet.
pub const GONE: u64 = 2;
/// Upper bound of the words of a key.
pub const MAX_KEYS: usize = 6;
/// Upper bound of the words of a value.
pub const MAX_VALUES: usize = 4;
/// Binary logarithm of the number of entries at which the search for a key begins.
pub const BITS: u8 = 13;

/// Where a map lies in a line, and what its entries hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapShape {
    /// Byte offset in a line; a multiple of 64.
    pub at: u32,
    /// Words of a key, [`MAX_KEYS`] at most; without any there is one entry.
    pub keys: u8,
    /// Words of a value.
    pub values: u8,
}

impl MapShape {
    /// Length of an entry in bytes.
    #[must_use]
    pub const fn stride(self) -> u64 {
        8 * (1 + self.keys as u64 + self.values as u64)
    }
    /// Number of entries. A search that begins at the last one goes on behind it.
    #[must_use]
    pub const fn entries(self) -> u64 {
        match self.keys {
            0 => PROBES as u64,
            _ => (1 << BITS) + PROBES as u64 - 1,
        }
    }
    /// Byte offset of a value in an entry.
    #[must_use]
    pub const fn value(self, nth: usize) -> u64 {
        8 * (1 + self.keys as u64 + nth as u64)
    }
    /// Byte offset in a line of what lies behind the map; a multiple of 64.
    #[must_use]
    pub const fn end(self) -> u32 {
        (self.at as u64 + FIRST + self.entries() * self.stride()).next_multiple_of(LINE) as u32
    }
    /// The entry at which the search for a key begins.
    #[must_use]
    pub fn first(self, key: &[u64]) -> u64 {
        let hash = key.iter().fold(0_u64, |hash, word| hash.wrapping_add(*word).wrapping_mul(PHI));
        if self.keys == 0 { 0 } else { hash >> (64 - u32::from(BITS)) }
    }
}

/// The table of stacks that keys name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StackTable {
    /// Return addresses of a stack, at most; 0 if there is no table.
    pub frames: u8,
}

impl StackTable {
    /// From an entry back to where a record with this stack would begin.
    pub const BEFORE: u64 = stack::USED * 8 - 16;

    /// As a map: the key is the stack's number.
    #[must_use]
    pub const fn shape(self) -> MapShape {
        MapShape { at: 0, keys: 1, values: (stack::FIRST - stack::USED) as u8 + self.frames }
    }
    /// Length in bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        if self.is_empty() { 0 } else { self.shape().end() as u64 }
    }
    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.frames == 0
    }
}

/// A stack that keys name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedStack<'a> {
    /// Its number.
    pub number: u64,
    /// The probe that was hit.
    pub probe: u32,
    /// Return addresses, innermost first.
    pub addresses: &'a [u64],
    /// Whether the stack goes on.
    pub is_cut: bool,
}

/// The maps in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapArea {
    /// Byte offset of the area in the segment; a multiple of 64.
    pub off: u64,
    /// Number of lines: one for each CPU, and one for all others.
    pub lines: u32,
    /// Bytes of a line; 0 if there are no maps.
    pub bytes: u32,
    /// Stacks in keys; they lie behind all lines.
    pub stacks: StackTable,
}

impl MapArea {
    /// Length of the area in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.before_stacks() + self.stacks.len()
    }
    /// Byte offset in the area of the table of stacks.
    #[must_use]
    pub const fn before_stacks(&self) -> u64 {
        self.lines as u64 * self.bytes as u64
    }
    /// Whether there are no maps.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }
    /// Calls `each` with the words of the key and of the value of each entry in a map on a line, in the order of
    /// entries; without a value if the key was deleted, or was not assigned yet. Of entries with one key the first is
    /// the one that hits find. `written`: where the segment may hold anything but zeros, in order; other memory is
    /// not looked at, since that would take pages. Returns the number of updates that found no entry. The memory may
    /// hold anything: all of it is looked at once, and bounds are checked (REC-2).
    pub fn read(
        &self,
        view: View<'_>,
        (map, line): (MapShape, u32),
        written: &[Range<u64>],
        mut each: impl FnMut(&[u64], Option<&[u64]>),
    ) -> u64 {
        let (keys, values) = (usize::from(map.keys), usize::from(map.values));
        if line >= self.lines || map.end() > self.bytes || keys > MAX_KEYS || values > MAX_VALUES {
            return 0;
        }
        let begin = self.off + u64::from(line) * u64::from(self.bytes) + u64::from(map.at);
        entries(view, (begin, map), written, |entry, is_live| {
            let words: [u64; MAX_KEYS + MAX_VALUES] = core::array::from_fn(|word| {
                if word < keys + values { view.get(entry + 8 + word as u64 * 8) } else { 0 }
            });
            each(&words[..keys], is_live.then_some(&words[keys..keys + values]));
        })
    }
    /// The same with the stacks that keys name.
    pub fn read_stacks(
        &self,
        view: View<'_>,
        written: &[Range<u64>],
        mut each: impl FnMut(KeyedStack<'_>),
    ) -> u64 {
        if self.stacks.is_empty() {
            return 0;
        }
        let most = u64::from(self.stacks.frames);
        entries(view, (self.off + self.before_stacks(), self.stacks.shape()), written, |entry, is_live| {
            if !is_live {
                return;
            }
            let word = |nth: u64| view.get(entry + nth * 8);
            let (used, end) = (word(2), word(4));
            let stack = Stack::of(used & u64::from(u32::MAX), (word(3), end), stack::FIRST + most);
            let mut addresses = [0; u8::MAX as usize];
            let addresses = &mut addresses[..stack.words as usize];
            addresses.iter_mut().zip(5..).for_each(|(address, nth)| *address = word(nth));
            let (probe, is_cut) = ((used >> 32) as u32, stack.is_cut(self.stacks.frames));
            each(KeyedStack { number: word(1), probe, addresses, is_cut });
        })
    }
}

/// Calls `each` with the entries that have a key of a map that begins at `begin`, and whether they are live. Returns
/// the number of updates that found none.
fn entries(
    view: View<'_>,
    (begin, map): (u64, MapShape),
    written: &[Range<u64>],
    mut each: impl FnMut(u64, bool),
) -> u64 {
    let (first, mut next) = (begin + FIRST, 0);
    for range in written {
        let from = range.start.saturating_sub(first) / map.stride();
        let to = range.end.saturating_sub(first).div_ceil(map.stride()).min(map.entries());
        for entry in (next.max(from)..to).map(|nth| first + nth * map.stride()) {
            let state = view.get(entry);
            if [LIVE, GONE].contains(&state) {
                each(entry, state == LIVE);
            }
        }
        next = next.max(to);
    }
    if written.iter().any(|range| range.contains(&begin)) { view.get(begin) } else { 0 }
}
