//! LOSS-1 and SAFE-2 for aggregations: each hit is in the bucket or row of its value, in the overflow, or
//! filtered. Also with threads that migrate, are interrupted, or have no rseq area. Generated code sorts as
//! the language defines.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use trapline_plan::Stacks;
use trapline_plan::filter::{GroupBy, Int, Known, Late, Sort, Tally, TargetFilter, Tree, parse};
use trapline_plan::x86_64::stub::tally::TableLocation;
use trapline_plan::x86_64::stub::{Filtered, Latency, Liveness, Machine, Rings, Traced, tally};
use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::tally::{PROBES, Rest, TableShape, TallyArea};
use trapline_record::view::View;

use crate::arena::{Arena, LINES, call, machines, unregister};
use crate::counts::{THREADS, everywhere, storm};
use crate::records::{every_hit, id_for};
use crate::stages::TICK;
use crate::state::{ONE, Random, assert_kept, back, tl_run};

pub(crate) const FILTERED: u64 = 1;
const CALLS: u64 = 100_000;

pub(crate) struct Set {
    machine: Machine,
    rings: Rings,
    pub(crate) filter: TargetFilter,
    pub(crate) table: TableLocation,
    /// Memory where entries leave what returns aggregate.
    places: Option<Latency>,
}

impl Set {
    pub(crate) fn new(arena: &Arena, machine: &Machine, tally: Tally, condition: Option<Tree>) -> Self {
        let area = TallyArea { off: 0, tables: 1, lines: LINES, shape: tally.shape() };
        let (area_of_rings, id) = (RingArea::default(), id_for(machine));
        let rings =
            Rings { area: area_of_rings, base: 0, id, stacks: Stacks::default(), known: None, waits: None };
        let filter = TargetFilter { condition, sample: 1, tally: Some(tally), ..TargetFilter::default() };
        Self {
            machine: *machine,
            rings,
            filter,
            table: TableLocation { area, base: arena.rows() },
            places: None,
        }
    }
    /// The same, aggregated at returns of calls for which `late` holds.
    pub(crate) fn of_calls(self, arena: &mut Arena, late: Tree, go: Option<i32>) -> Self {
        let late = Some(Late { condition: late, tick: TICK });
        let filter = TargetFilter { late, ..self.filter };
        let slot = filter.left_bytes();
        let area = RingArea { slot, most: slot, ..self.rings.area };
        let places = Some(Latency { go, ..arena.deferred(slot) });
        Self { rings: Rings { area, ..self.rings }, filter, places, ..self }
    }
    pub(crate) fn build(&self, arena: &mut Arena, site: Liveness, kind: RecordKind, body: &[u8]) -> u64 {
        let filtered = Filtered { filter: &self.filter, words: arena.word(FILTERED), names: None };
        let tallied = self.filter.tally.as_ref().expect("as set");
        let traced = Traced {
            probe: 0,
            site,
            filter: Some(filtered).filter(|_| !self.filter.passes_all()),
            texts: tallied.texts(),
            floats: self.filter.left_floats(),
            fields: &self.filter.reads,
            marks: self.places,
            ..every_hit(&self.machine, &self.rings, arena.word(0))
        };
        let mut out = Vec::new();
        let pending = tally(&mut out, arena.next(), &traced, (tallied, self.table), kind);
        out.extend(body);
        pending.finish(&mut out, None).expect("code");
        arena.put(&out)
    }
    /// A function with both stubs: `body` between its entry and its exit, and `end` behind that.
    pub(crate) fn whole(
        &self,
        arena: &mut Arena,
        site: Liveness,
        kind: RecordKind,
        [body, end]: [&[u8]; 2],
    ) -> u64 {
        let exit = self.build(arena, site, kind, end);
        // jmp [rip]
        let mut code = body.to_vec();
        code.extend([0xFF, 0x25, 0, 0, 0, 0]);
        code.extend(exit.to_le_bytes());
        self.build(arena, site, RecordKind::Entry, &code)
    }
    pub(crate) fn view(&self) -> View<'_> {
        let words = self.table.area.len() / 8;
        // SAFETY: the arena's mapping is larger than the tables, and holds words that are stored to as a
        // whole.
        View::new(unsafe { core::slice::from_raw_parts(self.table.base as *const AtomicU64, words as usize) })
    }
    pub(crate) fn read(&self) -> (BTreeMap<u64, u64>, Rest) {
        let (mut cells, mut sum) = (BTreeMap::new(), Rest::default());
        for line in 0..LINES {
            let rest = self.table.area.read(self.view(), 0, line, |key, hits| {
                *cells.entry(key).or_default() += hits;
            });
            sum.overflow += rest.overflow;
            sum.unseen += rest.unseen;
        }
        (cells, sum)
    }
}

pub(crate) fn of(value: Tree, sort: Sort) -> Tally {
    Tally { value, sort, group_by: GroupBy::Nothing }
}

pub(crate) fn argument(index: u8, bits: u8, signed: bool) -> Tree {
    Tree::Known(Known::Argument(index, Int { bits, signed }))
}

fn sorts() -> [Sort; 5] {
    [
        Sort::Log2,
        Sort::Linear { min: 0, step: 1, count: 8 },
        Sort::Linear { min: 10, step: 7, count: 100 },
        Sort::Linear { min: 1 << 40, step: 1 << 20, count: 4094 },
        Sort::Each,
    ]
}

/// Numbers at the edges of every type and every bucket.
fn number(random: &mut Random) -> u64 {
    let word = random.next();
    let near = (1_u64 << (word & 63)).wrapping_add((word >> 8 & 3).wrapping_sub(1));
    match word >> 16 & 3 {
        0 => random.next(),
        1 => near.wrapping_neg(),
        2 => word >> 24 & 63,
        _ => near,
    }
}

#[test]
fn values_fall_where_the_language_says() {
    let _one = ONE.lock();
    machines().iter().for_each(values_fall);
}

fn values_fall(machine: &Machine) {
    let mut random = Random(0x7a11_0001_1234_9876);
    let negated = |tree: Tree| Tree::Unary(trapline_plan::filter::Unary::Negate, Box::new(tree));
    for sort in sorts() {
        for (n, value) in [
            argument(0, 64, false),
            argument(1, 64, true),
            argument(2, 32, true),
            argument(3, 8, false),
            negated(argument(5, 32, true)),
        ]
        .into_iter()
        .enumerate()
        {
            let mut arena = Arena::new();
            let set = Set::new(&arena, machine, of(value, sort), None);
            let site = Liveness { flags_dead: n & 1 == 1, dead: 0, red_zone_live: n & 2 == 2 };
            let code = set.build(&mut arena, site, RecordKind::Entry, &back());
            let tally = set.filter.tally.as_ref().expect("as set");
            let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
            for _ in 0..200 {
                let mut state = random.state();
                for reg in [7, 6, 2, 1, 8, 9] {
                    state.regs[reg] = number(&mut random);
                }
                let arguments = [7, 6, 2, 1, 8, 9].map(|reg: usize| state.regs[reg]);
                let facts = trapline_plan::filter::Facts { arguments, ..Default::default() };
                let value = tally.value.evaluate(&facts).expect("known");
                *expected.entry(tally.key(value)).or_default() += 1;
                let before = state.regs;
                // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user
                // at a time.
                unsafe { tl_run(code, &mut state) };
                assert_eq!(state.regs, before, "{tally:?}");
            }
            assert_eq!(set.read(), (expected, Rest::default()), "{tally:?}");
            assert_kept(&format!("{tally:?} {site:?}"), code, &site, &mut random);
            arena.unmap();
        }
    }
}

#[test]
fn what_is_returned_is_aggregated_and_tail_calls_are_counted_apart() {
    let _one = ONE.lock();
    machines().iter().for_each(what_is_returned);
}

fn what_is_returned(machine: &Machine) {
    let mut random = Random(0x7a11_0002_1234_9876);
    let mut arena = Arena::new();
    let returned = Tree::Known(Known::Returned(Int { bits: 32, signed: true }));
    let names = [(
        "ret".to_owned(),
        trapline_plan::filter::Symbol::Known(Known::Returned(Int { bits: 32, signed: true })),
    )];
    let condition = parse("ret != 5", &names).expect("reads");
    let set = Set::new(&arena, machine, of(returned, Sort::Each), Some(condition));
    let body = [0xC3];
    let code = set.build(&mut arena, Liveness::default(), RecordKind::Return, &body);
    // mov rax, rdi; jmp code
    let mut out = vec![0x48, 0x89, 0xF8, 0xE9];
    let rel = code.wrapping_sub(arena.next() + 8) as u32;
    out.extend(rel.to_le_bytes());
    let function = arena.put(&out);
    for value in [0, 5, 5, u64::from(u32::MAX), 0x1234_0000_0007, 7] {
        assert_eq!(call(function, value), value);
    }
    let expected = BTreeMap::from([(0, 1), (u64::MAX, 1), (7, 2)]);
    assert_eq!((set.read(), arena.counted(FILTERED)), ((expected.clone(), Rest::default()), 2));
    let tail = set.build(&mut arena, Liveness::default(), RecordKind::Tail, &[0x48, 0x89, 0xF8, 0xC3]);
    assert_eq!((call(tail, 1), call(tail, 5)), (1, 5));
    assert_eq!(set.read(), (expected, Rest { overflow: 0, unseen: 2 }));
    for kind in [RecordKind::Return, RecordKind::Tail] {
        let code = set.build(&mut arena, Liveness::default(), kind, &back());
        assert_kept(&format!("{kind:?}"), code, &Liveness::default(), &mut random);
    }
}

#[test]
fn a_table_that_is_full_counts_on() {
    let _one = ONE.lock();
    machines().iter().for_each(a_full_table);
}

fn a_full_table(machine: &Machine) {
    let mut arena = Arena::new();
    let mut set = Set::new(&arena, machine, of(argument(0, 64, false), Sort::Each), None);
    // As small as a table can be.
    set.table.area.shape = TableShape::Rows(4);
    let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &[0x48, 0x89, 0xF8, 0xC3]);
    let mut random = Random(0x7a11_0003_1234_9876);
    let values: Vec<u64> = (0..500).map(|_| random.next() % 90).collect();
    values.iter().for_each(|&value| assert_eq!(call(code, value), value));
    let (rows, rest) = set.read();
    let expected = |value: u64| values.iter().filter(|&&other| other == value).count() as u64;
    assert_eq!(rows.values().sum::<u64>() + rest.overflow, 500);
    assert!(rest.overflow > 0 && rows.len() >= PROBES as usize, "{rows:?} {rest:?}");
    // On one CPU, a value with a row has it from its first hit on; with more CPUs, each has its own table.
    assert!(rows.iter().all(|(&value, &hits)| hits <= expected(value)), "{rows:?}");
}

#[test]
fn threads_are_distinguished() {
    let _one = ONE.lock();
    machines().iter().for_each(threads_apart);
}

fn threads_apart(machine: &Machine) {
    let mut arena = Arena::new();
    let tally = Tally { value: argument(0, 64, false), sort: Sort::Log2, group_by: GroupBy::Thread };
    let set = Set::new(&arena, machine, tally, None);
    let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &[0x48, 0x89, 0xF8, 0xC3]);
    let hit = |value: u64, times: u64| {
        (0..times).for_each(|_| assert_eq!(call(code, value), value));
        // SAFETY: gettid has no precondition.
        u64::from((unsafe { libc::gettid() }).cast_unsigned())
    };
    let (mine, other) =
        (hit(4, 3), std::thread::scope(|scope| scope.spawn(|| hit(0, 5)).join().expect("ends")));
    let key = |tid: u64, cell: u64| tid << 16 | cell;
    let expected = BTreeMap::from([(key(mine, 4), 3), (key(other, 1), 5)]);
    assert_eq!(set.read(), (expected, Rest::default()));
}

/// Threads that migrate and are interrupted lose no hit, in buckets and in rows. Threads without an area
/// count on the last line.
#[test]
fn nothing_is_lost_under_a_storm() {
    let _one = ONE.lock();
    machines().iter().for_each(nothing_is_lost);
}

fn nothing_is_lost(machine: &Machine) {
    for sort in [Sort::Log2, Sort::Each] {
        let mut arena = Arena::new();
        let value = Tree::Binary(
            trapline_plan::filter::Binary::Remainder,
            Box::new(argument(0, 64, false)),
            Box::new(Tree::Number(37, false)),
        );
        let set = Set::new(&arena, machine, of(value, sort), None);
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &[0x48, 0x89, 0xF8, 0xC3]);
        let handled = storm(code, || {
            everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n), n)));
        });
        let (cells, rest) = set.read();
        let tally = set.filter.tally.as_ref().expect("as set");
        let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
        for n in 0..CALLS {
            *expected.entry(tally.key(n % 37)).or_default() += THREADS;
        }
        *expected.entry(tally.key(1)).or_default() += handled;
        assert_eq!((cells, rest), (expected, Rest::default()), "{sort:?}, {handled} in handlers");
        if machine.rseq.is_none() {
            continue;
        }
        let before = set.read();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unregister();
                (0..10).for_each(|_| assert_eq!(call(code, 4), 4));
            });
        });
        let (cells, rest) = set.read();
        let key = tally.key(4);
        let more = cells[&key] - before.0[&key];
        let expected = if sort == Sort::Each { (0, 10) } else { (10, 0) };
        assert_eq!((more, rest.overflow), expected, "{sort:?}");
    }
}
