//! Latency stubs: every call is counted once, in the bucket of its duration.

use core::arch::x86_64::_rdtsc;

use trapline_plan::x86_64::stub::{
    Buckets, ExitKind, Latency, Liveness, Machine, SharedTimed, Timed, latency_enter, latency_exit,
    shared_timed,
};
use trapline_record::hist;
use trapline_record::latency::{STAMP_TAGS_LEN, at};

use crate::arena::{Arena, FUNCTIONS, call, get, machines, set};
use crate::counts::{everywhere, storm};

/// Code that sites share, and where it lies.
pub(crate) fn common(
    arena: &mut Arena,
    machine: &Machine,
    latency: &Latency,
    which: SharedTimed,
) -> (SharedTimed, u64) {
    let mut out = Vec::new();
    shared_timed(&mut out, arena.next(), machine, latency, which);
    (which, arena.put(&out))
}

/// The same of an entry.
pub(crate) fn rare(
    arena: &mut Arena,
    machine: &Machine,
    latency: &Latency,
    (site, looped): (Liveness, bool),
) -> u64 {
    common(arena, machine, latency, SharedTimed::Entry { red_zone_live: site.red_zone_live, looped }).1
}

/// A function timed from entry to `ret`, with `body` in between.
pub(crate) fn timed(
    arena: &mut Arena,
    machine: &Machine,
    latency: &Latency,
    function: u32,
    body: &[u8],
) -> u64 {
    let leave = exit(arena, machine, latency, function);
    let mut out = Vec::new();
    let site = Liveness::default();
    let rare = rare(arena, machine, latency, (site, false));
    let pending = latency_enter(&mut out, arena.next(), &Timed { machine, latency, function, site }, rare);
    out.extend(body);
    pending.finish(&mut out, Some(leave)).expect("code");
    arena.put(&out)
}
/// An exit stub and its `ret`. Of odd functions the shared code returns; others go on at the stub's `ret`.
fn exit(arena: &mut Arena, machine: &Machine, latency: &Latency, function: u32) -> u64 {
    exit_at(arena, machine, latency, function, Liveness::default())
}
fn exit_at(arena: &mut Arena, machine: &Machine, latency: &Latency, function: u32, site: Liveness) -> u64 {
    let mut out = Vec::new();
    let timed = Timed { machine, latency, function, site };
    let (kind, returns) = (ExitKind::Return, function % 2 == 1 && !site.red_zone_live);
    let which = SharedTimed::Exit { kind, red_zone_live: site.red_zone_live, returns };
    let which = common(arena, machine, latency, which);
    latency_exit(&mut out, arena.next(), &timed, which);
    out.push(if returns { 0xCC } else { 0xC3 });
    arena.put(&out)
}
/// An entry stub and a `ret`: a call with an end that is never seen.
fn entry(arena: &mut Arena, machine: &Machine, latency: &Latency, function: u32, loop_entry: bool) -> u64 {
    let mut out = Vec::new();
    let timed = Timed { machine, latency, function, site: Liveness::default() };
    let rare = rare(arena, machine, latency, (timed.site, loop_entry));
    let pending = latency_enter(&mut out, arena.next(), &timed, rare);
    out.push(0xC3);
    pending.finish(&mut out, None).expect("code");
    arena.put(&out)
}

/// `1: dec rdi; jnz 1b`
pub(crate) const SPIN: [u8; 5] = [0x48, 0xFF, 0xCF, 0x75, 0xFB];

pub(crate) fn now() -> u64 {
    // SAFETY: rdtsc has no precondition here: the stubs need it in user mode as well.
    unsafe { _rdtsc() }
}
fn buckets(arena: &Arena, function: u32) -> u64 {
    (0..hist::BUCKETS).map(|bucket| arena.bucket(function, bucket)).sum()
}

#[test]
fn durations_lie_within_those_measured_around() {
    for machine in machines() {
        let mut arena = Arena::new();
        let latency = arena.latency();
        let code = timed(&mut arena, &machine, &latency, 3, &SPIN);
        let mut around = Vec::with_capacity(20_000);
        for n in 0..20_000_u64 {
            let start = now();
            call(code, 1 + n % 997);
            around.push(now() - start);
        }
        around.sort_unstable();
        let (sum, shortest, longest): (u64, _, _) = (around.iter().sum(), around[0], around[19_999]);
        assert_eq!(arena.timed(3, at::RETURNS), 20_000, "{machine:?}");
        assert_eq!(buckets(&arena, 3), 20_000);
        assert_eq!(arena.timed(3, at::UNPAIRED) + arena.timed(3, at::UNRETURNED), 0);
        let total = arena.timed(3, at::TOTAL);
        // A preempted thread may spend a long time outside of the function, so only the median is compared
        // closely.
        let mut below = 0;
        let middle = (0..hist::BUCKETS).find(|&bucket| {
            below += arena.bucket(3, bucket);
            below >= 10_000
        });
        let (low, high) = hist::bounds(middle.expect("half of all calls"));
        assert!(low <= around[10_000] && high > around[10_000] / 2, "{low} to {high}, {}", around[10_000]);
        assert!(total < sum, "{total} of {sum}");
        let (max, min) = (arena.max(3, at::MAX), !arena.max(3, at::MIN_NOT));
        assert!(
            max <= longest && max >= min && min <= shortest && min > 0,
            "{min} to {max}, {shortest} to {longest}"
        );
        for bucket in 0..hist::BUCKETS {
            if arena.bucket(3, bucket) > 0 {
                let (low, high) = hist::bounds(bucket);
                assert!(low <= max && high > min, "bucket {bucket} is outside {min} to {max}");
            }
        }
    }
}

/// Offset of the stamp cell that the last entry stamped: the only one in use.
fn slot(arena: &Arena, owner: u64) -> u64 {
    let tags = (0..STAMP_TAGS_LEN).step_by(8);
    let blocks = tags.filter(|tag| get(arena.stamps() + tag) != 0);
    let cells = blocks.flat_map(|tag| (0..512).map(move |n| STAMP_TAGS_LEN + tag / 8 * 8192 + n * 16));
    let mut found = cells.map(|slot| arena.stamps() + slot).filter(|slot| get(slot + 8) == owner);
    found.next().expect("a stamp")
}

#[test]
fn every_octave_has_its_buckets() {
    for machine in machines() {
        for buckets in [Buckets::Log, Buckets::Linear { min: 5000, step: 100_000, count: 50 }] {
            let mut arena = Arena::new();
            let latency = Latency { buckets, ..arena.latency() };
            let enter = entry(&mut arena, &machine, &latency, 5, false);
            let leave = exit(&mut arena, &machine, &latency, 5);
            let of = |ticks: u64| match buckets {
                Buckets::Log => hist::bucket(ticks),
                Buckets::Linear { min, step, count } if ticks >= min => {
                    (1 + (ticks - min) / step).min(u64::from(count) + 1) as usize
                }
                Buckets::Linear { .. } => 0,
            };
            // One call instruction for both, so that the stack pointer is the same.
            let run = |code, before: &mut u64| {
                *before = now();
                call(code, 0);
            };
            // Durations up to the machine's uptime: a stamp cannot lie before tick 0.
            let octaves = (0..52).map(|shift| (1_u64 << shift) * 4 / 3);
            for ago in octaves.take_while(|ago| *ago < now()) {
                let counts = |arena: &Arena| -> Vec<u64> {
                    (0..hist::BUCKETS).map(|bucket| arena.bucket(5, bucket)).collect()
                };
                let before = counts(&arena);
                let mut start = 0;
                let mut stamp = 0;
                for code in [enter, leave] {
                    if code == leave {
                        stamp = now() - ago;
                        set(slot(&arena, 6), stamp);
                    }
                    run(code, &mut start);
                }
                let (low, high) = (of(start - stamp), of(now() - stamp));
                let after = counts(&arena);
                let changed: Vec<usize> = (0..hist::BUCKETS).filter(|&n| before[n] != after[n]).collect();
                assert_eq!(changed.len(), 1, "{ago} ticks, {machine:?}");
                assert!((low..=high).contains(&changed[0]), "{ago}: {} not in {low}..={high}", changed[0]);
            }
            let returned = arena.timed(5, at::RETURNS);
            for code in [enter, leave] {
                if code == leave {
                    set(slot(&arena, 6), now() + (1 << 40));
                }
                run(code, &mut 0);
            }
            assert_eq!(arena.timed(5, at::CLAMPED), 1);
            assert_eq!(arena.timed(5, at::RETURNS), returned + 1);
        }
    }
}

#[test]
fn short_calls_are_returns_only() {
    for machine in machines() {
        let mut arena = Arena::new();
        let latency = Latency { min_ticks: 100_000, ..arena.latency() };
        let code = timed(&mut arena, &machine, &latency, 0, &SPIN);
        (0..100).for_each(|_| {
            call(code, 1);
        });
        let short = buckets(&arena, 0);
        (0..100).for_each(|_| {
            call(code, 200_000);
        });
        assert_eq!(arena.timed(0, at::RETURNS), 200);
        assert!(short < 5 && buckets(&arena, 0) >= 100);
        assert!(!arena.max(0, at::MIN_NOT) >= 100_000);
    }
}

#[test]
fn abandoned_calls_are_counted() {
    for machine in machines() {
        let mut arena = Arena::new();
        let latency = arena.latency();
        let enter = entry(&mut arena, &machine, &latency, 1, false);
        let again = entry(&mut arena, &machine, &latency, 1, true);
        let other = entry(&mut arena, &machine, &latency, 2, false);
        let leave = exit(&mut arena, &machine, &latency, 1);
        let run = |codes: &[u64]| {
            for &code in codes {
                call(code, 0);
            }
        };
        run(&[leave, enter, enter, leave]);
        let seen =
            |arena: &Arena| [at::RETURNS, at::UNPAIRED, at::UNRETURNED].map(|word| arena.timed(1, word));
        assert_eq!(seen(&arena), [1, 1, 1], "{machine:?}");
        run(&[again, again, again, leave]); // the first stamp stands
        assert_eq!(seen(&arena), [2, 1, 1]);
        run(&[enter, other, leave]); // another function's stamp ends no call of this one
        assert_eq!(seen(&arena), [2, 2, 2]);
        // Stubs that step over a red zone use the same stamp cell as stubs that do not.
        let red = Liveness { red_zone_live: true, ..Liveness::default() };
        let over = exit_at(&mut arena, &machine, &latency, 1, red);
        run(&[enter, over]);
        assert_eq!(seen(&arena), [3, 2, 2]);
        assert_eq!(FUNCTIONS, latency.functions);
    }
}

#[test]
fn a_full_table_is_counted_as_missed() {
    for machine in machines() {
        let mut arena = Arena::new();
        let latency = arena.latency();
        let code = timed(&mut arena, &machine, &latency, 1, &SPIN);
        for tag in (0..STAMP_TAGS_LEN).step_by(8) {
            set(arena.stamps() + tag, 1);
        }
        call(code, 1);
        assert_eq!(get(arena.missed()), 1);
        assert_eq!(arena.timed(1, at::UNPAIRED), 1);
        // A table with one free block left is searched until that is found.
        for tag in (0..STAMP_TAGS_LEN).step_by(8 * 4) {
            set(arena.stamps() + tag, 0);
        }
        call(code, 1);
        assert_eq!((get(arena.missed()), arena.timed(1, at::RETURNS)), (1, 1));
    }
}

/// `dec rdi; jz 1f; call self; 1:`, with the entry stub at `self`.
fn recursive(arena: &mut Arena, machine: &Machine, latency: &Latency) -> u64 {
    let leave = exit(arena, machine, latency, 9);
    let mut out = Vec::new();
    let timed = Timed { machine, latency, function: 9, site: Liveness::default() };
    let rare = rare(arena, machine, latency, (timed.site, false));
    let start = arena.next();
    let pending = latency_enter(&mut out, start, &timed, rare);
    out.extend([0x48, 0xFF, 0xCF, 0x74, 0x05, 0xE8]);
    let rel = start.wrapping_sub(start + out.len() as u64 + 4) as i32;
    out.extend(rel.to_le_bytes());
    pending.finish(&mut out, Some(leave)).expect("code");
    arena.put(&out)
}

#[test]
fn recursion_is_counted_deep_or_once() {
    for machine in machines() {
        for outermost in [false, true] {
            let mut arena = Arena::new();
            let latency = Latency { outermost, ..arena.latency() };
            let code = recursive(&mut arena, &machine, &latency);
            for _ in 0..1000 {
                call(code, 300);
            }
            let calls = if outermost { 1000 } else { 300_000 };
            assert_eq!(arena.timed(9, at::RETURNS), calls, "{machine:?}");
            assert_eq!(buckets(&arena, 9), calls);
            assert_eq!(arena.timed(9, at::UNPAIRED) + arena.timed(9, at::UNRETURNED), 0);
        }
    }
}

#[test]
fn nothing_is_lost_between_threads() {
    const CALLS: u64 = 50_000;
    for machine in machines() {
        let mut arena = Arena::new();
        let latency = arena.latency();
        let code = timed(&mut arena, &machine, &latency, 4, &SPIN);
        let handled = storm(code, || {
            everywhere(|| {
                for n in 0..CALLS {
                    call(code, 1 + n % 7);
                }
            });
        });
        assert_eq!(arena.timed(4, at::RETURNS), 8 * CALLS + handled, "{machine:?}");
        assert_eq!(buckets(&arena, 4), 8 * CALLS + handled);
        assert_eq!(arena.timed(4, at::UNPAIRED) + arena.timed(4, at::UNRETURNED), 0);
    }
}
