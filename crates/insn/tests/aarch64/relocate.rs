//! Relocation compared with known words, and words that cannot be relocated.

use trapline_insn::aarch64::{Immovable, Options, Refusal, relocate};

const FROM: u64 = 0x40_0000;
const NEAR: u64 = FROM + 0x1000;
const FAR: u64 = 0x7000_0000_0000;
const NONE: Options = Options { ip_free: false, guarded: false, control_stack: false };
const FREE: Options = Options { ip_free: true, ..NONE };

fn words(word: u32, to: u64, options: Options) -> Vec<u32> {
    relocate(word, FROM, to, options).unwrap_or_else(|why| panic!("{word:#x}: {why}")).words().to_vec()
}

#[test]
fn what_does_not_depend_on_its_place_is_copied() {
    for word in [0xA9BF_7BFD, 0xD100_43FF, 0x9100_03FD, 0xD503_233F, 0xD503_201F, 0xF940_0001] {
        let moved = relocate(word, FROM, FAR, NONE).expect("moves");
        assert_eq!((moved.words(), moved.falls_through, moved.next), (&[word][..], true, FROM + 4));
    }
    // ret, retaa, braa x1, sp: the copies are the same words, and nothing is executed behind them.
    for word in [0xD65F_03C0, 0xD65F_0BFF, 0xD71F_083F] {
        let moved = relocate(word, FROM, FAR, NONE).expect("moves");
        assert_eq!((moved.words(), moved.falls_through), (&[word][..], false));
    }
}

#[test]
fn branches_keep_their_targets() {
    // b .+8 from 0x400000: to 0x400008, which is 0xFF8 below 0x401000.
    assert_eq!(words(0x1400_0002, NEAR, NONE), [0x17FF_FC02]);
    // b.eq .+8: b.ne over the b, which stands one word further.
    assert_eq!(words(0x5400_0040, NEAR, NONE), [0x5400_0041, 0x17FF_FC01]);
    // cbz x3, .+8; tbnz w3, #5, .+8
    assert_eq!(words(0xB400_0043, NEAR, NONE), [0xB500_0043, 0x17FF_FC01]);
    assert_eq!(words(0x3728_0043, NEAR, NONE), [0x3628_0043, 0x17FF_FC01]);
    // b.al never falls through.
    let always = relocate(0x5400_004E, FROM, NEAR, NONE).expect("moves");
    assert_eq!((always.words(), always.falls_through), (&[0x17FF_FC02][..], false));
}

#[test]
fn a_call_leaves_the_original_return_address() {
    // bl .+8: adr x30, 0x400004; b 0x400008
    assert_eq!(words(0x9400_0002, NEAR, NONE), [0x10FF_803E, 0x17FF_FC01]);
    // blr x3 far away: movz, movk x30; br x3
    assert_eq!(words(0xD63F_0060, FAR, NONE), [0xD280_009E, 0xF2A0_081E, 0xD61F_0060]);
    // blr x30 needs another register.
    assert_eq!(relocate(0xD63F_03C0, FROM, NEAR, NONE), Err(Immovable::CallByLink));
    assert_eq!(words(0xD63F_03C0, NEAR, FREE), [0xAA1E_03F0, 0x10FF_801E, 0xD61F_0200]);
}

#[test]
fn a_branch_out_of_reach_needs_x16() {
    let target = FROM + 8;
    assert_eq!(relocate(0x1400_0002, FROM, FAR, NONE), Err(Immovable::OutOfReach { target }));
    assert_eq!(words(0x1400_0002, FAR, FREE), [0xD280_0110, 0xF2A0_0810, 0xD61F_0200]);
    // Into a guarded page, where `b` may land anywhere and `br` may not.
    let guarded = Options { guarded: true, ..FREE };
    assert_eq!(words(0x1400_0002, FAR, guarded), [0xD280_0110, 0xF2A0_0810, 0xD65F_0200]);
    let followed = Options { control_stack: true, ..guarded };
    assert_eq!(relocate(0x1400_0002, FROM, FAR, followed), Err(Immovable::OutOfReach { target }));
    // At a call the register is free in any case.
    assert_eq!(words(0x9400_0002, FAR, NONE).len(), 5);
}

#[test]
fn the_longest_copy_fits() {
    let moved = relocate(0x9400_0002, 0x7123_4567_89AC_DEF0, 0x10, NONE).expect("moves");
    assert_eq!(moved.words().len(), 9);
}

#[test]
fn a_vector_literal_borrows_x16() {
    // ldr q0, .+16: str x16, [sp, #-16]!; x16 := 0x400010; ldr q0, [x16]; ldr x16, [sp], #16
    let copy = [0xF81F_0FF0, 0xD280_0210, 0xF2A0_0810, 0x3DC0_0200, 0xF841_07F0];
    assert_eq!(words(0x9C00_0080, FAR, NONE), copy);
    assert_eq!(words(0x9C00_0080, FAR, FREE), copy[1..4]);
}

#[test]
fn what_takes_no_probe_says_why() {
    let reasons = [
        (0xD420_0000, Refusal::Breakpoint),
        (0xD400_0001, Refusal::SystemCall),
        (0xD440_0000, Refusal::Halt),
        (0xC85F_7C01, Refusal::Exclusive),
        (0xD63F_083F, Refusal::AuthenticatedCall),
        (0xD69F_03E0, Refusal::Privileged),
        (0xD503_403F | 0x5 << 16, Refusal::Privileged),
        (0xDAC1_A3FE, Refusal::SignsAddress),  // paciasppc
        (0xF380_003F, Refusal::SignsAddress),  // autiasppc
        (0xD503_24FF, Refusal::SignsAddress),  // pacm
        (0x5500_001F, Refusal::SignsAddress),  // retaasppc
        (0x7400_0000, Refusal::CompareBranch), // cbgt w0, w0
        (0x1D00_0400, Refusal::MemoryCopy),    // cpyfm
        (0, Refusal::Undefined),
    ];
    for (word, why) in reasons {
        let got = relocate(word, FROM, NEAR, FREE);
        assert_eq!(got, Err(Immovable::Refused(why)), "{word:#x}");
    }
    assert_eq!(
        relocate(0x9400_0002, FROM, NEAR, Options { control_stack: true, ..FREE }),
        Err(Immovable::ControlStack)
    );
    assert_eq!(relocate(0xD503_201F, FROM + 2, NEAR, FREE), Err(Immovable::Misaligned { addr: FROM + 2 }));
    assert_eq!(relocate(0xD503_201F, FROM, NEAR + 1, FREE), Err(Immovable::Misaligned { addr: NEAR + 1 }));
}
