//! The protocol of rows, by the interpreter: what is counted, what an abort leaves, what two threads do in all orders.

use std::collections::BTreeMap;

use trapline_code::{Builder, Bytes, End, Memory, Op, Program, Run, interpret_in};
use trapline_record::tally::{
    self, CELLS, OVERFLOW, PROBES, TAKING, TEXT_BYTES, first_owned_row, first_row, text_key,
};

use super::{Rows, add, add_anywhere};

const TABLE: u64 = 0x1000;
/// Where texts lie: behind the table, each with a word before it.
const TEXTS: u64 = 0x2000;
const BITS: u8 = 4;

fn layouts() -> impl Iterator<Item = tally::Rows> {
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(texts, owned)| tally::Rows { bits: BITS, texts, owned, sums: false })
}
fn program(rows: tally::Rows, memory: Memory) -> Program {
    let rows = Rows { rows, text: rows.texts.then_some(0), reloads: rows.texts };
    let add = if memory == Memory::Mine { add } else { add_anywhere };
    add(Builder::new(), rows).expect("sound")
}
/// The text that belongs to a key of these tests.
fn text(nth: u64) -> [u8; TEXT_BYTES] {
    core::array::from_fn(|byte| if byte < 3 { b'a' + nth as u8 } else { 0 })
}
/// An empty table, and texts.
fn memory() -> Bytes {
    let mut memory = Bytes { at: TABLE, bytes: vec![0; 0x3000] };
    for nth in 0..64 {
        for (word, bytes) in text(nth).chunks(8).enumerate() {
            let bytes = u64::from_le_bytes(bytes.try_into().expect("a word"));
            memory.set_word(TEXTS + nth * 128 + 8 + word as u64 * 8, bytes);
        }
    }
    memory
}
/// A hit: a number that decides its key and its text, and a group-by key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Hit(u64, u64);

impl Hit {
    fn key(self, rows: tally::Rows) -> u64 {
        if rows.texts { text_key(&text(self.0)) } else { self.0 }
    }
    fn inputs(self, rows: tally::Rows) -> [u64; 4] {
        [TABLE, self.key(rows), self.1, TEXTS + self.0 * 128]
    }
    /// What its row is known by.
    fn row(self, rows: tally::Rows) -> (u64, u64) {
        (self.key(rows), if rows.owned { self.1 } else { 0 })
    }
    fn first(self, rows: tally::Rows) -> u64 {
        match rows.owned {
            true => first_owned_row(self.key(rows), self.1, BITS),
            false => first_row(self.key(rows), BITS),
        }
    }
}

/// Rows with hits, each whole; by key and owner. And the overflow.
fn read(rows: tally::Rows, memory: &Bytes) -> (BTreeMap<(u64, u64), Vec<u64>>, u64) {
    let mut found: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for nth in 0..rows.count() {
        let row = TABLE + CELLS + nth * rows.size();
        let hits = memory.word(row + 8);
        if hits == 0 || hits & TAKING != 0 {
            continue;
        }
        let (key, owner) = (memory.word(row), if rows.owned { memory.word(row + 16) } else { 0 });
        if rows.texts {
            let at = TABLE + rows.first_text() + nth * TEXT_BYTES as u64;
            let bytes: Vec<u8> = (0..8).flat_map(|word| memory.word(at + word * 8).to_le_bytes()).collect();
            assert_eq!(text_key(&bytes), key, "{bytes:?}");
        }
        found.entry((key, owner)).or_default().push(hits);
    }
    (found, memory.word(TABLE + OVERFLOW))
}
/// Two hits that begin at one row, besides a hit and itself.
fn pairs(rows: tally::Rows) -> Vec<[Hit; 2]> {
    let one = Hit(1, 7);
    let others = (2..64).flat_map(|nth| [Hit(nth, 7), Hit(1, nth + 7)]);
    let beside =
        others.filter(|other| other.row(rows) != one.row(rows) && other.first(rows) == one.first(rows));
    let pairs: Vec<_> = [one].into_iter().chain(beside.take(3)).map(|other| [one, other]).collect();
    assert!(pairs.len() > 2, "{rows:?}");
    pairs
}

#[test]
fn tally_every_hit_is_in_its_row_or_in_the_overflow() {
    for (rows, kind) in layouts().flat_map(|rows| [(rows, Memory::Mine), (rows, Memory::Shared)]) {
        let (program, mut memory) = (program(rows, kind), memory());
        let mut expected: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let mut overflow = 0;
        for nth in 0..400 {
            let hit = Hit(nth * nth % 41, nth % 3);
            let before = read(rows, &memory).1;
            let end = interpret_in(&program, &hit.inputs(rows), &mut memory);
            assert_eq!(end, End { outcome: 0, result: None });
            if read(rows, &memory).1 == before {
                *expected.entry(hit.row(rows)).or_default() += 1;
            } else {
                overflow += 1;
                // All rows that it may have are others'.
                let first = TABLE + CELLS + hit.first(rows) * rows.size() + 8;
                let hits = |nth: u32| memory.word(first + u64::from(nth) * rows.size());
                assert!((0..PROBES).all(|nth| hits(nth) > 0));
            }
        }
        let (found, left) = read(rows, &memory);
        let expected: BTreeMap<_, _> = expected.into_iter().map(|(row, hits)| (row, vec![hits])).collect();
        assert_eq!((found, left), (expected, overflow), "{rows:?} {kind:?}\n{program}");
        assert!(overflow > 0, "{rows:?}");
    }
}

/// W1 to W5: the sequence is aborted before each step; another hit of this CPU runs then, as a whole.
#[test]
fn tally_an_aborted_sequence_counts_once() {
    for (rows, [aborted, other]) in
        layouts().flat_map(|rows| pairs(rows).into_iter().map(move |pair| (rows, pair)))
    {
        let program = program(rows, Memory::Mine);
        let (inputs, others) = (aborted.inputs(rows), other.inputs(rows));
        for steps in 0.. {
            let (mut memory, mut run) = (memory(), Run::new(&program, &inputs));
            let is_whole = (0..steps).any(|_| run.step(&mut memory).is_some());
            interpret_in(&program, &others, &mut memory);
            if !is_whole {
                interpret_in(&program, &inputs, &mut memory);
            }
            let mut expected: BTreeMap<_, u64> = BTreeMap::new();
            [aborted, other].into_iter().for_each(|hit| *expected.entry(hit.row(rows)).or_default() += 1);
            let expected = expected.into_iter().map(|(row, hits)| (row, vec![hits])).collect();
            assert_eq!(read(rows, &memory), (expected, 0), "{rows:?} {steps}\n{program}");
            if is_whole {
                break;
            }
        }
    }
}

/// R1 to R4: all interleavings of two threads. At each step one may end for good, and at each the reader sees whole rows.
#[test]
fn tally_two_threads_lose_no_hit_in_a_shared_table() {
    for (rows, pair) in layouts().flat_map(|rows| pairs(rows).into_iter().map(move |pair| (rows, pair))) {
        let program = program(rows, Memory::Shared);
        let inputs = pair.map(|hit| hit.inputs(rows));
        let begin = ([0, 1].map(|thread| Some(Run::new(&program, &inputs[thread]))), memory());
        let (mut seen, mut next) = (vec![begin.clone()], vec![begin]);
        while let Some((runs, memory)) = next.pop() {
            let (found, overflow) = read(rows, &memory);
            let hits: u64 = found.values().flatten().sum();
            let ended = runs.iter().filter(|run| run.is_none()).count() as u64;
            assert!((ended..=2).contains(&(hits + overflow)), "{rows:?} {found:?} {overflow}\n{program}");
            assert!(found.keys().all(|row| pair.iter().any(|hit| hit.row(rows) == *row)), "{found:?}");
            for thread in 0..2 {
                let (mut runs, mut memory) = (runs.clone(), memory.clone());
                let Some(run) = &mut runs[thread] else { continue };
                // Others see one access at a time; a text that was copied is this hit's own.
                let is_seen =
                    |op: &Op| op.place().is_some() && !matches!(op, Op::Address { .. } | Op::Load { .. });
                let accesses = run.op().is_some_and(is_seen);
                let mut end = run.step(&mut memory);
                while !accesses && end.is_none() && !run.op().is_some_and(is_seen) {
                    end = run.step(&mut memory);
                }
                if end.is_some() {
                    runs[thread] = None;
                }
                let state = (runs, memory);
                if !seen.contains(&state) {
                    seen.push(state.clone());
                    next.push(state);
                }
            }
        }
        assert!(seen.len() > 60, "{}", seen.len());
    }
}
