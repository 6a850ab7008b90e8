//! Packed texts, by the interpreter, beside what `record::calls` reads.

use trapline_code::{Bytes, Run};
use trapline_record::calls::{Behind, FAILED, FAULT, MOST_BYTES};

use super::super::records::{Part, Texts, input};
use super::{STRIDE, TEXTS_AT, USED_AT};

const AT: u64 = 0x1000;
const COPIES: u64 = AT + 64;

/// A text as the kernel copied it: its result, and bytes that are there.
struct Copied {
    result: i64,
    bytes: Vec<u8>,
}

fn copied(result: i64, bytes: &[u8]) -> Copied {
    let mut all = bytes.to_vec();
    // What was on the stack before has zeros, too.
    all.extend([0xee, 0, 0xdd]);
    all.resize(MOST_BYTES as usize, 0xcc);
    Copied { result, bytes: all }
}

/// Runs the program; returns the texts' words.
fn packed(texts: &[Copied], ended: u8) -> Vec<[u8; 8]> {
    let many = texts.len() as u8;
    let program = Part::Packed(Texts { many, ended }).program().expect("sound");
    let mut memory = Bytes { at: AT, bytes: vec![0xaa; 64 + texts.len() * STRIDE as usize + 7] };
    let mut fill = |at: u64, bytes: &[u8]| {
        let at = (at - AT) as usize;
        memory.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    };
    for (nth, text) in (0..).zip(texts) {
        let at = COPIES + nth * STRIDE as u64;
        fill(at, &text.result.to_le_bytes());
        fill(at + 8, &text.bytes);
    }
    let inputs: Vec<u64> =
        (0..=input::COPIES).map(|nth| if nth == input::COPIES { COPIES } else { 7 }).collect();
    let mut run = Run::new(&program, &inputs);
    while run.step(&mut memory).is_none() {}
    let used = memory.word(COPIES.wrapping_add_signed(USED_AT.into())) as usize;
    let from = (COPIES - AT) as usize + TEXTS_AT as usize;
    memory.bytes[from..from + 8 * used].as_chunks::<8>().0.to_vec()
}

/// What a reader finds: the first byte, and the bytes that count.
fn found(words: &[[u8; 8]], texts: u8) -> Vec<(u8, Vec<u8>)> {
    let mut rest = words;
    (0..texts)
        .map(|_| {
            let len = Behind { fixed: 0, texts: 1 }.len(rest).expect("a text");
            let (text, behind) = rest.split_at(len);
            rest = behind;
            let bytes = text.concat();
            let counts = if u64::from(bytes[0]) == FAILED { 4 } else { usize::from(bytes[0] & 0x7f) };
            (bytes[0], bytes[1..=counts].to_vec())
        })
        .collect()
}

#[test]
fn each_length_is_found_and_takes_its_words() {
    for length in 0..=64_usize {
        let bytes: Vec<u8> = (0..length).map(|nth| 1 + (nth * 37 % 255) as u8).collect();
        let whole = [&bytes[..], &[0]].concat();
        let text = |result: usize| copied(result as i64, &whole[..whole.len().min(64)]);
        let words = packed(&[text(64)], 1);
        assert_eq!(words.len(), length / 8 + 1);
        assert_eq!(found(&words, 1), [(length as u8, bytes.clone())]);
        // The memory ends in front of the 0, or behind it.
        if length < 64 {
            assert_eq!(found(&packed(&[text(length)], 1), 1), [(FAULT as u8 | length as u8, bytes.clone())]);
            assert_eq!(found(&packed(&[text(length + 1)], 1), 1), [(length as u8, bytes)]);
        }
    }
}

/// A byte of 0x80 or 0x01 is no end, and neither is what is behind one.
#[test]
fn only_a_zero_ends_a_text() {
    let bytes = b"\x80\x01\x81\xff\x01\x01\x80\x80\x01\0\x01\0";
    assert_eq!(found(&packed(&[copied(64, bytes)], 1), 1), [(9, bytes[..9].to_vec())]);
}

#[test]
fn what_cannot_be_read_says_so() {
    assert_eq!(found(&packed(&[copied(-14, b"old")], 1), 1), [(FAULT as u8, vec![])]);
    assert_eq!(found(&packed(&[copied(0, b"old")], 1), 1), [(FAULT as u8, vec![])]);
    let error = (-1_i32).to_le_bytes().to_vec();
    for ended in [0, 1] {
        assert_eq!(found(&packed(&[copied(-1, b"old")], ended), 1), [(FAILED as u8, error.clone())]);
    }
}

/// Texts of bytes do not end at a 0.
#[test]
fn bytes_are_whole() {
    let text = copied(64, b"a\0b");
    let bytes = text.bytes.clone();
    assert_eq!(found(&packed(&[text], 0), 1), [(64, bytes)]);
    assert_eq!(found(&packed(&[copied(2, b"a\0b")], 0), 1), [(FAULT as u8 | 2, b"a\0".to_vec())]);
}

/// Six texts of any lengths stand one behind the other, whichever of them are long.
#[test]
fn texts_stand_one_behind_the_other() {
    let lengths = [0, 6, 7, 8, 33, 63];
    let mut seed = 7_u64;
    for round in 0..2000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let of = |nth: usize| lengths[(seed >> (8 + 4 * nth)) as usize % lengths.len()];
        let ended = (seed >> 40) as u8 & 0x3f;
        let texts: Vec<Vec<u8>> = (0..6).map(|nth| vec![b'a' + nth as u8; of(nth)]).collect();
        let all: Vec<Copied> = texts.iter().map(|text| copied(64, &[&text[..], &[0]].concat())).collect();
        let expected: Vec<(u8, Vec<u8>)> = (0..6)
            .map(|nth| match ended >> nth & 1 {
                1 => (texts[nth].len() as u8, texts[nth].clone()),
                _ => (64, all[nth].bytes.clone()),
            })
            .collect();
        assert_eq!(found(&packed(&all, ended), 6), expected, "{round}");
    }
}
