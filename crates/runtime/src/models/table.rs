//! TAB-1, TAB-2: keys keep their places while others are added and the table grows; a reader that sees a
//! value sees what was written before.

use core::num::NonZeroU64;

use loom::sync::Arc;
use loom::thread;

use super::{FREED, READER, Thing, barrier, inside, lines, model, wait, writer};
use crate::epoch::Writer;
use crate::table::Table;

fn key(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n).expect("no key is 0")
}

type Set = fn(&Table, &mut Writer, NonZeroU64, u64);

/// A reader looks for a key that is there, one that is being added, and one that never is; the writer adds
/// keys until the table has grown.
fn grow(set: Set) {
    model(Some(3), move || {
        let lines = lines();
        let table = Arc::new(Table::new(1));
        let mut writer = writer(lines, barrier);
        let there = Thing::leak(1);
        table.set(&mut writer, key(1), there.address());
        let also = Arc::clone(&table);
        let reading = thread::spawn(move || {
            inside(&lines, READER, |inside| {
                let found = also.get(inside, key(1)).expect("it is there");
                assert_eq!(Thing::at(found.get()).read(), 1);
                assert_eq!(also.get(inside, key(9)), None);
                if let Some(found) = also.get(inside, key(2)) {
                    assert_eq!(Thing::at(found.get()).read(), 2);
                }
            });
        });
        set(&table, &mut writer, key(2), Thing::leak(2).address());
        set(&table, &mut writer, key(3), Thing::leak(3).address());
        reading.join().expect("it reads");
        inside(&lines, READER, |inside| {
            (1..=3).for_each(|n| assert!(table.get(inside, key(n)).is_some()));
        });
    });
}

#[test]
fn a_key_is_found_while_others_come() {
    grow(Table::set);
}

#[test]
#[should_panic]
fn not_if_a_table_is_shown_before_it_is_filled() {
    grow(Table::set_in_a_table_shown_early);
}

/// A value is removed and its object freed after a grace period, while a reader looks for it.
fn take_out(how: fn(&Table, &mut Writer, &crate::epoch::Lines)) {
    model(Some(3), move || {
        let lines = lines();
        let table = Arc::new(Table::new(1));
        let mut writer = writer(lines, barrier);
        let thing = Thing::leak(1);
        table.set(&mut writer, key(1), thing.address());
        let also = Arc::clone(&table);
        let reading = thread::spawn(move || {
            inside(&lines, READER, |inside| {
                if let Some(found) = also.get(inside, key(1)) {
                    assert_ne!(Thing::at(found.get()).read(), FREED);
                }
            });
        });
        how(&table, &mut writer, &lines);
        thing.free();
        reading.join().expect("it reads");
    });
}

#[test]
fn what_is_taken_out_stays_for_those_inside() {
    take_out(|table, writer, lines| {
        table.set(writer, key(1), 0);
        wait(writer.grace().expect("a barrier"), lines);
    });
}

#[test]
#[should_panic]
fn not_if_it_is_taken_out_behind_the_grace() {
    take_out(|table, writer, lines| {
        wait(writer.grace().expect("a barrier"), lines);
        table.set(writer, key(1), 0);
    });
}
