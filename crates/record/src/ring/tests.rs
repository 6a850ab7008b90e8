//! Rings as a target fills them, well or badly, and what is taken from them.

extern crate std;
use super::{
    Broken, FIRST_TEXT, HEAD, LOCKED, RecordKind, RingArea, SLOTS, TAIL, TEXT_BYTES, TEXT_WORDS, first_float,
};
use crate::stack::{FIRST, USED};
use crate::sync::AtomicU64;
use crate::view::View;
use std::vec::Vec;

const AREA: RingArea = RingArea { off: 64, rings: 2, slot: 64, most: 64, bytes: 256 };

fn memory() -> [AtomicU64; 104] {
    [const { AtomicU64::new(0) }; 104]
}

#[test]
fn the_layout_is_a_contract() {
    assert_eq!((HEAD, TAIL, SLOTS, LOCKED), (0, 64, 128, 1));
    assert_eq!([1, 2, 64].map(RingArea::shared), [8, 10, 134]);
    assert_eq!((AREA.stride(), AREA.len(), AREA.ring(1)), (384, 768, 448));
    assert_eq!((AREA.values(), RingArea::slot_for(5), RingArea::slot_for(6)), (5, 64, 128));
    assert_eq!(RingArea { slot: 128, most: 128, ..AREA }.values(), 13);
    assert_eq!((FIRST_TEXT, TEXT_WORDS, TEXT_BYTES), (9, 9, 64));
    assert_eq!([1, 2, 3, 6].map(RingArea::slot_for_texts), [256, 256, 512, 512]);
    assert_eq!([first_float(0, 0), first_float(6, 0), first_float(2, 1)], [3, 9, 18]);
    assert_eq!(
        [(2, 0, 3), (2, 0, 4), (6, 1, 8)].map(|(a, t, f)| RingArea::slot_with_floats(a, t, f)),
        [64, 128, 256]
    );
}

#[test]
fn records_are_taken_in_order_over_the_end() {
    let words = memory();
    let view = View::new(&words);
    let (mut tail, mut seen) = (0, Vec::new());
    for round in 0..5u64 {
        for n in 0..3 {
            let head = view.get(AREA.ring(1) + HEAD);
            let at = AREA.ring(1) + SLOTS + head % 256;
            view.set(at, 7 | (round * 3 + n) << 32);
            view.set(at + 8, 1000 + round);
            view.set(at + 16, 0x7000 | RecordKind::Return as u64);
            view.set(at + 56, n);
            view.set(AREA.ring(1) + HEAD, head + 64);
        }
        let mut each = |r: &super::Record| seen.push((r.probe, r.tid, r.ticks, r.kind, r.sp, r.values[4]));
        assert_eq!(AREA.take(view, 1, &mut tail, &mut each), Ok(3));
        assert_eq!(AREA.take(view, 1, &mut tail, &mut each), Ok(0));
        assert_eq!(view.get(AREA.ring(1) + TAIL), tail);
    }
    let expected: Vec<_> = (0..15)
        .map(|n| (7, n, 1000 + u64::from(n) / 3, RecordKind::Return, 0x7000, u64::from(n) % 3))
        .collect();
    assert_eq!(seen, expected);
}

#[test]
fn slots_are_copied_as_they_are_over_the_end() {
    let words = memory();
    let view = View::new(&words);
    let (mut tail, mut n) = (0, 0u64);
    // Five rounds of three slots in a ring of four, taken at once, and then two of them first.
    for least in [3, 2, 1, 3, 2] {
        for _ in 0..3 {
            let head = view.get(AREA.ring(1) + HEAD);
            (0..8).for_each(|word| {
                assert!(view.set(AREA.ring(1) + SLOTS + head % 256 + word * 8, n * 8 + word));
            });
            view.set(AREA.ring(1) + HEAD, head + 64);
            n += 1;
        }
        let mut bytes = Vec::new();
        while let Ok(ahead @ 1..) = AREA.ahead(view, 1, &mut tail) {
            let from = bytes.len();
            bytes.resize(from + (ahead as usize).min(least * 64), 0);
            AREA.take_bytes(view, 1, &mut tail, &mut bytes[from..]);
            assert_eq!(view.get(AREA.ring(1) + TAIL), tail);
        }
        let seen: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(seen, ((n - 3) * 8..n * 8).collect::<Vec<_>>());
    }
    view.set(AREA.ring(1) + HEAD, tail + 64 * 5);
    assert_eq!(AREA.ahead(view, 1, &mut tail), Err(Broken { head: tail, tail: tail - 64 * 5 }));
}

#[test]
fn texts_end_with_their_slot() {
    let words = [const { AtomicU64::new(0) }; 80];
    let view = View::new(&words);
    let area = RingArea { off: 0, rings: 1, slot: 256, most: 256, bytes: 512 };
    (0..64).for_each(|n| assert!(view.set(SLOTS + n * 8, n << 3)));
    view.set(HEAD, 512);
    let (mut tail, mut seen) = (0, Vec::new());
    let taken = area.take_with_texts(view, 0, &mut tail, |_, word| {
        seen.push([word(0), word(22), word(23), word(u64::MAX / 8 - 20)]);
    });
    assert_eq!(taken, Ok(2));
    assert_eq!(seen, [[9 << 3, 31 << 3, 0, 0], [41 << 3, 63 << 3, 0, 0]]);
}

/// Slots of one cache line, records of one to four slots, a ring of eight and the room behind it.
const LONG: RingArea = RingArea { off: 0, rings: 2, slot: 64, most: 256, bytes: 512 };

/// Writes a stack's record of so many words as a stub does; returns whether there was room.
fn stack(view: View<'_>, n: u64, words: u64) -> bool {
    let at = LONG.ring(1);
    let head = view.get(at + HEAD);
    if head - view.get(at + TAIL) >= u64::from(LONG.full()) {
        return false;
    }
    let base = at + SLOTS + head % 512;
    view.set(base, n);
    view.set(base + 16, RecordKind::Entry as u64);
    view.set(base + USED * 8, words * 8);
    (FIRST..words).for_each(|word| assert!(view.set(base + word * 8, n << 8 | word)));
    view.set(at + HEAD, head + (words * 8).next_multiple_of(64))
}

#[test]
fn records_of_any_length_are_taken_whole_over_the_end() {
    assert_eq!((LONG.full(), LONG.stride(), LONG.values()), (320, 128 + 512 + 192, 29));
    let words = [const { AtomicU64::new(0) }; 208];
    let view = View::new(&words);
    let (mut tail, mut n, mut seen, mut dropped) = (0, 0, Vec::new(), 0);
    let lengths = [6, 32, 8, 9, 25, 16, 31, 7, 24, 17, 32, 32, 32, 6, 6];
    for round in 0..60usize {
        for _ in 0..round % 5 {
            n += 1;
            dropped += u64::from(!stack(view, n, lengths[n as usize % lengths.len()]));
        }
        let each = |record: &super::Record, word: &dyn Fn(u64) -> u64| {
            let n = u64::from(record.probe);
            let long = lengths[n as usize % lengths.len()];
            assert_eq!(record.values[0], long * 8);
            assert!((FIRST..long).all(|at| word(at) == n << 8 | at), "{n}");
            assert_eq!(word(long.next_multiple_of(8)), 0, "nothing behind its slots");
            seen.push(n);
        };
        LONG.take_words(view, 1, &mut tail, each).unwrap();
    }
    assert!(seen.is_sorted_by(|a, b| a < b) && dropped > 0 && tail > 4096, "{tail} {dropped}");
    assert_eq!(seen.len() as u64 + dropped, n);
}

#[test]
fn a_length_that_cannot_be_leads_nowhere() {
    let words = [const { AtomicU64::new(0) }; 208];
    let view = View::new(&words);
    let (at, mut tail) = (LONG.ring(1), 0);
    for (used, ends) in [(0, 8), (47, 8), (65, 16), (256, 32), (257, 32), (u64::MAX, 32)] {
        let base = at + SLOTS + tail % 512;
        (0..64).for_each(|word| assert!(view.set(at + SLOTS + word * 8, 8)));
        view.set(base + 16, RecordKind::Entry as u64);
        view.set(base + USED * 8, used);
        view.set(at + HEAD, tail + 256);
        let mut first = None;
        let each = |_: &super::Record, word: &dyn Fn(u64) -> u64| {
            let end = (FIRST..100).find(|&n| word(n) == 0);
            first = first.or(end);
        };
        LONG.take_words(view, 1, &mut tail, each).unwrap();
        assert_eq!(first, Some(ends), "{used}");
        // The taken bytes end before the record does.
        view.set(at + HEAD, tail + 64);
        let mut end = 0;
        let each =
            |_: &super::Record, word: &dyn Fn(u64) -> u64| end = u64::from(word(7) != 0 && word(8) == 0);
        let base = at + SLOTS + tail % 512;
        view.set(base + 16, RecordKind::Entry as u64);
        view.set(base + USED * 8, 256);
        assert_eq!(LONG.take_words(view, 1, &mut tail, each), Ok(1));
        assert_eq!(end, 1);
        tail = tail.wrapping_add(192);
        view.set(at + HEAD, tail);
    }
}

#[test]
fn a_head_that_cannot_be_is_reported_and_taken_up_again() {
    let words = memory();
    let view = View::new(&words);
    let mut tail = 0;
    for head in [66, 384, u64::MAX - 1] {
        view.set(AREA.ring(0) + HEAD, head);
        let was = tail;
        assert_eq!(AREA.take(view, 0, &mut tail, |_| ()), Err(Broken { head, tail: was }));
        assert_eq!(tail, head / 64 * 64);
    }
    view.set(AREA.ring(0) + HEAD, tail | LOCKED);
    assert_eq!(AREA.take(view, 0, &mut tail, |_| unreachable!()), Ok(0), "a writer is in it");
    view.set(AREA.ring(0) + HEAD, tail.wrapping_add(64));
    view.set(AREA.ring(0) + SLOTS + tail % 256 + 16, 3);
    assert_eq!(AREA.take(view, 0, &mut tail, |_| unreachable!()), Ok(1), "kind 3 is none");
}
