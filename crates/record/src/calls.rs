//! Compact rings: entries and exits as words of eight bytes, in the ring of their CPU.
//!
//! A compact ring is two cache lines and then its words. The first line is the CPU's: `HEAD`. The second is the
//! reader's: `TAIL`, and two words for threads that wait ([`SEQUENCE`], [`WAITERS`]). The protocols stand in
//! `plan::programs::calls` and in `plan`'s `stub/wait.rs`; docs/design/recording.md has them together.
//!
//! ```text
//!   HEAD      bits 0 to 21: thread of the last record;  22 to 31: its epoch, low bits;  32 to 63: words ever written
//!   TAIL      bits 32 to 63: words ever taken
//!
//!   a record  bits 0 to 3: kind;  4 to 9: those bits of the stack pointer;  10 to 29: probe;  30 to 63: time, low bits
//!   a context bits 0 to 3: 3;     4 to 25: thread;                          34 to 63: time, those bits (its epoch)
//!   a value   64 bits, as the function had it
//!   a text    as long as it is ([`Behind`])
//! ```
//!
//! A record whose kind has [`VALUES`] in it is followed by its values: what is known of its probe at an entry ([`Behind`]), one
//! at a return. A context, a record and its values are published together, so a ring never ends between them.
//!
//! Invariants: WORD-1 a ring that begins at word 0, or at a context, gives each record's thread and time. WORD-2
//! what the target wrote is input: no word, head or order of words causes more than skipped records
//! ([`Broken`], [`Found::Nothing`]). Does not: pair entries and exits.

mod behind;

pub use behind::{Behind, FAILED, FAULT, MOST_BYTES, MOST_WORDS, text_words};

use crate::counters::LINE;
use crate::ring::{Broken, RecordKind, RingArea, SLOTS, TAIL};
use crate::view::View;

/// Length of a record, and of a slot of a compact ring, in bytes.
pub const WORD: u32 = 8;
/// Byte offset in a ring: changes whenever words were taken, or no thread is to wait any more.
pub const SEQUENCE: u64 = LINE + 8;
/// Byte offset in a ring: not 0 if threads may wait for room.
pub const WAITERS: u64 = LINE + 16;
/// Words that one hit writes at most, besides values: a context and a record.
pub const AT_ONCE: u32 = 2;
/// Most values of a record.
pub const MOST_VALUES: u32 = 254;

/// Kind of a context, beside those of [`RecordKind`].
pub const CONTEXT: u64 = 3;
/// Bit in a kind: values stand behind the record.
pub const VALUES: u64 = 4;
/// Bits of a kind.
pub const KIND_BITS: u32 = 4;
/// Bits of the stack pointer that a record holds, where they are in both.
pub const STACK_BITS: u64 = 0x3f0;
/// Place of the probe's number in a record.
pub const PROBE_SHIFT: u32 = 10;
/// Bits of a probe's number.
pub const PROBE_BITS: u32 = 20;
/// Place of the time in a record.
pub const TIME_SHIFT: u32 = 30;
/// Bits of the time in a record. What is above them is the epoch.
pub const TIME_BITS: u32 = 64 - TIME_SHIFT;
/// Place of the thread in a context.
pub const THREAD_SHIFT: u32 = 4;
/// Bits of a thread's number: Linux gives none above 2²² (`PID_MAX_LIMIT`).
pub const THREAD_BITS: u32 = 22;
/// Bits of an epoch in a head.
pub const EPOCH_BITS: u32 = 10;
/// Place of the number of words in a head and in a tail.
pub const WORDS_SHIFT: u32 = 32;

const _: () = assert!(THREAD_BITS + EPOCH_BITS == WORDS_SHIFT && PROBE_SHIFT + PROBE_BITS == TIME_SHIFT);

/// What a head says of the last record: its thread, and the low bits of its epoch.
#[must_use]
pub const fn context_of(thread: u64, time: u64) -> u64 {
    (time >> TIME_BITS & ((1 << EPOCH_BITS) - 1)) << THREAD_BITS | thread
}

/// What a record's words say, one after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A record.
    Record(CallRecord),
    /// From here on records are of another thread or epoch.
    Context,
    /// A word that no stub writes, or a record before the first context.
    Nothing,
}

/// An entry or an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallRecord {
    /// What it reports.
    pub kind: RecordKind,
    /// Number of the probe; below 2²⁰.
    pub probe: u32,
    /// The thread's number.
    pub tid: u32,
    /// Time stamp counter.
    pub ticks: u64,
    /// Bits 4 to 9 of the stack pointer at the function's entry.
    pub place: u8,
    /// Values stand behind it.
    pub has_values: bool,
}

impl CallRecord {
    /// Number of words of its values, the first of `words`. `at_entry`: what is behind entries of its probe. `None` if they
    /// are not all there.
    #[must_use]
    pub fn values(&self, at_entry: Behind, words: &[[u8; 8]]) -> Option<usize> {
        match self.kind {
            _ if !self.has_values => Some(0),
            RecordKind::Entry => at_entry.len(words),
            RecordKind::Return | RecordKind::Tail => (!words.is_empty()).then_some(1),
        }
    }
}

/// What is known where a ring is read: thread and epoch of the next record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    thread: Option<u32>,
    /// Time, without its low bits.
    epoch: u64,
}

impl Reading {
    /// Nothing is known.
    pub const START: Self = Self { thread: None, epoch: 0 };

    /// What is known behind a context. Nothing, if the word is none.
    #[must_use]
    pub fn behind(context: u64) -> Self {
        let mut reading = Self::START;
        if context & ((1 << KIND_BITS) - 1) == CONTEXT {
            reading.next(context, 0);
        }
        reading
    }
    /// The thread of the next record, unless a context comes first.
    #[must_use]
    pub const fn thread(&self) -> Option<u32> {
        self.thread
    }
    /// Reads the next word. Nothing in it is later than `floor` by a whole turn of a head's epoch: a record that seems to
    /// be older than `floor`, a time at which the ring was empty, is as many turns later.
    #[inline]
    pub fn next(&mut self, word: u64, floor: u64) -> Found {
        let kind = word & ((1 << KIND_BITS) - 1);
        let has_values = kind & VALUES != 0;
        // Only entries and returns have values.
        if let Some(kind) = RecordKind::from_word(kind & !VALUES).filter(|_| kind < VALUES + 2) {
            let Some(tid) = self.thread else { return Found::Nothing };
            let ticks = self.epoch | word >> TIME_SHIFT;
            let ticks =
                if floor.saturating_sub(ticks) > TURN / 2 { self.turned(ticks, floor) } else { ticks };
            let probe = (word >> PROBE_SHIFT) as u32 & ((1 << PROBE_BITS) - 1);
            return Found::Record(CallRecord {
                kind,
                probe,
                tid,
                ticks,
                place: (word >> KIND_BITS) as u8 & 0x3f,
                has_values,
            });
        }
        if kind == CONTEXT {
            let thread = (word >> THREAD_SHIFT) as u32 & ((1 << THREAD_BITS) - 1);
            *self = Self { thread: Some(thread), epoch: word >> TIME_BITS << TIME_BITS };
            return Found::Context;
        }
        Found::Nothing
    }
    /// A thread that is alone on its CPU writes no context if as much time as all epochs of a head has gone by.
    #[cold]
    fn turned(&mut self, ticks: u64, floor: u64) -> u64 {
        let turns = (floor.saturating_sub(ticks) + TURN / 2) / TURN * TURN;
        self.epoch = self.epoch.saturating_add(turns);
        ticks.saturating_add(turns)
    }
}

/// Ticks after which the epochs of a head come again.
const TURN: u64 = 1 << (TIME_BITS + EPOCH_BITS);

impl RingArea {
    /// Whether its records are words.
    #[must_use]
    pub const fn is_compact(&self) -> bool {
        self.slot == WORD
    }
    /// Number of words in use from which on there is no room in a compact ring for the longest hit ([`Self::most`]).
    #[must_use]
    pub const fn full_words(&self) -> u32 {
        let longest = if self.most / WORD > AT_ONCE { self.most / WORD } else { AT_ONCE };
        (self.bytes / WORD).saturating_sub(longest - 1)
    }
    /// Number of words of a compact ring that can be taken. `tail` is the reader's own: the number of words ever taken.
    ///
    /// # Errors
    /// [`Broken`] if the target overwrote the head. The ring then goes on at the head as it was, and a new [`Reading`].
    pub fn words_ahead(&self, view: View<'_>, ring: u32, tail: &mut u64) -> Result<u64, Broken> {
        let at = self.ring(ring);
        let head = view.get(at + crate::ring::HEAD) >> WORDS_SHIFT;
        let ahead = (head as u32).wrapping_sub(*tail as u32);
        if ahead > self.bytes / WORD {
            let broken = Broken { head, tail: *tail };
            *tail = head;
            view.set(at + TAIL, head << WORDS_SHIFT);
            return Err(broken);
        }
        Ok(ahead.into())
    }
    /// R2: copies as many words as `into` has room for, and gives their room back. There must not be more than
    /// [`Self::words_ahead`] returned. R3 and R4 follow: whether threads may wait.
    pub fn take_words_of(&self, view: View<'_>, ring: u32, tail: &mut u64, into: &mut [u8]) -> bool {
        let at = self.ring(ring);
        let bytes = into.len() as u64 / u64::from(WORD) * u64::from(WORD);
        let from = tail.wrapping_mul(WORD.into()) & (u64::from(self.bytes) - 1);
        let first = bytes.min(u64::from(self.bytes) - from);
        let (front, behind) = into.split_at_mut(first as usize);
        view.read_bytes(at + SLOTS + from, front);
        view.read_bytes(at + SLOTS, &mut behind[..(bytes - first) as usize]);
        *tail = tail.wrapping_add(bytes / u64::from(WORD));
        view.set(at + TAIL, *tail << WORDS_SHIFT);
        self.release(view, ring)
    }
    /// R3 and the first half of R4: threads look again. Returns whether some may wait; then they are to be woken.
    pub fn release(&self, view: View<'_>, ring: u32) -> bool {
        let at = self.ring(ring);
        view.add(at + SEQUENCE, 1);
        view.take_in_order(at + WAITERS) != 0
    }
}

#[cfg(all(test, not(feature = "loom_words")))]
mod tests;
