//! LOSS-1: a thread claims its row of counters (`record::threads`, `plan::x86_64::stub::threads`).
//!
//! Meanwhile: a thread with a number that leads to the same row; a signal handler of the same thread, or a
//! thread with the same number in another PID namespace; a tracer that reads.

use loom::sync::Arc;
use loom::thread;
use trapline_record::threads::{PROBES, ThreadArea};

use crate::memory::Memory;

const AREA: ThreadArea = ThreadArea { off: 0, rows: 2, counters: 1 };
/// Both thread numbers lead to row 1 first.
const ONE: u32 = 5;
const OTHER: u32 = 7;

/// The two steps that must be atomic.
#[derive(Clone, Copy)]
struct How {
    claim: fn(&Memory, u64, u64) -> u64,
    add: fn(&Memory, u64, u64),
}
const RIGHT: How = How {
    claim: Memory::cmpxchg,
    add: |memory, at, by| {
        memory.view().add(at, by);
    },
};

/// What the stub does: finds the row for a thread's number.
fn row(memory: &Memory, tid: u32, how: How) -> u32 {
    let tag = u64::from(tid) + 1;
    let at = |row: u32| AREA.off + u64::from(row) * 8;
    let mut row = tid & (AREA.rows - 1);
    if memory.view().get(at(row)) == tag {
        return row;
    }
    for _ in 0..PROBES.min(AREA.rows) {
        let mut found = memory.view().get(at(row));
        if found == 0 {
            found = (how.claim)(memory, at(row), tag);
        }
        if found == 0 || found == tag {
            return row;
        }
        row = (row + 1) & (AREA.rows - 1);
    }
    AREA.rows
}

fn hit(memory: &Memory, tid: u32, how: How) {
    let row = row(memory, tid, how);
    (how.add)(memory, AREA.word(row, 0), 1);
}

/// (thread number, hits) of each row that has hits.
fn counted(memory: &Memory) -> Vec<(Option<u32>, u64)> {
    let rows = AREA.rows(memory.view()).map(|(row, tid)| (tid, AREA.read(memory.view(), row, 0)));
    let mut rows: Vec<_> = rows.filter(|row| row.1 > 0).collect();
    rows.sort_unstable();
    rows
}

fn model(how: How) {
    loom::model(move || {
        let memory = Memory::new(AREA.len());
        let hitting = [ONE, OTHER].map(|tid| {
            let memory = Arc::clone(&memory);
            thread::spawn(move || hit(&memory, tid, how))
        });
        hit(&memory, ONE, how);
        hitting.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(counted(&memory), [(Some(ONE), 2), (Some(OTHER), 1)]);
    });
}

#[test]
fn each_number_has_a_row_of_its_own() {
    model(RIGHT);
}

#[test]
#[should_panic]
fn not_if_a_row_is_claimed_in_two_steps() {
    model(How { claim: Memory::look_then_store, ..RIGHT });
}

#[test]
#[should_panic]
fn not_if_a_hit_is_counted_in_two_steps() {
    model(How { add: Memory::load_then_store, ..RIGHT });
}

#[test]
fn a_reader_sees_hits_of_threads_that_made_them() {
    loom::model(|| {
        let memory = Memory::new(AREA.len());
        let hitting = [ONE, OTHER].map(|tid| {
            let memory = Arc::clone(&memory);
            thread::spawn(move || hit(&memory, tid, RIGHT))
        });
        let seen = counted(&memory);
        assert!(seen.iter().all(|&row| row == (Some(ONE), 1) || row == (Some(OTHER), 1)), "{seen:?}");
        hitting.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_full_table_counts_for_all_others() {
    loom::model(|| {
        let memory = Memory::new(AREA.len());
        (0..AREA.rows).for_each(|row| assert!(memory.view().set(u64::from(row) * 8, 100)));
        let also = Arc::clone(&memory);
        let other = thread::spawn(move || hit(&also, OTHER, RIGHT));
        hit(&memory, ONE, RIGHT);
        other.join().unwrap();
        assert_eq!(counted(&memory), [(None, 2)]);
    });
}
