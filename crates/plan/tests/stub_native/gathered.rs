//! LOSS-1, FLT-1 and SAFE-2 for aggregation at returns. Buckets and rows are those that the language defines,
//! of the values at the entry and of the returned value. Buckets, overflow, unseen, dropped, filtered late
//! and not ended add up to the begun calls, exactly.

use std::collections::BTreeMap;

use trapline_plan::Read;
use trapline_plan::filter::{
    Facts, GroupBy, Int, Known, MAX_TEMPORARIES, Sort, Symbol, THREAD_UNIT, Tally, Tree, parse,
};
use trapline_plan::x86_64::stub::{Liveness, Machine};
use trapline_record::counters::filtered::{BEGUN, REJECTED, REJECTED_LATE};
use trapline_record::ring::RecordKind;

use crate::arena::{Arena, LINES, call, get, machines, unregister};
use crate::counts::{everywhere, storm};
use crate::filters::{float, number, tree};
use crate::stages::{GOROUTINE, leaf_at_return, read, with_returned};
use crate::state::{ONE, Random, assert_kept, back, runs, tl_run};
use crate::tallies::{FILTERED, Set, of};

const TRUE: Tree = Tree::Number(1, false);
/// mov rax, rdi
const RETURN_ARGUMENT: [u8; 3] = [0x48, 0x89, 0xF8];

pub(crate) fn counted(arena: &Arena, word: u32) -> u64 {
    (0..u64::from(LINES)).map(|line| get(arena.word(FILTERED) + u64::from(word) * 8 + line * 64)).sum()
}

/// Whether a tree uses no duration, which is not known beforehand.
pub(crate) fn is_timeless(tree: &Tree) -> bool {
    let mut timeless = true;
    tree.each_known(&mut |known| timeless &= known != Known::Took);
    timeless
}

#[test]
fn values_fall_where_the_language_says() {
    let _one = ONE.lock();
    machines().iter().for_each(values_fall);
}

fn values_fall(machine: &Machine) {
    let mut random = Random(0x6a7e_4e00_1234_9876);
    let (mut seen, mut unseen, mut rejected) = (0, 0, 0);
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    for round in 0..400 {
        let value = tree(&mut random, 1 + round % 4, leaf_at_return);
        let late = if round & 1 == 0 { TRUE } else { tree(&mut random, 1 + round % 3, leaf_at_return) };
        let fits = |tree: &Tree| tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_at_return();
        if !fits(&value) || !fits(&late) || !is_timeless(&value) || !is_timeless(&late) {
            continue;
        }
        let sort =
            [Sort::Log2, Sort::Each, Sort::Linear { min: -5, step: 3, count: 40 }][(round % 3) as usize];
        let by_thread = sort != Sort::Each && round % 5 == 0;
        let go = [None, Some(None), Some(Some(&GOROUTINE))][(round % 3) as usize].map(runs);
        let mut arena = Arena::new();
        let tally = Tally { group_by: GroupBy::threads(by_thread), ..of(value.clone(), sort) };
        let set = Set::new(&arena, machine, tally.clone(), None).of_calls(&mut arena, late.clone(), go);
        let site = Liveness { flags_dead: round & 2 == 2, dead: 0, red_zone_live: round & 4 == 4 };
        let kind = if round % 7 == 6 { RecordKind::Tail } else { RecordKind::Return };
        let code = set.whole(&mut arena, site, kind, [&[], &back()]);
        let (mut expected, before) = (BTreeMap::<u64, u64>::new(), (unseen, rejected));
        for _ in 0..20 {
            let mut state = random.state();
            for reg in [7, 6, 2, 1, 8, 9, 0] {
                state.regs[reg] = number(&mut random);
            }
            for vector in &mut state.zmm[..8] {
                vector[0] = float(&mut random);
            }
            let facts = Facts {
                arguments: [7, 6, 2, 1, 8, 9].map(|reg: usize| state.regs[reg]),
                floats: core::array::from_fn(|n| state.zmm[n][0]),
                tid,
                ..Facts::default()
            };
            let kept = (state.regs, state.zmm);
            let (integer, float) = (state.regs[0], state.zmm[0][0]);
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
            // time.
            unsafe { tl_run(code, &mut state) };
            assert_eq!((state.regs, state.zmm), kept, "{value:?}");
            let known = |tree: &Tree| match kind {
                RecordKind::Tail => tree.clone(),
                _ => with_returned(tree, integer, float),
            };
            if known(&late).holds(&facts) != Some(true) {
                rejected += 1;
            } else if kind == RecordKind::Tail && value.asks_for_end() {
                unseen += 1;
            } else {
                let key = tally.key(known(&value).evaluate(&facts).expect("all is known"));
                let thread = if by_thread { u64::from(tid) * THREAD_UNIT } else { 0 };
                *expected.entry(key | thread).or_default() += 1;
                seen += 1;
            }
        }
        let (cells, rest) = set.read();
        assert_eq!(cells, expected, "{value:?} {sort:?} {late:?}");
        assert_eq!((rest.overflow, rest.unseen), (0, unseen - before.0), "{value:?}");
        assert_eq!(counted(&arena, REJECTED_LATE), rejected - before.1, "{late:?}");
        assert_eq!((counted(&arena, BEGUN), arena.counted(0)), (20, 0));
        assert_kept(&format!("{value:?} {site:?}"), code, &site, &mut random);
        arena.unmap();
    }
    assert!(seen > 1000 && unseen > 20 && rejected > 500, "{seen} {unseen} {rejected}");
}

/// Eight threads that migrate, a timer's handler that calls too, and a thread without an area.
#[test]
fn every_call_is_in_a_cell_or_rejected() {
    const CALLS: u64 = 100_000;
    for machine in machines() {
        for sort in [Sort::Log2, Sort::Each] {
            let mut arena = Arena::new();
            let condition = Some(read("arg0 & 3"));
            let set = Set::new(&arena, &machine, of(read("arg0 % 8 * 2 + ret % 2"), sort), condition);
            let set = set.of_calls(&mut arena, read("arg0 & 7 && ret & 1"), None);
            let code =
                set.whole(&mut arena, Liveness::default(), RecordKind::Return, [&RETURN_ARGUMENT, &[0xC3]]);
            let handled =
                storm(code, || everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n), n))));
            let alone = if machine.rseq.is_some() { 1000 } else { 0 };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if machine.rseq.is_some() {
                        unregister();
                    }
                    (0..alone).for_each(|n| assert_eq!(call(code, n), n));
                });
            });
            let (cells, rest) = set.read();
            let tallied: u64 = cells.values().sum();
            let [early, begun, late] = [REJECTED, BEGUN, REJECTED_LATE].map(|word| counted(&arena, word));
            assert_eq!(begun, tallied + rest.overflow + late + arena.counted(0), "{sort:?}");
            assert_eq!(begun + early, 8 * CALLS + handled + alone);
            assert_eq!((rest.unseen, arena.counted(0)), (0, 0));
            // All calls of the eight threads, and those of the one that has no row.
            let all = 8 * CALLS + alone;
            assert!((all / 2..=all / 2 + handled).contains(&(tallied + rest.overflow)), "{tallied}");
            // A handler may run in a thread that is about to get its area.
            let without = if sort == Sort::Each { alone / 2..=alone / 2 + handled } else { 0..=0 };
            assert!(without.contains(&rest.overflow), "{}", rest.overflow);
            let odd = |key: u64| {
                if sort == Sort::Each { [3, 7, 11, 15].contains(&key) } else { (3..=5).contains(&key) }
            };
            assert!(cells.keys().all(|&key| odd(key)), "{cells:?}");
            arena.unmap();
        }
    }
}

/// An exit of a call that began before tracing. The mark of the call before it at that place is gone.
#[test]
fn an_exit_without_an_entry_adds_nothing() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let set = Set::new(&arena, &machine, of(read("arg0"), Sort::Each), None);
        let set = set.of_calls(&mut arena, TRUE, None);
        let whole =
            set.whole(&mut arena, Liveness::default(), RecordKind::Return, [&RETURN_ARGUMENT, &[0xC3]]);
        let exit = set.build(&mut arena, Liveness::default(), RecordKind::Return, &[0xC3]);
        // All with the same stack pointer.
        for code in [exit, whole, exit, exit, whole, exit] {
            call(code, 5);
        }
        assert_eq!((set.read().0, counted(&arena, BEGUN)), (BTreeMap::from([(5, 2)]), 2), "{machine:?}");
        assert_eq!((counted(&arena, REJECTED_LATE), arena.counted(0)), (0, 0));
        arena.unmap();
    }
}

/// What a call's entry could read of memory, and what it could not: the value, and the condition, are as the
/// language defines, although the memory has changed since.
#[test]
fn fields_are_those_of_the_entry() {
    let _one = ONE.lock();
    for machine in machines() {
        let int = |bits| Int { bits, signed: true };
        let names = [
            ("field".to_owned(), Symbol::Known(Known::Field(0, int(64)))),
            ("second".to_owned(), Symbol::Known(Known::Field(1, int(32)))),
            ("arg0".to_owned(), Symbol::Known(Known::Argument(0, Int::U64))),
            ("ret".to_owned(), Symbol::Known(Known::Returned(int(64)))),
        ];
        for (value, late, kind, expected) in [
            ("field + ret", "arg0 > 0", RecordKind::Return, [Some(Ok(12)), Some(Err(()))]),
            ("ret", "second == 9", RecordKind::Return, [Some(Ok(5)), None]),
            ("field * 2", "second == 9 || ret == 5", RecordKind::Return, [Some(Ok(14)), Some(Err(()))]),
            ("second - field", "arg0 > 0", RecordKind::Tail, [Some(Ok(2)), Some(Err(()))]),
            ("field + ret", "arg0 > 0", RecordKind::Tail, [Some(Err(())), Some(Err(()))]),
            ("ret * 0 + 3", "field == 6", RecordKind::Return, [None, None]),
        ] {
            let [value, late] = [value, late].map(|text| parse(text, &names).expect(text));
            let mut arena = Arena::new();
            let mut set = Set::new(&arena, &machine, of(value, Sort::Each), None);
            let read = |offset, bytes| Read { register: 0, offsets: vec![offset], bytes };
            set.filter.reads = vec![read(0, 8), read(8, 4)];
            let set = set.of_calls(&mut arena, late, None);
            // mov qword [rdi], 1 (where that can be written); mov eax, 5
            let body: &[u8] = &[0x48, 0xC7, 0x07, 1, 0, 0, 0, 0xB8, 5, 0, 0, 0];
            let changes = set.whole(&mut arena, Liveness::default(), kind, [body, &[0xC3]]);
            let leaves = set.whole(&mut arena, Liveness::default(), kind, [&body[7..], &[0xC3]]);
            let mut there = [7_u64, 9];
            let at = there.as_mut_ptr() as u64;
            for (code, pointer, expected) in [(changes, at, expected[0]), (leaves, 8, expected[1])] {
                let before = (set.read(), counted(&arena, REJECTED_LATE));
                assert_eq!(call(code, pointer), 5);
                let (rows, rest) = set.read();
                let new = |key: &u64| rows[key] - before.0.0.get(key).copied().unwrap_or(0);
                let new: Vec<u64> = rows.keys().copied().filter(|key| new(key) > 0).collect();
                let counts =
                    (new, rest.unseen - before.0.1.unseen, counted(&arena, REJECTED_LATE) - before.1);
                let expected = match expected {
                    Some(Ok(value)) => (vec![value], 0, 0),
                    Some(Err(())) => (Vec::new(), 1, 0),
                    None => (Vec::new(), 0, 1),
                };
                assert_eq!(counts, expected, "{:?} {kind:?} {machine:?}", set.filter);
            }
            assert_eq!((counted(&arena, BEGUN), arena.counted(0), there[0]), (2, 0, 1));
            arena.unmap();
        }
    }
}
