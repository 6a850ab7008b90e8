//! LOSS-2 for records that take several slots: the reader sees all of such a record or nothing. Records with
//! stacks take as many slots as they need (`record::ring`). If a call is recorded only when its return
//! decided so (`plan::x86_64::stub::deferred`), its two records are consecutive, and may wrap at the ring's
//! end.
//!
//! As in `ring`, a writer is a CPU. At most three times one side is preempted for the other.

use loom::sync::Arc;
use loom::thread;
use trapline_record::ring::{FIRST_VALUE, HEAD, RecordKind, RingArea, SLOTS, TAIL};
use trapline_record::stack::USED;

use crate::memory::Memory;

fn bounded() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model
}

/// The order of the writer's steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Right,
    /// The head is stored once for each slot, after all are filled.
    InSteps,
    /// The head is stored before the last slot is filled.
    HeadFirst,
    /// Room is checked as if one slot were enough.
    OneSlot,
}

/// Two slots, records of one or two of them, and room for one slot behind the last.
const STACKS: RingArea = RingArea { off: 0, rings: 1, slot: 64, most: 128, bytes: 128 };
const LOST: u64 = STACKS.len();
/// Number of slots of each record: the first record fills the ring, the last continues behind its end.
const LENGTHS: [u64; 3] = [2, 1, 2];
/// Index of the last word of a record's last slot.
const fn end(slots: u64) -> u64 {
    slots * 8 - 1
}

/// What the stub does: writes one record, or counts one as dropped.
fn write(memory: &Memory, n: u64, slots: u64, order: Order) {
    let (view, slot) = (memory.view(), u64::from(STACKS.slot));
    let (head, tail) = (view.get(HEAD), view.get(TAIL));
    let full = if order == Order::OneSlot { STACKS.bytes } else { STACKS.full() };
    if head - tail >= u64::from(full) {
        view.set(LOST, view.get(LOST) + 1);
        return;
    }
    let at = SLOTS + head % u64::from(STACKS.bytes);
    let last = || view.set(at + end(slots) * 8, n * 13);
    view.set(at, n);
    view.set(at + 8, n * 7);
    view.set(at + 16, RecordKind::Entry as u64);
    view.set(at + USED * 8, slots * slot);
    match order {
        Order::HeadFirst => {
            view.set(HEAD, head + slots * slot);
            last();
            return;
        }
        Order::InSteps => {
            last();
            (1..slots).for_each(|n| assert!(view.set(HEAD, head + n * slot)));
        }
        _ => drop(last()),
    }
    view.set(HEAD, head + slots * slot);
}

fn read(memory: &Memory, tail: &mut u64, seen: &mut Vec<u64>) {
    let each = |record: &trapline_record::ring::Record, word: &dyn Fn(u64) -> u64| {
        let n = u64::from(record.probe);
        let slots = LENGTHS[(n - 1) as usize];
        assert_eq!(record.ticks, n * 7, "torn");
        assert_eq!(record.values[(USED - FIRST_VALUE) as usize], slots * 64);
        assert_eq!(word(end(slots)), n * 13, "torn behind its first slot");
        seen.push(n);
    };
    STACKS.take_words(memory.view(), 0, tail, each).expect("a head that can be");
}

fn stacks(order: Order) {
    bounded().check(move || {
        let memory = Memory::new(STACKS.len() + 8);
        let cpu = Arc::clone(&memory);
        let writer =
            thread::spawn(move || (1..).zip(LENGTHS).for_each(|(n, slots)| write(&cpu, n, slots, order)));
        let (mut tail, mut seen) = (0, Vec::new());
        read(&memory, &mut tail, &mut seen);
        read(&memory, &mut tail, &mut seen);
        writer.join().unwrap();
        read(&memory, &mut tail, &mut seen);
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        assert_eq!(seen.len() as u64 + memory.view().get(LOST), LENGTHS.len() as u64, "{seen:?}");
    });
}

#[test]
fn records_of_several_slots_are_read_whole_or_counted_as_dropped() {
    stacks(Order::Right);
}

#[test]
#[should_panic]
fn not_if_their_slots_are_published_one_by_one() {
    stacks(Order::InSteps);
}

#[test]
#[should_panic]
fn not_if_the_head_comes_before_the_last_slot() {
    stacks(Order::HeadFirst);
}

#[test]
#[should_panic]
fn not_if_room_is_looked_for_as_for_one_slot() {
    stacks(Order::OneSlot);
}

/// A ring of four slots, each one cache line.
const CALLS: RingArea = RingArea { off: 0, rings: 1, slot: 64, most: 64, bytes: 256 };
const MISSED: u64 = CALLS.len();

/// X2: both records of a call are written, or the call is counted as dropped.
fn call(memory: &Memory, n: u64, order: Order) {
    let (view, slot) = (memory.view(), u64::from(CALLS.slot));
    let (head, tail) = (view.get(HEAD), view.get(TAIL));
    let full = CALLS.bytes - if order == Order::OneSlot { 0 } else { CALLS.slot };
    if head - tail >= u64::from(full) {
        view.set(MISSED, view.get(MISSED) + 1);
        return;
    }
    // The exit's record first, the reverse of their order in the ring.
    for (nth, kind) in [(1, RecordKind::Return), (0, RecordKind::Entry)] {
        let at = SLOTS + (head + nth * slot) % u64::from(CALLS.bytes);
        view.set(at, n);
        view.set(at + 16, kind as u64);
        match (order, nth) {
            (Order::InSteps, 0) => drop(view.set(HEAD, head + slot)),
            (Order::HeadFirst, 1) => drop(view.set(HEAD, head + 2 * slot)),
            _ => {}
        }
    }
    view.set(HEAD, head + 2 * slot);
}

fn take(memory: &Memory, tail: &mut u64, seen: &mut Vec<u64>) {
    let mut entry = None;
    let each = |record: &trapline_record::ring::Record| match (record.kind, entry.take()) {
        (RecordKind::Tail, None) if record.probe == 0 => {}
        (RecordKind::Entry, None) => entry = Some(record.probe),
        (RecordKind::Return, Some(probe)) if probe == record.probe => seen.push(probe.into()),
        other => panic!("{other:?} of {}", record.probe),
    };
    CALLS.take(memory.view(), 0, tail, each).expect("a head that can be");
    assert_eq!(entry, None, "half a call");
}

fn calls(order: Order) {
    bounded().check(move || {
        let memory = Memory::new(CALLS.len() + 8);
        // The ring begins with one record in it: so the second call's second record is at the ring's start,
        // if there is room.
        let mut tail = 0;
        assert!(memory.view().set(SLOTS + 16, RecordKind::Tail as u64) && memory.view().set(HEAD, 64));
        let cpu = Arc::clone(&memory);
        let writer = thread::spawn(move || (1..=3).for_each(|n| call(&cpu, n, order)));
        let mut seen = Vec::new();
        take(&memory, &mut tail, &mut seen);
        take(&memory, &mut tail, &mut seen);
        writer.join().unwrap();
        take(&memory, &mut tail, &mut seen);
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        assert_eq!(seen.len() as u64 + memory.view().get(MISSED), 3, "{seen:?}");
    });
}

#[test]
fn both_records_of_a_call_are_read_or_it_is_counted_as_dropped() {
    calls(Order::Right);
}

#[test]
#[should_panic]
fn not_if_a_call_is_published_in_two_steps() {
    calls(Order::InSteps);
}

#[test]
#[should_panic]
fn not_if_a_call_is_published_before_its_entry_is_there() {
    calls(Order::HeadFirst);
}

#[test]
#[should_panic]
fn not_if_one_free_slot_is_enough_for_a_call() {
    calls(Order::OneSlot);
}
