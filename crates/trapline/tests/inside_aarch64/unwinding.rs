//! Unwinders walk through frames with replaced return addresses: exceptions with something to clean up on the
//! way, and backtrace(), by libgcc; through functions that sign their return addresses, and through others.
#![allow(unsafe_code, reason = "exceptions out of foreign functions")]

use trapline::inside::Tally;

use crate::return_trampolines::{Seen, probe};
use crate::victim::Victim;

type Unwound = extern "C-unwind" fn(u64) -> u64;

extern "C-unwind" fn panics(x: u64) -> u64 {
    std::panic::resume_unwind(Box::new(x))
}
extern "C-unwind" fn same(x: u64) -> u64 {
    x
}

/// Range of this process' return trampolines.
fn trampolines() -> std::ops::Range<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let line = maps.lines().find(|line| line.contains("trapline-slots")).expect("mapped");
    let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
    let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
    number(start)..number(end)
}

#[test]
#[allow(ffi_unwind_calls, reason = "that is what is tested")]
fn exceptions_go_through_and_clean_up() {
    Victim::in_both_forms(|victim| {
        let seen = [Seen::new(), Seen::new()];
        let probes = [
            probe(victim, "with", seen[0].session().maxactive(2)),
            probe(victim, "cleans", seen[1].session().maxactive(2)),
        ];
        // SAFETY: these have unwind tables.
        let (with, cleans): (
            extern "C-unwind" fn(Unwound, u64) -> u64,
            extern "C-unwind" fn(Unwound, &mut u64) -> u64,
        ) = unsafe {
            (
                std::mem::transmute(victim.address("with") as *const ()),
                std::mem::transmute(victim.address("cleans") as *const ()),
            )
        };
        const CALLS: u64 = 100;
        let mut count = 0;
        for n in 0..CALLS {
            let throws = n % 4 != 3;
            let function = if throws { panics } else { same };
            let caught = std::panic::catch_unwind(|| with(function, n));
            match caught {
                Ok(value) => assert_eq!((throws, value), (false, n + 1)),
                Err(thrown) => assert_eq!((throws, thrown.downcast_ref()), (true, Some(&n))),
            }
            let count = &mut count;
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cleans(function, count)));
            assert_eq!(caught.is_err(), throws);
            assert_eq!(*count, n + 1, "cleaned up once");
        }
        for (seen, probe) in seen.iter().zip(&probes) {
            seen.expect(CALLS, CALLS / 4);
            let counts = probe.counts();
            let lost = CALLS - CALLS / 4 - 1;
            assert!(counts.unreturned == lost || counts.unreturned == lost + 1, "{counts:?}");
            assert_eq!(Tally { unreturned: 0, ..counts }, Tally { hits: CALLS, ..Tally::default() });
        }
    });
}

#[test]
fn backtraces_are_what_they_were() {
    Victim::in_both_forms(|victim| {
        const MOST: usize = 200;
        let walk = || {
            let mut frames = [0_u64; MOST];
            let len = victim.function("walker")(frames.as_mut_ptr() as u64, MOST as u64);
            frames[..len as usize].to_vec()
        };
        let mut bare = Vec::new();
        for armed in [false, true] {
            let seen = [Seen::new(), Seen::new()];
            let probes = armed.then(|| {
                [probe(victim, "walker", seen[0].session()), probe(victim, "walks", seen[1].session())]
            });
            let frames = walk();
            assert!(frames.len() > 5, "{frames:x?}");
            if let Some(probes) = probes {
                seen.into_iter().for_each(|seen| seen.expect(1, 1));
                let trampolines = trampolines();
                let (ours, theirs): (Vec<u64>, Vec<u64>) =
                    frames.iter().partition(|at| trampolines.contains(at));
                assert_eq!(ours.len(), 2, "{frames:x?}");
                // What an unwinder looks up is the same, except for the difference between the address after
                // a call and the byte before it.
                let near = |(a, b): (&u64, &u64)| a.abs_diff(*b) <= 1;
                assert_eq!(theirs.len(), bare.len(), "{theirs:x?} {bare:x?}");
                assert!(theirs.iter().zip(&bare).all(near), "{theirs:x?} {bare:x?}");
                drop(probes);
            } else {
                bare = frames;
            }
        }
    });
}
