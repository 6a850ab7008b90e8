//! Rings of records: one for each CPU, written by the target, read and emptied by the tracer.
//!
//! A ring is two lines and then its slots. The first line is the CPU's own: `HEAD`, bytes ever written. The second is the
//! reader's: `TAIL`, bytes ever taken. A record fills one slot, which never wraps, since a ring holds a power of two of them.
//!
//! # A record is written (`plan::x86_64::stub::trace`)
//!
//! W1 read the CPU's number, `HEAD` and `TAIL`; without a free slot the record is dropped, and counted. W2 fill the slot behind
//! the head. W3 store `HEAD`, one slot further. From W1 to W3 is one restartable sequence: a thread that is moved, interrupted or
//! killed before W3 has published nothing, and what it left in the slot is written over. A signal handler that comes between
//! writes its own record first. So `HEAD` counts whole records, in the order in which their CPU committed them.
//!
//! # Records are taken
//!
//! T1 load `HEAD` (acquire: W2's stores come before W3's). T2 copy the slots. T3 store `TAIL` (release: the copies come before
//! it). The target never waits: it reads `TAIL`, and a slow reader costs records, not time. Interleavings: a writer between T1 and
//! T2 writes slots that are not copied; between T2 and T3 it finds the slots still taken, and drops at most what a later `TAIL`
//! would have let in; a reader that dies leaves a ring that fills. `record/tests/interleavings/ring.rs` tries them all.
//!
//! The reader keeps its own tail, and looks at `HEAD` as at any input (REC-2): one that is no whole number of slots ahead, or
//! further than the ring is long, is [`Broken`], and the ring is taken up again at its head.

use crate::counters::LINE;
use crate::view::View;

/// Byte offset in a ring of the head: bytes ever written.
pub const HEAD: u64 = 0;
/// Byte offset in a ring of the tail: bytes ever taken.
pub const TAIL: u64 = LINE;
/// Byte offset in a ring of its first slot.
pub const SLOTS: u64 = 2 * LINE;
/// Words of a record before its values: probe and thread, time, stack pointer and kind.
pub const FIRST_VALUE: u64 = 3;
/// Bytes of the smallest slot.
pub const LEAST_SLOT: u32 = LINE as u32;
/// Most values of a record.
pub const MAX_VALUES: usize = 13;
/// Bits of the stack pointer's word that say what the record is.
pub const KIND_MASK: u64 = 7;

/// What a record tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Kind {
    /// A function was entered; the values are its arguments.
    Entry = 0,
    /// It returned; the value is what it returned.
    Return = 1,
    /// It went on as another function (a tail call).
    Tail = 2,
}

impl Kind {
    /// The kind in a stack pointer's word, if any.
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

/// One record, as read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it tells.
    pub kind: Kind,
    /// Whose hit it is.
    pub probe: u32,
    /// The thread, by the number that the C library keeps; 0 when it keeps none.
    pub tid: u32,
    /// Time stamp counter.
    pub ticks: u64,
    /// The stack pointer at the function's entry, or at the instruction.
    pub sp: u64,
    /// Arguments, or the value returned; how many are meant is the probe's business.
    pub values: [u64; MAX_VALUES],
}

/// A head that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken {
    /// What it was.
    pub head: u64,
    /// What had been taken.
    pub tail: u64,
}

/// Where the rings lie in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingArea {
    /// Byte offset of the area in the segment; a multiple of 64.
    pub off: u64,
    /// Rings: CPUs that may run the process. 0 when nothing is recorded.
    pub rings: u32,
    /// Bytes of a slot; a power of two from [`LEAST_SLOT`] on.
    pub slot: u32,
    /// Bytes of a ring's slots; a power of two.
    pub bytes: u32,
}

impl RingArea {
    /// Bytes of a slot that holds that many values.
    #[must_use]
    pub const fn slot_for(values: usize) -> u32 {
        let bytes = (FIRST_VALUE as u32 + values as u32) * 8;
        if bytes <= LEAST_SLOT { LEAST_SLOT } else { bytes.next_power_of_two() }
    }
    /// Values that fit into a slot.
    #[must_use]
    pub const fn values(&self) -> usize {
        (self.slot as usize / 8).saturating_sub(FIRST_VALUE as usize)
    }
    /// Bytes from one ring to the next.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        SLOTS + self.bytes as u64
    }
    /// Bytes of the area.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.rings as u64 * self.stride()
    }
    /// Whether nothing is recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rings == 0
    }
    /// Byte offset in the segment of a ring.
    #[must_use]
    pub const fn ring(&self, ring: u32) -> u64 {
        self.off + ring as u64 * self.stride()
    }
    /// Takes what is in a ring, oldest first, and says how many records that were. `tail` is the reader's own: 0 at first, and then
    /// as this left it. Words that name no kind are passed over.
    ///
    /// # Errors
    /// [`Broken`], once for each time that the target scribbled over the head; the next call goes on at the head as it was.
    pub fn take(
        &self,
        view: View<'_>,
        ring: u32,
        tail: &mut u64,
        mut each: impl FnMut(&Record),
    ) -> Result<u64, Broken> {
        let at = self.ring(ring);
        let (slot, head) = (u64::from(self.slot), view.get(at + HEAD));
        let ahead = head.wrapping_sub(*tail);
        if ahead > u64::from(self.bytes) || !ahead.is_multiple_of(slot) {
            let broken = Broken { head, tail: *tail };
            *tail = head / slot * slot;
            view.set(at + TAIL, *tail);
            return Err(broken);
        }
        for n in 0..ahead / slot {
            let place = tail.wrapping_add(n * slot) & (u64::from(self.bytes) - 1);
            if let Some(record) = self.record(view, at + SLOTS + place) {
                each(&record);
            }
        }
        *tail = head;
        view.set(at + TAIL, head);
        Ok(ahead / slot)
    }
    fn record(&self, view: View<'_>, at: u64) -> Option<Record> {
        let [who, ticks, place] = [0, 8, 16].map(|word| view.get(at + word));
        let mut values = [0; MAX_VALUES];
        for (value, n) in values.iter_mut().take(self.values()).zip(FIRST_VALUE..) {
            *value = view.get(at + n * 8);
        }
        Some(Record {
            kind: Kind::from_word(place)?,
            probe: who as u32,
            tid: (who >> 32) as u32,
            ticks,
            sp: place & !KIND_MASK,
            values,
        })
    }
}

#[cfg(all(test, not(loom_words)))]
mod tests {
    extern crate std;
    use super::{Broken, HEAD, Kind, RingArea, SLOTS, TAIL};
    use crate::sync::AtomicU64;
    use crate::view::View;
    use std::vec::Vec;

    const AREA: RingArea = RingArea { off: 64, rings: 2, slot: 64, bytes: 256 };

    fn memory() -> [AtomicU64; 104] {
        [const { AtomicU64::new(0) }; 104]
    }

    #[test]
    fn the_layout_is_a_contract() {
        assert_eq!((HEAD, TAIL, SLOTS), (0, 64, 128));
        assert_eq!((AREA.stride(), AREA.len(), AREA.ring(1)), (384, 768, 448));
        assert_eq!((AREA.values(), RingArea::slot_for(5), RingArea::slot_for(6)), (5, 64, 128));
        assert_eq!(RingArea { slot: 128, ..AREA }.values(), 13);
    }

    #[test]
    fn records_are_taken_in_order_over_the_end() {
        let words = memory();
        let view = View::new(&words);
        let (mut tail, mut seen) = (0, Vec::new());
        for round in 0..5u64 {
            for n in 0..3 {
                let head = view.get(AREA.ring(1) + HEAD);
                let at = AREA.ring(1) + SLOTS + head % 256;
                view.set(at, 7 | (round * 3 + n) << 32);
                view.set(at + 8, 1000 + round);
                view.set(at + 16, 0x7000 | Kind::Return as u64);
                view.set(at + 56, n);
                view.set(AREA.ring(1) + HEAD, head + 64);
            }
            let mut each =
                |r: &super::Record| seen.push((r.probe, r.tid, r.ticks, r.kind, r.sp, r.values[4]));
            assert_eq!(AREA.take(view, 1, &mut tail, &mut each), Ok(3));
            assert_eq!(AREA.take(view, 1, &mut tail, &mut each), Ok(0));
            assert_eq!(view.get(AREA.ring(1) + TAIL), tail);
        }
        let want: Vec<_> = (0..15)
            .map(|n| (7, n, 1000 + u64::from(n) / 3, Kind::Return, 0x7000, u64::from(n) % 3))
            .collect();
        assert_eq!(seen, want);
    }

    #[test]
    fn a_head_that_cannot_be_is_told_and_taken_up_again() {
        let words = memory();
        let view = View::new(&words);
        let mut tail = 0;
        for head in [65, 384, u64::MAX] {
            view.set(AREA.ring(0) + HEAD, head);
            let was = tail;
            assert_eq!(AREA.take(view, 0, &mut tail, |_| ()), Err(Broken { head, tail: was }));
            assert_eq!(tail, head / 64 * 64);
        }
        view.set(AREA.ring(0) + HEAD, tail.wrapping_add(64));
        view.set(AREA.ring(0) + SLOTS + tail % 256 + 16, 3);
        assert_eq!(AREA.take(view, 0, &mut tail, |_| unreachable!()), Ok(1), "kind 3 is none");
    }
}
