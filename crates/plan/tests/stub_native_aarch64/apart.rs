//! LOSS-1, FLT-1 and SAFE-2 for values that are grouped by a value of the call, as in x86-64's twin. A row
//! belongs to one key and one value, as the language defines them, at entries and for whole calls. Numbers by
//! texts and texts by numbers are tested too, and so is a table that is too small.

use trapline_plan::filter::{GroupBy, MAX_TEMPORARIES, Sort, Tally, Tree};
use trapline_record::ring::RecordKind;
use trapline_record::tally::{Rest, TableShape, text_key};

use super::fields::{Memory, leaf_of_all, leaf_with_fields, reads};
use super::filters::{Random, tree};
use super::gathered::{self, TRUE, is_timeless};
use super::latency::on_cpu;
use super::read_tallies::hit;
use super::rows::{Found, rows};
use super::stages::{read, with_returned};
use super::tallies::Set;
use super::threads::ids;
use super::{ADD, RET, by_hand, call, changes, machines, run};

fn by(value: &Tree, round: u32, key: &Tree) -> Tally {
    let sort = [Sort::Log2, Sort::Each, Sort::Linear { min: -5, step: 3, count: 40 }][round as usize % 3];
    Tally { value: value.clone(), sort, group_by: GroupBy::Number(key.clone()) }
}

#[test]
fn entries_are_grouped_as_the_language_says() {
    let mut random = Random(0xa9a7_7e11_1234_9877);
    let (machines, ids, mut memory) = (machines(by_hand), ids(), Memory::new());
    let (mut seen, mut unseen) = (0, 0);
    for round in 0..200_u32 {
        let fits = |tree: &Tree| tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_with_fields();
        let value = tree(&mut random, 1 + round % 4, leaf_with_fields);
        let key = tree(&mut random, 1 + round / 4 % 4, leaf_with_fields);
        if !fits(&value) || !fits(&key) {
            continue;
        }
        let (machine, id) = (machines[round as usize % machines.len()], ids[round as usize / 2 % ids.len()]);
        let tally = by(&value, round, &key);
        let mut set = Set::new(machine, id, tally.clone(), None);
        set.filter.reads = reads().to_vec();
        let code = set.build(true, &[RET]);
        on_cpu(round % 8);
        let (mut expected, before) = (Found::new(), unseen);
        let what = format!("{machine:?} {id:?} {tally:?}");
        for _ in 0..10 {
            let (state, facts) = hit(&mut random, &mut memory);
            assert_eq!(run(code, state, [0; 8]), state, "{what}");
            match key.evaluate(&facts).zip(value.evaluate(&facts)) {
                Some((key, value)) => {
                    *expected.entry((Some(key), tally.key(value))).or_default() += 1;
                    seen += 1;
                }
                None => unseen += 1,
            }
        }
        let rest = Rest { overflow: 0, unseen: unseen - before };
        assert_eq!(rows(set.table, &set.words, false), (expected, rest), "{what}");
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{what}");
        }
        set.room.unmap();
    }
    assert!(seen > 300 && unseen > 150, "{seen} {unseen}");
}

#[test]
fn calls_are_grouped_as_the_language_says() {
    let mut random = Random(0xa9a7_7e12_1234_9877);
    let (machines, ids, mut memory) = (machines(by_hand), ids(), Memory::new());
    let (mut seen, mut unseen) = (0, 0);
    for round in 0..300_u32 {
        let value = tree(&mut random, 1 + round % 4, leaf_of_all);
        let key = tree(&mut random, 1 + round / 4 % 4, leaf_of_all);
        let fits = |tree: &Tree| {
            let floats = tree.floats();
            let none = floats == trapline_plan::Floats::default();
            none && tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_at_return() && is_timeless(tree)
        };
        if !fits(&value) || !fits(&key) {
            continue;
        }
        let (machine, id) = (machines[round as usize % machines.len()], ids[round as usize / 2 % ids.len()]);
        let tally = by(&value, round, &key);
        let set = gathered::Set::reading(machine, id, tally.clone(), (None, TRUE), reads());
        let kind = if round % 7 == 6 { RecordKind::Tail } else { RecordKind::Return };
        let code = set.whole(&[], kind);
        on_cpu(round % 8);
        let (mut expected, before) = (Found::new(), unseen);
        let what = format!("{machine:?} {id:?} {kind:?} {tally:?}");
        for _ in 0..10 {
            let (state, facts) = hit(&mut random, &mut memory);
            assert_eq!(run(code, state, [0; 8]), state, "{what}");
            let of = |tree: &Tree| match kind {
                RecordKind::Tail if tally.asks_for_end() => None,
                RecordKind::Tail => tree.evaluate(&facts),
                _ => with_returned(tree, facts.arguments[0], 0).evaluate(&facts),
            };
            match of(&key).zip(of(&value)) {
                Some((key, value)) => {
                    *expected.entry((Some(key), tally.key(value))).or_default() += 1;
                    seen += 1;
                }
                None => unseen += 1,
            }
        }
        let rest = Rest { overflow: 0, unseen: unseen - before };
        assert_eq!(rows(set.table, &set.words, false), (expected, rest), "{what}");
        assert_eq!(set.calls.sums(), [10, 0, 0, 0], "{what}");
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{what}");
        }
        set.calls.bench.room.unmap();
    }
    assert!(seen > 300 && unseen > 150, "{seen} {unseen}");
}

/// Four texts of three letters and zeros, at separate addresses.
static WORDS: [[u8; 64]; 4] = {
    let mut words = [[0; 64]; 4];
    let mut n = 0;
    while n < 4 {
        (words[n][0], words[n][1], words[n][2]) = (b'a', b'b', b'a' + n as u8);
        n += 1;
    }
    words
};

/// Numbers by texts and texts by numbers: hits with a row, unseen hits, and the text of each row. Two of six
/// hits have no text.
#[test]
fn texts_and_numbers_meet_in_rows() {
    let number = || read("arg1 * 4 + arg1 / 3");
    let tallies = [
        Tally { value: number(), sort: Sort::Each, group_by: GroupBy::Text(0) },
        Tally { value: number(), sort: Sort::Log2, group_by: GroupBy::Text(0) },
        Tally {
            value: number(),
            sort: Sort::Linear { min: 3, step: 5, count: 9 },
            group_by: GroupBy::Text(0),
        },
        Tally { value: Tree::Number(0, false), sort: Sort::Text(0), group_by: GroupBy::Number(number()) },
    ];
    for (machine, tally) in
        machines(by_hand).into_iter().flat_map(|one| tallies.clone().map(|tally| (one, tally)))
    {
        on_cpu(3);
        let id = ids()[0];
        let place = |n: u64| WORDS.get((n % 6) as usize).map_or(8, |word| word.as_ptr() as u64);
        let hits = |code| {
            for n in 0..60 {
                let at = place(n);
                assert_eq!(call(code, at, n), at + n);
            }
        };
        let set = Set::new(machine, id, tally.clone(), None);
        hits(set.build(true, &[ADD, RET]));
        let calls = gathered::Set::reading(machine, id, tally.clone(), (None, TRUE), Vec::new());
        hits(calls.whole(&[ADD], RecordKind::Return));
        let mut expected = Found::new();
        for n in (0..60_u64).filter(|n| n % 6 < 4) {
            let number = n * 4 + n / 3;
            let owner = if matches!(tally.group_by, GroupBy::Text(_)) { tally.key(number) } else { number };
            *expected.entry((Some(owner), text_key(&WORDS[(n % 6) as usize]))).or_default() += 1;
        }
        let expected = (expected, Rest { overflow: 0, unseen: 20 });
        assert_eq!(rows(set.table, &set.words, true), expected, "{tally:?} {machine:?}");
        assert_eq!(rows(calls.table, &calls.words, true), expected, "{tally:?} {machine:?}");
        set.room.unmap();
    }
}

/// More keys than rows: the first keys are exact, the rest is overflow, and the sum is all hits.
#[test]
fn a_full_table_counts_on() {
    for machine in machines(by_hand) {
        on_cpu(4);
        let tally = by(&read("arg0 % 4"), 1, &read("arg0 / 4"));
        let set = Set::shaped(machine, ids()[0], TableShape::OwnedRows(4), tally, None);
        let code = set.build(true, &[ADD, RET]);
        for _ in 0..3 {
            (0..400).for_each(|n| assert_eq!(call(code, n, 0), n));
        }
        let (found, rest) = rows(set.table, &set.words, false);
        assert_eq!((found.values().sum::<u64>() + rest.overflow, rest.unseen), (1200, 0));
        let own = |((owner, key), hits): (&(Option<u64>, u64), &u64)| {
            owner.is_some_and(|owner| owner < 100) && *key < 4 && *hits == 3
        };
        assert!((16..=32).contains(&found.len()) && found.iter().all(own), "{found:?}");
    }
}
