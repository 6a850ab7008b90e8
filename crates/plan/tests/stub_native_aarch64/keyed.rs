//! HIT-2, STK-1 and SAFE-2 for hits whose stack is a part of a key, executed.

use std::collections::BTreeMap;

use trapline_plan::{Stacks, ThreadId};
use trapline_record::ring::RecordKind;
use trapline_record::view::View;

use super::map_programs::{STACKS, by_stack, sum_by_stack};
use super::ran::{PROBE, Set};
use super::records::{machines, on_cpu};
use super::{RET, around, by_hand, changes};

/// Words of the frames that the test makes up, on its own stack above the stub's.
const WORDS: usize = 64;

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
    let at = frames.as_mut_ptr() as u64;
    let end = at + WORDS as u64 * 8;
    // A chain of three that ends with 0, one that goes round, one that joins the first, and one that ends with the stack's last words.
    for (n, next, back) in [
        (0, at + 80, 1),
        (10, at + 160, 2),
        (20, 0, 3),
        (30, at + 240, 4),
        (40, at + 160, 6),
        (WORDS - 2, 7, 5),
    ] {
        frames[n] = next;
        frames[n + 1] = back;
    }
    std::hint::black_box(&mut frames);
    let room = usize::from(STACKS.frames) - 1;
    let cases: [(u64, Vec<u64>); 7] = [
        (at, vec![1, 2, 3]),
        (at + 80, vec![2, 3]),
        (at + 320, vec![6, 3]),
        (at + 240, vec![4; room]),
        (end - 16, vec![5]),
        (0, vec![]),
        (u64::MAX, vec![]),
    ];
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
