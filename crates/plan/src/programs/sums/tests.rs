//! The protocol of sums, by the interpreter: what is added up, what an abort leaves, what two threads do in all
//! orders, what a reader sees in between.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;

use trapline_code::{Builder, Bytes, End, Memory, Op, Program, Run, interpret_in};
use trapline_record::tally::sums::{LOCK, Summed, VERSIONS, WORDS};
use trapline_record::tally::{
    self, CELLS, OVERFLOW, TAKING, TEXT_BYTES, TableShape, TallyArea, first_row, text_key,
};
use trapline_record::view::View;

use super::{Rows, Sums, add, add_anywhere};

const TABLE: u64 = 0x1000;
/// Where texts lie: behind the table, each with a word before it.
const TEXTS: u64 = TABLE + 0x1840;
const BITS: u8 = 4;
/// Values at the edges: those that carry, and those that have a sign.
const VALUES: [u64; 8] = [0, 1, 7, u64::MAX, 1 << 63, i64::MAX as u64, (-5_i64).cast_unsigned(), 1 << 40];

/// Layout, and whether values have no sign.
type Kind = (tally::Rows, bool);

fn kinds() -> impl Iterator<Item = Kind> {
    let rows = |texts| tally::Rows { bits: BITS, texts, owned: false, sums: true };
    [(rows(false), false), (rows(false), true), (rows(true), false)].into_iter()
}
fn program((rows, unsigned): Kind, memory: Memory) -> Program {
    let rows = Rows { rows, text: rows.texts.then_some(0), reloads: false };
    let add = if memory == Memory::Mine { add } else { add_anywhere };
    add(Builder::new(), Sums { rows, unsigned }).expect("sound")
}
/// The text that belongs to a key of these tests.
fn text(nth: u64) -> [u8; TEXT_BYTES] {
    core::array::from_fn(|byte| if byte < 3 { b'a' + nth as u8 } else { 0 })
}
/// An empty table, and texts.
fn memory() -> Bytes {
    let mut memory = Bytes { at: TABLE, bytes: vec![0; 0x1840 + 64 * 80] };
    for nth in 0..64 {
        for (word, bytes) in text(nth).chunks(8).enumerate() {
            let bytes = u64::from_le_bytes(bytes.try_into().expect("a word"));
            memory.set_word(TEXTS + nth * 80 + 8 + word as u64 * 8, bytes);
        }
    }
    memory
}

/// A hit: a number that decides its key and its text, and its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hit(u64, u64);

impl Hit {
    fn key(self, rows: tally::Rows) -> u64 {
        if rows.texts { text_key(&text(self.0)) } else { self.0 }
    }
    fn inputs(self, rows: tally::Rows) -> [u64; 4] {
        [TABLE, self.key(rows), self.1, TEXTS + self.0 * 80]
    }
}

/// Number of hits, sum, least and greatest value, as numbers.
type Found = (u64, i128, i128, i128);

fn number(value: u64, unsigned: bool) -> i128 {
    if unsigned { value.into() } else { value.cast_signed().into() }
}
fn plus(found: &mut BTreeMap<u64, Found>, key: u64, (hits, sum, least, greatest): Found) {
    let all = found.entry(key).or_insert((0, 0, least, greatest));
    *all = (all.0 + hits, all.1 + sum, all.2.min(least), all.3.max(greatest));
}
/// What these hits give.
fn expected((rows, unsigned): Kind, hits: &[Hit]) -> BTreeMap<u64, Found> {
    let mut found = BTreeMap::new();
    for hit in hits {
        let value = number(hit.1, unsigned);
        plus(&mut found, hit.key(rows), (1, value, value, value));
    }
    found
}
/// What the reader finds, by key; and the overflow.
fn read((rows, unsigned): Kind, memory: &Bytes) -> (BTreeMap<u64, Found>, u64) {
    let words: Vec<AtomicU64> = memory
        .bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8")).into())
        .collect();
    let area = TallyArea { off: 0, tables: 1, lines: 1, shape: TableShape::Sums(rows) };
    let mut found = BTreeMap::new();
    let rest = area.read_rows(View::new(&words), 0, 0, |row, word| {
        if rows.texts {
            let bytes: Vec<u8> = (0..8).flat_map(|nth| word(nth).to_le_bytes()).collect();
            assert_eq!(text_key(&bytes), row.key, "{bytes:?}");
        }
        let Summed { sum, least, greatest } = row.summed.expect("sums");
        plus(&mut found, row.key, (row.hits, sum, number(least, unsigned), number(greatest, unsigned)));
    });
    (found, rest.overflow)
}
/// Two hits of one row, and pairs that begin at one row.
fn pairs(rows: tally::Rows) -> Vec<[Hit; 2]> {
    let one = Hit(1, u64::MAX - 1);
    let first = |hit: Hit| first_row(hit.key(rows), BITS);
    let beside = (2..64).map(|nth| Hit(nth, 9)).filter(|other| first(*other) == first(one));
    let pairs: Vec<_> = [Hit(1, 9)].into_iter().chain(beside.take(2)).map(|other| [one, other]).collect();
    assert_eq!(pairs.len(), 3, "{rows:?}");
    pairs
}

#[test]
fn tally_every_value_is_in_its_rows_sum() {
    for (kind, place) in kinds().flat_map(|kind| [(kind, Memory::Mine), (kind, Memory::Shared)]) {
        let (program, mut memory) = (program(kind, place), memory());
        let (mut all, mut overflow) = (Vec::new(), 0);
        for nth in 0..400_u64 {
            let value = VALUES[(nth % 8) as usize].wrapping_add(nth / 8 % 3);
            let hit = Hit(nth * nth % 41, value);
            let end = interpret_in(&program, &hit.inputs(kind.0), &mut memory);
            assert_eq!(end, End { outcome: 0, result: None });
            let now = read(kind, &memory);
            if now.1 == overflow {
                all.push(hit)
            } else {
                overflow += 1
            }
            assert_eq!(now, (expected(kind, &all), overflow), "{kind:?} {place:?}\n{program}");
        }
        assert!(overflow > 0, "{kind:?}");
    }
}

/// S1 to S5: the sequence is aborted before each step; another hit of this CPU runs then, as a whole. It may have come
/// before as well, so that either version counts.
#[test]
fn tally_an_aborted_sequence_adds_its_value_once() {
    for (kind, pair, before) in kinds()
        .flat_map(|kind| pairs(kind.0).into_iter().flat_map(move |pair| (0..3).map(move |n| (kind, pair, n))))
    {
        let (program, [aborted, other]) = (program(kind, Memory::Mine), pair);
        let (inputs, others) = (aborted.inputs(kind.0), other.inputs(kind.0));
        for steps in 0.. {
            let (mut memory, mut run) = (memory(), Run::new(&program, &inputs));
            let mut all = vec![other; before];
            (0..before).for_each(|_| _ = interpret_in(&program, &others, &mut memory));
            let is_whole = (0..steps).any(|_| {
                assert_eq!(read(kind, &memory), (expected(kind, &all), 0), "{kind:?} {steps}\n{program}");
                run.step(&mut memory).is_some()
            });
            interpret_in(&program, &others, &mut memory);
            if !is_whole {
                interpret_in(&program, &inputs, &mut memory);
            }
            all.extend(pair);
            assert_eq!(read(kind, &memory), (expected(kind, &all), 0), "{kind:?} {steps}\n{program}");
            if is_whole {
                break;
            }
        }
    }
}

/// Whether others see it: a word of the table is changed, or looked at.
fn is_seen(op: &Op) -> bool {
    op.place().is_some() && !matches!(op, Op::Address { .. })
}

/// L1 to L6: all interleavings of two threads. At each step one may end for good, and at each the reader sees whole
/// hits.
#[test]
fn tally_two_threads_lose_no_value_in_a_shared_table() {
    for (kind, pair, before) in kinds()
        .flat_map(|kind| pairs(kind.0).into_iter().flat_map(move |pair| (0..2).map(move |n| (kind, pair, n))))
    {
        let program = program(kind, Memory::Shared);
        let inputs = pair.map(|hit| hit.inputs(kind.0));
        let mut memory = memory();
        (0..before).for_each(|_| _ = interpret_in(&program, &inputs[1], &mut memory));
        let begin = ([0, 1].map(|thread| Some(Run::new(&program, &inputs[thread]))), memory);
        // What threads may have given: neither, one, both.
        let given: Vec<_> = [vec![], vec![0], vec![1], vec![0, 1]]
            .into_iter()
            .map(|which: Vec<usize>| {
                let hits =
                    which.iter().map(|nth| pair[*nth]).chain(vec![pair[1]; before]).collect::<Vec<_>>();
                (which, expected(kind, &hits))
            })
            .collect();
        let mut seen: HashMap<Vec<u8>, Vec<_>> = HashMap::new();
        let (mut next, mut states) = (vec![begin], 0);
        while let Some((runs, memory)) = next.pop() {
            let (found, overflow) = read(kind, &memory);
            let which = given.iter().find(|(_, given)| *given == found).map(|(which, _)| which);
            let which = which.unwrap_or_else(|| panic!("{kind:?} {found:?}\n{program}"));
            assert_eq!(overflow, 0);
            let has_ended = |thread: &usize| runs[*thread].is_none();
            assert!((0..2).filter(has_ended).all(|thread| which.contains(&thread)), "{which:?}\n{program}");
            for thread in 0..2 {
                let (mut runs, mut memory) = (runs.clone(), memory.clone());
                let Some(run) = &mut runs[thread] else { continue };
                // Others see one access at a time.
                let mut end = run.step(&mut memory);
                while end.is_none() && !run.op().is_some_and(is_seen) {
                    end = run.step(&mut memory);
                }
                if end.is_some() {
                    runs[thread] = None;
                }
                let known = seen.entry(memory.bytes.clone()).or_default();
                if !known.contains(&runs) {
                    known.push(runs.clone());
                    states += 1;
                    next.push((runs, memory));
                }
            }
        }
        assert!(states > 300, "{states}");
    }
}

/// D4: a row that the reader holds gets no hit; the key has another one meanwhile, and then both.
#[test]
fn tally_a_row_that_is_held_is_passed_over() {
    for (kind, place) in kinds().flat_map(|kind| [(kind, Memory::Mine), (kind, Memory::Shared)]) {
        let (program, mut memory) = (program(kind, place), memory());
        let hit = Hit(1, 5);
        let row = TABLE + CELLS + first_row(hit.key(kind.0), BITS) * kind.0.size();
        for (held, in_row) in [(0, 1), (TAKING, 1), (TAKING, 1), (0, 2)] {
            memory.set_word(row + LOCK, held);
            interpret_in(&program, &hit.inputs(kind.0), &mut memory);
            assert_eq!(memory.word(row + 8), in_row, "{kind:?} {place:?}\n{program}");
        }
        assert_eq!(read(kind, &memory), (expected(kind, &[hit; 4]), 0));
    }
}

/// A reader on its way: n, and as many words of its version as it has loaded.
type Reading = (u64, Vec<u64>);

/// What a reader takes for the row that hits at `row` were added to, if it looks at one word at a time while the hits
/// run. `looks_again`: D3.
fn readings(kind: Kind, hits: &[Hit], row: u64, looks_again: bool) -> Vec<Found> {
    let program = program(kind, Memory::Mine);
    let mut memory = memory();
    let mut readings: Vec<Reading> = Vec::new();
    let mut taken = Vec::new();
    let mut look = |memory: &Bytes| {
        // A reader begins, or goes on, or waits; any number of words in one state.
        readings.push((memory.word(row + 8), Vec::new()));
        for nth in 0.. {
            let Some((hits, words)) = readings.get(nth).cloned() else { break };
            if words.len() < 4 {
                let mut words = words;
                words.push(memory.word(row + VERSIONS[(hits % 2) as usize] + WORDS[words.len()]));
                if !readings.contains(&(hits, words.clone())) {
                    readings.push((hits, words));
                }
            } else if !looks_again || memory.word(row + 8) == hits {
                let sum = (u128::from(words[1]) << 64 | u128::from(words[0])).cast_signed();
                let found = (hits, sum, number(words[2], kind.1), number(words[3], kind.1));
                if hits > 0 && !taken.contains(&found) {
                    taken.push(found);
                }
            }
        }
    };
    for hit in hits {
        let inputs = hit.inputs(kind.0);
        let mut run = Run::new(&program, &inputs);
        look(&memory);
        while run.step(&mut memory).is_none() {
            look(&memory);
        }
        look(&memory);
    }
    taken
}

/// D1 to D3: a reader takes what the first n hits gave, for some n, whenever it loads each word.
#[test]
fn tally_a_reader_takes_a_whole_version() {
    let kind = kinds().next().expect("one");
    let hits = [3, u64::MAX, 5, 1 << 62, 2].map(|value| Hit(1, value));
    let row = TABLE + CELLS + first_row(hits[0].key(kind.0), BITS) * kind.0.size();
    let whole: Vec<Found> = (1..=hits.len()).map(|n| expected(kind, &hits[..n])[&1]).collect();
    let taken = readings(kind, &hits, row, true);
    assert!(whole.iter().all(|one| taken.contains(one)), "{taken:?}");
    assert!(taken.iter().all(|one| whole.contains(one)), "{taken:?}");
    let torn = readings(kind, &hits, row, false);
    assert!(!torn.iter().all(|one| whole.contains(one)), "without D3 it takes what never was");
    assert_eq!(OVERFLOW, 0);
}
