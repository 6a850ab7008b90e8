//! LOSS-1, FLT-1 and SAFE-2 for values that are grouped by a value of the call (`--by KEY`). A row belongs to
//! one key and one value, as the language defines them, at entries and for whole calls. Numbers by texts and
//! texts by numbers are tested too. So are threads that migrate and are interrupted, a table that is too
//! small, and a sequence that restarts just before its commit.

use std::collections::BTreeMap;

use trapline_plan::filter::{Facts, GroupBy, MAX_TEMPORARIES, Sort, Tally, Tree};
use trapline_plan::x86_64::stub::{Liveness, Machine};
use trapline_record::counters::filtered::BEGUN;
use trapline_record::ring::RecordKind;
use trapline_record::tally::{Rest, TableShape, text_key};
use trapline_tests::alone;

use crate::arena::{Arena, LINES, call, machines, unregister};
use crate::counts::{THREADS, everywhere, storm};
use crate::fields::{Memory, leaf_with_fields, reads};
use crate::filters::{float, number, tree};
use crate::gathered::{counted, is_timeless};
use crate::owned::trapped;
use crate::read_tallies::hit;
use crate::stages::{leaf_at_return, read, with_returned};
use crate::state::{ONE, Random, assert_kept, back, tl_run};
use crate::tallies::{FILTERED, Set};

const TRUE: Tree = Tree::Number(1, false);
/// mov rax, rdi; ret
const BODY: [u8; 4] = [0x48, 0x89, 0xF8, 0xC3];

/// Hits by group-by key and value.
type Rows = BTreeMap<(u64, u64), u64>;

fn rows(set: &Set) -> (Rows, Rest) {
    let (mut rows, mut sum) = (Rows::new(), Rest::default());
    for line in 0..LINES {
        let rest = set.table.area.read_rows(set.view(), 0, line, |row, word| {
            if set.filter.tally.as_ref().is_some_and(|tally| tally.texts() != 0) {
                let bytes: Vec<u8> = (0..8).flat_map(|n| word(n).to_le_bytes()).collect();
                assert_eq!(row.key, text_key(&bytes), "{bytes:?}");
            }
            *rows.entry((row.owner.expect("an owner"), row.key)).or_default() += row.hits;
        });
        sum.overflow += rest.overflow;
        sum.unseen += rest.unseen;
    }
    (rows, sum)
}

fn sorts(round: u64) -> Sort {
    [Sort::Log2, Sort::Each, Sort::Linear { min: -5, step: 3, count: 40 }][(round % 3) as usize]
}

fn site(round: u64) -> Liveness {
    Liveness { flags_dead: round & 2 == 2, dead: 0, red_zone_live: round & 4 == 4 }
}

fn by(value: Tree, sort: Sort, key: Tree) -> Tally {
    Tally { value, sort, group_by: GroupBy::Number(key) }
}

#[test]
fn entries_are_grouped_as_the_language_says() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut random = Random(0xa9a7_7e11_1234_9876);
        let (mut seen, mut unseen, mut memory) = (0, 0, Memory::new());
        // SAFETY: gettid has no precondition.
        let tid = unsafe { libc::gettid() } as u32;
        for round in 0..300 {
            let fits = |tree: &Tree| tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_with_fields();
            let value = tree(&mut random, 1 + round % 4, leaf_with_fields);
            let key = tree(&mut random, 1 + round / 4 % 4, leaf_with_fields);
            if !fits(&value) || !fits(&key) {
                continue;
            }
            let mut arena = Arena::new();
            let tally = by(value.clone(), sorts(round.into()), key.clone());
            let mut set = Set::new(&arena, &machine, tally.clone(), None);
            set.filter.reads = reads().to_vec();
            let code = set.build(&mut arena, site(round.into()), RecordKind::Entry, &back());
            let (mut expected, before) = (Rows::new(), unseen);
            for _ in 0..20 {
                let (mut state, facts) = hit(&mut random, &mut memory, tid);
                let kept = (state.regs, state.zmm);
                // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user
                // at a time.
                unsafe { tl_run(code, &mut *state) };
                assert_eq!((state.regs, state.zmm), kept, "{tally:?}");
                match key.evaluate(&facts).zip(value.evaluate(&facts)) {
                    Some((key, value)) => {
                        *expected.entry((key, tally.key(value))).or_default() += 1;
                        seen += 1;
                    }
                    None => unseen += 1,
                }
            }
            let rest = Rest { overflow: 0, unseen: unseen - before };
            assert_eq!(rows(&set), (expected, rest), "{tally:?}");
            assert_eq!(arena.counted(FILTERED), 0);
            if round < 40 {
                assert_kept(&format!("{tally:?}"), code, &site(round.into()), &mut random);
            }
            arena.unmap();
        }
        assert!(seen > 1000 && unseen > 300, "{seen} {unseen}");
    }
}

#[test]
fn calls_are_grouped_as_the_language_says() {
    let _one = ONE.lock();
    machines().iter().for_each(calls_fall);
}

fn calls_fall(machine: &Machine) {
    let mut random = Random(0xa9a7_6a7e_1234_9876);
    let (mut seen, mut unseen) = (0, 0);
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    for round in 0..300_u32 {
        let value = tree(&mut random, 1 + round % 4, leaf_at_return);
        let key = tree(&mut random, 1 + round / 4 % 4, leaf_at_return);
        let fits = |tree: &Tree| {
            tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_at_return() && is_timeless(tree)
        };
        if !fits(&value) || !fits(&key) {
            continue;
        }
        let mut arena = Arena::new();
        let tally = by(value.clone(), sorts(round.into()), key.clone());
        let set = Set::new(&arena, machine, tally.clone(), None).of_calls(&mut arena, TRUE, None);
        let kind = if round % 7 == 6 { RecordKind::Tail } else { RecordKind::Return };
        let code = set.whole(&mut arena, site(round.into()), kind, [&[], &back()]);
        let (mut expected, before) = (Rows::new(), unseen);
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
            // SAFETY: as above.
            unsafe { tl_run(code, &mut state) };
            assert_eq!((state.regs, state.zmm), kept, "{tally:?}");
            if kind == RecordKind::Tail && tally.asks_for_end() {
                unseen += 1;
                continue;
            }
            let known = |tree: &Tree| match kind {
                RecordKind::Tail => tree.clone(),
                _ => with_returned(tree, state.regs[0], state.zmm[0][0]),
            };
            let of = |tree: &Tree| known(tree).evaluate(&facts).expect("all is known");
            *expected.entry((of(&key), tally.key(of(&value)))).or_default() += 1;
            seen += 1;
        }
        assert_eq!(
            rows(&set),
            (expected, Rest { overflow: 0, unseen: unseen - before }),
            "{tally:?} {kind:?}"
        );
        assert_eq!((counted(&arena, BEGUN), arena.counted(0)), (20, 0));
        arena.unmap();
    }
    assert!(seen > 1000 && unseen > 20, "{seen} {unseen}");
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

/// Address of one of the texts; for larger numbers no valid address.
fn place(n: u64) -> u64 {
    WORDS.get(n as usize).map_or(n, |word| word.as_ptr() as u64)
}

/// Numbers by texts and texts by numbers: hits with a row, unseen hits, and the text of each row. Two of six
/// hits have no text.
#[test]
fn texts_and_numbers_meet_in_rows() {
    let _one = ONE.lock();
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
    for (machine, tally) in machines().into_iter().flat_map(|one| tallies.clone().map(|tally| (one, tally))) {
        for of_calls in [false, true] {
            let mut random = Random(0xa9a7_7e87_1234_9876);
            let mut arena = Arena::new();
            let mut set = Set::new(&arena, &machine, tally.clone(), None);
            set.table.area.shape = TableShape::OwnedTexts(9);
            let (set, code) = match of_calls {
                false => {
                    let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &back());
                    (set, code)
                }
                true => {
                    let set = set.of_calls(&mut arena, TRUE, None);
                    let code = set.whole(&mut arena, Liveness::default(), RecordKind::Return, [&[], &back()]);
                    (set, code)
                }
            };
            let mut expected = Rows::new();
            for n in 0..60_u64 {
                let mut state = random.state();
                (state.regs[7], state.regs[6]) = (place(n % 6), n);
                let before = state.regs;
                // SAFETY: as above.
                unsafe { tl_run(code, &mut state) };
                assert_eq!(state.regs, before, "{tally:?}");
                let Some(text) = WORDS.get((n % 6) as usize) else { continue };
                let number = n * 4 + n / 3;
                let pair = match tally.group_by {
                    GroupBy::Text(_) => (tally.key(number), text_key(text)),
                    _ => (number, text_key(text)),
                };
                *expected.entry(pair).or_default() += 1;
            }
            assert_eq!(rows(&set), (expected, Rest { overflow: 0, unseen: 20 }), "{tally:?} {machine:?}");
            arena.unmap();
        }
    }
}

/// Eight threads that migrate, a timer's handler that calls too, and a thread without an area.
#[test]
fn nothing_is_lost_under_a_storm() {
    const CALLS: u64 = 50_000;
    for (machine, calls) in machines().into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let mut arena = Arena::new();
        let tally = by(read("arg0 % 8"), Sort::Each, read("arg0 % 5"));
        let set = Set::new(&arena, &machine, tally, None);
        let (set, code) = if calls {
            let set = set.of_calls(&mut arena, TRUE, None);
            let code =
                set.whole(&mut arena, Liveness::default(), RecordKind::Return, [&BODY[..3], &BODY[3..]]);
            (set, code)
        } else {
            let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
            (set, code)
        };
        let handled = storm(code, || everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n), n))));
        let (found, rest) = rows(&set);
        assert_eq!(found.values().sum::<u64>(), THREADS * CALLS + handled, "{machine:?}");
        // The handler always passes the same number.
        let off = (0..40).filter(|n| found[&(n % 5, n % 8)] != THREADS * CALLS / 40).count();
        assert!(found.len() == 40 && off == usize::from(handled > 0), "{found:?}");
        assert_eq!(rest, Rest::default());
        if machine.rseq.is_some() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    unregister();
                    (0..10).for_each(|n| assert_eq!(call(code, n), n));
                });
            });
            assert_eq!(rows(&set), (found, Rest { overflow: 10, unseen: 0 }));
        }
        arena.unmap();
    }
}

/// More keys than rows: the first keys are exact, the rest is overflow, and the sum is all hits.
#[test]
fn a_full_table_counts_on() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let mut set = Set::new(&arena, &machine, by(read("arg0 % 4"), Sort::Each, read("arg0 / 4")), None);
        set.table.area.shape = TableShape::OwnedRows(4);
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
        for _ in 0..3 {
            (0..400).for_each(|n| assert_eq!(call(code, n), n));
        }
        let (found, rest) = rows(&set);
        assert_eq!((found.values().sum::<u64>() + rest.overflow, rest.unseen), (1200, 0));
        // A thread that has migrated has rows on several CPUs.
        assert!((16..=32 * LINES as usize).contains(&found.len()), "{}", found.len());
        assert!(
            rest.overflow > 600
                && found.iter().all(|((owner, key), hits)| *owner < 100 && *key < 4 && *hits <= 3),
            "{found:?}"
        );
        arena.unmap();
    }
}

/// A signal just before the commit: the whole row was written, and the sequence restarts.
#[test]
fn a_sequence_that_begins_again_finds_both() {
    alone("apart::a_sequence_that_begins_again_finds_both", || {
        let Some(machine) = machines().pop().filter(|machine| machine.rseq.is_some()) else { return };
        let mut arena = Arena::new();
        let set = Set::new(&arena, &machine, by(read("arg0 / 7"), Sort::Each, read("arg0 * 3")), None);
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
        for n in [21, 22, 22] {
            trapped(&arena, code, || assert_eq!(call(code, n), n));
        }
        assert_eq!(rows(&set), (Rows::from([((63, 3), 1), ((66, 3), 2)]), Rest::default()));
        arena.unmap();
    });
}
