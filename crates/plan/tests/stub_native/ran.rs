//! HIT-1, LOSS-1 and SAFE-2 for hits that run programs: what they add, assign and delete in maps, with threads that
//! migrate, are interrupted, or have no rseq area.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use trapline_code::{Program, Value};
use trapline_plan::filter::TargetFilter;
use trapline_plan::hit::{HitClock, HitProgram, MapsAt, input};
use trapline_plan::x86_64::stub::arguments::ArgumentForm;
use trapline_plan::x86_64::stub::{Filtered, Liveness, Machine, Rings, Traced, run};
use trapline_plan::{Operand, Stacks, Unwind};
use trapline_record::addr::Bias;
use trapline_record::maps::{MapArea, Missed};
use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::view::View;

use crate::arena::{Arena, LINES, call, machines, unregister};
use crate::counts::{THREADS, everywhere, storm};
use crate::map_programs::{
    BEGAN, BYTES, LIVE_ONE, LIVE_THREE, Made, STACKS, SUMS, TEXTS, alive, begin, by_member, end, live,
    read_live, sum, sums_of_arguments,
};
use crate::map_programs::{Marked, left, marked, noted};
use crate::records::{every_hit, id_for};
use crate::state::{ONE, Random, assert_kept, back, tl_run};

/// mov rax, rdi; ret
const BODY: [u8; 4] = [0x48, 0x89, 0xF8, 0xC3];
const CALLS: u64 = 50_000;
/// The probe that is hit.
pub(crate) const PROBE: u32 = 3;
/// All memory.
const ALL: std::ops::Range<u64> = 0..u64::MAX;
pub(crate) struct Set {
    machine: Machine,
    pub(crate) rings: Rings,
    pub(crate) area: MapArea,
    base: u64,
}

impl Set {
    pub(crate) fn new(arena: &Arena, machine: &Machine) -> Self {
        let rings = Rings {
            area: RingArea::default(),
            base: 0,
            id: id_for(machine),
            stacks: Stacks::default(),
            known: None,
            waits: None,
        };
        let area = MapArea { off: 0, lines: LINES, bytes: BYTES, stacks: STACKS, texts: TEXTS };
        Self { machine: *machine, rings, area, base: arena.rows() }
    }
    fn at(&self, arena: &Arena) -> MapsAt {
        MapsAt { maps: self.base, own_page: arena.word(2), sharers: arena.word(3) }
    }
    fn hit(&self, program: Program) -> HitProgram {
        let mut hit = HitProgram::new(program, self.area.bytes);
        hit.stacks = self.area.stacks;
        hit.clock = HitClock { tick: 1 << 32, offset: 0 };
        hit
    }
    /// A program at a USDT probe.
    pub(crate) fn build_marked(
        &self,
        arena: &mut Arena,
        site: Liveness,
        (program, marked): (Program, &Marked),
    ) -> u64 {
        let mut hit = self.hit(program);
        hit.texts = marked.texts.clone();
        let filter = TargetFilter { taken: marked.taken.clone(), ..TargetFilter::default() };
        let traced = Traced {
            filter: Some(Filtered { filter: &filter, words: 0, names: None }),
            fields: &marked.reads,
            at_entry: false,
            site,
            probe: PROBE,
            ..every_hit(&self.machine, &self.rings, arena.word(0))
        };
        let form = ArgumentForm::AsNoted(&marked.operands, Bias::default());
        let (mut out, at) = (Vec::new(), arena.next());
        form.before(&mut out, at);
        let here = at + out.len() as u64;
        let pending = run(&mut out, here, &traced, (&hit, self.at(arena)), RecordKind::Entry);
        let here = at + out.len() as u64;
        form.after(&mut out, here);
        out.extend(back());
        pending.finish(&mut out, None).expect("code");
        arena.put(&out)
    }
    pub(crate) fn build(
        &self,
        arena: &mut Arena,
        program: Program,
        site: Liveness,
        kind: RecordKind,
        body: &[u8],
    ) -> u64 {
        let hit = self.hit(program);
        let traced = Traced {
            machine: &self.machine,
            rings: &self.rings,
            probe: PROBE,
            passed: None,
            dropped: arena.word(0),
            site,
            filter: None,
            texts: 0,
            ended: 0,
            floats: Default::default(),
            by_go: false,
            valued: false,
            fields: &[],
            marks: None,
            unwind: Unwind::None,
            at_entry: true,
            trampolines: None,
            bias: Default::default(),
        };
        let mut out = Vec::new();
        let pending = run(&mut out, arena.next(), &traced, (&hit, self.at(arena)), kind);
        out.extend(body);
        pending.finish(&mut out, None).expect("code");
        arena.put(&out)
    }
    pub(crate) fn view(&self) -> View<'_> {
        let words = self.area.len() / 8;
        // SAFETY: the arena's mapping is larger than the maps, and holds words that are stored to as a whole.
        View::new(unsafe { core::slice::from_raw_parts(self.base as *const AtomicU64, words as usize) })
    }
    /// By key: number of hits, and sum; and updates without an entry.
    fn sums(&self) -> (BTreeMap<[u64; 2], (u64, u64)>, u64) {
        let (mut all, mut dropped) = (BTreeMap::new(), 0);
        for line in 0..LINES {
            dropped += self
                .area
                .read(self.view(), (SUMS, line), std::slice::from_ref(&ALL), |key, value| {
                    let Some(value) = value else { return };
                    let sum: &mut (u64, u64) = all.entry([key[0], key[1]]).or_default();
                    *sum = (sum.0 + value[0], sum.1.wrapping_add(value[1]));
                })
                .full;
        }
        (all, dropped)
    }
    pub(crate) fn began(&self) -> BTreeMap<u64, u64> {
        let mut all = BTreeMap::new();
        assert_eq!(
            self.area.read(self.view(), (BEGAN, 0), std::slice::from_ref(&ALL), |key, value| {
                if let Some(value) = value {
                    all.insert(key[0], value[0]);
                }
            }),
            Missed::default()
        );
        all
    }
}

#[test]
fn hit_1_each_hit_is_added_up() {
    let _one = ONE.lock();
    for machine in &machines() {
        let mut random = Random(0x3a90_0001_1234_9876);
        for n in 0..4_u32 {
            let mut arena = Arena::new();
            let set = Set::new(&arena, machine);
            let dead = if n == 3 { 1 | 1 << 10 | 1 << 11 } else { 0 };
            let site = Liveness { flags_dead: n & 1 == 1, dead, red_zone_live: n & 2 == 2 };
            let code = set.build(&mut arena, sums_of_arguments(), site, RecordKind::Entry, &back());
            let mut expected: BTreeMap<[u64; 2], (u64, u64)> = BTreeMap::new();
            for _ in 0..300 {
                let mut state = random.state();
                let before = state.regs;
                let sum = expected.entry([before[7] % 37, before[2] % 2]).or_default();
                *sum = (sum.0 + 1, sum.1.wrapping_add(before[6]));
                // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a time.
                unsafe { tl_run(code, &mut state) };
                let kept = |reg: &usize| dead >> reg & 1 == 1 || state.regs[*reg] == before[*reg];
                assert!((0..16).all(|reg| kept(&reg)), "{before:x?} {:x?}", state.regs);
            }
            assert_eq!(set.sums(), (expected, 0), "{machine:?}");
            for (nth, program) in
                [sums_of_arguments(), begin(true), end(true), begin(false)].into_iter().enumerate()
            {
                let kind = if nth == 2 { RecordKind::Return } else { RecordKind::Entry };
                let code = set.build(&mut arena, program, site, kind, &back());
                assert_kept(&format!("program {nth} {site:?} {machine:?}"), code, &site, &mut random);
            }
            arena.unmap();
        }
    }
}

/// SHR-1: a process takes a number at its first hit, and another one when a fork has cleared its page.
#[test]
fn shr_1_a_process_takes_one_number_and_a_forked_child_another_one() {
    let _one = ONE.lock();
    for machine in &machines() {
        let (mut arena, mut random) = (Arena::new(), Random(0x51a7_e400_0000_0003));
        let set = Set::new(&arena, machine);
        for site in [Liveness::default(), Liveness { flags_dead: true, ..Liveness::default() }] {
            let code = set.build(&mut arena, by_member(), site, RecordKind::Entry, &back());
            for _ in 0..2 {
                crate::arena::set(arena.word(2), 0);
                (0..3).for_each(|_| assert_kept(&format!("{machine:?}"), code, &site, &mut random));
            }
        }
        let (sums, dropped) = set.sums();
        let each = sums.values().next().map(|first| first.0).unwrap_or_default();
        let tid = sums.keys().next().map(|first| first[0] & u64::from(u32::MAX)).unwrap_or_default();
        let expected = (1..=4_u64).map(|number| ([number << 32 | tid, 1], (each, each))).collect();
        assert_eq!((sums, dropped), (expected, 0), "{machine:?}");
        let own = std::fs::read_link("/proc/thread-self").expect("a thread");
        assert_eq!(own.file_name().and_then(|name| name.to_str()), Some(tid.to_string().as_str()));
        assert_eq!(crate::arena::get(arena.word(3)), 4);
        arena.unmap();
    }
}

/// A hit's values at the return, and a call that goes on as another function.
#[test]
fn hit_1_what_a_thread_noted_is_found_at_the_return() {
    let _one = ONE.lock();
    for machine in &machines() {
        let mut arena = Arena::new();
        let set = Set::new(&arena, machine);
        let exit = set.build(&mut arena, end(false), Liveness::default(), RecordKind::Return, &[0xC3]);
        // lea rax, [rdi + 5]; jmp [rip]
        let mut body = vec![0x48, 0x8D, 0x47, 5, 0xFF, 0x25, 0, 0, 0, 0];
        body.extend(exit.to_le_bytes());
        let code = set.build(&mut arena, begin(false), Liveness::default(), RecordKind::Entry, &body);
        let tail = set.build(&mut arena, end(false), Liveness::default(), RecordKind::Tail, &BODY);
        (0..100).for_each(|n| assert_eq!(call(code, n), n + 5));
        assert_eq!((set.sums(), set.began()), ((BTreeMap::from([([1, 1], (100, 500))]), 0), BTreeMap::new()));
        let entry = set.build(&mut arena, begin(false), Liveness::default(), RecordKind::Entry, &BODY);
        assert_eq!((call(entry, 7), call(tail, 7), call(tail, 7)), (7, 7, 7));
        // SAFETY: gettid has no precondition.
        let thread = u64::from(unsafe { libc::gettid() }.cast_unsigned());
        assert_eq!(set.began(), BTreeMap::from([(thread, 7)]));
        assert_eq!(arena.counted(0), 2, "calls that went on as another function");
        arena.unmap();
    }
}

#[test]
fn hit_1_nothing_is_lost_under_a_storm() {
    let _one = ONE.lock();
    for machine in &machines() {
        let mut arena = Arena::new();
        let set = Set::new(&arena, machine);
        let exit = set.build(&mut arena, end(false), Liveness::default(), RecordKind::Return, &[0xC3]);
        let mut body = vec![0x48, 0x89, 0xF8, 0xFF, 0x25, 0, 0, 0, 0];
        body.extend(exit.to_le_bytes());
        let mut made = Made::new();
        let one = made.value(input::ARGUMENT);
        sum(&mut made, [one, Value::Number(0)], Value::Number(3));
        let counts = set.build(&mut arena, made.finish(), Liveness::default(), RecordKind::Entry, &body);
        let handled = storm(counts, || {
            everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(counts, n), n)));
        });
        let (found, dropped) = set.sums();
        let mut expected: BTreeMap<[u64; 2], (u64, u64)> = BTreeMap::new();
        let mut hit = |n: u64, times: u64| {
            let sum = expected.entry([n % 37, 0]).or_default();
            *sum = (sum.0 + times, sum.1 + 3 * times);
        };
        (0..CALLS).for_each(|n| hit(n, THREADS));
        hit(1, handled);
        assert_eq!((found, dropped), (expected, 0), "{machine:?}, {handled} in handlers");
        let before = set.sums().0[&[4, 0]].0;
        if machine.rseq.is_some() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    unregister();
                    (0..10).for_each(|_| assert_eq!(call(counts, 4), 4));
                });
            });
            assert_eq!(set.sums().0[&[4, 0]].0, before + 10, "threads without an area");
        }
        arena.unmap();
    }
}

/// Threads and handlers assign and delete keys of one map. Each key that a thread alone uses is as it left it.
#[test]
fn hit_3_all_threads_change_one_map_under_a_storm() {
    let _one = ONE.lock();
    for machine in &machines() {
        for shape in [LIVE_ONE, LIVE_THREE] {
            let mut arena = Arena::new();
            let set = Set::new(&arena, machine);
            let site = Liveness::default();
            let mut random = Random(0x3a90_0001_1234_9876);
            for program in [live(shape, true), live(shape, false), read_live(shape)] {
                let code = set.build(&mut arena, program, site, RecordKind::Entry, &back());
                assert_kept(&format!("{shape:?} {machine:?}"), code, &site, &mut random);
            }
            // SAFETY: the arena's maps are as large as the area, and no other thread uses them now.
            unsafe { core::ptr::write_bytes(set.base as *mut u8, 0, set.area.len() as usize) };
            let mut build = |program| set.build(&mut arena, program, site, RecordKind::Entry, &BODY);
            let [assign, delete, read] =
                [live(shape, true), live(shape, false), read_live(shape)].map(&mut build);
            let next = AtomicU64::new(1);
            storm(assign, || {
                everywhere(|| {
                    let thread = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let key = |n: u64| (thread << 32) | (n * 0x9E37 % 4093);
                    for n in 0..CALLS / 4 {
                        _ = call(assign, key(n));
                        _ = call(read, key(n));
                        // Handlers assign 1 too.
                        _ = call(if n % 3 == 0 { delete } else { assign }, 1);
                        if n >= 20 {
                            _ = call(delete, key(n - 20));
                        }
                    }
                });
            });
            let left = CALLS / 4 - 20..CALLS / 4;
            let mut expected: BTreeMap<u64, u64> = (1..=THREADS)
                .flat_map(|thread| left.clone().map(move |n| (thread << 32) | (n * 0x9E37 % 4093)))
                .map(|key| (key, key))
                .collect();
            let mut found = alive(&set.area, set.view(), shape);
            [&mut expected, &mut found].into_iter().for_each(|map| map.retain(|key, _| *key != 1));
            assert_eq!(found, expected, "{machine:?}");
            let (sums, full) = set.sums();
            assert_eq!((sums.len(), full), (1, 0), "each thread finds what it assigned: {sums:?}");
            assert_eq!(sums[&[0, 0]].0, CALLS / 4 * THREADS);
            assert_eq!(sums[&[0, 0]].1, 0, "each value is its key");
            arena.unmap();
        }
    }
}

/// A program at a USDT probe: its arguments, as many bits of them as the note says; a text's number; and no run where
/// something is not known.
#[test]
fn hit_4_operands_and_texts_are_a_programs_arguments() {
    let _one = ONE.lock();
    let site = Liveness { flags_dead: false, dead: 0, red_zone_live: true };
    let bad = (Operand::Constant(8), 0);
    for machine in &machines() {
        for (word, unknown) in [((Operand::Register(4), 8 * 13 - 128), false), (bad, false), (bad, true)] {
            let mut arena = Arena::new();
            let set = Set::new(&arena, machine);
            let mut marked = marked([7, 6, 12], word);
            if unknown {
                marked.taken.push(trapline_plan::filter::Taken::Unknown);
            }
            let code = set.build_marked(&mut arena, site, (noted(), &marked));
            let mut random = Random(0x0123_4567_89ab_cdef);
            let mut state = random.state();
            let before = state.clone();
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a time.
            unsafe { tl_run(code, &mut state) };
            let found = set.began();
            if matches!(word.0, Operand::Constant(_)) {
                assert_eq!((found.len(), arena.counted(0)), (0, 1), "{machine:?}");
            } else {
                let (registers, red) = ([7, 6, 12].map(|nth: usize| before.regs[nth]), before.red[13]);
                let expected = (0..).zip(left(registers, red));
                expected.for_each(|(nth, value)| assert_eq!(found[&nth], value, "{nth} {machine:?}"));
                let mut texts = Vec::new();
                set.area.read_texts(set.view(), std::slice::from_ref(&ALL), |text| {
                    texts.push((text.number, text.bytes.to_vec()));
                });
                assert_eq!(texts, [(found[&7], b"ttt".to_vec())], "{machine:?}");
                assert_eq!(arena.counted(0), 0);
            }
            assert_kept("a USDT probe's program", code, &site, &mut random);
            arena.unmap();
        }
    }
}
