//! LOSS-2 for calls that are decided at the return: each begun call is written once, dropped, filtered or has not
//! ended, and is counted as that.

use std::sync::atomic::{AtomicBool, Ordering};

use trapline_plan::ThreadId;
use trapline_plan::aarch64::stub::Machine;
use trapline_plan::filter::TargetFilter;
use trapline_record::ring::{RecordKind, RingArea};

use super::latency::on_cpu;
use super::records::{broken_off, kept, machines, take};
use super::stages::{Calls, late, read, recursive, values};
use super::{ADD, LINES, RET, by_hand, call, changes, registered, storm};

/// The committing word leads back to the abort handler twice. Both records are there, once.
#[test]
fn what_is_broken_off_is_written_once() {
    const TURNS: u64 = 3;
    let machine = Machine { rseq: by_hand(), lse: false, lines: LINES };
    for values in [1, 6] {
        on_cpu(3);
        let slot = RingArea::slot_with_floats(values, 0, 0);
        let mut calls =
            Calls::new(machine, (1 << 12, slot), kept(), late(read("dur < 4000000000 && arg0 == 40")));
        let words = calls.words(RecordKind::Return, values, |_| vec![RET], None);
        let (exit, counter) = broken_off(&calls.bench.room, words, TURNS);
        let code = calls.entry(values, &[ADD], exit);
        assert_eq!(call(code, 40, 2), 42);
        assert_eq!(counter.load(Ordering::Relaxed), 0, "it was broken off");
        let records = calls.bench.take();
        let [last, first] =
            [RecordKind::Return, RecordKind::Entry].map(|kind| records.iter().find(|one| one.kind == kind));
        let (first, last) = (first.expect("an entry"), last.expect("a return"));
        assert_eq!((records.len(), first.sp, first.values[0], last.values[0]), (2, last.sp, 40, 42));
        assert_eq!(calls.sums(), [1, 0, 0, 0]);
    }
}

#[test]
fn a_call_that_finds_no_place_is_dropped_and_one_without_an_area_too() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let mut calls = Calls::new(machine, (1 << 13, 64), kept(), late(read("ret & 1")));
        let code = calls.whole(1, &[], RecordKind::Return);
        calls.stamps.take_all(0);
        (0..10).for_each(|n| assert_eq!(call(code, n, 0), n));
        assert_eq!(calls.sums(), [10, 0, 0, 10], "{machine:?}");
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{machine:?}");
        }
        assert_eq!(calls.sums(), [26, 0, 0, 26], "{machine:?}");
        // One block in four is free: the first attempt may not find it.
        calls.stamps.take_all(1);
        (0..10).for_each(|n| assert_eq!(call(code, n, 0), n));
        assert_eq!(calls.sums(), [36, 0, 5, 26], "{machine:?}");
        assert_eq!(calls.bench.take().len(), 10);
        if machine.rseq.is_none() {
            continue;
        }
        // With a sample, a call without an area is dropped at once; without one, it has no ring at the
        // return.
        on_cpu(u32::MAX);
        for (sample, dropped, rejected) in [(1, 50, 50), (3, 100, 0)] {
            let early = Some(read("arg0 >= 10"));
            let filter = TargetFilter { sample, condition: early, ..late(read("ret & 1")) };
            let mut calls = Calls::new(machine, (1 << 13, 64), kept(), filter);
            let code = calls.whole(1, &[], RecordKind::Return);
            (0..110).for_each(|n| assert_eq!(call(code, n, 0), n));
            assert_eq!(calls.sums(), [100, 10, rejected, dropped], "{sample}");
            assert_eq!(calls.bench.take(), []);
        }
    }
}

/// A sample of the calls that pass at the entry; the return decides about these.
#[test]
fn samples_are_of_what_entries_let_pass() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let filter = TargetFilter { sample: 3, condition: Some(read("arg0 >= 10")), ..late(read("ret % 2")) };
        let mut calls = Calls::new(machine, (1 << 13, 64), kept(), filter);
        let code = calls.whole(1, &[], RecordKind::Return);
        (0..70).for_each(|n| assert_eq!(call(code, n, 0), n));
        let expected: Vec<u64> = (10..70).step_by(3).filter(|n| n % 2 == 1).collect();
        assert_eq!(values(&calls.bench.take(), RecordKind::Return), expected, "{machine:?}");
        assert_eq!(calls.sums(), [20, 50, 10, 0], "{machine:?}");
    }
}

/// Threads that migrate and are interrupted, with handlers that call too, and a reader that takes what it can
/// of small rings.
#[test]
fn every_call_is_written_dropped_or_rejected() {
    for machine in machines(registered) {
        let filter = TargetFilter { condition: Some(read("arg0 & 3")), ..late(read("arg0 & 7 && ret & 1")) };
        let calls = Calls::new(machine, (64 * 64, 64), ThreadId::Unknown, filter);
        let (code, rings, over) =
            (calls.whole(2, &[ADD], RecordKind::Return), calls.bench.rings, AtomicBool::new(false));
        let over = &over;
        let (hits, written) = std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let (mut tails, mut written) = (vec![0; rings.area.rings as usize], 0);
                loop {
                    let ends = over.load(Ordering::Acquire);
                    for pair in take(rings, &mut tails).chunks(2) {
                        let [first, last] = pair else { panic!("one without the other: {pair:?}") };
                        assert_eq!(
                            (first.kind, last.kind, first.sp),
                            (RecordKind::Entry, RecordKind::Return, last.sp)
                        );
                        assert_eq!(first.values[0] + first.values[1], last.values[0]);
                        assert!(last.values[0] & 1 == 1 && first.ticks <= last.ticks, "{pair:?}");
                        written += 1;
                    }
                    if ends {
                        return written;
                    }
                    std::thread::yield_now();
                }
            });
            let (called, handled) = storm(code);
            over.store(true, Ordering::Release);
            (called + handled, reading.join().expect("the reader"))
        });
        let [begun, early, late, dropped] = calls.sums();
        println!("{machine:?}: {written} written, {dropped} dropped, {early} and {late} rejected");
        assert_eq!((begun, begun + early), (written + dropped + late, hits), "{machine:?}");
        assert!(written >= 32 && early > hits / 8 && late > hits / 8, "{machine:?}");
    }
}

/// If the entry alone decides, exits of calls that did not pass leave no record either.
#[test]
fn exits_are_recorded_of_entries_that_passed() {
    let filter = |text| TargetFilter { condition: Some(read(text)), sample: 1, ..TargetFilter::default() };
    for machine in machines(by_hand) {
        on_cpu(2);
        let mut calls = Calls::new(machine, (1 << 14, 64), kept(), filter("arg0 % 3 == 1"));
        let code = recursive(&calls, RecordKind::Return);
        assert_eq!(call(code, 20, 0), 20);
        let records = calls.bench.take();
        let expected: Vec<u64> = (0..=20).filter(|n| n % 3 == 1).collect();
        assert_eq!(values(&records, RecordKind::Return), expected, "{machine:?}");
        assert_eq!(values(&records, RecordKind::Entry), expected.iter().copied().rev().collect::<Vec<_>>());
        assert_eq!(calls.sums(), [0, 21 - 7, 0, 0]);
        let (abandoned, end) = (calls.abandoned(1), calls.exit(RecordKind::Tail, 1));
        for (code, n, records) in [
            // No entry; a call that passed; the same again; a call that passed, and then one in its place
            // that did not.
            (end, 1, 0),
            (abandoned, 1, 1),
            (end, 1, 1),
            (end, 1, 0),
            (abandoned, 1, 1),
            (abandoned, 2, 0),
            (end, 1, 0),
        ] {
            assert_eq!(call(code, n, 0), n);
            assert_eq!(calls.bench.take().len(), records, "{machine:?}");
        }
        for cpu in [2, u32::MAX] {
            on_cpu(cpu);
            for code in [calls.whole(6, &[], RecordKind::Return), end] {
                for flags in 0..16 {
                    let (before, after) = changes(code, flags);
                    assert_eq!(after, before, "{machine:?} {cpu}");
                }
            }
        }
        calls.bench.take();
        // No room for marks: entries are recorded, and their exits are missed.
        on_cpu(2);
        let before = calls.missed();
        calls.stamps.take_all(0);
        let flat = calls.whole(6, &[], RecordKind::Return);
        for flags in 0..16 {
            let (before, after) = changes(flat, flags);
            assert_eq!(after, before, "{machine:?}");
        }
        calls.bench.take();
        let passing = calls.missed() - before;
        assert_eq!(call(code, 4, 0), 4);
        assert_eq!(values(&calls.bench.take(), RecordKind::Entry), [4, 1], "{machine:?}");
        assert_eq!(calls.missed() - before, passing + 2, "{machine:?}");
        calls.stamps.take_all(1);
        assert_eq!(call(code, 4, 0), 4);
        assert_eq!(values(&calls.bench.take(), RecordKind::Return), [1, 4], "{machine:?}");
    }
}
