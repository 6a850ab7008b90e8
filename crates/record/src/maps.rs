//! Tables of a script's maps, which hits read and write in the target.
//!
//! In: which maps there are. Out: where each entry lies, and what the reader finds there. Invariant: HIT-1
//! (`plan::programs::{maps, shared}`, which are what hits do).
//!
//! ```text
//!   area + 0                 maps whose values are assigned, once
//!   … + line · bytes         a line: all maps that are added up, once for each CPU and once for all others
//!   map + 0                  updates that found no entry
//!   map + MET 8              updates that met another one of their key, which did not end
//!   map + FIRST 64           entries
//!   entry + 0                state ([`Owner`])
//!   entry + REACH 8          [`Owner::Any`] alone: how many bytes further on keys may be whose search begins here
//!   … + 8                    keys, a word each
//!   … + 8 · keys             values, a word each
//!
//!   … + lines · bytes        stacks that keys or values name, once: a map of its own ([`StackTable`])
//!   entry + 8                the stack's number, which keys and values hold
//!   entry + 16               probe << 32 | bytes, as `stack`'s USED; then its FRAME and END
//!   entry + 40               return addresses, innermost first
//!   … behind these           texts that keys name (`key_texts`)
//! ```
//!
//! The reader adds up what all lines hold of a key.
//!
//! Does not: know what keys and values mean.

use core::ops::Range;

use crate::counters::LINE;
pub use crate::key_texts::{KeyedText, TextTable};
use crate::stack::{self, Stack};
use crate::tally::{PHI, PROBES};
use crate::view::View;

/// Offset of the updates that met another one of their key, which did not end.
pub const MET: u64 = 8;
/// Offset of the first entry behind a map's begin.
pub const FIRST: u64 = 64;
/// Offset in an entry of how far a search that begins there must go.
pub const REACH: u64 = 8;
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
/// Binary logarithm of the number of entries at which the search for a key begins, if a map has 4,096 keys or fewer.
pub const BITS: u8 = 13;
/// The most of these: 2²⁰ keys fill half of the entries.
pub const MAX_BITS: u8 = 21;

/// Who changes an entry. That decides where the map lies, and what the states of entries mean.
///
/// | state | `Cpu`, `Thread` | `Any` |
/// |---|---|---|
/// | 0 | free | free |
/// | [`LIVE`] | there is a value | any odd number is: there is one |
/// | [`GONE`] | deleted; the key stays | any even number is: deleted, and any key may have the entry |
/// | [`TAKING`] | its key is being stored | with any number: one thread changes the entry |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Threads of one CPU, nearly always: the map is on each line. An entry that has a key keeps it.
    Cpu,
    /// One thread, whose number is in the key: the map is there once. An entry that has a key keeps it.
    Thread,
    /// Any thread: the map is there once. The entry of a deleted key is given to another one.
    Any,
}

/// Where a map lies, and what its entries hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapShape {
    /// Byte offset in a line, or among the maps that are there once; a multiple of 64.
    pub at: u32,
    /// Words of a key, [`MAX_KEYS`] at most; without any there is one entry.
    pub keys: u8,
    /// Words of a value.
    pub values: u8,
    /// Binary logarithm of the number of entries at which a search begins; [`MAX_BITS`] at most.
    pub bits: u8,
    /// Who changes entries.
    pub owner: Owner,
}

impl MapShape {
    /// Length of an entry in bytes; a power of two for [`Owner::Any`].
    #[must_use]
    pub const fn stride(self) -> u64 {
        let bytes = self.value(self.values as usize);
        if matches!(self.owner, Owner::Any) { bytes.next_power_of_two() } else { bytes }
    }
    /// Byte offset of a word of the key in an entry.
    #[must_use]
    pub const fn key(self, nth: usize) -> u64 {
        let head = if matches!(self.owner, Owner::Any) { REACH + 8 } else { 8 };
        head + 8 * nth as u64
    }
    /// Number of entries. A search that begins at the last one goes on behind it.
    #[must_use]
    pub const fn entries(self) -> u64 {
        match self.keys {
            0 => PROBES as u64,
            _ => (1 << self.bits) + PROBES as u64 - 1,
        }
    }
    /// Byte offset of a value in an entry.
    #[must_use]
    pub const fn value(self, nth: usize) -> u64 {
        self.key(self.keys as usize + nth)
    }
    /// Byte offset of what lies behind the map; a multiple of 64.
    #[must_use]
    pub const fn end(self) -> u32 {
        (self.at as u64 + FIRST + self.entries() * self.stride()).next_multiple_of(LINE) as u32
    }
    /// The entry at which the search for a key begins.
    #[must_use]
    pub fn first(self, key: &[u64]) -> u64 {
        let hash = key.iter().fold(0_u64, |hash, word| hash.wrapping_add(*word).wrapping_mul(PHI));
        if self.keys == 0 { 0 } else { hash >> (64 - u32::from(self.bits)) }
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
        let values = (stack::FIRST - stack::USED) as u8 + self.frames;
        MapShape { at: 0, keys: 1, values, bits: BITS, owner: Owner::Cpu }
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

/// How long the parts of a map area are, in bytes; multiples of 64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapBytes {
    /// Maps that are there once.
    pub once: u32,
    /// A line of the others.
    pub line: u32,
}

impl MapBytes {
    /// Without maps.
    pub const NONE: Self = Self { once: 0, line: 0 };

    /// The larger of each part.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { once: self.once.max(other.once), line: self.line.max(other.line) }
    }
    /// Whether there are no maps.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.once == 0 && self.line == 0
    }
    /// Byte offset of the table of stacks behind so many lines.
    #[must_use]
    pub const fn before_stacks(self, lines: u32) -> u64 {
        self.once as u64 + lines as u64 * self.line as u64
    }
    /// Adds a map. Returns its shape there.
    pub const fn put(&mut self, shape: MapShape) -> MapShape {
        let part = if matches!(shape.owner, Owner::Cpu) { &mut self.line } else { &mut self.once };
        let shape = MapShape { at: *part, ..shape };
        *part = shape.end();
        shape
    }
}

/// The maps in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapArea {
    /// Byte offset of the area in the segment; a multiple of 64.
    pub off: u64,
    /// Number of lines: one for each CPU, and one for all others.
    pub lines: u32,
    /// Bytes of its parts.
    pub bytes: MapBytes,
    /// Stacks that keys or values name; they lie behind all lines.
    pub stacks: StackTable,
    /// Texts that keys name; they lie behind the stacks.
    pub texts: TextTable,
}

impl MapArea {
    /// Length of the area in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.before_texts() + self.texts.len()
    }
    /// Byte offset in the area of the table of stacks.
    #[must_use]
    pub const fn before_stacks(&self) -> u64 {
        self.bytes.before_stacks(self.lines)
    }
    /// Whether there are no maps.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// How often a map is there: once, or on each line.
    #[must_use]
    pub const fn copies(&self, map: MapShape) -> u32 {
        match map.owner {
            Owner::Cpu => self.lines,
            _ if self.lines == 0 => 0,
            _ => 1,
        }
    }
    /// Byte offset in the segment of one of them; `None` if it is not within the area.
    pub(crate) fn begin(&self, map: MapShape, copy: u32) -> Option<u64> {
        let (part, at) = match map.owner {
            Owner::Cpu => {
                (self.bytes.line, u64::from(self.bytes.once) + u64::from(copy) * u64::from(self.bytes.line))
            }
            _ => (self.bytes.once, 0),
        };
        let is_within = copy < self.copies(map) && map.bits <= MAX_BITS && map.end() <= part;
        is_within.then_some(self.off + at + u64::from(map.at))
    }
    /// Calls `each` with the words of the key and of the value of each entry in one of a map's copies, in the order of
    /// entries; without a value if the key was deleted, or was not assigned yet. Of entries with one key the first is
    /// the one that hits find. `written`: where the segment may hold anything but zeros, in order; other memory is
    /// not looked at, since that would take pages. The memory may hold anything: bounds are checked (REC-2).
    pub fn read(
        &self,
        view: View<'_>,
        (map, copy): (MapShape, u32),
        written: &[Range<u64>],
        mut each: impl FnMut(&[u64], Option<&[u64]>),
    ) -> Missed {
        let (keys, values) = (usize::from(map.keys), usize::from(map.values));
        let (Some(begin), true) = (self.begin(map, copy), keys <= MAX_KEYS && values <= MAX_VALUES) else {
            return Missed::default();
        };
        let mut unfinished = 0;
        let full = entries(view, (begin, map), written, |entry, mut state| {
            let is_live = |state: u64| match map.owner {
                Owner::Any => (state & LIVE != 0).then_some(true),
                _ => [LIVE, GONE].contains(&state).then_some(state == LIVE),
            };
            for _ in 0..TURNS {
                let Some(is_live) = is_live(state) else { return };
                let words: [u64; MAX_KEYS + MAX_VALUES] = core::array::from_fn(|word| {
                    if word < keys + values { view.get(entry + map.key(word)) } else { 0 }
                });
                let now = view.get(entry);
                if map.owner != Owner::Any || is_whole(state, now, values) {
                    return each(&words[..keys], is_live.then_some(&words[keys..keys + values]));
                }
                core::hint::spin_loop();
                state = now;
            }
            unfinished += 1;
        });
        let is_written = |at: &u64| written.iter().any(|range| range.contains(at));
        let met = Some(begin + MET).filter(is_written).map_or(0, |at| view.get(at));
        Missed { full, met, unfinished }
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
        entries(view, (self.off + self.before_stacks(), self.stacks.shape()), written, |entry, state| {
            if state != LIVE {
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

/// How often a reader looks at an entry that threads change.
const TURNS: u32 = 100;

/// What a reader does not find in a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Missed {
    /// Updates that found no entry.
    pub full: u64,
    /// Updates that met another one of their key, which did not end.
    pub met: u64,
    /// Entries that a thread was changing. If no hit is under way any more, their threads ended while they did so.
    pub unfinished: u64,
}

impl Missed {
    /// Of two maps, or of two copies of one.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            full: self.full + other.full,
            met: self.met + other.met,
            unfinished: self.unfinished + other.unfinished,
        }
    }
}

/// Whether what was read between two looks at a state belongs together: nothing has changed it, or one word of a key that
/// stays ([`Owner::Any`]).
const fn is_whole(before: u64, after: u64, values: usize) -> bool {
    if values == 1 { (before ^ after) & !TAKING == 0 } else { before == after && before & TAKING == 0 }
}

/// Calls `each` with the entries of a map that begins at `begin`, but free ones, and their states. Returns the number of
/// updates that found none.
pub(crate) fn entries(
    view: View<'_>,
    (begin, map): (u64, MapShape),
    written: &[Range<u64>],
    mut each: impl FnMut(u64, u64),
) -> u64 {
    let (first, mut next) = (begin + FIRST, 0);
    for range in written {
        let from = range.start.saturating_sub(first) / map.stride();
        let to = range.end.saturating_sub(first).div_ceil(map.stride()).min(map.entries());
        for entry in (next.max(from)..to).map(|nth| first + nth * map.stride()) {
            let state = view.get(entry);
            if state != 0 {
                each(entry, state);
            }
        }
        next = next.max(to);
    }
    if written.iter().any(|range| range.contains(&begin)) { view.get(begin) } else { 0 }
}
