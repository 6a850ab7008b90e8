//! LOSS-2 without restartable sequences: a writer locks a ring (`record::ring`, L1 to L5), and takes a row of
//! an aggregation (`record::tally`, R1 to R3). Every hit is in one of them or was counted as dropped.

use loom::sync::Arc;
use loom::thread;
use trapline_record::ring::{HEAD, LOCKED, RingArea, SLOTS, TAIL};
use trapline_record::tally::{CELLS, OVERFLOW, TAKING, TableShape, TallyArea, first_row};

use crate::memory::Memory;

/// Two rings of one slot, so that writers meet each other and full rings.
const AREA: RingArea = RingArea { off: 0, rings: 2, slot: 64, most: 64, bytes: 64 };
const LOST: u64 = AREA.len();
const WRITERS: u64 = 2;

/// All interleavings with at most three preemptions. The fault of each twin needs fewer.
fn bounded() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model
}

/// The order of the writers' steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Right,
    /// L3 as a load and a store.
    LookThenStore,
    /// L5 before L4.
    HeadFirst,
    /// Without L2.
    Heedless,
}

/// What the stub does: writes one record, or counts one as dropped.
fn write(memory: &Memory, n: u64, order: Order) {
    let view = memory.view();
    for ring in 0..AREA.rings {
        let at = AREA.ring(ring);
        let head = view.get(at + HEAD);
        if head & LOCKED != 0 {
            continue;
        }
        if head - view.get(at + TAIL) >= u64::from(AREA.bytes) && order != Order::Heedless {
            break;
        }
        let taken = match order {
            Order::LookThenStore => view.get(at + HEAD) == head && view.set(at + HEAD, head + LOCKED),
            _ => memory.exchange(at + HEAD, head, head + LOCKED),
        };
        if !taken {
            continue;
        }
        let slot = at + SLOTS + head % u64::from(AREA.bytes);
        let publish = || view.set(at + HEAD, head + u64::from(AREA.slot));
        if order == Order::HeadFirst {
            publish();
        }
        view.set(slot, n);
        view.set(slot + 8, n * 7);
        if order != Order::HeadFirst {
            publish();
        }
        return;
    }
    view.add(LOST, 1);
}

/// The reader under test. The words of a record show when it is torn.
fn read(memory: &Memory, tails: &mut [u64; 2], seen: &mut Vec<u64>) {
    for (ring, tail) in (0..).zip(tails) {
        let taken = AREA.take(memory.view(), ring, tail, |record| {
            assert_eq!(record.ticks, u64::from(record.probe) * 7, "torn");
            seen.push(u64::from(record.probe));
        });
        taken.expect("a head that can be");
    }
}

fn rings(order: Order) {
    bounded().check(move || {
        let memory = Memory::new(AREA.len() + 8);
        let writers: Vec<_> = (1..=WRITERS)
            .map(|n| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || write(&memory, n, order))
            })
            .collect();
        let (mut tails, mut seen) = ([0; 2], Vec::new());
        // A third writer, which may meet the traces of the other two.
        write(&memory, WRITERS + 1, order);
        read(&memory, &mut tails, &mut seen);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        read(&memory, &mut tails, &mut seen);
        seen.sort_unstable();
        assert!(seen.is_sorted_by(|a, b| a < b), "twice: {seen:?}");
        assert_eq!(seen.len() as u64 + memory.view().get(LOST), WRITERS + 1, "{seen:?}");
    });
}

#[test]
fn every_record_is_in_one_ring_or_counted() {
    rings(Order::Right);
}

#[test]
#[should_panic]
fn not_if_two_may_lock() {
    rings(Order::LookThenStore);
}

#[test]
#[should_panic]
fn not_if_the_head_is_published_first() {
    rings(Order::HeadFirst);
}

#[test]
#[should_panic]
fn not_if_a_full_ring_is_written_over() {
    rings(Order::Heedless);
}

/// How a thread takes a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taking {
    Right,
    /// The key is stored, and then the first hit is added: no other thread is excluded.
    Openly,
    /// The key is compared even while the row is TAKING.
    Peeking,
}

const TABLE: TallyArea = TallyArea { off: 0, tables: 1, lines: 1, shape: TableShape::Rows(4) };

fn add(memory: &Memory, key: u64, how: Taking) {
    let view = memory.view();
    let first = TABLE.table(0) + CELLS + first_row(key, 4) * 16;
    // Only two rows, so that the threads meet.
    for row in [first, first + 16] {
        loop {
            let hits = view.get(row + 8);
            if hits & TAKING != 0 && how != Taking::Peeking {
                break;
            }
            if hits == 0 {
                let took = how == Taking::Openly || memory.exchange(row + 8, 0, TAKING);
                if !took {
                    continue;
                }
                view.set(row, key);
                match how {
                    Taking::Openly => view.add(row + 8, 1),
                    _ => view.set(row + 8, 1),
                };
                return;
            }
            if view.get(row) == key {
                view.add(row + 8, 1);
                return;
            }
            break;
        }
    }
    view.add(OVERFLOW, 1);
}

/// Two keys that lead to the same row; one of them is 0, the initial key of every row.
fn rows(how: Taking) {
    let other = (1..).find(|&key| first_row(key, 4) == first_row(0, 4)).unwrap();
    bounded().check(move || {
        let memory = Memory::new(TABLE.len());
        let adders: Vec<_> = [other, 0]
            .into_iter()
            .map(|key| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || add(&memory, key, how))
            })
            .collect();
        add(&memory, other, how);
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        let mut seen = [0, 0];
        let rest = TABLE.read(memory.view(), 0, 0, |key, hits| seen[usize::from(key == other)] += hits);
        assert!(seen[0] <= 1 && seen[1] <= 2, "{seen:?}");
        assert_eq!(seen[0] + seen[1] + rest.overflow, 3, "{seen:?}");
    });
}

#[test]
fn every_hit_is_in_a_row_of_its_key_or_in_the_overflow() {
    rows(Taking::Right);
}

#[test]
#[should_panic]
fn not_if_a_row_is_taken_openly() {
    rows(Taking::Openly);
}

#[test]
#[should_panic]
fn not_if_a_key_is_compared_while_it_is_stored() {
    rows(Taking::Peeking);
}
