//! LOSS-1, FLT-1 and SAFE-2 for aggregations of fields, at entries and at returns: each hit is in the bucket
//! or row of its value, unseen if a field of it cannot be read, or filtered.

use std::collections::BTreeMap;

use trapline_plan::Read;
use trapline_plan::filter::{Facts, GroupBy, Int, Known, MAX_TEMPORARIES, Sort, THREAD_UNIT, Tally, Tree};
use trapline_record::ring::RecordKind;
use trapline_record::tally::Rest;

use super::fields::{Memory, has_readv, leaf_of_all, leaf_with_fields, reads};
use super::filters::{Random, number, tree};
use super::gathered::{self, TRUE, is_timeless};
use super::latency::on_cpu;
use super::stages::{read, with_returned};
use super::tallies::{Set, by};
use super::threads::{ids, tid};
use super::{ADD, RET, by_hand, call, changes, machines, registered, run, storm};

/// The aggregation of a round.
fn tally(value: &Tree, round: u32) -> Tally {
    let sort = [Sort::Log2, Sort::Each, Sort::Linear { min: -5, step: 3, count: 40 }][round as usize % 3];
    Tally {
        group_by: GroupBy::threads(sort != Sort::Each && round.is_multiple_of(5)),
        ..by(value.clone(), sort)
    }
}

/// The key of a value, with the thread's if hits are grouped by thread.
fn key(tally: &Tally, value: u64) -> u64 {
    let thread = if tally.group_by == GroupBy::Thread { u64::from(tid()) * THREAD_UNIT } else { 0 };
    tally.key(value) | thread
}

/// Registers of a hit, and the facts that the language evaluates.
pub(super) fn hit(random: &mut Random, memory: &mut Memory) -> ([u64; 32], Facts) {
    let mut state = random.state();
    state[..6].fill_with(|| number(random));
    let (arguments, fields, _) = memory.choose(random);
    state[..2].copy_from_slice(&arguments);
    let arguments = core::array::from_fn(|n| state[n]);
    let mut facts = Facts { arguments, tid: tid(), ..Facts::default() };
    facts.fields[..4].copy_from_slice(&fields);
    (state, facts)
}

#[test]
fn values_fall_where_the_language_says() {
    let mut random = Random(0x7a11_f1e1_1234_9877);
    let (machines, ids, mut memory) = (machines(by_hand), ids(), Memory::new());
    let (mut seen, mut unseen, mut rejected) = (0, 0, 0);
    for round in 0..300_u32 {
        let fits = |tree: &Tree| tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_with_fields();
        let value = tree(&mut random, 1 + round % 4, leaf_with_fields);
        let condition = (round & 1 == 1).then(|| tree(&mut random, 1 + round % 3, leaf_with_fields));
        if !fits(&value) || !condition.as_ref().is_none_or(fits) {
            continue;
        }
        let (machine, id) = (machines[round as usize % machines.len()], ids[round as usize / 2 % ids.len()]);
        let tally = tally(&value, round);
        // Conditions on arguments are decided before anything is read.
        let early = (round % 4 > 1).then(|| read("arg2 & 3"));
        let mut set = Set::new(machine, id, tally.clone(), early.clone());
        (set.filter.reads, set.filter.fields) = (reads(), condition.clone());
        let code = set.build(true, &[RET]);
        on_cpu(round % 8);
        let (mut expected, before) = (BTreeMap::<u64, u64>::new(), (unseen, rejected));
        let what = format!("{machine:?} {id:?} {value:?} {tally:?} {condition:?}");
        for _ in 0..10 {
            let (state, facts) = hit(&mut random, &mut memory);
            assert_eq!(run(code, state, [0; 8]), state, "{what}");
            let fails = |tree: &Tree| tree.holds(&facts) != Some(true);
            if early.iter().chain(&condition).any(fails) {
                rejected += 1;
            } else if let Some(value) = value.evaluate(&facts) {
                *expected.entry(key(&tally, value)).or_default() += 1;
                seen += 1;
            } else {
                unseen += 1;
            }
        }
        assert_eq!(set.read(), (expected, Rest { overflow: 0, unseen: unseen - before.0 }), "{what}");
        assert_eq!(set.rejected(), rejected - before.1, "{what}");
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{what}");
        }
        set.room.unmap();
    }
    println!("{seen} seen, {unseen} unseen, {rejected} rejected");
    assert!(seen > 500 && unseen > 150 && rejected > 200, "{seen} {unseen} {rejected}");
}

#[test]
fn values_fall_there_when_calls_return() {
    let mut random = Random(0x7a11_f1e2_1234_9877);
    let (machines, ids, mut memory) = (machines(by_hand), ids(), Memory::new());
    let (mut seen, mut unseen, mut rejected) = (0, 0, 0);
    for round in 0..300_u32 {
        let value = tree(&mut random, 1 + round % 4, leaf_of_all);
        let late = if round & 1 == 0 { TRUE } else { tree(&mut random, 1 + round % 3, leaf_of_all) };
        let fits = |tree: &Tree| {
            let floats = tree.floats();
            let none = floats == trapline_plan::Floats::default();
            none && tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_at_return() && is_timeless(tree)
        };
        if !fits(&value) || !fits(&late) {
            continue;
        }
        let (machine, id) = (machines[round as usize % machines.len()], ids[round as usize / 2 % ids.len()]);
        let tally = tally(&value, round);
        let set = gathered::Set::reading(machine, id, tally.clone(), (None, late.clone()), reads());
        let kind = if round % 7 == 6 { RecordKind::Tail } else { RecordKind::Return };
        let code = set.whole(&[], kind);
        on_cpu(round % 8);
        let (mut expected, before) = (BTreeMap::<u64, u64>::new(), (unseen, rejected));
        let what = format!("{machine:?} {id:?} {kind:?} {value:?} {tally:?} {late:?}");
        for _ in 0..10 {
            let (state, facts) = hit(&mut random, &mut memory);
            assert_eq!(run(code, state, [0; 8]), state, "{what}");
            let known = |tree: &Tree| match kind {
                RecordKind::Tail => tree.clone(),
                _ => with_returned(tree, facts.arguments[0], 0),
            };
            // A tail call has returned nothing. A value that depends on that is unseen, also where the language
            // would not look at it: `arg0 && ret` with an argument of 0, as of an address that ends in zeros.
            let ends = kind != RecordKind::Tail || !value.asks_for_end();
            let value = known(&value).evaluate(&facts).filter(|_| ends);
            if known(&late).holds(&facts) != Some(true) {
                rejected += 1;
            } else if let Some(value) = value {
                *expected.entry(key(&tally, value)).or_default() += 1;
                seen += 1;
            } else {
                unseen += 1;
            }
        }
        assert_eq!(set.read(), (expected, Rest { overflow: 0, unseen: unseen - before.0 }), "{what}");
        assert_eq!(set.calls.sums(), [10, 0, rejected - before.1, 0], "{what}");
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{what}");
        }
        set.calls.bench.room.unmap();
    }
    println!("{seen} seen, {unseen} unseen, {rejected} rejected");
    assert!(seen > 500 && unseen > 150 && rejected > 200, "{seen} {unseen} {rejected}");
}

/// Also where the language would not look at what was returned.
#[test]
fn what_depends_on_a_tail_calls_return_is_unseen() {
    for machine in machines(by_hand) {
        on_cpu(2);
        let value = by(read("arg0 && ret"), Sort::Log2);
        let set = gathered::Set::reading(machine, ids()[0], value, (None, TRUE), Vec::new());
        let code = set.whole(&[], RecordKind::Tail);
        for argument in [0, 5] {
            call(code, argument, 0);
        }
        assert_eq!(set.read(), (BTreeMap::new(), Rest { overflow: 0, unseen: 2 }), "{machine:?}");
    }
}

/// A call with a field that cannot be read is unseen once, and its mark is gone.
#[test]
fn what_cannot_be_read_is_unseen_once() {
    for machine in machines(by_hand) {
        on_cpu(2);
        let field = Tree::Known(Known::Field(0, Int { bits: 64, signed: true }));
        let reads = vec![Read { register: 1, offsets: vec![0], bytes: 8 }];
        let set = gathered::Set::reading(machine, ids()[0], by(field, Sort::Log2), (None, TRUE), reads);
        let (whole, exit) = (set.whole(&[], RecordKind::Return), set.exit(RecordKind::Return));
        for code in [exit, whole, exit, exit, whole, exit] {
            call(code, 5, 0);
        }
        assert_eq!(set.read(), (BTreeMap::new(), Rest { overflow: 0, unseen: 2 }), "{machine:?}");
    }
}

/// Threads that migrate and are interrupted, and one without an area. Readable and unreadable fields are both
/// counted exactly.
#[test]
fn nothing_is_lost_under_a_storm() {
    if !has_readv() {
        return println!(
            "SKIP: no process_vm_readv here, and what stands for it is not for handlers of signals"
        );
    }
    static FOUR: u64 = 4;
    for machine in machines(registered) {
        let field = Tree::Known(Known::Field(0, Int { bits: 64, signed: true }));
        let mut set = Set::new(machine, ids()[0], by(field, Sort::Log2), None);
        set.filter.reads = vec![Read { register: 2, offsets: vec![0], bytes: 8 }];
        // tst x0, #1; ldr x2, =FOUR; csel x2, xzr, x2, eq; the stub. For even numbers nothing can be read.
        let code = set.build(true, &[ADD, RET]);
        let there = &raw const FOUR as u64;
        let lead = [0xF240_001F, 0x5800_0062, 0x9A82_03E2, 0, there as u32, (there >> 32) as u32];
        let at = set.room.next();
        let mut lead = lead.to_vec();
        lead[3] = trapline_insn::aarch64::encode::b(at + 12, code).expect("near");
        let lead = set.room.put(&lead);
        let (called, handled) = storm(lead);
        let (cells, rest) = set.read();
        let read: u64 = cells.values().sum();
        assert_eq!((read + rest.unseen, rest.overflow), (called + handled, 0), "{machine:?}");
        // Threads count from 0 on, and their handlers call with 1.
        assert!(cells.keys().eq([4].iter()) && read >= handled && rest.unseen >= called / 2, "{cells:?}");
        on_cpu(1);
        assert_eq!(call(lead, 3, 4), 7);
    }
}
