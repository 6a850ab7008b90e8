//! Hits of threads that the reader has noted are filtered, and no others (`trapline_record::names`). That is
//! so at entries alone, where exits are recorded too, and where returns decide; with other parts of a filter
//! and without. Machine state is preserved either way.

use std::sync::atomic::AtomicU64;

use trapline_plan::aarch64::stub::Machine;
use trapline_plan::filter::{Int, Known, Late, TargetFilter, Tree, parse, registers};
use trapline_plan::{Read, ThreadId};
use trapline_record::counters::filtered::REJECTED;
use trapline_record::names::{NameArea, PLACES};
use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::view::View;

use super::latency::on_cpu;
use super::records::machines;
use super::stages::{Calls, TICK, read};
use super::threads::{ids, tid};
use super::{ADD, RET, by_hand, call, changes};

/// What is recorded of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Entry,
    Both,
    Decided,
    /// An entry with a condition on a field.
    Fields,
}

/// The value that the field is read from.
static FOUR: u64 = 4;

/// A table of threads that are passed over.
struct Names(Vec<AtomicU64>);

impl Names {
    fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
    fn pass_over(&self, tid: u32, over: bool) {
        let area = NameArea { off: 0, places: PLACES };
        if over {
            assert!(area.pass_over(View::new(&self.0), tid), "{tid}");
        } else {
            area.take_back(View::new(&self.0), tid);
        }
    }
}

fn calls(machine: Machine, id: ThreadId, how: How, filter: TargetFilter, names: &Names) -> (Calls, u64) {
    let late = (how == How::Decided).then(|| Late { condition: read("ret"), tick: TICK });
    let field = Tree::Known(Known::Field(0, Int { bits: 64, signed: false }));
    let fields = (how == How::Fields).then_some(field);
    let reads: Vec<Read> = fields.iter().map(|_| Read { register: 1, offsets: vec![0], bytes: 8 }).collect();
    let filter = TargetFilter { by_name: true, late, fields, reads: reads.clone(), ..filter };
    let slot = RingArea::slot_with_floats(6, 0, 2);
    let mut calls = Calls::new(machine, (1 << 14, slot), id, filter);
    calls.reads = reads;
    (calls.names, calls.marked) = (Some(names.0.as_ptr() as u64), matches!(how, How::Both | How::Decided));
    let code = match how {
        How::Entry | How::Fields => calls.alone(2, &[ADD, RET]),
        _ => calls.whole(2, &[ADD], RecordKind::Return),
    };
    (calls, code)
}

#[test]
fn hits_of_noted_threads_are_passed_over() {
    let odd = || Some(parse("arg0 & 1", &registers()).expect("reads"));
    for (machine, id) in
        machines(by_hand).into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        on_cpu(2);
        for (how, condition) in [How::Entry, How::Both, How::Decided, How::Fields]
            .into_iter()
            .flat_map(|how| [(how, None), (how, odd())])
        {
            let names = Names::new();
            let filter = TargetFilter { condition, sample: 1, ..TargetFilter::default() };
            let (mut calls, code) = calls(machine, id, how, filter, &names);
            let records = if calls.marked { 2 } else { 1 };
            let there = &raw const FOUR as u64;
            let mut hits = |times: u64| {
                (0..times).for_each(|n| assert_eq!(call(code, 2 * n + 1, there), 2 * n + 1 + there));
                calls.bench.take().len()
            };
            assert_eq!(hits(20), 20 * records, "{how:?}");
            // Neighbours, and threads that would have the same place in the table, are not this thread.
            for other in [tid() + 1, tid() + PLACES, tid() - 1] {
                names.pass_over(tid(), false);
                names.pass_over(other, true);
                assert_eq!(hits(20), 20 * records, "{how:?}");
            }
            names.pass_over(tid() + PLACES, false);
            names.pass_over(tid(), true);
            assert_eq!(hits(20), 0, "{machine:?} {id:?} {how:?}: passed over");
            names.pass_over(tid(), false);
            assert_eq!(hits(20), 20 * records, "{how:?}: no longer");
            assert_eq!((calls.counted(REJECTED), calls.bench.dropped()), (20, 0), "{how:?}");
            for over in [false, true] {
                names.pass_over(tid(), over);
                for flags in 0..16 {
                    let (before, mut after) = changes(code, flags);
                    after[0] = after[0].wrapping_sub(before[1]);
                    assert_eq!(after, before, "{machine:?} {id:?} {how:?} {over}");
                }
            }
        }
    }
}

/// A thread with an unknown number is never filtered by name, whatever the table holds.
#[test]
fn a_thread_with_an_unknown_number_has_no_name() {
    for machine in machines(by_hand) {
        on_cpu(2);
        let names = Names::new();
        (0..).zip(&names.0).for_each(|(n, word)| word.store(n + 1, std::sync::atomic::Ordering::Relaxed));
        let filter = TargetFilter { sample: 1, ..TargetFilter::default() };
        let (mut calls, code) = calls(machine, ThreadId::Unknown, How::Entry, filter, &names);
        (0..30).for_each(|n| assert_eq!(call(code, n, 0), n));
        assert_eq!((calls.bench.take().len(), calls.counted(REJECTED)), (30, 0), "{machine:?}");
    }
}
