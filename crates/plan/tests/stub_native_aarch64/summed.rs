//! LOSS-1 and SAFE-2 for sums and extremes: each value is in the sum of its row, once, or its hit is overflow. Also while
//! threads migrate and are interrupted, and if a restartable sequence restarts just before its commit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_plan::ThreadId;
use trapline_plan::aarch64::stub::{Machine, TableLocation};
use trapline_plan::filter::{Binary, Facts, GroupBy, Sort, Tally, Tree, Unary};
use trapline_record::ring::RecordKind;
use trapline_record::tally::{CELLS, Rest, Summed, TAKING, text_key};
use trapline_record::view::View;

use super::filters::Random;
use super::gathered::{self, TRUE};
use super::latency::on_cpu;
use super::records::broken_off_at;
use super::tallies::{Set, argument};
use super::threads::{ids, tid};
use super::{ADD, LINES, RET, by_hand, call, changes, machines, registered, run, storm};

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
fn hit(found: &mut ByKey, key: u64, value: i128) {
    plus(found, key, (1, value, value, value));
}

/// What all lines hold, by key.
fn sums(tally: &Tally, table: TableLocation, words: &[AtomicU64]) -> (ByKey, Rest) {
    let (mut found, mut rest, unsigned) = (ByKey::new(), Rest::default(), tally.value.is_unsigned());
    for line in 0..table.area.lines {
        let more = table.area.read_rows(View::new(words), 0, line, |row, word| {
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

/// Numbers at the edges: those that carry, and those that have a sign.
fn edge(random: &mut Random) -> u64 {
    let [kind, by, any] = [random.next(), random.next(), random.next()];
    match kind >> 20 & 3 {
        0 => any,
        1 => 1_u64 << (by >> 20 & 63),
        2 => (1_u64 << (by >> 20 & 63)).wrapping_neg(),
        _ => (by >> 20 & 3).wrapping_sub(2),
    }
}

#[test]
fn each_value_is_in_its_sum() {
    for machine in machines(by_hand) {
        on_cpu(3);
        let mut random = Random(0x5a11_0001_1234_9877);
        for value in [
            argument(0, 64, false),
            argument(0, 64, true),
            argument(2, 32, true),
            argument(3, 8, false),
            Tree::Unary(Unary::Negate, Box::new(argument(5, 32, true))),
        ] {
            let by = [GroupBy::Nothing, GroupBy::Number(remainder(argument(1, 64, false), 5))];
            for group_by in by.into_iter().chain([GroupBy::Number(argument(1, 16, true))]) {
                let asked = tally(value.clone(), group_by);
                let set = Set::new(machine, ThreadId::Call, asked.clone(), None);
                let code = set.build(true, &[RET]);
                let mut expected = ByKey::new();
                let mut add = |arguments: [u64; 6]| {
                    let facts = Facts { arguments, ..Facts::default() };
                    let known = |tree: &Tree| tree.evaluate(&facts).expect("known");
                    let key = if let GroupBy::Number(key) = &asked.group_by { known(key) } else { 0 };
                    hit(&mut expected, key, number(known(&value), value.is_unsigned()));
                };
                for flags in 0..16 {
                    let (before, after) = changes(code, flags);
                    assert_eq!(after, before, "{machine:?}");
                    add(core::array::from_fn(|nth| before[nth]));
                }
                for _ in 0..150 {
                    let mut state = random.state();
                    [0, 2, 3, 5].into_iter().for_each(|reg: usize| state[reg] = edge(&mut random));
                    state[1] = random.next() % 90;
                    assert_eq!(run(code, state, [0; 8]), state, "{machine:?} {asked:?}");
                    add(core::array::from_fn(|nth| state[nth]));
                }
                let found = sums(&asked, set.table, &set.words);
                assert_eq!(found, (expected, Rest::default()), "{machine:?} {asked:?}");
                set.room.unmap();
            }
        }
    }
}

static WORDS: [[u8; 64]; 8] = {
    let mut words = [[0; 64]; 8];
    let mut n = 0;
    while n < 8 {
        (words[n][0], words[n][1], words[n][2]) = (b'a', b'b', b'a' + n as u8);
        n += 1;
    }
    words
};

/// At entries and at returns, by thread and by text.
#[test]
fn groups_have_rows_of_their_own() {
    for (machine, id) in
        machines(by_hand).into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        for by_text in [false, true] {
            let group_by = if by_text { GroupBy::Text(1) } else { GroupBy::Thread };
            let asked = tally(argument(0, 64, true), group_by);
            let set = Set::new(machine, id, asked.clone(), None);
            let code = set.build(true, &[ADD, RET]);
            let calls = gathered::Set::reading(machine, id, asked.clone(), (None, TRUE), Vec::new());
            let whole = calls.whole(&[ADD], RecordKind::Return);
            for (table, words, code) in [(set.table, &set.words, code), (calls.table, &calls.words, whole)] {
                let mut expected = ByKey::new();
                for times in [1, 12, 70] {
                    let hits = || {
                        on_cpu(2);
                        for n in 0..times {
                            let word = WORDS[n as usize % 8].as_ptr() as u64;
                            let value = (n as u64).wrapping_sub(5);
                            assert_eq!(call(code, value, word), word.wrapping_add(value));
                        }
                        u64::from(tid())
                    };
                    let thread = std::thread::scope(|scope| scope.spawn(hits).join().expect("ends"));
                    for n in 0..times {
                        let key = if by_text { text_key(&WORDS[n as usize % 8]) } else { thread };
                        hit(&mut expected, key, i128::from(n) - 5);
                    }
                }
                assert_eq!(sums(&asked, table, words), (expected, Rest::default()), "{machine:?} {asked:?}");
            }
        }
    }
}

/// The committing word leads back to the abort handler three times: the value is added once, from either version.
#[test]
fn what_is_broken_off_is_added_once() {
    let machine = Machine { rseq: by_hand(), lse: false, lines: LINES };
    on_cpu(3);
    let asked = tally(argument(0, 64, false), GroupBy::Nothing);
    let set = Set::new(machine, ThreadId::Call, asked.clone(), None);
    let once = set.build(true, &[ADD, RET]);
    let words = set.words(set.room.next(), true, &[ADD, RET]);
    // stlr
    let commits: Vec<u32> = words.iter().copied().filter(|word| word & 0xFFFF_FC00 == 0xC89F_FC00).collect();
    let [commit] = commits[..] else { panic!("one commit: {commits:x?}") };
    let mut expected = ByKey::new();
    for value in [40, 41, 39] {
        let words = set.words(set.room.next(), true, &[ADD, RET]);
        let (code, counter) = broken_off_at(&set.room, words, commit, 3);
        assert_eq!(call(code, value, 2), value + 2);
        assert_eq!(counter.load(Ordering::Relaxed), 0, "it was broken off");
        hit(&mut expected, 0, value.into());
        assert_eq!(sums(&asked, set.table, &set.words), (expected.clone(), Rest::default()));
        assert_eq!(call(once, value, 2), value + 2);
        hit(&mut expected, 0, value.into());
        assert_eq!(sums(&asked, set.table, &set.words), (expected.clone(), Rest::default()));
    }
}

/// A thread has ended with a claimed row, or waits in it: what the row has stays, and other hits use the next one.
#[test]
fn a_claimed_row_keeps_what_it_has() {
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_none()) {
        let machine = Machine { lines: 1, ..machine };
        let asked = tally(argument(0, 64, false), GroupBy::Nothing);
        let set = Set::new(machine, ThreadId::Call, asked.clone(), None);
        let code = set.build(true, &[ADD, RET]);
        let mut expected = ByKey::new();
        for value in 1..=40 {
            assert_eq!(call(code, value, 1), value + 1);
            if value > 16 {
                assert_eq!(sums(&asked, set.table, &set.words).1.overflow, value - 16, "each row is claimed");
                continue;
            }
            hit(&mut expected, 0, value.into());
            assert_eq!(sums(&asked, set.table, &set.words), (expected.clone(), Rest::default()));
            let rows = set.table.area.shape.rows().expect("rows");
            let lock = &set.words[((CELLS + (value - 1) * rows.size() + 24) / 8) as usize];
            assert_eq!(lock.swap(TAKING, Ordering::Relaxed), 0, "it is given back");
        }
    }
}

/// Threads that migrate and are interrupted lose no value.
#[test]
fn nothing_is_lost_under_a_storm() {
    for (machine, keys) in machines(registered).into_iter().flat_map(|machine| [(machine, 1), (machine, 4)]) {
        // Calls have 2 there, handlers 1.
        let by = GroupBy::Number(remainder(argument(0, 64, false), keys));
        let asked = tally(argument(1, 64, true), if keys == 1 { GroupBy::Nothing } else { by });
        let set = Set::new(machine, ThreadId::Call, asked.clone(), None);
        let (called, handled) = storm(set.build(true, &[ADD, RET]));
        let (found, rest) = sums(&asked, set.table, &set.words);
        let mut all = ByKey::new();
        found.values().for_each(|one| plus(&mut all, 0, *one));
        let sum = i128::from(2 * called + handled);
        assert_eq!(
            (all[&0], rest),
            ((called + handled, sum, 1, 2), Rest::default()),
            "{machine:?} {found:?}"
        );
        assert_eq!(found.len() as u64, keys);
    }
}
