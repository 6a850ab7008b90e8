//! Timed functions: their entries and exits.

use super::{BIAS, BTI_C, CBZ, NOP, RET, kinds, latency, library, space, time, timed, traits};
use trapline_plan::{ActionRequest, LatencyInput, PatchRole, ProcessTraits};

#[test]
fn each_way_out_of_a_timed_function_has_a_stub() {
    /// `b` by this many words.
    const fn b(words: i32) -> u32 {
        0x1400_0000 | words.cast_unsigned() & 0x03FF_FFFF
    }
    // A function that jumps to the second one; the second, which jumps to the first one's second word; a
    // single return; and a function with a last word that jumps to no function.
    let image = library(&[&[BTI_C, CBZ, b(2), RET], &[NOP, b(-4)], &[RET], &[NOP, b(0x1000)]]);
    let requests = [time(0), time(1), time(2), time(3)];
    let plan = timed(&image, &traits(), &space(), &requests, Some(latency()));
    let found: Vec<(u64, PatchRole)> = plan.patches.iter().map(|p| (BIAS.stated(p.addr).0, p.role)).collect();
    let expected = [
        (0x1004, PatchRole::Entry),
        (0x1008, PatchRole::ExitTail),
        (0x100c, PatchRole::ExitRet),
        // Entry and exit, in this order.
        (0x1018, PatchRole::Entry),
    ];
    assert_eq!(found, expected);
    assert_eq!(plan.patches[3].request, 2);
    assert!(plan.chunks.len() == 5 && plan.shares.is_empty());
    // Into the middle of a function, and to where no code is.
    assert_eq!(kinds(&plan), ["tail-call", "tail-call"]);
}

#[test]
fn what_cannot_be_timed_is_refused_by_name() {
    /// `br x1`
    const JUMP: u32 = 0xD61F_0020;
    let image = library(&[&[NOP, JUMP], &[NOP, RET], &[NOP, 0]]);
    let kinds_of = |requests: &[ActionRequest], traits: &ProcessTraits, input: LatencyInput| {
        let plan = timed(&image, traits, &space(), requests, Some(input));
        assert!(plan.patches.is_empty());
        kinds(&plan)
    };
    assert_eq!(kinds_of(&[time(0), time(2)], &traits(), latency()), ["exits-unknown", "no-exit"]);
}
