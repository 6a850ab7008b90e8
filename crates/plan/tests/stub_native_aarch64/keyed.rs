//! HIT-2, STK-1 and SAFE-2 for hits whose stack is a part of a key, executed.

use std::collections::BTreeMap;

use trapline_plan::{Stacks, ThreadId};
use trapline_record::ring::RecordKind;
use trapline_record::view::View;

use super::map_programs::{STACKS, WORDS, by_stack, lay_frames, sum_by_stack};
use super::ran::{PROBE, Set};
use super::records::{machines, on_cpu};
use super::{RET, around, by_hand, changes};

/// One hit with this x29, and with a second argument.
// Never inlined, so that each hit is at the same depth of the stack.
#[inline(never)]
fn hit(code: u64, x29: u64, value: u64) {
    let mut state = [0_u64; 32];
    (state[1], state[29]) = (value, x29);
    let before = state;
    // SAFETY: 32 words; the code preserves what a function preserves.
    unsafe { around(state.as_mut_ptr(), code) };
    assert_eq!((&state[..18], &state[19..30]), (&before[..18], &before[19..30]));
}

#[test]
fn hit_2_sums_by_stack_are_those_of_the_frames_that_were_there() {
    let mut frames = [0_u64; WORDS];
    let cases = lay_frames(&mut frames);
    let at = frames.as_ptr() as u64;
    let (end, room) = (at + WORDS as u64 * 8, usize::from(STACKS.frames) - 1);
    for machine in machines(by_hand) {
        let mut set = Set::new(machine, ThreadId::Call);
        set.stacks = Stacks { main: (at - (64 << 10), end), ..Stacks::default() };
        let code = set.build(sum_by_stack(), RecordKind::Entry, &[RET]);
        let mut expected: BTreeMap<(Vec<u64>, bool), (u64, u64)> = BTreeMap::new();
        for turn in 0..120 {
            on_cpu(if turn % 7 == 6 { u32::MAX } else { turn % 8 });
            let (x29, callers) = &cases[turn as usize * 5 % cases.len()];
            hit(code, *x29, u64::from(turn) << 40);
            let sum = expected.entry((callers.clone(), callers.len() == room)).or_default();
            *sum = (sum.0 + 1, sum.1 + (u64::from(turn) << 40));
        }
        // The first address is where the harness goes on.
        let found = by_stack(&set.area, View::new(&set.words), PROBE).into_iter();
        let ours = found.map(|((addresses, is_cut), sum)| ((addresses[1..].to_vec(), is_cut), sum));
        assert_eq!(ours.collect::<BTreeMap<_, _>>(), expected, "{machine:?}");
        on_cpu(0);
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{machine:?}");
        }
        set.room.unmap();
    }
}
