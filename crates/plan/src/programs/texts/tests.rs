//! HIT-4 by the interpreter: what counts of a text, whole comparison, and a hit in between at each step of another one.

use trapline_code::{Bytes, End, Program, Run, interpret_in};
use trapline_record::key_texts::TextTable;
use trapline_record::maps::{FIRST, LIVE};
use trapline_record::tally::{PROBES, TEXT_BYTES};

use super::{LENGTH, NO_ROOM, UNKNOWN, number};
use crate::hit::{TextLength, TextOfKey, input};
use crate::programs::TEXT;

const TABLE: u64 = 0x10000;
const TEXTS: TextTable = TextTable { is_there: true };
/// Behind the table: copies of two hits.
const COPIES: u64 = TABLE + TEXTS.len();
const COPY: u64 = 8 + TEXT_BYTES as u64;
const ENDED: TextOfKey = TextOfKey { argument: 0, ends: true, length: TextLength::AtMost(64) };

fn inputs(copy: u64, length: u64) -> Vec<u64> {
    let mut inputs = vec![0; 30];
    inputs[usize::from(TEXT)] = COPIES + copy * COPY;
    inputs[usize::from(LENGTH)] = length;
    inputs[usize::from(input::TEXTS)] = TABLE;
    inputs
}
fn memory() -> Bytes {
    Bytes { at: TABLE, bytes: vec![0; (TEXTS.len() + 2 * COPY) as usize] }
}
/// What the kernel leaves: its result, and the bytes; others behind them.
fn copied(memory: &mut Bytes, copy: u64, (bytes, result): (&[u8], i64)) {
    let at = (TEXTS.len() + copy * COPY) as usize;
    memory.bytes[at..at + 8].copy_from_slice(&result.to_le_bytes());
    let room = &mut memory.bytes[at + 8..at + COPY as usize];
    room.fill(b'~');
    room[..bytes.len()].copy_from_slice(bytes);
}
fn hit(program: &Program, memory: &mut Bytes, bytes: &[u8]) -> End {
    copied(memory, 0, (bytes, bytes.len() as i64));
    interpret_in(program, &inputs(0, 0), memory)
}
/// The text of a number, if its entry is published.
fn text(memory: &Bytes, number: u64) -> Option<Vec<u8>> {
    let entry = TABLE + number;
    (memory.word(entry) == LIVE).then(|| {
        let length = memory.word(entry + 16) as usize;
        let words = (0..TEXT_BYTES as u64 / 8).map(|nth| memory.word(entry + 24 + nth * 8).to_le_bytes());
        let bytes: Vec<u8> = words.flatten().collect();
        assert!(length == 0 || bytes[length..].iter().all(|byte| *byte == 0), "zeros follow");
        bytes[..length].to_vec()
    })
}
/// Texts whose search begins at one entry.
fn neighbours(program: &Program, count: usize) -> Vec<Vec<u8>> {
    let first = |text: &Vec<u8>| {
        let mut memory = memory();
        hit(program, &mut memory, text).result.expect("a number")
    };
    let all = (0..u32::MAX).map(|nth| nth.to_string().into_bytes());
    let one = first(&b"0".to_vec());
    all.filter(|text| first(text) == one).take(count).collect()
}

#[test]
fn what_counts_of_a_text_is_what_the_language_says() {
    let long = [b'x'; TEXT_BYTES];
    for (text_of_key, length, read, whole) in [
        (ENDED, 0, &b"abc\0def"[..], &b"abc"[..]),
        (ENDED, 0, b"abc", b"abc"),
        (ENDED, 0, &long, &long),
        (TextOfKey { length: TextLength::AtMost(2), ..ENDED }, 0, b"abc\0", b"ab"),
        (TextOfKey { ends: false, ..ENDED }, 0, b"a\0b", b"a\0b"),
        (TextOfKey { ends: false, length: TextLength::Argument(1), ..ENDED }, 2, b"a\0b", b"a\0"),
        (TextOfKey { ends: false, length: TextLength::Argument(1), ..ENDED }, 0, b"ab", b""),
        (TextOfKey { ends: false, length: TextLength::Argument(1), ..ENDED }, u64::MAX, b"ab", b""),
        (TextOfKey { ends: false, length: TextLength::Argument(1), ..ENDED }, 1 << 40, b"ab", b"ab"),
    ] {
        let (program, mut memory) = (number(text_of_key, 0).expect("sound"), memory());
        copied(&mut memory, 0, (read, read.len() as i64));
        let end = interpret_in(&program, &inputs(0, length), &mut memory);
        assert_eq!(end.outcome, 0);
        assert_eq!(text(&memory, end.result.expect("a number")).as_deref(), Some(whole), "{text_of_key:?}");
    }
    // What the program could not have read is empty; what failed otherwise is not known.
    let (program, mut memory) = (number(ENDED, 0).expect("sound"), memory());
    for (result, outcome) in [(-14, 0), (-1, UNKNOWN)] {
        copied(&mut memory, 0, (b"", result));
        let end = interpret_in(&program, &inputs(0, 0), &mut memory);
        assert_eq!(end.outcome, outcome);
        end.result.into_iter().for_each(|number| assert_eq!(text(&memory, number), Some(Vec::new())));
    }
}

#[test]
fn hit_4_a_number_stands_for_one_text_until_there_is_no_room() {
    let (program, mut memory) = (number(ENDED, 0).expect("sound"), memory());
    let all = neighbours(&program, PROBES as usize + 1);
    let (with, without) = all.split_at(PROBES as usize);
    let numbers: Vec<u64> =
        with.iter().map(|text| hit(&program, &mut memory, text).result.expect("room")).collect();
    for (one, number) in with.iter().zip(&numbers) {
        assert_eq!(text(&memory, *number).as_ref(), Some(one));
        assert_eq!(hit(&program, &mut memory, one).result, Some(*number), "the same again");
    }
    assert!(without.iter().all(|text| hit(&program, &mut memory, text).outcome == NO_ROOM));
    assert_eq!(memory.word(TABLE), without.len() as u64);
    // An entry with the same hash and length, and another byte, is another text's.
    let entry = TABLE + numbers[0];
    memory.set_word(entry + 24, memory.word(entry + 24) ^ 1);
    assert_eq!(hit(&program, &mut memory, &with[0]).outcome, NO_ROOM);
    assert!(numbers[0] >= FIRST);
}

/// One hit stops before each of its steps, and for ever in half of the cases; a whole one with the same text or another
/// comes between. `publishes_early`: a twin that must fail publishes an entry before its bytes are there.
fn in_between(publishes_early: bool) -> bool {
    let program = number(ENDED, 0).expect("sound");
    let texts = neighbours(&program, 2);
    let mut sound = true;
    for (other, goes_on) in [(0, true), (1, true), (0, false), (1, false)] {
        for steps in 0.. {
            let mut memory = memory();
            copied(&mut memory, 0, (&texts[0], texts[0].len() as i64));
            copied(&mut memory, 1, (&texts[other], texts[other].len() as i64));
            let [first, second] = [0, 1].map(|copy| inputs(copy, 0));
            let mut run = Run::new(&program, &first);
            let mut end = None;
            for _ in 0..steps {
                end = end.or_else(|| run.step(&mut memory));
            }
            if publishes_early {
                let all =
                    (0..TEXTS.shape().entries()).map(|nth| TABLE + FIRST + nth * TEXTS.shape().stride());
                let taking: Vec<u64> = all.filter(|entry| memory.word(*entry) >> 63 == 1).collect();
                taking.into_iter().for_each(|entry| memory.set_word(entry, LIVE));
            }
            // What a reader finds now.
            let all = (0..TEXTS.shape().entries()).map(|nth| FIRST + nth * TEXTS.shape().stride());
            let mut live = all.filter_map(|number| text(&memory, number));
            sound &= live.all(|one| texts.contains(&one));
            let between = interpret_in(&program, &second, &mut memory).result.expect("room");
            sound &= text(&memory, between).as_ref() == Some(&texts[other]);
            while goes_on && end.is_none() {
                end = run.step(&mut memory);
            }
            if let (true, Some(end)) = (goes_on, &end) {
                sound &= text(&memory, end.result.expect("room")).as_ref() == Some(&texts[0]);
                sound &= text(&memory, between).as_ref() == Some(&texts[other]);
            }
            sound &= memory.word(TABLE) == 0;
            if end.is_some() && goes_on || steps > 500 {
                break;
            }
        }
    }
    sound
}

#[test]
fn hit_4_a_hit_in_between_has_its_own_text() {
    assert!(in_between(false));
}

#[test]
fn hit_4_an_entry_that_is_published_before_its_bytes_would_show_another_text() {
    assert!(!in_between(true));
}
