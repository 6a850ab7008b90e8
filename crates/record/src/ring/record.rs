//! One record: which words it has, and what they mean.
//!
//! In: the words of a ring's slot, as the target wrote them: hostile input. Out: a [`Record`], or none if its
//! kind is unknown.
//! Does not: know rings, or what a record of several slots holds behind its values (`stack`).

use crate::counters::LINE;

/// Number of words of a record before its values: probe and thread, time, stack pointer and kind.
pub const FIRST_VALUE: u64 = 3;
/// Length of the smallest slot in bytes.
pub const LEAST_SLOT: u32 = LINE as u32;
/// Maximum number of values in a record.
pub const MAX_VALUES: usize = 13;
/// Word of a record at which its texts begin, behind six arguments. Each text is a word with the kernel's
/// result and then the bytes.
pub const FIRST_TEXT: u64 = FIRST_VALUE + 6;
/// Maximum number of bytes of a text in a record.
pub const TEXT_BYTES: usize = 64;
/// Number of words of a text.
pub const TEXT_WORDS: usize = 1 + TEXT_BYTES / 8;
/// Word of an entry's record at which its floats begin, behind so many integer arguments and texts. Each
/// float takes 64 bits.
#[must_use]
pub const fn first_float(arguments: usize, texts: usize) -> u64 {
    match texts {
        0 => FIRST_VALUE + arguments as u64,
        _ => FIRST_TEXT + (texts * TEXT_WORDS) as u64,
    }
}

/// Bits of the stack pointer's word that contain the record's kind.
pub const KIND_MASK: u64 = 7;

/// What a record reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum RecordKind {
    /// A function was entered; the values are its arguments.
    Entry = 0,
    /// The function returned; the value is what it returned.
    Return = 1,
    /// The function jumped to another function (a tail call).
    Tail = 2,
}

impl RecordKind {
    /// The kind in a stack pointer's word; `None` if there is no such kind.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        match word & KIND_MASK {
            0 => Some(Self::Entry),
            1 => Some(Self::Return),
            2 => Some(Self::Tail),
            _ => None,
        }
    }
}

/// One record, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it reports.
    pub kind: RecordKind,
    /// Number of the probe that was hit.
    pub probe: u32,
    /// The thread's number, as the C library keeps it; 0 when it keeps none.
    pub tid: u32,
    /// Time stamp counter.
    pub ticks: u64,
    /// The stack pointer at the function's entry, or at the instruction.
    pub sp: u64,
    /// Arguments, or the value returned; the probe determines how many are meant.
    pub values: [u64; MAX_VALUES],
}

impl Record {
    /// The record in the words of a slot with room for so many values; `None` if its kind is unknown.
    pub fn read(room: usize, word: impl Fn(u64) -> u64) -> Option<Self> {
        let [ids, ticks, place] = [0, 1, 2].map(&word);
        let mut values = [0; MAX_VALUES];
        for (value, n) in values.iter_mut().take(room).zip(FIRST_VALUE..) {
            *value = word(n);
        }
        Some(Self {
            kind: RecordKind::from_word(place)?,
            probe: ids as u32,
            tid: (ids >> 32) as u32,
            ticks,
            sp: place & !KIND_MASK,
            values,
        })
    }
}
