//! LOSS-2 and SAFE-2 for records: each contains what was there. Every hit is a record or counted as dropped,
//! while threads migrate and are interrupted and a reader takes what it can.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trapline_plan::x86_64::stub::{Liveness, Machine, Rings, ThreadId, Traced, trace};
use trapline_plan::{Floats, Results, Stacks, Unwind};
use trapline_record::addr::Bias;
use trapline_record::ring::{HEAD, Record, RecordKind, RingArea, first_float};
use trapline_record::view::View;

use crate::aborted::at_each_instruction;
use crate::arena::{Arena, LINES, call, get, machines, unregister};
use crate::counts::{everywhere, storm};
use crate::state::{ONE, Random, assert_kept, back, sets_vectors, tl_run};

pub(crate) const PROBE: u32 = 5;
const CALLS: u64 = 200_000;

pub(crate) fn rings(arena: &Arena, bytes: u32, slot: u32) -> Rings {
    let area = RingArea { off: 0, rings: LINES - 1, slot, most: slot, bytes };
    Rings {
        area,
        base: arena.rows(),
        id: ThreadId::At(0x2d0),
        stacks: Stacks::default(),
        known: None,
        waits: None,
    }
}

/// Rings as this machine needs them: locked ones without rseq, and thread numbers by a system call.
pub(crate) fn rings_for(arena: &Arena, machine: &Machine, bytes: u32, slot: u32) -> Rings {
    let one = rings(arena, bytes, slot);
    let rings = if machine.rseq.is_some() { one.area.rings } else { RingArea::shared(LINES - 1) };
    Rings { area: RingArea { rings, ..one.area }, id: id_for(machine), ..one }
}

pub(crate) fn id_for(machine: &Machine) -> ThreadId {
    if machine.rseq.is_some() { ThreadId::At(0x2d0) } else { ThreadId::Call }
}

pub(crate) fn view<'a>(rings: &Rings) -> View<'a> {
    // SAFETY: the arena's mapping is larger than the rings, stays mapped meanwhile, and holds words that are
    // stored to as a whole.
    let words = unsafe {
        core::slice::from_raw_parts(rings.base as *const AtomicU64, (rings.area.len() / 8) as usize)
    };
    View::new(words)
}

/// Takes records from all rings.
pub(crate) struct Reader<'a> {
    rings: &'a Rings,
    pub(crate) tails: Vec<u64>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rings: &'a Rings) -> Self {
        Self { rings, tails: vec![0; rings.area.rings as usize] }
    }
    pub(crate) fn take(&mut self, mut each: impl FnMut(&Record)) {
        for (ring, tail) in (0..).zip(&mut self.tails) {
            self.rings.area.take(view(self.rings), ring, tail, &mut each).expect("a head that can be");
        }
    }
}

pub(crate) fn with_rseq() -> Option<Machine> {
    machines().pop().filter(|machine| machine.rseq.is_some())
}

fn sites() -> impl Iterator<Item = Liveness> {
    let dead = [0, 1 << 10, 1 << 11, 1 << 10 | 1 << 11 | 1 | 1 << 2];
    dead.into_iter().flat_map(|dead| {
        (0..4).map(move |n| Liveness { flags_dead: n & 1 == 1, dead, red_zone_live: n & 2 == 2 })
    })
}

/// A stub that records each hit at an entry, and nothing but arguments.
pub(crate) fn every_hit<'a>(machine: &'a Machine, rings: &'a Rings, dropped: u64) -> Traced<'a> {
    Traced {
        machine,
        rings,
        probe: PROBE,
        passed: None,
        dropped,
        site: Liveness::default(),
        filter: None,
        texts: 0,
        ended: 0,
        floats: Floats::default(),
        by_go: false,
        valued: false,
        fields: &[],
        marks: None,
        unwind: Unwind::None,
        at_entry: true,
        trampolines: None,
        bias: Bias::default(),
    }
}

pub(crate) fn built(
    arena: &mut Arena,
    traced: &Traced<'_>,
    kind: RecordKind,
    values: usize,
    body: &[u8],
) -> u64 {
    let mut out = Vec::new();
    let pending = trace(&mut out, arena.next(), traced, kind, values);
    out.extend(body);
    pending.finish(&mut out, None).expect("code");
    arena.put(&out)
}

#[test]
fn records_hold_what_was_there_and_state_is_kept() {
    let _one = ONE.lock();
    machines().iter().for_each(records_hold_what_was_there);
}

fn records_hold_what_was_there(machine: &Machine) {
    let mut random = Random(0x5151_1234_9876_0001);
    let floats = |arguments, (general, vectors)| Floats { arguments, results: Results { general, vectors } };
    let (one, float) = ((1, 0), (0, 1));
    for (kind, values, slot, floats, by_go) in [
        (RecordKind::Entry, 0, 64, floats(0, one), false),
        (RecordKind::Entry, 5, 64, floats(0, one), true),
        (RecordKind::Entry, 6, 128, floats(0, one), false),
        (RecordKind::Entry, 2, 64, floats(0b101, float), false),
        (RecordKind::Entry, 5, 128, floats(0b1111_1111, one), false),
        (RecordKind::Return, 1, 64, floats(0, one), false),
        (RecordKind::Return, 1, 64, floats(0b11, float), false),
        (RecordKind::Return, 1, 64, floats(0, (2, 2)), false),
        (RecordKind::Return, 1, 64, floats(0, (0, 4)), false),
        (RecordKind::Return, 1, 128, floats(0, (9, 4)), true),
        (RecordKind::Tail, 0, 64, floats(0b11, float), false),
    ] {
        if (floats.arguments != 0 || floats.results.vectors > 0) && !sets_vectors() {
            continue;
        }
        // In their order: rax, rdx; Go's rax, rbx, rcx, rdi, rsi, r8, r9, r10, r11.
        let results = if by_go { &[0, 3, 1, 7, 6, 8, 9, 10, 11][..] } else { &[0, 2] };
        let mut arena = Arena::new();
        // As small as a ring can be: most hits find it full until it is read.
        let rings = rings_for(&arena, machine, 2 * slot, slot);
        let dropped = arena.word(0);
        for site in sites() {
            // No result is dead at a return.
            let site = if kind == RecordKind::Entry { site } else { Liveness { dead: 0, ..site } };
            let traced = Traced { site, floats, by_go, ..every_hit(machine, &rings, dropped) };
            let code = built(&mut arena, &traced, kind, values, &back());
            let mut reader = Reader::new(&rings);
            for ring in 0..rings.area.rings {
                reader.tails[ring as usize] = view(&rings).get(rings.area.ring(ring) + HEAD);
            }
            assert_kept(&format!("{kind:?} {values} {site:?}"), code, &site, &mut random);
            let mut is_whole = || {
                reader.take(|_| ());
                let before = random.state();
                let mut after = before.clone();
                // SAFETY: as in `assert_kept`: the code runs from tl_run's loaded state to tl_back.
                unsafe { tl_run(code, &mut after) };
                let mut seen = Vec::new();
                reader.take(|record| seen.push(*record));
                let [record] = seen[..] else { panic!("{seen:?}") };
                let vector = |n: usize| before.zmm[n][0];
                let expected: Vec<u64> = match kind {
                    RecordKind::Entry => {
                        let integers =
                            [7, 6, 2, 1, 8, 9][..values].iter().map(|&reg: &usize| before.regs[reg]);
                        let vectors = (0..8).filter(|n| floats.arguments >> n & 1 == 1).map(vector);
                        assert_eq!(first_float(values, 0), (3 + values) as u64);
                        integers.chain(vectors).collect()
                    }
                    RecordKind::Return => {
                        let Results { general, vectors } = floats.results;
                        let integers = results.iter().take(general.into()).map(|&reg| before.regs[reg]);
                        integers.chain((0..vectors.into()).map(vector)).collect()
                    }
                    RecordKind::Tail => vec![],
                };
                assert_eq!(
                    (record.kind, record.probe, &record.values[..expected.len()]),
                    (kind, PROBE, &expected[..])
                );
                // SAFETY: gettid has no precondition.
                let tid = unsafe { libc::gettid() } as u32;
                let asks = kind == RecordKind::Entry || rings.id != ThreadId::Call;
                assert_eq!(record.tid, if asks { tid } else { 0 });
                // SAFETY: rdtsc has no precondition.
                let now = unsafe { core::arch::x86_64::_rdtsc() };
                assert!(record.ticks < now && now - record.ticks < 10_000_000_000, "{record:?}");
            };
            is_whole();
            if machine.rseq.is_some() {
                assert!(at_each_instruction(code, arena.next(), is_whole) > 10);
            }
        }
        assert!(arena.counted(0) > 0, "the ring was full at times");
    }
}

/// Eight threads that migrate, a timer's handler that hits too, and a reader that takes what it can of small
/// rings.
#[test]
fn every_hit_is_a_record_or_counted() {
    machines().iter().for_each(every_hit_is_one_or_the_other);
}

fn every_hit_is_one_or_the_other(machine: &Machine) {
    let mut arena = Arena::new();
    let rings = rings_for(&arena, machine, 64 * 256, 64);
    let dropped = arena.word(0);
    let traced = every_hit(machine, &rings, dropped);
    let code = built(&mut arena, &traced, RecordKind::Entry, 1, &[0x48, 0x89, 0xF8, 0xC3]); // mov rax, rdi; ret
    let over = AtomicBool::new(false);
    let (records, by_thread, handled) = std::thread::scope(|scope| {
        let (over, rings) = (&over, &rings);
        let reading = scope.spawn(move || {
            let (mut reader, mut records, mut last) = (Reader::new(rings), 0u64, HashMap::new());
            loop {
                let ends = over.load(Ordering::Acquire);
                let mut batch = Vec::new();
                reader.take(|record| batch.push(*record));
                records += batch.len() as u64;
                // A thread's records lie in several rings; each ring is in order.
                batch.sort_by_key(|record| record.ticks);
                for record in batch.iter().filter(|record| record.values[0] < CALLS) {
                    let last = last.entry(record.tid).or_insert((0, 0));
                    *last = (last.0 + 1, record.values[0]);
                }
                if ends {
                    return (records, last);
                }
            }
        });
        let handled =
            storm(code, || everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n + 2), n + 2))));
        over.store(true, Ordering::Release);
        let (records, last) = reading.join().expect("the reader");
        (records, last, handled)
    });
    let lost = arena.counted(0);
    println!("{records} records, {lost} dropped, {handled} by the handler, {} threads", by_thread.len());
    assert_eq!(records + lost, 8 * CALLS + handled);
    // At least one ring's capacity is written, whatever the reader does.
    assert!(by_thread.values().map(|seen| seen.0).sum::<u64>() >= 128, "{by_thread:?}");
}

#[test]
fn threads_without_an_area_are_counted_as_dropped() {
    let Some(machine) = with_rseq() else { return };
    let mut arena = Arena::new();
    let rings = rings(&arena, 64 * 256, 64);
    let traced = every_hit(&machine, &rings, arena.word(0));
    let code = built(&mut arena, &traced, RecordKind::Entry, 1, &[0x48, 0x89, 0xF8, 0xC3]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unregister();
            (0..100).for_each(|n| assert_eq!(call(code, n), n));
        });
    });
    assert_eq!(get(arena.word(0) + u64::from(LINES - 1) * 64), 100);
    Reader::new(&rings).take(|_| panic!("nothing was written"));
}
