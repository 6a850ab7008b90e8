//! A goroutine's call that a filter decides about, or that is added up when it returns: its exit finds what the entry left where its stack has gone, and nobody else's does.

use trapline_plan::ThreadId;
use trapline_plan::aarch64::stub::Machine;
use trapline_plan::filter::{Sort, TargetFilter};
use trapline_record::ring::Kind;

use super::gathered::{self, TRUE};
use super::latency::{on_cpu, on_goroutine};
use super::records::{kept, machines};
use super::stages::{Calls, late, read};
use super::tallies::by;
use super::{RET, Room, by_hand};

/// Enters at one place of a goroutine's stack, and again, where it begins anew on a larger one; leaves elsewhere, then there. `check` is told how often it entered and left rightly.
fn moves(room: &Room, [enter, exit]: [u64; 2], end: u64, mut check: impl FnMut(u64, u64)) {
    // Its end is as far from the deeper place as it was from the first.
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

/// Ends of stacks: near, and far from what is called.
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
        let halves = [calls.alone(1, &[RET]), calls.exit(Kind::Return, 1)];
        for end in ends(&machine) {
            let mut seen = Vec::new();
            let room = Room::new();
            let mut bench = std::mem::take(&mut calls.bench.tails);
            let rings = calls.bench.rings;
            moves(&room, halves, end, |entered, left| {
                seen.extend(super::records::take(rings, &mut bench));
                let of = |kind| seen.iter().filter(|record| record.kind == kind).count() as u64;
                assert_eq!((of(Kind::Entry), of(Kind::Return)), (entered, left), "{machine:?}");
            });
            // All of one call.
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
        let halves = [calls.alone(1, &[RET]), calls.exit(Kind::Return, 1)];
        for (nth, end) in (0..).zip(ends(&machine)) {
            let (room, rings, mut tails) = (Room::new(), calls.bench.rings, calls.bench.tails.clone());
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
        let halves = [set.calls.alone(6, &[RET]), set.exit(Kind::Return)];
        for (nth, end) in (0..).zip(ends(&machine)) {
            moves(&Room::new(), halves, end, |entered, left| {
                let (cells, rest) = set.read();
                assert_eq!(cells.get(&2).copied().unwrap_or(0), nth + left, "{machine:?} {cells:?}");
                assert_eq!((cells.len() < 2, rest.overflow + rest.unseen), (true, 0));
                assert_eq!(set.calls.sums(), [2 * nth + entered, 0, 0, 0], "{machine:?}");
            });
        }
    }
}
