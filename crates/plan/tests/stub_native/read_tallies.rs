//! LOSS-1, FLT-1 and SAFE-2 for aggregations of fields: each hit is in the bucket or row of its value, unseen
//! if a field of it cannot be read, or filtered.

use std::collections::BTreeMap;

use trapline_plan::Read;
use trapline_plan::filter::{Facts, GroupBy, Int, Known, MAX_TEMPORARIES, Sort, THREAD_UNIT, Tally, Tree};
use trapline_plan::x86_64::stub::{Liveness, Machine};
use trapline_record::ring::RecordKind;
use trapline_record::tally::Rest;

use crate::arena::{Arena, call, machines, unregister};
use crate::counts::{THREADS, everywhere, storm};
use crate::fields::{Memory, leaf_with_fields, reads};
use crate::filters::{number, tree};
use crate::state::{ONE, Random, State, assert_kept, back, tl_run};
use crate::tallies::{FILTERED, Set, of};

#[test]
fn values_fall_where_the_language_says() {
    let _one = ONE.lock();
    machines().iter().for_each(values_fall);
}

fn values_fall(machine: &Machine) {
    let mut random = Random(0x7a11_f1e1_1234_9876);
    let (mut seen, mut unseen, mut rejected) = (0, 0, 0);
    let mut memory = Memory::new();
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    for round in 0..400 {
        let fits = |tree: &Tree| tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_with_fields();
        let value = tree(&mut random, 1 + round % 4, leaf_with_fields);
        let condition = (round & 1 == 1).then(|| tree(&mut random, 1 + round % 3, leaf_with_fields));
        if !fits(&value) || !condition.as_ref().is_none_or(fits) {
            continue;
        }
        let sort =
            [Sort::Log2, Sort::Each, Sort::Linear { min: -5, step: 3, count: 40 }][(round % 3) as usize];
        let by_thread = sort != Sort::Each && round % 5 == 0;
        let mut arena = Arena::new();
        let tally = Tally { group_by: GroupBy::threads(by_thread), ..of(value.clone(), sort) };
        let mut set = Set::new(&arena, machine, tally.clone(), None);
        (set.filter.reads, set.filter.fields) = (reads().to_vec(), condition.clone());
        let site = Liveness { flags_dead: round & 2 == 2, dead: 0, red_zone_live: round & 4 == 4 };
        let code = set.build(&mut arena, site, RecordKind::Entry, &back());
        let (mut expected, before) = (BTreeMap::<u64, u64>::new(), (unseen, rejected));
        for _ in 0..20 {
            let (mut state, facts) = hit(&mut random, &mut memory, tid);
            let kept = (state.regs, state.zmm);
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
            // time.
            unsafe { tl_run(code, &mut *state) };
            assert_eq!((state.regs, state.zmm), kept, "{value:?}");
            if condition.as_ref().is_some_and(|tree| tree.holds(&facts) != Some(true)) {
                rejected += 1;
            } else if let Some(value) = value.evaluate(&facts) {
                let thread = if by_thread { u64::from(tid) * THREAD_UNIT } else { 0 };
                *expected.entry(tally.key(value) | thread).or_default() += 1;
                seen += 1;
            } else {
                unseen += 1;
            }
        }
        let rest = Rest { overflow: 0, unseen: unseen - before.0 };
        assert_eq!(set.read(), (expected, rest), "{value:?} {sort:?} {condition:?}");
        assert_eq!(arena.counted(FILTERED), rejected - before.1, "{condition:?}");
        if round < 40 {
            assert_kept(&format!("{value:?} {site:?}"), code, &site, &mut random);
        }
        arena.unmap();
    }
    assert!(seen > 1000 && unseen > 300 && rejected > 500, "{seen} {unseen} {rejected}");
}

/// Registers and memory of a hit, and the facts that the language evaluates.
pub(crate) fn hit(random: &mut Random, memory: &mut Memory, tid: u32) -> (Box<State>, Facts) {
    memory.fill(random);
    let mut state = random.state();
    for reg in [2, 1, 8, 9] {
        state.regs[reg] = number(random);
    }
    let (arguments, fields) = memory.choose(random);
    (state.regs[7], state.regs[6]) = (arguments[0], arguments[1]);
    let arguments = [7, 6, 2, 1, 8, 9].map(|reg: usize| state.regs[reg]);
    let floats = core::array::from_fn(|n| state.zmm[n][0]);
    let mut facts = Facts { arguments, floats, tid, ..Facts::default() };
    facts.fields[..4].copy_from_slice(&fields);
    (Box::new(state), facts)
}

/// Threads that migrate and are interrupted, and one without an area. Readable and unreadable fields are both
/// counted exactly.
#[test]
fn nothing_is_lost_under_a_storm() {
    const CALLS: u64 = 3000;
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let field = Tree::Known(Known::Field(0, Int { bits: 64, signed: true }));
        let mut set = Set::new(&arena, &machine, of(field, Sort::Log2), None);
        set.filter.reads = vec![Read { register: 0, offsets: vec![0], bytes: 8 }];
        // mov rax, rdi; ret
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &[0x48, 0x89, 0xF8, 0xC3]);
        let four = Box::new(4_u64);
        let there = &raw const *four as u64;
        let hit = |n: u64| {
            let pointer = if n.is_multiple_of(3) { 8 } else { there };
            assert_eq!(call(code, pointer), pointer);
        };
        // Handlers call with an address where nothing is mapped.
        let handled = storm(code, || everywhere(|| (0..CALLS).for_each(hit)));
        let (cells, rest) = set.read();
        let (read, not) = (THREADS * CALLS / 3 * 2, THREADS * CALLS / 3 + handled);
        assert_eq!((cells, rest), (BTreeMap::from([(4, read)]), Rest { overflow: 0, unseen: not }));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if machine.rseq.is_some() {
                    unregister();
                }
                (0..30).for_each(hit);
            });
        });
        let rest = Rest { overflow: 0, unseen: not + 10 };
        assert_eq!(set.read(), (BTreeMap::from([(4, read + 20)]), rest), "{machine:?}");
        arena.unmap();
    }
}
