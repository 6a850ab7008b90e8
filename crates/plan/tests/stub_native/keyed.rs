//! HIT-2, STK-1 and SAFE-2 for hits whose stack is a part of a key.

use std::collections::BTreeMap;

use trapline_plan::Stacks;
use trapline_plan::x86_64::stub::Liveness;
use trapline_record::ring::RecordKind;

use crate::arena::{Arena, machines};
use crate::map_programs::{STACKS, WORDS, by_stack, lay_frames, sum_by_stack};
use crate::ran::{PROBE, Set};
use crate::state::{ONE, Random, assert_kept, back, tl_run};

/// Number of rbp in `State::regs`.
const RBP: usize = 5;

/// One hit with this frame pointer; returns the value that it adds.
// Never inlined, so that each hit of one function is at the same depth of the stack.
#[inline(never)]
fn hit(random: &mut Random, code: u64, (rbp, dead): (u64, u16)) -> u64 {
    let mut state = random.state();
    state.regs[RBP] = rbp;
    let before = state.regs;
    // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a time.
    unsafe { tl_run(code, &mut state) };
    let kept = |reg: &usize| dead >> reg & 1 == 1 || state.regs[*reg] == before[*reg];
    assert!((0..16).all(|reg| kept(&reg)), "{before:x?} {:x?}", state.regs);
    before[6]
}

#[test]
fn hit_2_sums_by_stack_are_those_of_the_frames_that_were_there() {
    let _one = ONE.lock();
    let mut frames = [0_u64; WORDS];
    let cases = lay_frames(&mut frames);
    let at = frames.as_ptr() as u64;
    let (end, room) = (at + WORDS as u64 * 8, usize::from(STACKS.frames) - 1);
    for machine in &machines() {
        let mut random = Random(0x57ac_0002_4321_9876);
        for n in 0..4_u32 {
            let mut arena = Arena::new();
            let mut set = Set::new(&arena, machine);
            set.rings.stacks = Stacks { main: (at - (64 << 10), end), ..Stacks::default() };
            let dead = if n == 3 { 1 | 1 << 10 | 1 << 11 } else { 0 };
            let site = Liveness { flags_dead: n & 1 == 1, dead, red_zone_live: n & 2 == 2 };
            let code = set.build(&mut arena, sum_by_stack(), site, RecordKind::Entry, &back());
            assert_kept(&format!("{site:?} {machine:?}"), code, &site, &mut random);
            let before: u64 = by_stack(&set.area, set.view(), PROBE).values().map(|sum| sum.0).sum();
            let mut expected: BTreeMap<(Vec<u64>, bool), (u64, u64)> = BTreeMap::new();
            for turn in 0..300 {
                let (rbp, callers) = &cases[turn * 5 % cases.len()];
                let value = hit(&mut random, code, (*rbp, dead));
                let sum = expected.entry((callers.clone(), callers.len() == room)).or_default();
                *sum = (sum.0 + 1, sum.1.wrapping_add(value));
            }
            // The first address is what lies at the harness' stack pointer: any word.
            let mut ours: BTreeMap<(Vec<u64>, bool), (u64, u64)> = BTreeMap::new();
            for ((addresses, is_cut), (hits, values)) in by_stack(&set.area, set.view(), PROBE) {
                let sum = ours.entry((addresses[1..].to_vec(), is_cut)).or_default();
                *sum = (sum.0 + hits, sum.1.wrapping_add(values));
            }
            for (stack, sum) in expected {
                assert!(ours.get(&stack).is_some_and(|found| found.0 >= sum.0), "{stack:?}: {ours:?}");
                // Without the hits that looked at the state, which had stacks of their own.
                if !stack.0.is_empty() {
                    assert_eq!(ours[&stack], sum, "{stack:?} {site:?} {machine:?}");
                }
            }
            assert_eq!(ours.values().map(|sum| sum.0).sum::<u64>(), before + 300);
            arena.unmap();
        }
    }
}
