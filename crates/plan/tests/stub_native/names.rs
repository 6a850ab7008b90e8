//! Hits of threads that the reader has noted are filtered, and no others: `trapline_record::names`, with
//! every other part of a filter and without. Machine state is preserved either way.

use trapline_plan::filter::{TargetFilter, parse, registers};
use trapline_plan::x86_64::stub::{Filtered, Liveness, Machine, ThreadId, Traced};
use trapline_record::names::{NameArea, PLACES};
use trapline_record::ring::RecordKind;
use trapline_record::sync::AtomicU64;
use trapline_record::view::View;

use crate::arena::{Arena, call, machines, set};
use crate::records::{Reader, built, every_hit, rings_for};
use crate::state::{ONE, Random, assert_kept, back};

const FILTERED: u64 = 1;
/// mov rax, rdi; ret
const BODY: [u8; 4] = [0x48, 0x89, 0xF8, 0xC3];

#[test]
fn hits_of_noted_threads_are_passed_over() {
    let _one = ONE.lock();
    machines().iter().for_each(passed_over);
}

fn passed_over(machine: &Machine) {
    let mut random = Random(0x6e61_6d65_7312_3457);
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    let odd = parse("arg0 & 1", &registers()).expect("reads");
    for (condition, sample, marked) in
        [(None, 1, false), (Some(odd.clone()), 1, false), (Some(odd.clone()), 3, false), (Some(odd), 1, true)]
    {
        let mut arena = Arena::new();
        let rings = rings_for(&arena, machine, 1 << 14, 64);
        let names = arena.rows() + (32 << 20);
        // SAFETY: the table lies in the arena, which stays until this round's end. It holds words that are
        // stored to as a whole.
        let words = unsafe { core::slice::from_raw_parts(names as *const AtomicU64, PLACES as usize) };
        let (view, area) = (View::new(words), NameArea { off: 0, places: PLACES });
        let filter = TargetFilter { condition, sample, by_name: true, ..TargetFilter::default() };
        let site = Liveness { red_zone_live: sample == 1, ..Liveness::default() };
        let traced = Traced {
            site,
            filter: Some(Filtered { filter: &filter, words: arena.word(FILTERED), names: Some(names) }),
            marks: marked.then(|| arena.latency()),
            ..every_hit(machine, &rings, arena.word(0))
        };
        let code = built(&mut arena, &traced, RecordKind::Entry, 1, &BODY);
        let mut reader = Reader::new(&rings);
        let mut hits = |times: u64| {
            let mut seen = 0;
            (0..times).for_each(|n| assert_eq!(call(code, 2 * n + 1), 2 * n + 1));
            reader.take(|_| seen += 1);
            seen
        };
        let is_sample = filter.sample > 1;
        let mut passes = |times: u64| {
            let seen = hits(times);
            if is_sample {
                assert!(0 < seen && seen < times)
            } else {
                assert_eq!(seen, times)
            }
            seen
        };
        let mut passed = passes(30);
        // Neighbours, and threads that would have the same place in the table, are not this thread.
        for other in [tid + 1, tid + PLACES, tid - 1] {
            area.take_back(view, tid);
            assert!(area.pass_over(view, other), "{other}");
            passed += passes(30);
        }
        area.take_back(view, tid + PLACES);
        assert!(area.pass_over(view, tid));
        assert_eq!(hits(30), 0, "passed over");
        area.take_back(view, tid);
        let new_hits = hits(30);
        passed += new_hits;
        assert!(new_hits > 0, "no longer");
        assert_eq!((passed + arena.counted(FILTERED), arena.counted(0)), (180, 0));
        for over in [false, true] {
            let changed = if over { area.pass_over(view, tid) } else { true };
            assert!(changed);
            if !marked {
                let code = built(&mut arena, &traced, RecordKind::Entry, 1, &back());
                assert_kept(&format!("{over} {sample}"), code, &site, &mut random);
            }
        }
        arena.unmap();
    }
    a_thread_with_an_unknown_number_has_no_name(machine);
}

/// A thread with an unknown number is never filtered by name, whatever the table holds.
fn a_thread_with_an_unknown_number_has_no_name(machine: &Machine) {
    let mut arena = Arena::new();
    let mut rings = rings_for(&arena, machine, 1 << 14, 64);
    rings.id = ThreadId::Unknown;
    let names = arena.rows() + (32 << 20);
    (0..u64::from(PLACES)).for_each(|n| set(names + n * 8, n + 1));
    let filter = TargetFilter { by_name: true, ..TargetFilter::default() };
    let traced = Traced {
        filter: Some(Filtered { filter: &filter, words: arena.word(FILTERED), names: Some(names) }),
        ..every_hit(machine, &rings, arena.word(0))
    };
    let code = built(&mut arena, &traced, RecordKind::Entry, 1, &BODY);
    (0..30).for_each(|n| assert_eq!(call(code, n), n));
    let mut seen = 0;
    Reader::new(&rings).take(|_| seen += 1);
    assert_eq!((seen, arena.counted(FILTERED)), (30, 0));
    arena.unmap();
}
