//! HIT-1, LOSS-1 and SAFE-2 for hits that run programs: what they add, assign and delete in maps. The same as
//! x86-64's twin.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use trapline_code::{Program, Value};
use trapline_plan::aarch64::stub::arguments::{ArgumentForm, Moved};
use trapline_plan::aarch64::stub::filter::code_bytes;
use trapline_plan::aarch64::stub::keyed_stack::BYTES as KEYED_BYTES;
use trapline_plan::aarch64::stub::run::{Ran, run as ran};
use trapline_plan::aarch64::stub::{Code as _, Machine};
use trapline_plan::filter::{Taken, TargetFilter};
use trapline_plan::hit::{HitClock, HitProgram, MapsAt, input};
use trapline_plan::{Operand, Stacks, ThreadId};
use trapline_record::addr::Bias;
use trapline_record::maps::{MapArea, Missed};
use trapline_record::ring::RecordKind;
use trapline_record::view::View;

use super::fields::put_with_kernel;
use super::filters::Random;
use super::latency::on_cpu;
use super::map_programs::{
    BEGAN, BYTES, LIVE_ONE, LIVE_THREE, Made, Marked, STACKS, SUMS, TEXTS, alive, begin, by_member, end,
    left, live, marked, noted, read_live, sum, sums_of_arguments,
};
use super::threads::{ids, tid};
use super::{ADD, CodeMemory, DATA, RET, by_hand, call, changes, machines, registered, run, storm};

/// The probe that is hit.
pub(super) const PROBE: u32 = 3;
/// All memory.
const ALL: std::ops::Range<u64> = 0..u64::MAX;

/// Maps in memory of their own.
pub(super) struct Set {
    pub(super) room: CodeMemory,
    machine: Machine,
    id: ThreadId,
    pub(super) stacks: Stacks,
    pub(super) area: MapArea,
    pub(super) words: Vec<AtomicU64>,
    /// The process' number, and how many there are.
    own: Box<[AtomicU64; 2]>,
}

impl Set {
    pub(super) fn new(machine: Machine, id: ThreadId) -> Self {
        let area = MapArea { off: 0, lines: machine.lines, bytes: BYTES, stacks: STACKS, texts: TEXTS };
        let words: Vec<AtomicU64> = (0..area.len() / 8).map(|_| AtomicU64::new(0)).collect();
        Self {
            room: CodeMemory::new(),
            machine,
            id,
            stacks: Stacks::default(),
            area,
            words,
            own: Box::default(),
        }
    }
    pub(super) fn build(&self, program: Program, kind: RecordKind, body: &[u32]) -> u64 {
        let mut hit = HitProgram::new(program, self.area.bytes);
        hit.stacks = self.area.stacks;
        hit.clock = HitClock { tick: 1 << 32, offset: 0 };
        let (maps, counter) = (self.at(), self.room.base + DATA);
        let (probe, stacks) = (PROBE, self.stacks);
        let (goroutine, inside, bias) = (false, false, Bias::default());
        let (fields, taken) = (&[][..], &[][..]);
        let what = Ran { hit: &hit, maps, probe, counter, stacks, goroutine, fields, taken, inside, bias };
        let words =
            ran(self.room.next(), &self.machine, self.id, what, kind).finish(body, None).expect("in reach");
        let filter = TargetFilter { program: Some(hit.into()), ..TargetFilter::default() };
        assert!(4 * words.len() <= 1024 + KEYED_BYTES as usize + code_bytes(&filter), "{}", words.len());
        self.room.put(&words)
    }
    fn at(&self) -> MapsAt {
        let own = self.own.each_ref().map(|word| std::ptr::from_ref(word) as u64);
        MapsAt { maps: self.words.as_ptr() as u64, own_page: own[0], sharers: own[1] }
    }
    /// A program at a USDT probe.
    fn build_marked(&self, program: Program, marked: &Marked) -> u64 {
        let mut hit = HitProgram::new(program, self.area.bytes);
        (hit.stacks, hit.texts) = (self.area.stacks, marked.texts.clone());
        let what = Ran {
            hit: &hit,
            maps: self.at(),
            probe: PROBE,
            counter: self.room.base + DATA,
            stacks: self.stacks,
            goroutine: false,
            fields: &marked.reads,
            taken: &marked.taken,
            inside: true,
            bias: Bias::default(),
        };
        let form = ArgumentForm::AsNoted(&marked.operands, Bias::default());
        let at = self.room.next() + form.bytes_before();
        let stub = ran(at, &self.machine, self.id, what, RecordKind::Entry);
        put_with_kernel(&self.room, Moved::new(stub, form).finish(&[RET], None).expect("in reach"))
    }
    fn sums(&self) -> (BTreeMap<[u64; 2], (u64, u64)>, u64) {
        let (mut all, mut dropped) = (BTreeMap::new(), 0);
        for line in 0..self.area.lines {
            let mut add = |key: &[u64], value: Option<&[u64]>| {
                let Some(value) = value else { return };
                let sum: &mut (u64, u64) = all.entry([key[0], key[1]]).or_default();
                *sum = (sum.0 + value[0], sum.1.wrapping_add(value[1]));
            };
            let (view, all) = (View::new(&self.words), std::slice::from_ref(&ALL));
            dropped += self.area.read(view, (SUMS, line), all, &mut add).full;
        }
        (all, dropped)
    }
    fn began(&self) -> BTreeMap<u64, u64> {
        let mut all = BTreeMap::new();
        let read = |key: &[u64], value: Option<&[u64]>| all.extend(value.map(|value| (key[0], value[0])));
        let missed = self.area.read(View::new(&self.words), (BEGAN, 0), std::slice::from_ref(&ALL), read);
        assert_eq!(missed, Missed::default());
        all
    }
}

/// SHR-1: a process takes a number at its first hit, and another one when a fork has cleared its page.
#[test]
fn shr_1_a_process_takes_one_number_and_a_forked_child_another_one() {
    for machine in machines(by_hand) {
        let set = Set::new(machine, ThreadId::Call);
        let code = set.build(by_member(), RecordKind::Entry, &[RET]);
        for _ in 0..4 {
            set.own[0].store(0, Relaxed);
            (0..3).for_each(|_| _ = call(code, 1, 2));
        }
        let expected = (1..=4_u64).map(|number| ([number << 32 | u64::from(tid()), 1], (3, 3))).collect();
        assert_eq!((set.sums(), set.own[1].load(Relaxed)), ((expected, 0), 4));
    }
}

#[test]
fn hit_1_each_hit_is_added_up() {
    let mut random = Random(0x3a90_0001_1234_9876);
    for machine in machines(by_hand) {
        let set = Set::new(machine, ThreadId::Call);
        let code = set.build(sums_of_arguments(), RecordKind::Entry, &[RET]);
        let mut expected: BTreeMap<[u64; 2], (u64, u64)> = BTreeMap::new();
        for turn in 0..200 {
            on_cpu(if turn % 7 == 6 { u32::MAX } else { turn % 8 });
            let state = random.state();
            let sum = expected.entry([state[0] % 37, state[2] % 2]).or_default();
            *sum = (sum.0 + 1, sum.1.wrapping_add(state[1]));
            assert_eq!(run(code, state, [0; 8]), state);
        }
        assert_eq!(set.sums(), (expected, 0), "{machine:?}");
        for program in [sums_of_arguments(), begin(true), end(true), begin(false), end(false)] {
            let code = set.build(program, RecordKind::Entry, &[RET]);
            for flags in 0..16 {
                let (before, after) = changes(code, flags);
                assert_eq!(after, before, "{machine:?}");
            }
        }
        set.room.unmap();
    }
}

/// A hit's values at the return, and a call that goes on as another function.
#[test]
fn hit_1_what_a_thread_noted_is_found_at_the_return() {
    for (machine, id) in
        machines(by_hand).into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        let set = Set::new(machine, id);
        on_cpu(2);
        let entry = set.build(begin(false), RecordKind::Entry, &[ADD, RET]);
        let exit = set.build(end(false), RecordKind::Return, &[RET]);
        let tail = set.build(end(false), RecordKind::Tail, &[RET]);
        for n in 0..100 {
            assert_eq!(call(exit, call(entry, n, 5), 0), n + 5);
        }
        assert_eq!((set.sums(), set.began()), ((BTreeMap::from([([1, 1], (100, 500))]), 0), BTreeMap::new()));
        assert_eq!((call(entry, 7, 0), call(tail, 7, 0), call(tail, 7, 0)), (7, 7, 7));
        assert_eq!(set.began(), BTreeMap::from([(tid().into(), 7)]), "{machine:?} {id:?}");
        assert_eq!(set.room.counts()[0], 2, "calls that went on as another function");
        set.room.unmap();
    }
}

#[test]
fn hit_1_nothing_is_lost_under_a_storm() {
    for machine in machines(registered) {
        let set = Set::new(machine, ThreadId::Call);
        let mut made = Made::new();
        let one = made.value(input::ARGUMENT);
        sum(&mut made, [one, Value::Number(0)], Value::Number(3));
        let (called, handled) = storm(set.build(made.finish(), RecordKind::Entry, &[ADD, RET]));
        let (found, dropped) = set.sums();
        let hits: u64 = found.values().map(|sum| sum.0).sum();
        assert_eq!((hits, dropped), (called + handled, 0), "{machine:?}");
        assert!(found.values().all(|sum| sum.1 == 3 * sum.0), "{found:?}");
        set.room.unmap();
    }
}

/// Threads assign and delete keys of one map. Each key that a thread alone uses is as it left it.
#[test]
fn hit_3_all_threads_change_one_map() {
    const CALLS: u64 = 2000;
    for (machine, shape) in machines(registered)
        .into_iter()
        .flat_map(|machine| [LIVE_ONE, LIVE_THREE].map(|shape| (machine, shape)))
    {
        let set = Set::new(machine, ThreadId::Call);
        let [assign, delete, read] = [live(shape, true), live(shape, false), read_live(shape)]
            .map(|program| set.build(program, RecordKind::Entry, &[RET]));
        for code in [assign, delete, read] {
            for flags in 0..16 {
                let (before, after) = changes(code, flags);
                assert_eq!(after, before, "{machine:?}");
            }
        }
        let before = set.sums().0.get(&[0, 0]).map_or(0, |sum| sum.0);
        let key = |thread: u64, n: u64| (thread << 32) | (n * 0x9E37 % 4093);
        std::thread::scope(|scope| {
            for thread in 1..4 {
                scope.spawn(move || {
                    for n in 0..CALLS {
                        _ = call(assign, key(thread, n), 0);
                        _ = call(read, key(thread, n), 0);
                        _ = call(if n % 3 == 0 { delete } else { assign }, 1, 0);
                        if n >= 20 {
                            _ = call(delete, key(thread, n - 20), 0);
                        }
                    }
                });
            }
        });
        let left =
            (1..4).flat_map(|thread| (CALLS - 20..CALLS).map(move |n| (key(thread, n), key(thread, n))));
        let mut found = alive(&set.area, View::new(&set.words), shape);
        found.retain(|key, _| *key >> 32 > 0 && *key >> 32 < 4);
        assert_eq!(found, left.collect(), "{machine:?}");
        let (sums, full) = set.sums();
        assert_eq!((sums[&[0, 0]].0 - before, full), (3 * CALLS, 0), "each thread finds what it assigned");
        set.room.unmap();
    }
}

/// A program at a USDT probe: its arguments, as many bits of them as the note says; a text's number; and no run where
/// something is not known.
#[test]
fn hit_4_operands_and_texts_are_a_programs_arguments() {
    let word = 0x1122_3344_5566_7788_u64;
    let good = (Operand::Constant(&raw const word as i64), 0);
    let bad = (Operand::Constant(8), 0);
    for (machine, id) in
        machines(by_hand).into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        for (place, unknown) in [(good, false), (bad, false), (bad, true)] {
            on_cpu(2);
            let set = Set::new(machine, id);
            let mut marked = marked([5, 17, 3], place);
            if unknown {
                marked.taken.push(Taken::Unknown);
            }
            let code = set.build_marked(noted(), &marked);
            let state: [u64; 32] = std::array::from_fn(|n| (n as u64 + 1) * 0x0123_4567_89AB_CDEF);
            let mut state = state;
            state[31] = 5 << 28;
            assert_eq!(run(code, state, [0; 8]), state);
            let (found, counted) = (set.began(), set.room.counts()[0]);
            if place == bad {
                assert_eq!((found.len(), counted), (0, 1), "{machine:?}");
            } else {
                let expected = (0..).zip(left([state[5], state[17], state[3]], word));
                expected.for_each(|(nth, value)| assert_eq!(found[&nth], value, "{nth} {machine:?}"));
                let mut texts = Vec::new();
                set.area.read_texts(View::new(&set.words), std::slice::from_ref(&ALL), |text| {
                    texts.push((text.number, text.bytes.to_vec()));
                });
                assert_eq!((texts, counted), (vec![(found[&7], b"ttt".to_vec())], 0), "{machine:?}");
            }
            set.room.unmap();
        }
    }
}
