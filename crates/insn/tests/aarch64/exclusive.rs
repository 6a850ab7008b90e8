//! Exclusive sequences, as compilers write them and in other forms.

use trapline_insn::aarch64::{Refusal, Verdict, decode, in_exclusive};

const NOP: u32 = 0xD503_201F;
const LDXR: u32 = 0xC85F_7C01; // ldxr x1, [x0]
const STXR: u32 = 0xC802_7C01; // stxr w2, x1, [x0]
const CLREX: u32 = 0xD503_3F5F;
const RET: u32 = 0xD65F_03C0;
const BL: u32 = 0x9400_0400;

const fn cbnz(offset: i32) -> u32 {
    0x3500_0002 | ((offset / 4) as u32 & 0x7_FFFF) << 5
}
const fn bne(offset: i32) -> u32 {
    0x5400_0001 | ((offset / 4) as u32 & 0x7_FFFF) << 5
}
const fn b(offset: i32) -> u32 {
    0x1400_0000 | (offset / 4) as u32 & 0x03FF_FFFF
}

fn inside(words: &[u32]) -> Vec<usize> {
    (0..words.len()).filter(|&at| in_exclusive(words, at)).collect()
}

#[test]
fn a_loop_of_load_and_store() {
    //            0    1     2    3     4          5
    let words = [NOP, LDXR, NOP, STXR, cbnz(-12), RET];
    assert_eq!(inside(&words), [1, 2, 3]);
}

#[test]
fn compare_and_swap_with_its_way_out() {
    // ldaxr; cmp; b.ne out; stlxr; cbnz; ret; out: clrex; ret
    let words = [0xC85F_FC01, NOP, bne(16), 0xC802_FC01, cbnz(-16), RET, CLREX, RET];
    assert_eq!(inside(&words), [0, 1, 2, 3]);
}

#[test]
fn a_sequence_that_is_not_one_stretch() {
    // ldxr; b there; back: nop; ret; there: nop; stxr; b back
    let words = [LDXR, b(12), NOP, RET, NOP, STXR, b(-16)];
    assert_eq!(inside(&words), [0, 1, 4, 5]);
}

#[test]
fn calls_inside_are_stepped_over() {
    assert_eq!(inside(&[LDXR, BL, STXR, RET]), [0, 1, 2]);
}

#[test]
fn a_load_alone_and_a_cleared_monitor_hold_nothing() {
    assert_eq!(inside(&[LDXR, NOP, RET, NOP]), [0; 0]);
    assert_eq!(inside(&[LDXR, NOP, CLREX, NOP, RET]), [0; 0]);
}

#[test]
fn far_words_and_odd_places_do_no_harm() {
    let mut words = vec![NOP; 1000];
    words[0] = LDXR;
    words[100] = STXR;
    words[400] = b(-4 * 400);
    words[999] = b(4 * 0x1FF_FFFF);
    assert!(in_exclusive(&words, 50));
    assert!(!in_exclusive(&words, 300));
    assert!(!in_exclusive(&words, 399));
    assert!(!in_exclusive(&words, 999));
    assert!(!in_exclusive(&words, 5000));
    assert!(!in_exclusive(&[], 0));
}

#[test]
fn exclusives_themselves_are_refused_and_other_atomics_are_not() {
    let exclusives =
        [LDXR, STXR, 0xC85F_FC01, 0xC802_FC01, 0x085F_7C01, 0x885F_7C01, 0xC87F_0801, 0xC822_0801];
    for word in exclusives {
        assert_eq!(decode(word), Verdict::Refuse(Refusal::Exclusive), "{word:#x}");
    }
    // ldadd, cas, casp, ldar, stlr.
    for word in [0xF820_0020, 0xC8A0_7C20, 0x4820_7C82, 0xC8DF_FC20, 0xC89F_FC20] {
        assert!(matches!(decode(word), Verdict::OutOfLine(_)), "{word:#x}: {:?}", decode(word));
    }
}
