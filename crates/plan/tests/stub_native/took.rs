//! Generated code decides about a call's duration by its stamps. The tests set the stamps, at the edges
//! of what a condition asks for.

use trapline_plan::x86_64::stub::{Latency, Traced, trace};
use trapline_record::counters::filtered::REJECTED_LATE;
use trapline_record::ring::RecordKind;

use crate::arena::{Arena, call, get, machines, set};
use crate::durations::now;
use crate::records::{PROBE, Reader, rings_for};
use crate::stages::{counted, exit, late, read, seen, traced};
use crate::state::ONE;

/// Address of the record that the one begun call has left.
fn place(latency: &Latency) -> u64 {
    let (shape, tags) = (latency.shape, latency.shape.tags_len());
    let block = (0..tags / 8).find(|n| get(latency.stamps + n * 8) != 0).expect("a block");
    let cells =
        (0..512).map(|n| latency.stamps + tags + (block << shape.block_bits()) + (n << shape.cell_bits()));
    cells.into_iter().find(|&slot| get(slot + 16) == slot && get(slot) as u32 == PROBE).expect("a mark")
}

/// Durations from a microsecond to a quarter of an hour, a little longer and a little shorter than the
/// condition asks for. The exit's own clock is not known if it rejects the call, but lies between two
/// readings of ours. A call that passes was as long as its records show. A call that does not pass was too
/// short at the earlier reading.
#[test]
fn a_duration_is_what_the_stamps_say() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut all = (0, 0);
        // Up to the machine's uptime: a stamp cannot lie before tick 0.
        let asked = [1_000_u64, 12_345, 1_000_000, 999_999_937, 60_000_000_000, 1_000_000_000_000];
        for asked in asked.into_iter().take_while(|asked| asked * 4 < now()) {
            let (mut passed, mut rejected) = (0, 0);
            let mut arena = Arena::new();
            let rings = rings_for(&arena, &machine, 1 << 16, 64);
            let filter = late(read(&format!("dur >= {asked}")));
            let latency = arena.deferred(64);
            let traced = Traced { marks: Some(latency), ..traced(&arena, &machine, &rings, &filter) };
            let leaves = exit(&mut arena, &traced, (RecordKind::Return, 1), &[0xC3]);
            let mut out = Vec::new();
            let pending = trace(&mut out, arena.next(), &traced, RecordKind::Entry, 1);
            out.push(0xC3);
            pending.finish(&mut out, None).expect("code");
            let enters = arena.put(&out);
            let nanos = |ticks: u64| filter.late.as_ref().expect("as set").nanos(ticks);
            let mut reader = Reader::new(&rings);
            // About the fewest ticks that pass.
            let ticks = asked * 3;
            for n in 0..200 {
                let later = (n - 100_i64).pow(3);
                let (mut before, mut stamp) = (0, 0);
                // One call instruction for both, so that the stack pointer is the same.
                for code in [enters, leaves] {
                    if code == leaves {
                        let place = place(&latency);
                        stamp = (now() - ticks).wrapping_add_signed(later);
                        set(place + 8, stamp);
                    }
                    before = now();
                    call(code, 0);
                }
                match seen(&mut reader)[..] {
                    [entry, exit] => {
                        assert_eq!(entry.ticks, stamp);
                        assert!(nanos(exit.ticks - stamp) >= asked, "{asked}: {} ticks", exit.ticks - stamp);
                        passed += 1;
                    }
                    ref none => {
                        let least = before.saturating_sub(stamp);
                        assert!(none.is_empty() && nanos(least) < asked, "{asked}: {least} ticks");
                        rejected += 1;
                    }
                }
            }
            assert_eq!(counted(&arena, REJECTED_LATE), rejected);
            all.0 += passed;
            all.1 += rejected;
            arena.unmap();
        }
        assert!(all.0 > 200 && all.1 > 200, "{all:?}");
    }
}
