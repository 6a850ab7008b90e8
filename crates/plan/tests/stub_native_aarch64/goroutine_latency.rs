//! Stubs that time a goroutine's calls, executed.

use trapline_plan::aarch64::stub::{Code as _, ExitKind, Timed, latency_enter, latency_exit};
use trapline_record::latency::at;

use super::latency::{Bench, on_cpu};
use super::{CodeMemory, RET, by_hand, call, changes_on, machines};

/// Calls `half` with a goroutine in x28, and the stack pointer lowered by `deeper`. The code is made of
/// words, since the compiler reserves x28.
pub(super) fn on_goroutine(room: &CodeMemory, half: u64, g: &[u64; 2], deeper: u32) {
    on(room, half, g.as_ptr() as u64, deeper);
}

/// The same with `g` as the goroutine's address, or 0. Returns what `half` returns.
pub(super) fn on(room: &CodeMemory, half: u64, g: u64, deeper: u32) -> u64 {
    // stp x29, x30, [sp, #-32]!; str x28, [sp, #16]; mov x28, x0; sub sp, sp, #deeper; blr x1; add sp, sp,
    // #deeper; ldr x28, [sp, #16]; ldp x29, x30, [sp], #32; ret
    let code = [
        0xA9BE_7BFD,
        0xF900_0BFC,
        0xAA00_03FC,
        0xD100_03FF | deeper << 10,
        0xD63F_0020,
        0x9100_03FF | deeper << 10,
        0xF940_0BFC,
        0xA8C2_7BFD,
        RET,
    ];
    call(room.put(&code), g, half)
}

/// A goroutine's call ends where its stack has gone, and no other call does: neither another goroutine's at
/// that place, nor one elsewhere on the same stack.
#[test]
fn a_goroutines_call_ends_where_its_stack_has_gone() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let bench = Bench::new(machine);
        let timed = Timed { goroutine: true, ..bench.timed() };
        let put = |pending: trapline_plan::aarch64::stub::latency::UnfinishedLatency<'_>| {
            bench.room.put(&pending.finish(&[RET], None).expect("in reach"))
        };
        let enters = [false, true].map(|looped| put(latency_enter(bench.room.next(), timed, looped)));
        let exit = put(latency_exit(bench.room.next(), timed, ExitKind::Return));
        let here = std::ptr::from_ref(&machine) as u64;
        // The stack has grown by 1024 bytes: its end is as far from the deeper place as it was from the first
        // one.
        for end in [here + 4096, here + (1 << 20) + 16] {
            let (mut g, other) = ([0, end], [0, end - 1024]);
            let found = || [at::RETURNS, at::UNPAIRED, at::UNRETURNED].map(|word| bench.sum(word));
            let [returns, unpaired, unreturned] = found();
            on_goroutine(&bench.room, enters[0], &g, 512);
            // The function begins anew on its new stack: the first stamp stays.
            g[1] = end - 1024;
            on_goroutine(&bench.room, enters[1], &g, 1536);
            on_goroutine(&bench.room, exit, &other, 1536);
            on_goroutine(&bench.room, exit, &g, 512);
            assert_eq!(found(), [returns, unpaired + 2, unreturned], "{machine:?}");
            on_goroutine(&bench.room, exit, &g, 1536);
            assert_eq!(found(), [returns + 1, unpaired + 2, unreturned], "{machine:?}");
        }
        assert!(bench.missed() == 0 && bench.stamps.stamps().is_empty());
    }
}

/// Calls that a goroutine makes within a timed call are not timed, wherever its stack is meanwhile. Calls of
/// other goroutines are their own.
#[test]
fn a_goroutines_outermost_calls_are_timed() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let mut bench = Bench::new(machine);
        bench.latency.outermost = true;
        let timed = Timed { goroutine: true, ..bench.timed() };
        let put = |pending: trapline_plan::aarch64::stub::latency::UnfinishedLatency<'_>| {
            bench.room.put(&pending.finish(&[RET], None).expect("in reach"))
        };
        let [enter, looped] =
            [false, true].map(|looped| put(latency_enter(bench.room.next(), timed, looped)));
        let exit = put(latency_exit(bench.room.next(), timed, ExitKind::Return));
        let end = std::ptr::from_ref(&machine) as u64 + 4096;
        let (mut g, other) = ([0, end], [0, end]);
        let found = || [at::RETURNS, at::UNPAIRED, at::UNRETURNED].map(|word| bench.sum(word));
        on_goroutine(&bench.room, enter, &g, 512);
        on_goroutine(&bench.room, enter, &g, 1024);
        // A shallower call, and another goroutine's.
        on_goroutine(&bench.room, enter, &other, 256);
        on_goroutine(&bench.room, exit, &g, 1024);
        assert_eq!(found(), [0; 3], "{machine:?}");
        // The stack grows: the same call continues 1024 bytes lower, and one within it begins anew there.
        g[1] -= 1024;
        on_goroutine(&bench.room, enter, &g, 1600);
        on_goroutine(&bench.room, looped, &g, 1536);
        on_goroutine(&bench.room, exit, &g, 1600);
        assert_eq!(found(), [0; 3], "{machine:?}");
        on_goroutine(&bench.room, exit, &g, 1536);
        assert_eq!(found(), [1, 0, 0], "{machine:?}");
        on_goroutine(&bench.room, exit, &other, 256);
        assert_eq!(found(), [2, 0, 0], "{machine:?}");
        // A call that never returned: a call at a shallower place proves that, and one at a deeper place
        // cannot.
        for (deeper, unreturned) in [(1536, 0), (1600, 0), (1520, 1)] {
            on_goroutine(&bench.room, enter, &g, deeper);
            assert_eq!(found(), [2, 0, unreturned], "{machine:?} {deeper}");
        }
        on_goroutine(&bench.room, exit, &g, 1520);
        assert_eq!((found(), bench.missed()), ([3, 0, 1], 0), "{machine:?}");
        // Without a goroutine there is no stamp cell.
        on(&bench.room, enter, 0, 512);
        on(&bench.room, exit, 0, 512);
        assert_eq!((found(), bench.missed()), ([3, 1, 1], 1), "{machine:?}");
        assert!(bench.stamps.stamps().is_empty());
        for flags in 0..16 {
            for code in [enter, looped, exit, exit] {
                let (before, after) = changes_on(code, flags, Some(&g));
                assert_eq!(after, before, "{machine:?}");
            }
        }
    }
}
