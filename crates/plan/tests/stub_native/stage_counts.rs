//! LOSS-2 for calls that are decided at the return: each begun call is written, dropped, filtered or has not ended,
//! and is counted as that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trapline_plan::filter::TargetFilter;
use trapline_plan::x86_64::stub::{Machine, Traced};
use trapline_record::counters::filtered::{BEGUN, REJECTED, REJECTED_LATE};
use trapline_record::ring::{Record, RecordKind};

use crate::arena::{Arena, call, machines, set, unregister};
use crate::counts::{everywhere, storm};
use crate::records::{Reader, rings_for};
use crate::stages::{counted, entry, exit, late, read, seen, traced};
use crate::state::ONE;

/// Eight threads that migrate, a timer's handler that calls too, and a reader that takes what it can of small
/// rings.
#[test]
fn every_call_is_written_dropped_or_rejected() {
    for machine in machines() {
        every_call_is_one_of_three(&machine);
    }
}

const CALLS: u64 = 100_000;

fn every_call_is_one_of_three(machine: &Machine) {
    let mut arena = Arena::new();
    let rings = rings_for(&arena, machine, 64 * 128, 64);
    let filter = TargetFilter { condition: Some(read("arg0 & 3")), ..late(read("arg0 & 7 && ret & 1")) };
    let marks = Some(arena.deferred(64));
    let traced = Traced { marks, ..traced(&arena, machine, &rings, &filter) };
    let end = exit(&mut arena, &traced, (RecordKind::Return, 1), &[0xC3]);
    let code = entry(&mut arena, &traced, 1, &[0x48, 0x89, 0xF8], end); // mov rax, rdi
    let (over, wrong) = (AtomicBool::new(false), AtomicU64::new(0));
    let (written, handled) = std::thread::scope(|scope| {
        let (over, wrong, rings) = (&over, &wrong, &rings);
        let reading = scope.spawn(move || {
            let (mut reader, mut written) = (Reader::new(rings), 0u64);
            loop {
                let ends = over.load(Ordering::Acquire);
                let mut open = None;
                reader.take(|record| match (record.kind, open.take()) {
                    (RecordKind::Entry, None) => open = Some(*record),
                    (RecordKind::Return, Some(entry)) => {
                        written += 1;
                        let Record { tid, sp, ticks, .. } = entry;
                        let same = (tid == record.tid || record.tid == 0) && sp == record.sp;
                        let value = entry.values[0];
                        let fits = value == record.values[0] && value & 1 == 1;
                        let good = same && fits && ticks < record.ticks;
                        wrong.fetch_add(u64::from(!good), Ordering::Relaxed);
                    }
                    _ => drop(wrong.fetch_add(1, Ordering::Relaxed)),
                });
                wrong.fetch_add(u64::from(open.is_some()), Ordering::Relaxed);
                if ends {
                    return written;
                }
            }
        });
        let handled = storm(code, || everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n), n))));
        over.store(true, Ordering::Release);
        (reading.join().expect("the reader"), handled)
    });
    let (dropped, begun) = (arena.counted(0), counted(&arena, BEGUN));
    let (early, late) = (counted(&arena, REJECTED), counted(&arena, REJECTED_LATE));
    println!("{written} written, {dropped} dropped, {early} and {late} rejected, {handled} by the handler");
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "records of one call lie beside each other");
    assert_eq!(begun, written + dropped + late);
    assert_eq!(begun + early, 8 * CALLS + handled);
    assert!(written >= 8 && late >= 2 * CALLS, "{written} {late}");
    // Only calls of the eight threads themselves; their number is known.
    assert!(written + dropped <= 4 * CALLS + handled && early >= 2 * CALLS, "{written} {early}");
}

#[test]
fn threads_without_an_area_are_counted() {
    let Some(machine) = crate::records::with_rseq() else { return };
    let mut arena = Arena::new();
    let rings = rings_for(&arena, &machine, 64 * 128, 64);
    for sample in [1, 3] {
        let filter = TargetFilter { sample, condition: Some(read("arg0 >= 10")), ..late(read("ret & 1")) };
        let marks = Some(if sample == 1 { arena.deferred(64) } else { arena.latency() });
        let traced = Traced { marks, ..traced(&arena, &machine, &rings, &filter) };
        let end = exit(&mut arena, &traced, (RecordKind::Return, 1), &[0xC3]);
        let code = entry(&mut arena, &traced, 1, &[0x48, 0x89, 0xF8], end);
        let before = (arena.counted(0), [REJECTED, BEGUN, REJECTED_LATE].map(|word| counted(&arena, word)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unregister();
                (0..110).for_each(|n| assert_eq!(call(code, n), n));
            });
        });
        let after = (arena.counted(0), [REJECTED, BEGUN, REJECTED_LATE].map(|word| counted(&arena, word)));
        let more = [0, 1, 2].map(|n| after.1[n] - before.1[n]);
        // With a sample, a call without an area is dropped at once; without one, it has no ring at the
        // return.
        let (dropped, late) = if sample == 1 { (50, 50) } else { (100, 0) };
        assert_eq!((after.0 - before.0, more), (dropped, [10, 100, late]));
    }
    Reader::new(&rings).take(|_| panic!("nothing was written"));
    arena.unmap();
}

#[test]
fn a_call_that_finds_no_place_is_counted_as_dropped() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let rings = rings_for(&arena, &machine, 64 * 128, 64);
        let filter = late(read("ret & 1"));
        let latency = arena.deferred(64);
        let traced = Traced { marks: Some(latency), ..traced(&arena, &machine, &rings, &filter) };
        let end = exit(&mut arena, &traced, (RecordKind::Return, 1), &[0xC3]);
        let code = entry(&mut arena, &traced, 1, &[0x48, 0x89, 0xF8], end);
        // All blocks belong to other pages.
        for tag in (0..latency.shape.tags_len()).step_by(8) {
            set(latency.stamps + tag, 1);
        }
        (0..10).for_each(|n| assert_eq!(call(code, n), n));
        assert_eq!((counted(&arena, BEGUN), arena.counted(0), counted(&arena, REJECTED_LATE)), (10, 10, 0));
        // Every fourth block is free: the first attempt does not find it.
        for tag in (0..latency.shape.tags_len()).step_by(8 * 4) {
            set(latency.stamps + tag, 0);
        }
        (0..10).for_each(|n| assert_eq!(call(code, n), n));
        assert_eq!((counted(&arena, BEGUN), arena.counted(0), counted(&arena, REJECTED_LATE)), (20, 10, 5));
        assert_eq!(seen(&mut Reader::new(&rings)).len(), 10);
        arena.unmap();
    }
}
