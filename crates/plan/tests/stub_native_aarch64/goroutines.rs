//! A goroutine's call on which a filter decides, or which is aggregated at its return. Its exit finds what
//! the entry left where the stack has gone, and no other call's exit does.

use trapline_plan::aarch64::stub::Machine;
use trapline_plan::filter::{Int, Known, Sort, TargetFilter, Tree};
use trapline_plan::{Read, ThreadId};
use trapline_record::ring::{RecordKind, RingArea};

use super::gathered::{self, TRUE};
use super::goroutine_latency::{on, on_goroutine};
use super::latency::on_cpu;
use super::records::{kept, machines};
use super::stages::{Calls, late, read};
use super::tallies::{self, by};
use super::{CodeMemory, RET, by_hand, changes_on};

/// Enters at one place of a goroutine's stack, and again where the function begins anew on a larger stack.
/// Then leaves elsewhere, and then there. `check` gets the number of right entries and exits so far.
fn moves(room: &CodeMemory, [enter, exit]: [u64; 2], end: u64, mut check: impl FnMut(u64, u64)) {
    // The stack's end is as far from the deeper place as it was from the first one.
    let (mut g, other) = ([0, end], [0, end - 1024]);
    on_goroutine(room, enter, &g, 512);
    check(1, 0);
    g[1] = end - 1024;
    on_goroutine(room, enter, &g, 1536);
    check(2, 0);
    on_goroutine(room, exit, &other, 1536);
    on_goroutine(room, exit, &g, 512);
    check(2, 0);
    on_goroutine(room, exit, &g, 1536);
    check(2, 1);
    on_goroutine(room, exit, &g, 1536);
    check(2, 1);
}

/// Two ends of a stack: near to the called code's stack pointer, and far from it.
fn ends(machine: &Machine) -> [u64; 2] {
    let here = std::ptr::from_ref(machine) as u64;
    [here + 4096, here + (1 << 20) + 16]
}

#[test]
fn exits_of_entries_that_passed_are_recorded() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let filter = TargetFilter { condition: Some(read("arg0")), sample: 1, ..TargetFilter::default() };
        let mut calls = Calls::new(machine, (1 << 12, 64), kept(), filter);
        calls.goroutine = true;
        let halves = [calls.alone(1, &[RET]), calls.exit(RecordKind::Return, 1)];
        for end in ends(&machine) {
            let mut seen = Vec::new();
            let room = CodeMemory::new();
            let mut bench = std::mem::take(&mut calls.bench.tails);
            let rings = calls.bench.rings;
            moves(&room, halves, end, |entered, left| {
                seen.extend(super::records::take(rings, &mut bench));
                let of = |kind| seen.iter().filter(|record| record.kind == kind).count() as u64;
                assert_eq!((of(RecordKind::Entry), of(RecordKind::Return)), (entered, left), "{machine:?}");
            });
            // All belong to one call.
            assert!(seen.iter().all(|record| record.sp == seen[0].sp), "{seen:?}");
            calls.bench.tails = bench;
        }
    }
}

#[test]
fn returns_decide() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let mut calls = Calls::new(machine, (1 << 12, 64), kept(), late(read("ret")));
        calls.goroutine = true;
        let halves = [calls.alone(1, &[RET]), calls.exit(RecordKind::Return, 1)];
        for (nth, end) in (0..).zip(ends(&machine)) {
            let (room, rings, mut tails) = (CodeMemory::new(), calls.bench.rings, calls.bench.tails.clone());
            let mut written = 0;
            moves(&room, halves, end, |entered, left| {
                written += super::records::take(rings, &mut tails).len() as u64;
                assert_eq!((calls.sums(), written), ([2 * nth + entered, 0, 0, 0], 2 * left), "{machine:?}");
            });
            calls.bench.tails = tails;
        }
    }
}

#[test]
fn what_is_known_at_returns_is_added_up() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let tally = by(read("(arg0 != 0) + (dur < 1000000000000)"), Sort::Each);
        let mut set = gathered::Set::reading(machine, ThreadId::Unknown, tally, (None, TRUE), Vec::new());
        set.calls.goroutine = true;
        let halves = [set.calls.alone(6, &[RET]), set.exit(RecordKind::Return)];
        for (nth, end) in (0..).zip(ends(&machine)) {
            moves(&CodeMemory::new(), halves, end, |entered, left| {
                let (cells, rest) = set.read();
                assert_eq!(cells.get(&2).copied().unwrap_or(0), nth + left, "{machine:?} {cells:?}");
                assert_eq!((cells.len() < 2, rest.overflow + rest.unseen), (true, 0));
                assert_eq!(set.calls.sums(), [2 * nth + entered, 0, 0, 0], "{machine:?}");
            });
        }
    }
}

const WORD: Known = Known::Field(0, Int { bits: 64, signed: false });
/// Bytes by which the stack pointer of all these calls is lower than their caller's.
const DEEPER: u32 = 512;

/// Reads the second word of g; the function has the address of g in x0.
fn reads() -> Vec<Read> {
    vec![Read { register: 0, offsets: vec![8], bytes: 8 }]
}

/// Finds the lowest end of a stack at which `has_room` is false: so many bytes below the stack pointer are
/// needed for the copies.
fn lowest(room: &CodeMemory, mut has_room: impl FnMut(&[u64; 2]) -> bool) -> u64 {
    // mov x0, sp; ret
    let sp = on(room, room.put(&[0x9100_03E0, RET]), 0, DEEPER);
    let (mut there, mut gone) = (0, 4096);
    assert!(has_room(&[sp - 4096, sp + 4096]) && !has_room(&[sp, sp + 4096]));
    while gone - there > 16 {
        let middle = ((there + gone) / 2) & !15;
        match has_room(&[sp - 4096 + middle, sp + 4096]) {
            true => there = middle,
            false => gone = middle,
        }
    }
    4096 - there
}

/// Fields are recorded, decide, and are kept for returns. A hit without room for the copies is dropped and
/// counted. Its exit pairs with nothing, not even with an abandoned call.
#[test]
fn what_is_recorded_of_memory_needs_room() {
    let fields = TargetFilter { fields: Some(Tree::Known(WORD)), sample: 1, ..TargetFilter::default() };
    let early = TargetFilter { condition: Some(read("arg0 != 0")), sample: 1, ..TargetFilter::default() };
    let late = late(Tree::Known(WORD));
    for (filter, machine) in [early, fields, late]
        .into_iter()
        .flat_map(|filter| machines(by_hand).into_iter().map(move |m| (filter.clone(), m)))
    {
        on_cpu(1);
        let mut calls = Calls::new(machine, (1 << 12, RingArea::slot_with_floats(6, 0, 2)), kept(), filter);
        (calls.goroutine, calls.reads) = (true, reads());
        let [enter, exit] = [calls.alone(6, &[RET]), calls.exit(RecordKind::Return, 6)];
        let (room, rings, mut tails) = (CodeMemory::new(), calls.bench.rings, calls.bench.tails.clone());
        let mut dropped = 0;
        let took = lowest(&room, |g| {
            // An abandoned call that had room.
            on_goroutine(&room, enter, &[g[1] - 8192, g[1]], DEEPER);
            super::records::take(rings, &mut tails);
            on_goroutine(&room, enter, g, DEEPER);
            on_goroutine(&room, exit, g, DEEPER);
            let seen = super::records::take(rings, &mut tails).len();
            let lost = calls.bench.dropped() - dropped;
            dropped += lost;
            assert!(matches!((seen, lost), (2, 0) | (0, 1)), "{seen} {lost} {machine:?}");
            lost == 0
        });
        println!("{took} bytes");
        // A thread that runs no goroutine has no stack end to respect.
        on(&room, enter, 0, DEEPER);
        // What the stub saves, and the frame for a field.
        assert!((64 + 112..600).contains(&took), "{took}: {machine:?}");
        let here = std::ptr::from_ref(&machine) as u64;
        for (g, flags) in [[here - 65536, here + 4096], [here, here + 4096]]
            .iter()
            .flat_map(|g| (0..16).map(move |n| (g, n)))
        {
            for code in [enter, exit] {
                let (before, after) = changes_on(code, flags, Some(g));
                assert_eq!(after, before, "{machine:?}");
            }
        }
    }
}

/// The same for aggregations: a hit without room is unseen.
#[test]
fn what_is_tallied_of_memory_needs_room() {
    for (sort, least) in [(Sort::Each, 112), (Sort::Text(1), 160)] {
        for machine in machines(by_hand) {
            on_cpu(1);
            let value = if sort == Sort::Each { Tree::Known(WORD) } else { read("arg0") };
            let mut set = tallies::Set::new(machine, kept(), by(value, sort), None);
            set.goroutine = true;
            if sort == Sort::Each {
                set.filter.reads = reads();
            }
            let (code, room, mut unseen) = (set.build(true, &[RET]), CodeMemory::new(), 0);
            let took = lowest(&room, |g| {
                let before: u64 = set.read().0.values().sum();
                on_goroutine(&room, code, g, DEEPER);
                let (cells, rest) = set.read();
                let (more, lost) = (cells.values().sum::<u64>() - before, rest.unseen - unseen);
                unseen += lost;
                assert!(
                    rest.overflow == 0 && matches!((more, lost), (1, 0) | (0, 1)),
                    "{more} {lost} {machine:?}"
                );
                lost == 0
            });
            println!("{took} bytes");
            on(&room, code, 0, DEEPER);
            assert!((64 + least..600).contains(&took), "{took}: {machine:?}");
            let here = std::ptr::from_ref(&machine) as u64;
            for flags in 0..16 {
                let (before, after) = changes_on(code, flags, Some(&[here, here + 4096]));
                assert_eq!(after, before, "{machine:?}");
            }
        }
    }
}
