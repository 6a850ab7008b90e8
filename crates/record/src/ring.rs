//! Rings of records: one for each CPU, written by the target, read and emptied by the tracer.
//!
//! A ring is two cache lines and then its slots. The first line is the CPU's own: `HEAD`, the number of bytes
//! ever written. The second is the reader's: `TAIL`, the number of bytes ever taken. A record fills one slot,
//! which never wraps, since a ring holds a power of two of them.
//!
//! Records with stacks differ in length. An entry's record takes as many consecutive slots as its word
//! [`USED`] says, of at most [`RingArea::most`] bytes. It does not wrap either: behind the ring's last slot
//! there is room for the rest of a record that began in the ring. That rest stands for the bytes at the
//! ring's beginning that it would have filled. Those bytes and the room become free when the record was
//! taken, and not before. A writer does not know how long its record will be, and needs room for the longest.
//!
//! # A record is written (`plan::programs::records`)
//!
//! W1 read the CPU's number, `HEAD` and `TAIL`; without room for a record it is dropped, and counted. W2 fill
//! the slots behind the head. W3 store `HEAD`, that many slots further. W1 to W3 are one restartable
//! sequence: a thread that is moved, interrupted or killed before W3 has published nothing, and what it left
//! in the slot is overwritten. A signal handler that comes between writes its own record first. So `HEAD`
//! counts whole records, in the order in which their CPU committed them.
//!
//! # Records are taken
//!
//! T1 load `HEAD` (acquire: W2's stores come before W3's). T2 copy the slots. T3 store `TAIL` (release: the
//! copies come before it). T2 and T3 may be done in parts, oldest slots first. The target never waits: it
//! reads `TAIL`, and a slow reader costs records, not time. Interleavings: a writer between T1 and T2 writes
//! slots that are not copied. Between T2 and T3 it finds the slots still taken, and drops at most the records
//! for which a later `TAIL` would have left room. If the reader dies, the ring fills.
//! `record/tests/interleavings/ring.rs` tries all of these, `long.rs` those of records of several slots.
//!
//! The reader keeps its own tail, and treats `HEAD` as input (REC-2). A head that is no whole number of slots
//! ahead, or further ahead than the ring is long, is [`Broken`], and the reader starts again at that head. A
//! record that claims to be longer than what is ahead ends there.
//!
//! # Without restartable sequences
//!
//! If threads have no rseq areas (musl, Go without the C library, glibc before 2.35), nothing makes W1 to W3
//! one step, and a ring is locked instead. Bit 0 of `HEAD`, which is never set in a whole number of slots,
//! says that a writer is in the ring ([`LOCKED`]). There are [`RingArea::shared`] rings: two for each CPU,
//! and some behind the last.
//!
//! L1 find the first of [`TRIES`] rings by the CPU's number, a hint that may be wrong at once; load `HEAD`,
//! h. With bit 0 set another writer has the ring, and L1 goes on with the next ring. L2 load `TAIL`; without
//! a free slot the record is dropped, and counted. L3 compare-and-swap `HEAD` from h to h + 1; if it is no
//! longer h, L1 with the next ring. L4 read the clock, fill the slot behind h. L5 store `HEAD`, h and one
//! slot: one plain store publishes and unlocks. If no ring is available, the record is dropped, and counted.
//! No thread waits, and none tries longer than that.
//!
//! - *Another writer between L1 and L3*: it has changed `HEAD`, which never returns to an earlier value, so
//!   L3 fails. A reader between L2 and L3 has moved `TAIL`: there is more room than L2 saw.
//! - *Another writer, or a signal handler of the same thread, between L3 and L5*: finds the bit set and goes
//!   on to the next ring. So only the holder uses slot and head until L5, and each is one whole record.
//! - *The holder is preempted, stopped or moved*: its ring is skipped for as long. Which CPU it runs on no
//!   longer matters.
//! - *The reader at any time*: ignores bit 0, and sees only the stores of L5; T1 to T3 are as above.
//! - *The process is killed between L3 and L5*: nothing was published, and no thread is left to need the
//!   ring.
//! - *The holder never comes back though other threads go on*: a forked child that shares the rings and is
//!   killed there, a signal handler that leaves by longjmp or ends its thread. That ring is skipped from then
//!   on. The hit is neither written nor counted: the instruction that was hit never ran. When TRIES rings in
//!   a row have been lost that way, records for them are dropped, and counted.
//! - *A forked child* writes to the same rings as its parent, by the same steps. Only a signal handler can
//!   fork between L3 and L5. Then both processes return as the holder, fill the same slot with the same hit,
//!   and store the same head. If other threads have written between these two stores, `HEAD` goes back, which
//!   the reader finds and reports ([`Broken`]).
//!
//! `record/tests/interleavings/locked.rs` tries the writers and the reader, with twins that lock by a load
//! and a store, or publish first.

mod record;

pub use record::{
    FIRST_TEXT, FIRST_VALUE, KIND_MASK, LEAST_SLOT, MAX_VALUES, Record, RecordKind, TEXT_BYTES, TEXT_WORDS,
    first_float,
};

use crate::counters::LINE;
use crate::stack::{FIRST, USED};
use crate::view::View;

/// Byte offset in a ring of the head: number of bytes ever written.
pub const HEAD: u64 = 0;
/// Bit in a head: a writer without a restartable sequence is in the ring.
pub const LOCKED: u64 = 1;
/// Number of rings that such a writer tries.
pub const TRIES: u32 = 8;
/// Byte offset in a ring of the tail: number of bytes ever taken.
pub const TAIL: u64 = LINE;
/// Byte offset in a ring of its first slot.
pub const SLOTS: u64 = 2 * LINE;
/// A head that is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The head.
    pub head: u64,
    /// Number of bytes that had been taken.
    pub tail: u64,
}

/// The rings in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingArea {
    /// Byte offset of the area in the segment; a multiple of 64.
    pub off: u64,
    /// Number of rings: one for each CPU that may run the process, or [`Self::shared`]. 0 when nothing is
    /// recorded.
    pub rings: u32,
    /// Length of a slot in bytes; a power of two from [`LEAST_SLOT`] on.
    pub slot: u32,
    /// Maximum length of a record in bytes, whole slots. It is more than one slot only if entries' records
    /// hold stacks, or in a compact ring.
    pub most: u32,
    /// Length of a ring's slots in bytes; a power of two, at least `most`.
    pub bytes: u32,
}

impl RingArea {
    /// Number of rings of a process without restartable sequences, for so many CPUs. The ring of CPU n is 2n,
    /// and that one and the following are tried.
    #[must_use]
    pub const fn shared(cpus: u32) -> u32 {
        cpus.saturating_mul(2).saturating_add(TRIES - 2)
    }
    /// Length in bytes of a slot that holds that many values.
    #[must_use]
    pub const fn slot_for(values: usize) -> u32 {
        let bytes = (FIRST_VALUE as u32 + values as u32) * 8;
        if bytes <= LEAST_SLOT { LEAST_SLOT } else { bytes.next_power_of_two() }
    }
    /// Length in bytes of a slot that holds six values and that many texts.
    #[must_use]
    pub const fn slot_for_texts(texts: usize) -> u32 {
        Self::slot_for(6 + texts * TEXT_WORDS)
    }
    /// Length in bytes of a slot that holds so many integer arguments, texts and floats.
    #[must_use]
    pub const fn slot_with_floats(arguments: usize, texts: usize, floats: usize) -> u32 {
        Self::slot_for((first_float(arguments, texts) - FIRST_VALUE) as usize + floats)
    }
    /// Distance from tail to head in bytes from which on there is no room for a record.
    #[must_use]
    pub const fn full(&self) -> u32 {
        self.bytes.saturating_sub(self.most).saturating_add(self.slot)
    }
    /// Number of values that fit into a record.
    #[must_use]
    pub const fn values(&self) -> usize {
        (self.most as usize / 8).saturating_sub(FIRST_VALUE as usize)
    }
    /// Distance from one ring to the next in bytes.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        // The words of a compact ring go on at its beginning.
        let behind = if self.is_compact() { 0 } else { self.most.saturating_sub(self.slot) };
        SLOTS + self.bytes as u64 + behind as u64
    }
    /// Length of the area in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.rings as u64 * self.stride()
    }
    /// Whether nothing is recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rings == 0
    }
    /// Byte offset of a ring in the segment.
    #[must_use]
    pub const fn ring(&self, ring: u32) -> u64 {
        self.off + ring as u64 * self.stride()
    }
    /// Takes the records in a ring, oldest first, and returns their number. `tail` is the reader's own: 0 at
    /// first, and then as this function left it. Slots with an unknown kind are skipped one by one.
    ///
    /// # Errors
    /// [`Broken`], once for each time that the target overwrote the head; the next call goes on at the head
    /// as it was.
    pub fn take(
        &self,
        view: View<'_>,
        ring: u32,
        tail: &mut u64,
        mut each: impl FnMut(&Record),
    ) -> Result<u64, Broken> {
        self.take_with_texts(view, ring, tail, |record, _| each(record))
    }
    /// Like [`Self::take`]; `each` may read the words of a record's texts, from [`FIRST_TEXT`] on, which are
    /// 0 behind its slot.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_with_texts(
        &self,
        view: View<'_>,
        ring: u32,
        tail: &mut u64,
        mut each: impl FnMut(&Record, &dyn Fn(u64) -> u64),
    ) -> Result<u64, Broken> {
        self.take_words(view, ring, tail, |record, word| {
            each(record, &|n| word(FIRST_TEXT.saturating_add(n)))
        })
    }
    /// Like [`Self::take`]; `each` may read any word of a record, from 0 on; words behind its slots are 0.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_words(
        &self,
        view: View<'_>,
        ring: u32,
        tail: &mut u64,
        mut each: impl FnMut(&Record, &dyn Fn(u64) -> u64),
    ) -> Result<u64, Broken> {
        let (at, slot) = (self.ring(ring), u64::from(self.slot));
        let ahead = self.ahead(view, ring, tail)?;
        let (mut taken, mut done) = (0, 0);
        while done < ahead {
            let base = at + SLOTS + self.place(tail.wrapping_add(done));
            let (mut long, word) = (slot, |n: u64| view.get(base + n * 8));
            if let Some(mut record) = Record::read(self.values(), word) {
                long = self.length(&record).min(ahead - done);
                let fits = (long / 8).saturating_sub(FIRST_VALUE) as usize;
                record.values.iter_mut().skip(fits).for_each(|value| *value = 0);
                let word = |n: u64| if n < long / 8 { view.get(base + n * 8) } else { 0 };
                each(&record, &word);
            }
            done += long;
            taken += 1;
        }
        *tail = tail.wrapping_add(ahead);
        view.set(at + TAIL, *tail);
        Ok(taken)
    }
    /// Length of a record in bytes, according to the record itself: whole slots, at least one, and never more
    /// than the maximum.
    fn length(&self, record: &Record) -> u64 {
        let (slot, most) = (u64::from(self.slot), u64::from(self.most));
        if most <= slot || record.kind != RecordKind::Entry {
            return slot;
        }
        let used = record.values[(USED - FIRST_VALUE) as usize].clamp(FIRST * 8, most);
        used.next_multiple_of(slot)
    }
    /// T1: number of bytes of whole slots that can be taken.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn ahead(&self, view: View<'_>, ring: u32, tail: &mut u64) -> Result<u64, Broken> {
        let at = self.ring(ring);
        let (slot, head) = (u64::from(self.slot), view.get(at + HEAD) & !LOCKED);
        let ahead = head.wrapping_sub(*tail);
        if ahead > u64::from(self.bytes) || !ahead.is_multiple_of(slot) {
            let broken = Broken { head, tail: *tail };
            *tail = head / slot * slot;
            view.set(at + TAIL, *tail);
            return Err(broken);
        }
        Ok(ahead)
    }
    /// T2 and T3 for as many whole slots as `into` has room for: copies their bytes. There must not be more
    /// than [`Self::ahead`] returned.
    pub fn take_bytes(&self, view: View<'_>, ring: u32, tail: &mut u64, into: &mut [u8]) {
        let at = self.ring(ring);
        let slots = into.len() as u64 / u64::from(self.slot) * u64::from(self.slot);
        // Slots behind the end of the ring continue at its beginning.
        let first = slots.min(u64::from(self.bytes) - self.place(*tail));
        let (front, behind) = into.split_at_mut(first as usize);
        view.read_bytes(at + SLOTS + self.place(*tail), front);
        view.read_bytes(at + SLOTS, &mut behind[..(slots - first) as usize]);
        *tail = tail.wrapping_add(slots);
        view.set(at + TAIL, *tail);
    }
    /// Offset in a ring's slots, for so many bytes written.
    const fn place(&self, written: u64) -> u64 {
        written & (self.bytes as u64 - 1)
    }
}

#[cfg(all(test, not(feature = "loom_words")))]
mod tests;
