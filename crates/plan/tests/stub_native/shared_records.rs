//! The code that recorded exits share: what is recorded, which probe's, what is kept, what is counted as dropped.

use trapline_plan::x86_64::stub::{Machine, RecordedExit, Rings, Traced, recorded_exit, shared_record};
use trapline_plan::{Floats, Results};
use trapline_record::ring::{HEAD, RecordKind};

use crate::aborted::at_each_instruction;
use crate::arena::{Arena, LINES, call, get, machines, unregister};
use crate::counts::{everywhere, storm};
use crate::records::{Reader, every_hit, rings_for, view};
use crate::state::{ONE, Random, assert_kept, back, sets_vectors, tl_run};

/// Of the first and the second group of counters.
const PROBES: [u32; 2] = [5, 13];
const CALLS: u64 = 100_000;

/// Counter of a probe on line 0, as a segment has them: eight to a group of lines.
fn word(arena: &Arena, probe: u32) -> u64 {
    arena.word(u64::from(probe / 8)) + u64::from(probe % 8) * 8
}
fn dropped(arena: &Arena, probe: u32) -> u64 {
    (0..u64::from(LINES)).map(|line| get(word(arena, probe) + line * 64)).sum()
}

/// Puts the shared code in place. Returns its address.
fn shared(arena: &mut Arena, machine: &Machine, rings: &Rings, exit: &RecordedExit) -> u64 {
    let traced = Traced {
        probe: 0,
        passed: Some(exit.passed()),
        site: exit.site(),
        floats: Floats { results: exit.results, ..Floats::default() },
        by_go: exit.by_go,
        ..every_hit(machine, rings, arena.word(0))
    };
    let mut out = Vec::new();
    shared_record(&mut out, arena.next(), &traced, exit).expect("code");
    arena.put(&out)
}

/// A stub that leads there, and then to `behind`; or is called, if the shared code returns.
fn stub(arena: &mut Arena, probe: u32, shared: (&RecordedExit, u64), behind: &[u8]) -> u64 {
    let mut out = Vec::new();
    recorded_exit(&mut out, arena.next(), probe, shared);
    if !shared.0.returns {
        out.extend(behind);
        return arena.put(&out);
    }
    let callee = arena.put(&out);
    let mut out = vec![0xE8];
    out.extend((callee.wrapping_sub(arena.next() + 5) as u32).to_le_bytes());
    out.extend(behind);
    arena.put(&out)
}

fn exits() -> Vec<RecordedExit> {
    let of = |kind, red_zone_live, returns, (general, vectors), by_go| {
        let results = Results { general, vectors };
        RecordedExit { kind, red_zone_live, returns, results, by_go, valued: false }
    };
    vec![
        of(RecordKind::Return, false, true, (1, 0), false),
        of(RecordKind::Return, false, false, (2, 2), false),
        of(RecordKind::Return, false, true, (9, 4), true),
        of(RecordKind::Return, false, false, (9, 4), true),
        of(RecordKind::Tail, true, false, (1, 0), false),
    ]
}

#[test]
fn shared_code_records_what_was_there_and_state_is_kept() {
    let _one = ONE.lock();
    let vectors = sets_vectors();
    for machine in machines() {
        exits().iter().filter(|exit| vectors || exit.results.vectors == 0).for_each(|exit| {
            records_what_was_there(&machine, exit);
        });
    }
}

fn records_what_was_there(machine: &Machine, exit: &RecordedExit) {
    let mut random = Random(0x5151_1234_9876_0002);
    let mut arena = Arena::new();
    // As small as a ring can be: most hits find it full until it is read.
    let rings = rings_for(&arena, machine, 256, 128);
    let code = shared(&mut arena, machine, &rings, exit);
    let stubs = PROBES.map(|probe| (probe, stub(&mut arena, probe, (exit, code), &back())));
    let mut reader = Reader::new(&rings);
    for (probe, stub) in stubs {
        let written = |reader: &Reader<'_>| -> u64 {
            (0..rings.area.rings)
                .map(|n| view(&rings).get(rings.area.ring(n) + HEAD) - reader.tails[n as usize])
                .sum()
        };
        reader.take(|_| ());
        let before = dropped(&arena, probe);
        assert_kept(&format!("{exit:?}"), stub, &exit.site(), &mut random);
        assert_eq!(dropped(&arena, probe) - before + written(&reader) / 128, 50, "{probe}: {exit:?}");
        let mut is_whole = || {
            reader.take(|_| ());
            let before = random.state();
            let mut after = before.clone();
            // SAFETY: as in `assert_kept`: the code runs from tl_run's loaded state to tl_back.
            unsafe { tl_run(stub, &mut after) };
            let mut seen = Vec::new();
            reader.take(|record| seen.push(*record));
            let [record] = seen[..] else { panic!("{seen:?}") };
            let registers = if exit.by_go { &[0, 3, 1, 7, 6, 8, 9, 10, 11][..] } else { &[0, 2] };
            let Results { general, vectors } = exit.results;
            let values = registers.iter().take(general.into()).map(|&reg: &usize| before.regs[reg]);
            let values: Vec<u64> = match exit.kind {
                RecordKind::Tail => Vec::new(),
                _ => values.chain((0..vectors.into()).map(|n: usize| before.zmm[n][0])).collect(),
            };
            assert_eq!(
                (record.kind, record.probe, &record.values[..values.len()]),
                (exit.kind, probe, &values[..])
            );
        };
        is_whole();
        if machine.rseq.is_some() {
            assert!(at_each_instruction(code, arena.next(), is_whole) > 10);
        }
    }
}

/// Threads that migrate hit two probes, and a handler hits another one: each hit is a record of its probe, or
/// counted as dropped for it.
#[test]
fn every_hit_is_a_record_or_counted_for_its_probe() {
    for machine in machines() {
        let mut arena = Arena::new();
        let rings = rings_for(&arena, &machine, 64 * 256, 64);
        let exit = exits()[0];
        let code = shared(&mut arena, &machine, &rings, &exit);
        let [one, other] = PROBES.map(|probe| {
            // mov rax, rdi; then the stub
            let mut out = vec![0x48, 0x89, 0xF8];
            recorded_exit(&mut out, arena.next() + 3, probe, (&exit, code));
            arena.put(&out)
        });
        let handled = storm(one, || {
            everywhere(|| {
                (0..CALLS).for_each(|n| assert_eq!(call(if n % 4 == 0 { one } else { other }, n), n))
            });
        });
        let mut records = [0; 2];
        Reader::new(&rings)
            .take(|record| records[PROBES.iter().position(|p| *p == record.probe).expect("ours")] += 1);
        let seen: Vec<u64> = PROBES.iter().zip(records).map(|(&p, n)| n + dropped(&arena, p)).collect();
        assert_eq!(seen, [8 * CALLS / 4 + handled, 8 * CALLS / 4 * 3], "{machine:?}: {records:?}");
    }
}

#[test]
fn a_hit_of_a_thread_without_an_area_is_dropped_for_its_probe() {
    let Some(machine) = crate::records::with_rseq() else { return };
    let mut arena = Arena::new();
    let rings = rings_for(&arena, &machine, 64 * 256, 64);
    let exit = exits()[0];
    let code = shared(&mut arena, &machine, &rings, &exit);
    let stub = stub(&mut arena, PROBES[1], (&exit, code), &[0xC3]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unregister();
            for n in 0..100 {
                call(stub, n);
            }
        });
    });
    assert_eq!(get(word(&arena, PROBES[1]) + u64::from(LINES - 1) * 64), 100);
    Reader::new(&rings).take(|_| panic!("nothing was written"));
}
