//! Compact rings: what words say, and what no word may do.

extern crate std;

use std::vec;
use std::vec::Vec;

use super::{
    AT_ONCE, CONTEXT, CallRecord, Found, PROBE_SHIFT, Reading, THREAD_SHIFT, TIME_BITS, TIME_SHIFT, WORD,
};
use super::{WORDS_SHIFT, context_of};
use crate::ring::{HEAD, RecordKind, RingArea, SLOTS, TAIL};
use crate::sync::AtomicU64;
use crate::view::View;

const AREA: RingArea = RingArea { off: 64, rings: 2, slot: WORD, most: WORD, bytes: 64 };
const TIME: u64 = 5 << TIME_BITS | 77;

fn record(kind: RecordKind, probe: u64, time: u64) -> u64 {
    time << TIME_SHIFT | probe << PROBE_SHIFT | 0x1230 & super::STACK_BITS | kind as u64
}
fn context(tid: u64, time: u64) -> u64 {
    time >> TIME_BITS << TIME_BITS | tid << THREAD_SHIFT | CONTEXT
}

/// WORD-1
#[test]
fn a_context_gives_the_records_behind_it_their_thread_and_time() {
    let mut reading = Reading::default();
    assert_eq!(reading.next(record(RecordKind::Entry, 7, TIME), 0), Found::Nothing, "no context yet");
    assert_eq!(reading.next(context(4_000_000, TIME), 0), Found::Context);
    for (kind, probe) in [(RecordKind::Entry, 0), (RecordKind::Return, 7), (RecordKind::Tail, (1 << 20) - 1)]
    {
        let found = CallRecord { kind, probe, tid: 4_000_000, ticks: TIME, place: 0x23, has_values: false };
        assert_eq!(reading.next(record(kind, probe.into(), TIME), TIME - 9), Found::Record(found));
    }
    assert_eq!(reading.thread(), Some(4_000_000));
}

/// WORD-1: a head holds ten bits of the epoch. If as much time goes by in silence, the reader's own clock says it.
#[test]
fn silence_for_all_epochs_of_a_head_is_seen() {
    let mut reading = Reading::default();
    assert_eq!(reading.next(context(9, TIME), 0), Found::Context);
    let later = TIME + 3 * super::TURN + 5;
    for floor in [later - 100, later - super::TURN / 3] {
        let mut again = reading;
        let Found::Record(found) = again.next(record(RecordKind::Entry, 1, later), floor) else { panic!() };
        assert_eq!(found.ticks, later);
        let Found::Record(found) = again.next(record(RecordKind::Entry, 1, later + 1), floor) else {
            panic!()
        };
        assert_eq!(found.ticks, later + 1, "the epoch stays found");
    }
    assert_eq!(context_of(9, TIME), context_of(9, later), "so no context is written");
}

/// WORD-2
#[test]
fn no_word_is_read_as_more_than_it_says() {
    let mut reading = Reading::default();
    let mut word = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..100_000 {
        word = word.wrapping_mul(0xD134_2543_DE82_EF95).rotate_left(17) ^ 0x51;
        match reading.next(word, word) {
            Found::Record(found) => {
                assert!(found.probe < 1 << 20 && found.place < 64 && matches!(word & 15, 0 | 1 | 2 | 4 | 5))
            }
            Found::Context => assert_eq!(word & 15, CONTEXT),
            Found::Nothing => assert!(word & 15 > 5 || reading.thread().is_none()),
        }
    }
}

#[test]
fn words_are_taken_in_order_around_the_rings_end() {
    let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let view = View::new(&words);
    let (mut tail, mut next) = (u64::from(u32::MAX) - 2, 100);
    let at = AREA.ring(1);
    view.set(at + TAIL, tail << WORDS_SHIFT);
    for round in [3, 8, 1, 5] {
        for nth in 0..round {
            view.set(at + SLOTS + (tail + nth) * 8 % 64, next + nth);
        }
        view.set(at + HEAD, (tail + round) << WORDS_SHIFT | 55);
        assert_eq!(AREA.words_ahead(view, 1, &mut tail), Ok(round));
        let mut into = vec![0; round as usize * 8];
        assert!(!AREA.take_words_of(view, 1, &mut tail, &mut into));
        let taken: Vec<u64> =
            into.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8"))).collect();
        assert_eq!(taken, (next..next + round).collect::<Vec<_>>());
        assert_eq!(view.get(at + TAIL) >> WORDS_SHIFT, tail & u64::from(u32::MAX));
        next += round;
    }
    assert_eq!(view.get(at + super::SEQUENCE), 4);
    view.set(at + super::WAITERS, 1);
    assert!(AREA.release(view, 1) && !AREA.release(view, 1));
}

/// WORD-2
#[test]
fn a_head_that_is_too_far_ahead_is_broken_once() {
    let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let view = View::new(&words);
    let mut tail = 3;
    view.set(AREA.ring(0) + HEAD, 12 << WORDS_SHIFT);
    assert!(AREA.words_ahead(view, 0, &mut tail).is_err());
    assert_eq!((AREA.words_ahead(view, 0, &mut tail), tail), (Ok(0), 12));
    assert_eq!(AREA.full_words() + AT_ONCE, 64 / WORD + 1);
    // With values, room is asked for the longest hit; the rings lie as close as without.
    let longer = RingArea { most: 5 * WORD, ..AREA };
    assert_eq!((longer.full_words() + 5, longer.stride()), (64 / WORD + 1, AREA.stride()));
}

/// WORD-1
#[test]
fn an_entry_says_that_values_follow_and_a_return_has_one() {
    let mut reading = Reading::default();
    assert_eq!(reading.next(context(9, TIME), 0), Found::Context);
    for (kind, many) in [(RecordKind::Entry, 11), (RecordKind::Return, 1)] {
        let plain = record(kind, 7, TIME);
        for (word, values) in [(plain, 0), (plain | super::VALUES, many)] {
            let Found::Record(found) = reading.next(word, 0) else { panic!("{word:x}") };
            let known = super::Behind { fixed: 11, texts: 0 };
            assert_eq!((found.kind, found.probe), (kind, 7));
            assert_eq!(found.values(known, &[[0; 8]; 20]), Some(values));
            assert_eq!(found.values(known, &[]), (values == 0).then_some(0));
        }
    }
    let tail = record(RecordKind::Tail, 7, TIME) | super::VALUES;
    assert_eq!(reading.next(tail, 0), Found::Nothing, "no stub writes it");
}
