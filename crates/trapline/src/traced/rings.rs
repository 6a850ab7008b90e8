//! Takes what is in a process' rings.
//!
//! In: the rings of all its segments. Out: the bytes of ring slots, or single records; each once.
//! Invariant: LOSS-2: hits = records read + records dropped, exactly. Does not: know what records mean
//! (`crate::decode`).

use std::time::{Duration, Instant};

use trapline_patch::Segment;
use trapline_record::calls::WORD;
use trapline_record::ring::{Record, RingArea};
use trapline_record::view::View;

/// How long stubs load from a page after the kernel has read it, before the kernel is asked again.
const FORGET: Duration = Duration::from_millis(100);
/// Bytes of a ring that are copied at once: few enough to stay in the CPU's own cache until they are read.
const AT_ONCE: usize = 1 << 18;

/// Error type of what cannot fail.
pub(super) type Never = std::convert::Infallible;

/// One ring, to be emptied.
#[derive(Debug)]
pub(super) struct Ring<'a> {
    pub(super) segment: usize,
    pub(super) number: u32,
    of: &'a Segment,
    area: RingArea,
    view: View<'a>,
    tail: &'a mut u64,
}

impl Ring<'_> {
    /// Bytes of a ring slot.
    pub(super) const fn slot(&self) -> usize {
        self.area.slot as usize
    }
    /// Takes what is in the ring now, in pieces that are appended to `bytes`. `each` gets all of `bytes`, and
    /// then they are cleared. Returns false if the head has an impossible value.
    pub(super) fn empty<E>(
        &mut self,
        bytes: &mut Vec<u8>,
        mut each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        // Words are saved, and never reported as calls.
        if self.is_compact() {
            return Ok(true);
        }
        let Ok(ahead) = self.area.ahead(self.view, self.number, self.tail) else { return Ok(false) };
        let (before, mut rest) = (bytes.len(), ahead as usize);
        while rest > 0 {
            let piece = rest.min(AT_ONCE.max(self.slot()));
            bytes.resize(before + piece, 0);
            self.area.take_bytes(self.view, self.number, self.tail, &mut bytes[before..]);
            rest -= piece;
            let done = each(bytes);
            bytes.truncate(before);
            done?;
        }
        Ok(true)
    }
    /// Whether its records are words.
    pub(super) const fn is_compact(&self) -> bool {
        self.area.is_compact()
    }
    /// Takes what is in a compact ring now, in pieces that are appended to `bytes`, and wakes threads that wait for room
    /// there. `each` gets the number of words that had been taken before, and all of `bytes`. It cuts off what belongs to the next
    /// piece, and hands that back; whether there is a next one is said, too. Returns false if the head has an impossible value.
    pub(super) fn empty_words<E>(
        &mut self,
        bytes: &mut Vec<u8>,
        mut each: impl FnMut(u64, &mut Vec<u8>, bool) -> Result<Vec<u8>, E>,
    ) -> Result<bool, E> {
        let Ok(ahead) = self.area.words_ahead(self.view, self.number, self.tail) else { return Ok(false) };
        let (begin, mut rest) = (bytes.len(), ahead as usize * WORD as usize);
        while rest > 0 {
            let (piece, head) = (rest.min(AT_ONCE), bytes.len());
            let before = self.tail.wrapping_sub((head - begin) as u64 / u64::from(WORD));
            bytes.resize(head + piece, 0);
            self.of.beat();
            if self.area.take_words_of(self.view, self.number, self.tail, &mut bytes[head..]) {
                self.of.wake(self.number);
            }
            rest -= piece;
            let next = each(before, bytes, rest > 0);
            bytes.truncate(begin);
            bytes.append(&mut next?);
        }
        Ok(true)
    }
    /// Takes what is in the ring now, record by record, with access to each record's words. Returns false if
    /// the head has an impossible value.
    fn take(&mut self, each: impl FnMut(&Record, &dyn Fn(u64) -> u64)) -> bool {
        self.area.take_words(self.view, self.number, self.tail, each).is_ok()
    }
}

/// How far the rings were emptied.
#[derive(Debug, Default)]
pub(super) struct Rings {
    /// Bytes taken so far, for each segment and ring.
    tails: Vec<Vec<u64>>,
    /// When page notes were last cleared.
    forgot: Option<Instant>,
    /// Ring heads with impossible values: the target wrote over them.
    broken: u64,
}

impl Rings {
    /// Clears page notes from time to time, where no rings are read.
    pub(super) fn forget(&mut self, segments: &[Segment]) {
        if self.is_time_to_forget() {
            segments.iter().for_each(|one| one.layout().pages.forget(one.view()));
        }
    }
    fn is_time_to_forget(&mut self) -> bool {
        let forgets = self.forgot.is_none_or(|at| at.elapsed() >= FORGET);
        if forgets {
            self.forgot = Some(Instant::now());
        }
        forgets
    }
    /// Visits all rings, one after the other, and does what else belongs to a round. `each` empties a ring,
    /// and returns whether its head is possible.
    pub(super) fn each<E>(
        &mut self,
        segments: &[Segment],
        mut each: impl FnMut(Ring<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let forgets = self.is_time_to_forget();
        for (segment, one) in segments.iter().enumerate() {
            let (area, view) = (one.rings(), one.view());
            if self.tails.len() == segment {
                self.tails.push(vec![0; area.rings as usize]);
            }
            for (number, tail) in (0..).zip(&mut self.tails[segment]) {
                let whole = each(Ring { segment, number, of: one, area, view, tail })?;
                self.broken += u64::from(!whole);
            }
            if forgets {
                one.layout().pages.forget(view);
            }
        }
        Ok(())
    }
    /// Takes what is in all rings: each record with its segment, the number of words that a record has there,
    /// and access to them.
    pub(super) fn drain(
        &mut self,
        segments: &[Segment],
        mut each: impl FnMut(usize, u64, &Record, &dyn Fn(u64) -> u64),
    ) {
        let done = self.each(segments, |mut ring| {
            let (segment, room) = (ring.segment, u64::from(ring.area.most) / 8);
            Ok::<bool, Never>(ring.take(|record, word| each(segment, room, record, word)))
        });
        let Ok(()) = done;
    }
    /// Notice about heads that had impossible values.
    pub(super) fn notice(&self, pid: u32) -> Option<String> {
        let times = self.broken;
        (times > 0).then(|| {
            format!("process {pid} wrote over its rings of records, {times} times; what they held is lost")
        })
    }
}
