//! LOSS-2: one CPU writes records and a reader takes them (`record::ring`). Records that are not taken were
//! counted as dropped.
//!
//! A writer here is a CPU: its threads take turns between their commits, which rseq makes single steps.

use loom::sync::Arc;
use loom::thread;
use trapline_record::ring::{HEAD, RingArea, SLOTS, TAIL};

use crate::memory::Memory;

/// Two slots, so that the writer meets a full ring and its end.
const AREA: RingArea = RingArea { off: 0, rings: 1, slot: 64, most: 64, bytes: 128 };
const LOST: u64 = AREA.len();
const RECORDS: u64 = 3;

/// The order of the writer's and the reader's steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Right,
    /// W3 before W2.
    HeadFirst,
    /// W1 without a check of the tail.
    Heedless,
}

/// The stub: writes one record, or counts one dropped.
fn write(memory: &Memory, n: u64, order: Order) {
    let view = memory.view();
    let (head, tail) = (view.get(HEAD), view.get(TAIL));
    if head - tail >= u64::from(AREA.bytes) && order != Order::Heedless {
        view.set(LOST, view.get(LOST) + 1);
        return;
    }
    let slot = SLOTS + head % u64::from(AREA.bytes);
    let publish = || view.set(HEAD, head + u64::from(AREA.slot));
    if order == Order::HeadFirst {
        publish();
    }
    view.set(slot, n);
    view.set(slot + 8, n * 7);
    if order != Order::HeadFirst {
        publish();
    }
}

/// The reader is the real code. A torn record shows by its words.
fn read(memory: &Memory, tail: &mut u64, seen: &mut Vec<u64>) {
    let taken = AREA.take(memory.view(), 0, tail, |record| {
        assert_eq!(record.ticks, u64::from(record.probe) * 7, "torn");
        seen.push(u64::from(record.probe));
    });
    taken.expect("a head that can be");
}

fn model(order: Order) {
    loom::model(move || {
        let memory = Memory::new(AREA.len() + 8);
        let cpu = Arc::clone(&memory);
        let writer = thread::spawn(move || (1..=RECORDS).for_each(|n| write(&cpu, n, order)));
        let (mut tail, mut seen) = (0, Vec::new());
        read(&memory, &mut tail, &mut seen);
        read(&memory, &mut tail, &mut seen);
        writer.join().unwrap();
        read(&memory, &mut tail, &mut seen);
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        assert_eq!(seen.len() as u64 + memory.view().get(LOST), RECORDS, "{seen:?}");
    });
}

#[test]
fn every_record_is_read_whole_or_counted_as_dropped() {
    model(Order::Right);
}

#[test]
#[should_panic]
fn not_if_the_head_is_published_first() {
    model(Order::HeadFirst);
}

#[test]
#[should_panic]
fn not_if_a_full_ring_is_written_over() {
    model(Order::Heedless);
}
