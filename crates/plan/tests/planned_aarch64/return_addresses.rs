//! Functions with a return address that may be replaced, and those that keep it.

use super::{
    BIAS, BTI_C, CBZ, NOP, PACIASP, PUSH, RET, SVC, kinds, latency, library, request, space, timed, traits,
    word,
};
use trapline_image::FunctionIndex;
use trapline_plan::{Action, ActionRequest, LatencyInput, PatchRole, ProcessTraits};
use trapline_record::trampolines::Trampolines;

/// Functions that may return early, and read the return address many instructions later: `mov x0, x30`.
#[test]
fn what_is_too_long_to_be_looked_at_keeps_it() {
    use trapline_plan::aarch64::may_arm;
    const MOST: usize = 1 << 16;
    for (words, says) in [(MOST, "more may follow than is looked at"), (MOST - 8, "reads the return address")]
    {
        let long = [&[CBZ, RET][..], &vec![NOP; words], &[0xAA1E_03E0, RET]].concat();
        let image = library(&[&long]);
        let why = may_arm(&image, image.function(FunctionIndex(0)), BIAS).expect_err("refused");
        assert!(why.kind() == "no-slot" && why.to_string().contains(says), "{words}: {why}");
    }
}

#[test]
fn return_addresses_are_replaced_behind_the_pads_or_kept_by_name() {
    const POP: u32 = 0xA8C1_7BFD;
    const AUTIASP: u32 = 0xD503_23BF;
    /// `cbz x0` to the word before it; `xpaclri`; `br x1`.
    const BACK: u32 = 0xB400_0000 | 0x7_FFFF << 5;
    const STRIP: u32 = 0xD503_20FF;
    const JUMP: u32 = 0xD61F_0020;
    let image = library(&[
        &[NOP, RET],
        &[BTI_C, PACIASP, PUSH, POP, AUTIASP, RET],
        &[NOP, JUMP, RET],
        &[BTI_C, NOP, BACK, RET],
        &[STRIP, RET],
        &[SVC, RET],
    ]);
    let requests: Vec<ActionRequest> = (0..6)
        .map(|n| ActionRequest { latency: Some(n), ..request(n, Action::LatencyByTrampoline) })
        .collect();
    let trampolines = Trampolines { code: 0x2000_0000_0000, table: 0x2000_1000_0000, count: 64 };
    let input = LatencyInput { trampolines: Some(trampolines), ..latency() };
    let plan = timed(&image, &traits(), &space(), &requests, Some(input));
    let found: Vec<(u64, PatchRole)> = plan.patches.iter().map(|p| (BIAS.stated(p.addr).0, p.role)).collect();
    assert_eq!(found, [0x1000, 0x1010, 0x1020].map(|at| (at, PatchRole::Entry)));
    assert_eq!(kinds(&plan), ["no-slot"; 3]);
    // A signed address is authenticated first, and signed again before the displaced word.
    let words =
        |nth: usize| -> Vec<u32> { plan.chunk_bytes(&plan.chunks[nth]).chunks_exact(4).map(word).collect() };
    let signed = words(1);
    let copy = signed.iter().position(|word| *word == PUSH).expect("the word itself");
    assert_eq!((signed[0], signed[copy - 1]), (AUTIASP, PACIASP));
    assert!([0, 2].into_iter().flat_map(words).all(|word| ![AUTIASP, PACIASP].contains(&word)));
    let traits = ProcessTraits { go: true, ..traits() };
    let plan = timed(&image, &traits, &space(), &requests[..1], Some(input));
    assert_eq!(kinds(&plan), ["not-on-arm64"]);
}

/// Functions that look at their return address keep it.
#[test]
fn a_function_that_looks_at_its_return_address_keeps_it() {
    use trapline_plan::aarch64::may_arm;
    const POP: u32 = 0xA8C1_7BFD;
    const STRIP: u32 = 0xD503_20FF;
    /// `bl` by this many words.
    const fn bl(words: i32) -> u32 {
        0x9400_0000 | words.cast_unsigned() & 0x03FF_FFFF
    }
    const fn b(words: i32) -> u32 {
        bl(words) & !(1 << 31)
    }
    let cases: &[(&[u32], &str)] = &[
        (&[NOP, RET], ""),
        (&[PACIASP, PUSH, bl(100), POP, 0xD503_23BF, RET], ""),
        // A jump to another function; x30 then holds the return address for it.
        (&[NOP, b(100)], ""),
        // `mov x8, #172; svc #0`
        (&[0xD280_1588, SVC, RET], ""),
        // Behind a call x30 has another value; a read of it is not a read of the return address: `mov x0,
        // x30`.
        (&[PUSH, bl(100), 0xAA1E_03E0, POP, RET], ""),
        (&[0xAA1E_03E0, RET], "reads the return address"),
        (&[PUSH, bl(100), POP, 0xAA1E_03E0, RET], "reads the return address"),
        // `stp x29, x30, [x0, #80]`
        (&[0xA905_781D, RET], "reads the return address"),
        (&[PUSH, STRIP, POP, RET], "looks at a return address"),
        // `mov x29, sp; ldr x0, [x29, #8]`
        (&[PUSH, 0x9100_03FD, bl(100), 0xF940_07A0, POP, RET], "from its frame"),
        // The same with `ldp x0, x1, [x29]`; and a load back into x30.
        (&[PUSH, 0x9100_03FD, bl(100), 0xA940_07A0, POP, RET], "from its frame"),
        (&[PUSH, 0x9100_03FD, bl(100), 0xA940_7BBD, RET], ""),
        // `mov x8, #220; svc #0`
        (&[0xD280_1B88, SVC, RET], "may return twice"),
        (&[SVC, RET], "may return twice"),
        (&[NOP, CBZ & !(0x7_FFFF << 5) | (0x7_FFFF << 5), RET], "leads back to the first"),
        (&[NOP, bl(100)], "no return is found"),
        // `br x16` alone; and with code behind it that a jump table may lead to.
        (&[NOP, 0xD61F_0200], "no return is found"),
        (&[NOP, 0xD61F_0200, RET], ""),
        // A jump to a function that looks at its return address, as `setjmp` does.
        (&[NOP, b(1)], "reads the return address"),
        (&[0xF900_2C1E, RET], "reads the return address"),
    ];
    let functions: Vec<&[u32]> =
        [&[NOP, RET][..]].into_iter().chain(cases.iter().map(|case| case.0)).collect();
    let image = library(&functions);
    for (index, (words, says)) in (1..).zip(cases) {
        let why = may_arm(&image, image.function(FunctionIndex(index)), BIAS);
        match why {
            Ok(()) => assert!(says.is_empty(), "{words:08x?}: {says}"),
            Err(why) => {
                assert!(!says.is_empty() && why.to_string().contains(says), "{words:08x?}: {why}");
                assert_eq!(why.kind(), "no-slot");
            }
        }
    }
}
