//! LOSS-1 and SAFE-2 for sums and extremes: each value is in the sum of its row, once, or its hit is overflow. Also with
//! threads that migrate, are interrupted, or have no rseq area, and with a restartable sequence that restarts just before
//! its commit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trapline_plan::filter::{Binary, Facts, GroupBy, Sort, Tally, Tree, Unary};
use trapline_plan::x86_64::stub::{Liveness, Machine};
use trapline_record::ring::RecordKind;
use trapline_record::tally::{Rest, Rows, Summed, TAKING, TableShape, text_key};
use trapline_tests::alone;

use crate::arena::{Arena, LINES, call, machines, unregister};
use crate::counts::{THREADS, everywhere, storm};
use crate::owned::trapped;
use crate::state::{ONE, Random, assert_kept, back, tl_run};
use crate::tallies::{Set, argument};

/// mov rax, rdi; ret
const BODY: [u8; 4] = [0x48, 0x89, 0xF8, 0xC3];
const CALLS: u64 = 100_000;

/// Number of hits, sum, least and greatest value, as numbers.
type Found = (u64, i128, i128, i128);
type ByKey = BTreeMap<u64, Found>;

fn number(value: u64, unsigned: bool) -> i128 {
    if unsigned { value.into() } else { value.cast_signed().into() }
}
fn plus(found: &mut ByKey, key: u64, (hits, sum, least, greatest): Found) {
    let all = found.entry(key).or_insert((0, 0, least, greatest));
    *all = (all.0 + hits, all.1 + sum, all.2.min(least), all.3.max(greatest));
}
fn hit(found: &mut ByKey, key: u64, value: i128, times: u64) {
    plus(found, key, (times, value * i128::from(times), value, value));
}

/// What all lines hold, by key.
fn sums(set: &Set) -> (ByKey, Rest) {
    let tally = set.filter.tally.as_ref().expect("as set");
    let (mut found, mut rest, unsigned) = (ByKey::new(), Rest::default(), tally.value.is_unsigned());
    for line in 0..LINES {
        let more = set.table.area.read_rows(set.view(), 0, line, |row, word| {
            if tally.texts() != 0 {
                let bytes: Vec<u8> = (0..8).flat_map(|n| word(n).to_le_bytes()).collect();
                assert_eq!(row.key, text_key(&bytes), "{bytes:?}");
            }
            let Summed { sum, least, greatest } = row.summed.expect("sums");
            plus(&mut found, row.key, (row.hits, sum, number(least, unsigned), number(greatest, unsigned)));
        });
        rest.overflow += more.overflow;
        rest.unseen += more.unseen;
    }
    (found, rest)
}

fn tally(value: Tree, group_by: GroupBy) -> Tally {
    Tally { value, sort: Sort::Sums, group_by }
}
fn remainder(argument: Tree, by: u64) -> Tree {
    Tree::Binary(Binary::Remainder, Box::new(argument), Box::new(Tree::Number(by, false)))
}
/// With so few rows that a table of texts fits.
fn set(arena: &Arena, machine: &Machine, tally: Tally) -> Set {
    let mut set = Set::new(arena, machine, tally, None);
    let TableShape::Sums(rows) = set.table.area.shape else { panic!("sums") };
    set.table.area.shape = TableShape::Sums(Rows { bits: rows.bits.min(9), ..rows });
    set
}

/// Numbers at the edges: those that carry, and those that have a sign.
fn edge(random: &mut Random) -> u64 {
    let word = random.next();
    match word & 3 {
        0 => random.next(),
        1 => 1_u64 << (word >> 8 & 63),
        2 => (1_u64 << (word >> 8 & 63)).wrapping_neg(),
        _ => (word >> 8 & 3).wrapping_sub(2),
    }
}

#[test]
fn each_value_is_in_its_sum() {
    let _one = ONE.lock();
    let by = |n: u64| remainder(argument(1, 64, false), n);
    for machine in &machines() {
        let mut random = Random(0x5a11_0001_1234_9876);
        for (n, value) in [
            argument(0, 64, false),
            argument(0, 64, true),
            argument(2, 32, true),
            argument(3, 8, false),
            Tree::Unary(Unary::Negate, Box::new(argument(5, 32, true))),
        ]
        .into_iter()
        .enumerate()
        {
            for group_by in [GroupBy::Nothing, GroupBy::Number(by(5)), GroupBy::Number(argument(1, 16, true))]
            {
                let mut arena = Arena::new();
                let set = set(&arena, machine, tally(value.clone(), group_by.clone()));
                let site = Liveness { flags_dead: n & 1 == 1, dead: 0, red_zone_live: n & 2 == 2 };
                let code = set.build(&mut arena, site, RecordKind::Entry, &back());
                let mut expected = ByKey::new();
                for _ in 0..200 {
                    let mut state = random.state();
                    for reg in [7, 2, 1, 8, 9] {
                        state.regs[reg] = edge(&mut random);
                    }
                    state.regs[6] = random.next() % 90;
                    let arguments = [7, 6, 2, 1, 8, 9].map(|reg: usize| state.regs[reg]);
                    let facts = Facts { arguments, ..Facts::default() };
                    let known = |tree: &Tree| tree.evaluate(&facts).expect("known");
                    let key = if let GroupBy::Number(key) = &group_by { known(key) } else { 0 };
                    hit(&mut expected, key, number(known(&value), value.is_unsigned()), 1);
                    let before = state.regs;
                    // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user
                    // at a time.
                    unsafe { tl_run(code, &mut state) };
                    assert_eq!(state.regs, before, "{value:?}");
                }
                assert_eq!(sums(&set), (expected, Rest::default()), "{value:?} {group_by:?} {machine:?}");
                assert_kept(&format!("{value:?} {group_by:?} {site:?}"), code, &site, &mut random);
                arena.unmap();
            }
        }
    }
}

static WORDS: [[u8; 64]; 7] = {
    let mut words = [[0; 64]; 7];
    let mut n = 0;
    while n < 7 {
        (words[n][0], words[n][1], words[n][2]) = (b'a', b'b', b'a' + n as u8);
        n += 1;
    }
    words
};

/// At entries and at returns, by thread and by text.
#[test]
fn groups_have_rows_of_their_own() {
    let _one = ONE.lock();
    for (machine, by_text) in machines().into_iter().flat_map(|machine| [(machine, false), (machine, true)]) {
        let group_by = if by_text { GroupBy::Text(0) } else { GroupBy::Thread };
        let asked = tally(argument(0, 64, false), group_by);
        let word = |n: u64| WORDS[(n % 7) as usize].as_ptr() as u64;
        let mut early = Arena::new();
        let at_entry = set(&early, &machine, asked.clone());
        let code = at_entry.build(&mut early, Liveness::default(), RecordKind::Entry, &BODY);
        let mut late = Arena::new();
        let at_return = set(&late, &machine, asked).of_calls(&mut late, Tree::Number(1, false), None);
        let whole =
            at_return.whole(&mut late, Liveness::default(), RecordKind::Return, [&BODY[..3], &BODY[3..]]);
        for (set, code) in [(&at_entry, code), (&at_return, whole)] {
            let mut expected = ByKey::new();
            for times in [1, 12, 70] {
                let thread = std::thread::scope(|scope| {
                    let hits = || {
                        (0..times).for_each(|n| assert_eq!(call(code, word(n)), word(n)));
                        // SAFETY: gettid has no precondition.
                        u64::from((unsafe { libc::gettid() }).cast_unsigned())
                    };
                    scope.spawn(hits).join().expect("ends")
                });
                for n in 0..times {
                    let key = if by_text { text_key(&WORDS[(n % 7) as usize]) } else { thread };
                    hit(&mut expected, key, word(n).into(), 1);
                }
            }
            assert_eq!(sums(set), (expected, Rest::default()), "{machine:?} {by_text}");
        }
    }
}

/// Eight threads that migrate and are interrupted lose no value. Threads without an area have no row.
#[test]
fn nothing_is_lost_under_a_storm() {
    let _one = ONE.lock();
    for (machine, keys) in machines().into_iter().flat_map(|machine| [(machine, 1), (machine, 5)]) {
        let mut arena = Arena::new();
        let group_by = if keys == 1 {
            GroupBy::Nothing
        } else {
            GroupBy::Number(remainder(argument(0, 64, false), keys))
        };
        // Half of the values are negative, and sums carry in both directions.
        let value = Tree::Binary(
            Binary::Multiply,
            Box::new(argument(0, 64, true)),
            Box::new(Tree::Number(3 << 61, false)),
        );
        let set = set(&arena, &machine, tally(value.clone(), group_by));
        let of = |n: u64| {
            number(
                value.evaluate(&Facts { arguments: [n; 6], ..Facts::default() }).expect("known"),
                value.is_unsigned(),
            )
        };
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
        let handled = storm(code, || {
            everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n), n)));
        });
        let mut expected = ByKey::new();
        (0..CALLS).for_each(|n| hit(&mut expected, n % keys, of(n), THREADS));
        hit(&mut expected, 1 % keys, of(1), handled);
        assert_eq!(sums(&set), (expected.clone(), Rest::default()), "{handled} in handlers, {machine:?}");
        if machine.rseq.is_some() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    unregister();
                    (0..10).for_each(|_| assert_eq!(call(code, 4), 4));
                });
            });
            assert_eq!(sums(&set), (expected, Rest { overflow: 10, unseen: 0 }));
        }
        arena.unmap();
    }
}

/// A signal just before the commit: the other version was written, and the sequence restarts.
#[test]
fn a_sequence_that_begins_again_adds_once() {
    alone("summed::a_sequence_that_begins_again_adds_once", || {
        let Some(machine) = machines().pop().filter(|machine| machine.rseq.is_some()) else { return };
        for group_by in [GroupBy::Nothing, GroupBy::Text(0)] {
            let mut arena = Arena::new();
            let (by_text, mut expected) = (group_by != GroupBy::Nothing, ByKey::new());
            let set = set(&arena, &machine, tally(argument(0, 64, false), group_by));
            let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
            for n in [3, 4, 4, 3] {
                let word = WORDS[n].as_ptr() as u64;
                trapped(&arena, code, || assert_eq!(call(code, word), word));
                hit(&mut expected, if by_text { text_key(&WORDS[n]) } else { 0 }, word.into(), 1);
            }
            assert_eq!(sums(&set), (expected, Rest::default()));
            arena.unmap();
        }
    });
}

/// A thread has ended with a claimed row, or waits in it: what the row has stays, and other hits use the next one.
#[test]
fn a_claimed_row_keeps_what_it_has() {
    let _one = ONE.lock();
    let machine = Machine { lines: 1, ..machines()[0] };
    let mut arena = Arena::new();
    let mut set = set(&arena, &machine, tally(argument(0, 64, false), GroupBy::Nothing));
    set.table.area.lines = LINES;
    let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
    let mut expected = ByKey::new();
    for value in 1..=40 {
        assert_eq!(call(code, value), value);
        let rows = set.table.area.shape.rows().expect("rows");
        let overflow = sums(&set).1.overflow;
        if value > 16 {
            assert_eq!(overflow, value - 16, "each row is claimed");
            continue;
        }
        hit(&mut expected, 0, value.into(), 1);
        assert_eq!(sums(&set), (expected.clone(), Rest::default()));
        let lock = set.table.area.table(0) + 16 + (value - 1) * rows.size() + 24;
        assert_eq!(set.view().get(lock), 0, "it is given back");
        assert!(set.view().set(lock, TAKING));
    }
    arena.unmap();
}

/// D1 to D4: what a reader finds while threads hit all the time is what some hits gave, and it only grows.
#[test]
fn a_reader_finds_whole_rows_meanwhile() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let set = set(&arena, &machine, tally(argument(0, 64, false), GroupBy::Nothing));
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
        let stop = AtomicBool::new(false);
        let (mut looks, mut before) = (0, 0);
        let called: u64 = std::thread::scope(|scope| {
            let hits = || {
                let mut times = 0;
                while !stop.load(Ordering::Relaxed) {
                    (0..1000).for_each(|_| assert_eq!(call(code, 7), 7));
                    times += 1000;
                }
                times
            };
            let workers = [0, 1].map(|_| scope.spawn(hits));
            let end = Instant::now() + Duration::from_millis(700);
            while Instant::now() < end || looks < 20 {
                let (found, rest) = sums(&set);
                if let Some((hits, sum, least, greatest)) = found.get(&0).copied() {
                    assert_eq!((sum, least, greatest), (7 * i128::from(hits), 7, 7), "{machine:?}");
                    assert!(hits >= before, "{hits} after {before}, {machine:?}");
                    (before, looks) = (hits, looks + 1);
                }
                assert_eq!(rest, Rest::default(), "{machine:?}");
            }
            stop.store(true, Ordering::Relaxed);
            workers.into_iter().map(|worker| worker.join().expect("ends")).sum()
        });
        assert_eq!(sums(&set).0[&0], (called, 7 * i128::from(called), 7, 7), "{machine:?}");
        arena.unmap();
    }
}
