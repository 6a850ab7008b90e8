//! Words that may be patched while they run, landing pads, padding.

use trapline_insn::aarch64::{LandingPad, landing_pad, may_patch_live, padding_len};

const NOP: u32 = 0xD503_201F;
const B: u32 = 0x1400_0010;

#[test]
fn only_the_few_words_of_the_manual_are_patched_live() {
    let live =
        [NOP, B, 0x9400_0001, 0xD420_0000, 0xD43F_FFE0, 0xD400_0001, 0xD400_0002, 0xD400_0003, 0xD503_3FDF];
    let others = [
        0xA9BF_7BFD, // stp x29, x30, [sp, #-16]!
        0xD503_203F, // yield
        0xD503_233F, // paciasp
        0xD503_245F, // bti c
        0x5400_0000, // b.eq
        0xD61F_0200, // br x16
        0xD65F_03C0, // ret
        0xD440_0000, // hlt
        0xD503_3F9F, // dsb sy
        0,
    ];
    for &old in &live {
        assert!(live.iter().all(|&new| may_patch_live(old, new)), "{old:#x}");
        assert!(!others.iter().any(|&new| may_patch_live(old, new) || may_patch_live(new, old)), "{old:#x}");
    }
}

#[test]
fn landing_pads_are_recognized_by_what_lands_on_them() {
    let pads = [
        (0xD503_245F, Some(LandingPad::Calls)),
        (0xD503_233F, Some(LandingPad::Calls)), // paciasp
        (0xD503_237F, Some(LandingPad::Calls)), // pacibsp
        (0xD503_249F, Some(LandingPad::Jumps)),
        (0xD503_24DF, Some(LandingPad::All)),
        (0xD420_0000, Some(LandingPad::All)), // brk
        (0xD503_241F, None),                  // bti of no kind
        (0xD503_23BF, None),                  // autiasp
        (NOP, None),
        (B, None),
    ];
    for (word, pad) in pads {
        assert_eq!(landing_pad(word), pad, "{word:#x}");
    }
}

#[test]
fn padding_ends_at_the_first_word_that_runs() {
    assert_eq!(padding_len(&[NOP, 0, 0x1234, B, NOP]), 12);
    assert_eq!(padding_len(&[B, NOP]), 0);
    assert_eq!(padding_len(&[]), 0);
}
