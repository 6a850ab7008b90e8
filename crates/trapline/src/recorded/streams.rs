//! The words of each compact ring, one after another, and all rings in the order of time.
//!
//! In: pieces of rings, as the file has them. Out: records with their thread, oldest first. Records of a ring are in the order
//! of time, so rings are merged; only what happened before a given tick, since a ring may still have older records in the
//! next round. A block begins with a whole record, so values that go on behind the end of theirs are none. Invariants: WORD-1,
//! WORD-2. Does not: know calls, or what values mean.

use std::collections::VecDeque;

use trapline_record::calls::{Behind, CallRecord, Found, Reading};

use crate::quick::Quick;

/// Process, segment, ring.
pub(super) type Key = (u32, u32, u32);

/// A piece of a ring.
#[derive(Debug)]
pub(super) struct Piece {
    /// Number of words taken before.
    pub(super) from: u64,
    /// A tick at which the ring was empty, at the latest since the piece before.
    pub(super) floor: u64,
    /// The ring's last context before it; 0 if none is known.
    pub(super) context: u64,
    pub(super) bytes: Vec<u8>,
}

/// A ring that is being read.
#[derive(Debug)]
struct Stream {
    key: Key,
    pieces: VecDeque<Piece>,
    /// Offset of the next word in the first piece.
    at: usize,
    /// Number of words that the next piece is to begin behind.
    expected: u64,
    reading: Reading,
    next: Option<CallRecord>,
    /// The values behind it.
    values: Vec<u64>,
    /// Words that say nothing.
    skipped: u64,
}

impl Stream {
    fn new(key: Key) -> Self {
        let reading = Reading::START;
        let (pieces, values) = (VecDeque::new(), Vec::new());
        Self { key, pieces, at: 0, expected: 0, reading, next: None, values, skipped: 0 }
    }
    fn push(&mut self, piece: Piece, lengths: &Lengths) {
        self.pieces.push_back(piece);
        if self.next.is_none() {
            self.advance(lengths);
        }
    }
    /// Finds the next record.
    #[inline]
    fn advance(&mut self, lengths: &Lengths) {
        self.next = None;
        while let Some(piece) = self.pieces.front() {
            if self.at == 0 && piece.from != self.expected {
                // The ring was taken up again elsewhere, or pieces were passed over.
                self.reading = Reading::behind(piece.context);
            }
            let words = piece.bytes.as_chunks::<8>().0;
            let floor = piece.floor;
            while let Some(word) = words.get(self.at) {
                self.at += 1;
                match self.reading.next(u64::from_le_bytes(*word), floor) {
                    Found::Record(record) if record.has_values => {
                        let (process, segment, _) = self.key;
                        let rest = &words[self.at..];
                        let known = lengths.of(process, segment, record.probe);
                        let Some(many) = record.values(known, rest) else {
                            // What is left is not known to be words of records.
                            self.skipped += (words.len() - self.at) as u64 + 1;
                            self.at = words.len();
                            continue;
                        };
                        self.at += many;
                        self.values.clear();
                        self.values.extend(rest[..many].iter().map(|word| u64::from_le_bytes(*word)));
                        self.next = Some(record);
                        return;
                    }
                    Found::Record(record) => {
                        self.next = Some(record);
                        return;
                    }
                    Found::Context => {}
                    Found::Nothing => self.skipped += 1,
                }
            }
            self.expected = piece.from.wrapping_add(words.len() as u64);
            self.at = 0;
            self.pieces.pop_front();
        }
    }
}

/// What is behind entries.
#[derive(Debug, Default)]
struct Lengths(Quick<(u32, u32), Vec<Behind>>);

impl Lengths {
    #[cold]
    fn of(&self, process: u32, segment: u32, probe: u32) -> Behind {
        let of = self.0.get(&(process, segment)).and_then(|of| of.get(probe as usize));
        of.copied().unwrap_or_default()
    }
}

/// All rings.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: Vec<Stream>,
    lengths: Lengths,
    index: Quick<Key, usize>,
}

impl Streams {
    /// Number of rings.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
    pub(super) fn push(&mut self, key: Key, piece: Piece) {
        let all = &mut self.all;
        let nth = *self.index.entry(key).or_insert_with(|| {
            all.push(Stream::new(key));
            all.len() - 1
        });
        self.all[nth].push(piece, &self.lengths);
    }
    /// Notes what is behind entries of a probe, in words that are pushed from now on.
    pub(super) fn values_of(&mut self, (process, segment): (u32, u32), probe: u32, values: Behind) {
        let of = self.lengths.0.entry((process, segment)).or_default();
        let probe = probe as usize;
        if of.len() <= probe {
            of.resize(probe + 1, Behind::default());
        }
        of[probe] = values;
    }
    /// Words that say nothing.
    pub(super) fn skipped(&self) -> u64 {
        self.all.iter().map(|stream| stream.skipped).sum()
    }
    /// Takes what happened until a tick, oldest first. `each` also gets the number of the ring, below [`Self::len`], and the
    /// record's values.
    pub(super) fn take(&mut self, until: u64, mut each: impl FnMut(usize, Key, CallRecord, &[u64])) {
        loop {
            let ticks = |stream: &Stream| stream.next.map_or(u64::MAX, |next| next.ticks);
            let (mut first, mut earliest, mut second) = (None, u64::MAX, u64::MAX);
            for (nth, stream) in self.all.iter().enumerate().filter(|(_, stream)| stream.next.is_some()) {
                let at = ticks(stream);
                if first.is_none() || at < earliest {
                    (first, earliest, second) = (Some(nth), at, earliest);
                } else {
                    second = second.min(at);
                }
            }
            let Some(nth) = first.filter(|_| earliest <= until) else { return };
            let (stream, limit) = (&mut self.all[nth], second.min(until));
            while let Some(record) = stream.next.filter(|next| next.ticks <= limit) {
                let values = if record.has_values { &stream.values[..] } else { &[] };
                each(nth, stream.key, record, values);
                stream.advance(&self.lengths);
            }
        }
    }
}
