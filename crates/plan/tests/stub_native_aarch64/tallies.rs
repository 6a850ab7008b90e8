//! LOSS-1 and SAFE-2 for aggregations: each hit is in the bucket or row of its value, in the overflow, or
//! filtered. Also with threads that migrate, are interrupted, or have no rseq area. Generated code sorts as
//! the language defines.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_insn::aarch64::encode;
use trapline_plan::ThreadId;
use trapline_plan::aarch64::stub::adding::{ROW_BYTES, SUMS_BYTES};
use trapline_plan::aarch64::stub::filter::code_bytes;
use trapline_plan::aarch64::stub::{Code as _, Filtered, Machine, TableLocation, Tallied, tally};
use trapline_plan::filter::{
    Binary, Facts, GroupBy, Int, Known, Sort, Symbol, Tally, TargetFilter, Tree, Unary, parse,
};
use trapline_record::addr::Bias;
use trapline_record::tally::{PROBES, Rest, TableShape, TallyArea};
use trapline_record::view::View;

use super::fields::put_with_kernel;
use super::filters::{Random, of};
use super::latency::on_cpu;
use super::threads::{ids, tid};
use super::{ADD, CodeMemory, DATA, LINES, RET, by_hand, call, changes, machines, registered, run, storm};

const STUB: usize = 1024 + ROW_BYTES as usize;

/// Bytes of the code for sums, if there are any.
pub(super) fn summing(tally: &Tally) -> usize {
    if tally.sort == Sort::Sums { SUMS_BYTES as usize } else { 0 }
}
/// Bytes of the code for one load.
pub(super) const LOAD: usize = 256;
/// Bytes of the code that checks for room on a goroutine's stack.
pub(super) const ROOM: usize = 512;

/// Tables in memory of their own.
pub(super) struct Set {
    pub(super) room: CodeMemory,
    pub(super) machine: Machine,
    pub(super) filter: TargetFilter,
    pub(super) table: TableLocation,
    id: ThreadId,
    /// Whether x28 holds g.
    pub(super) goroutine: bool,
    pub(super) words: Vec<AtomicU64>,
}

impl Set {
    pub(super) fn new(machine: Machine, id: ThreadId, tally: Tally, condition: Option<Tree>) -> Self {
        Self::shaped(machine, id, tally.shape(), tally, condition)
    }
    pub(super) fn shaped(
        machine: Machine,
        id: ThreadId,
        shape: TableShape,
        tally: Tally,
        condition: Option<Tree>,
    ) -> Self {
        let area = TallyArea { off: 0, tables: 1, lines: machine.lines, shape };
        let words: Vec<AtomicU64> = (0..area.len() / 8).map(|_| AtomicU64::new(0)).collect();
        let table = TableLocation { area, base: words.as_ptr() as u64 };
        let filter = TargetFilter { tally: Some(tally), ..of(condition, 1) };
        Self { room: CodeMemory::new(), machine, filter, table, id, goroutine: false, words }
    }
    fn tally(&self) -> &Tally {
        self.filter.tally.as_ref().expect("as set")
    }
    pub(super) fn words(&self, at: u64, seen: bool, body: &[u32]) -> Vec<u32> {
        let filtered = Filtered { filter: &self.filter, words: self.room.base + DATA, names: None };
        let filtered = Some(filtered).filter(|_| !self.filter.passes_all());
        let reads = if seen { &self.filter.reads[..] } else { &[] };
        let what = Tallied { tally: self.tally(), table: self.table, reads, bias: Bias::default() };
        let pending = tally(at, &self.machine, self.id, filtered, what, (seen, self.goroutine));
        let words = pending.finish(body, Some(self.room.base)).expect("in reach");
        let loads = self.tally().texts().count_ones() as usize
            + reads.iter().map(|read| read.offsets.len()).sum::<usize>();
        let room = if self.goroutine { ROOM } else { 0 };
        let most = STUB + summing(self.tally()) + code_bytes(&self.filter) + loads * LOAD + room;
        assert!(4 * words.len() <= most, "{} words of {most} bytes", words.len());
        words
    }
    pub(super) fn build(&self, seen: bool, body: &[u32]) -> u64 {
        put_with_kernel(&self.room, self.words(self.room.next(), seen, body))
    }
    pub(super) fn read(&self) -> (BTreeMap<u64, u64>, Rest) {
        let (mut cells, mut sum) = (BTreeMap::new(), Rest::default());
        for line in 0..self.machine.lines {
            let view = View::new(&self.words);
            let rest = self.table.area.read(view, 0, line, |key, hits| {
                *cells.entry(key).or_default() += hits;
            });
            sum.overflow += rest.overflow;
            sum.unseen += rest.unseen;
        }
        (cells, sum)
    }
    pub(super) fn rejected(&self) -> u64 {
        self.room.counts().iter().sum()
    }
}

pub(super) fn by(value: Tree, sort: Sort) -> Tally {
    Tally { value, sort, group_by: GroupBy::Nothing }
}

pub(super) fn argument(index: u8, bits: u8, signed: bool) -> Tree {
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
    let mut random = Random(0x7a11_0001_1234_9876);
    let negated = |tree: Tree| Tree::Unary(Unary::Negate, Box::new(tree));
    for (machine, sort) in
        machines(by_hand).into_iter().flat_map(|machine| sorts().map(|sort| (machine, sort)))
    {
        for value in [
            argument(0, 64, false),
            argument(1, 64, true),
            argument(2, 32, true),
            argument(3, 8, false),
            negated(argument(5, 32, true)),
        ] {
            let set = Set::new(machine, ThreadId::Call, by(value, sort), None);
            let code = set.build(true, &[RET]);
            let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
            for turn in 0..200 {
                // Rows of threads without an area belong to no thread.
                on_cpu(if turn % 7 == 6 && sort != Sort::Each { u32::MAX } else { turn % 8 });
                let mut state = random.state();
                state[..6].fill_with(|| number(&mut random));
                let arguments = core::array::from_fn(|n| state[n]);
                let value = set.tally().value.evaluate(&Facts { arguments, ..Facts::default() });
                *expected.entry(set.tally().key(value.expect("known"))).or_default() += 1;
                assert_eq!(run(code, state, [0; 8]), state, "{:?}", set.tally());
            }
            assert_eq!(set.read(), (expected, Rest::default()), "{machine:?} {:?}", set.tally());
            set.room.unmap();
        }
    }
}

#[test]
fn what_is_returned_is_aggregated_and_tail_calls_are_counted_apart() {
    for machine in machines(by_hand) {
        let returned = Known::Returned(Int { bits: 32, signed: true });
        let names = [("ret".to_owned(), Symbol::Known(returned))];
        let condition = parse("ret != 5", &names).expect("reads");
        let set = Set::new(machine, ThreadId::Call, by(Tree::Known(returned), Sort::Each), Some(condition));
        let (code, tail) = (set.build(true, &[RET]), set.build(false, &[RET]));
        on_cpu(3);
        for value in [0, 5, 5, u64::from(u32::MAX), 0x1234_0000_0007, 7] {
            assert_eq!(call(code, value, 0), value);
        }
        let expected = BTreeMap::from([(0, 1), (u64::MAX, 1), (7, 2)]);
        assert_eq!((set.read(), set.rejected()), ((expected.clone(), Rest::default()), 2), "{machine:?}");
        assert_eq!((call(tail, 1, 0), call(tail, 5, 0)), (1, 5));
        assert_eq!(set.read(), (expected, Rest { overflow: 0, unseen: 2 }));
        for cpu in [1, u32::MAX] {
            on_cpu(cpu);
            for (code, flags) in [code, tail].into_iter().flat_map(|code| (0..16).map(move |n| (code, n))) {
                let (before, after) = changes(code, flags);
                assert_eq!(after, before, "{machine:?} {cpu}");
            }
        }
    }
}

#[test]
fn a_table_that_is_full_counts_on() {
    for machine in machines(by_hand) {
        // As small as a table can be.
        let each = by(argument(0, 64, false), Sort::Each);
        let set = Set::shaped(machine, ThreadId::Call, TableShape::Rows(4), each, None);
        let code = set.build(true, &[ADD, RET]);
        on_cpu(2);
        let mut random = Random(0x7a11_0003_1234_9876);
        let values: Vec<u64> = (0..500).map(|_| random.next() % 90).collect();
        values.iter().for_each(|&value| assert_eq!(call(code, value, 1), value + 1));
        let (rows, rest) = set.read();
        let expected = |value: u64| values.iter().filter(|&&other| other == value).count() as u64;
        assert_eq!(rows.values().sum::<u64>() + rest.overflow, 500);
        assert!(rest.overflow > 0 && rows.len() >= PROBES as usize, "{rows:?} {rest:?}");
        // A value with a row has it from its first hit on.
        assert!(rows.iter().all(|(&value, &hits)| hits == expected(value)), "{rows:?}");
        // A row that stays claimed for ever is passed over, and registers are preserved.
        let (before, after) = changes(set.build(true, &[RET]), 9);
        assert_eq!(after, before);
    }
}

#[test]
fn threads_are_distinguished() {
    for (machine, id) in
        machines(by_hand).into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        let tally = Tally { value: argument(0, 64, false), sort: Sort::Log2, group_by: GroupBy::Thread };
        let set = Set::new(machine, id, tally, None);
        let code = set.build(true, &[ADD, RET]);
        let hit = |value: u64, times: u64| {
            on_cpu(1);
            (0..times).for_each(|_| assert_eq!(call(code, value, 1), value + 1));
            u64::from(tid())
        };
        let mine = hit(4, 3);
        let other = std::thread::scope(|scope| scope.spawn(|| hit(0, 5)).join().expect("ends"));
        let key = |tid: u64, cell: u64| tid << 16 | cell;
        let expected = BTreeMap::from([(key(mine, 4), 3), (key(other, 1), 5)]);
        assert_eq!(set.read(), (expected, Rest::default()), "{machine:?} {id:?}");
    }
}

/// Threads that migrate and are interrupted lose no hit, in buckets and in rows.
#[test]
fn nothing_is_lost_under_a_storm() {
    for (machine, sort) in
        machines(registered).into_iter().flat_map(|machine| [(machine, Sort::Log2), (machine, Sort::Each)])
    {
        let seven = Tree::Number(7, false);
        let value = Tree::Binary(Binary::Remainder, Box::new(argument(0, 64, false)), Box::new(seven));
        let set = Set::new(machine, ThreadId::Call, by(value, sort), None);
        let (called, handled) = storm(set.build(true, &[ADD, RET]));
        let (cells, rest) = set.read();
        assert_eq!(cells.values().sum::<u64>(), called + handled, "{machine:?} {sort:?}");
        assert_eq!(rest, Rest::default());
        let keys: std::collections::BTreeSet<u64> = (0..7).map(|n| set.tally().key(n)).collect();
        assert!(cells.keys().eq(keys.iter()), "{cells:?}");
        // Each thread counts from 0 on, and its handlers call with 1.
        let zeros = cells[&set.tally().key(0)];
        assert!(zeros * 7 <= called + 7 * 4, "{cells:?}");
    }
}

#[test]
fn threads_without_an_area_count_on_the_last_line() {
    let lse = std::arch::is_aarch64_feature_detected!("lse");
    let machine = Machine { rseq: by_hand(), lse, lines: LINES };
    for (sort, expected) in [(Sort::Log2, (10, 0)), (Sort::Each, (0, 10))] {
        let set = Set::new(machine, ThreadId::Call, by(argument(0, 64, false), sort), None);
        let code = set.build(true, &[ADD, RET]);
        on_cpu(u32::MAX);
        (0..10).for_each(|_| assert_eq!(call(code, 4, 2), 6));
        let (cells, rest) = set.read();
        assert_eq!((cells.values().sum::<u64>(), rest.overflow), expected, "{sort:?}");
        let stride = set.table.area.stride() / 8;
        let last = &set.words[(stride * u64::from(LINES - 1)) as usize..];
        assert_eq!(last.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>(), 10);
    }
}

/// A row that another thread is claiming is passed over: the next row is used.
#[test]
fn a_row_under_taking_is_passed_over() {
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_none()) {
        let set = Set::shaped(
            Machine { lines: 1, ..machine },
            ThreadId::Call,
            TableShape::Rows(4),
            by(argument(0, 64, false), Sort::Each),
            None,
        );
        let code = set.build(true, &[ADD, RET]);
        assert_eq!(call(code, 8, 0), 8);
        let taken = set.words.iter().position(|word| word.load(Ordering::Relaxed) == 8).expect("its row");
        set.words[taken + 1].store(trapline_record::tally::TAKING, Ordering::Relaxed);
        assert_eq!(call(code, 8, 0), 8);
        assert_eq!(set.words[taken + 2].load(Ordering::Relaxed), 8, "the next one");
        assert_eq!(set.read().0, BTreeMap::from([(8, 1)]));
    }
}

/// Number of restartable sections in code at `start`. Each ends with its commit, and contains no second one.
/// (A row's key is stored before the commit, and means nothing while the row has no hits.) Its abort handler
/// leads back to where the section is announced.
pub(super) fn sections(words: &[u32], start: u64, commit: u32) -> usize {
    let double = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
    let mut sections = 0;
    for (index, _) in words.iter().enumerate().filter(|(_, word)| **word == 0xD428_BC00) {
        let abort = start + 4 * (index as u64 + 1);
        let descriptor = (0..words.len() - 7).find(|&at| double(at + 6) == abort).expect("a descriptor");
        let (begin, len) = (double(descriptor + 2), double(descriptor + 4));
        assert!(double(descriptor) == 0 && (start + 4 * descriptor as u64).is_multiple_of(32));
        assert!(begin > start && begin + len < abort && len.is_multiple_of(4));
        let section = &words[((begin - start) / 4) as usize..((begin + len - start) / 4) as usize];
        let is_commit = |word: &u32| word & 0xFFC0_0000 == commit & 0xFFC0_0000;
        assert!(section.last().is_some_and(is_commit), "{section:x?}");
        assert_eq!(section.iter().filter(|word| is_commit(word)).count(), 1);
        let back = (0..4).map(|n| encode::b(abort, begin - 4 * (n + 3)));
        assert!(back.flatten().any(|word| word == words[index + 1]), "{index}");
        sections += 1;
    }
    sections
}

#[test]
fn sections_end_with_their_commit() {
    const STR: u32 = 0xF900_0000;
    const STLR: u32 = 0xC89F_FC00;
    let machine = Machine { rseq: by_hand(), lse: true, lines: LINES };
    for (sort, commit) in [(Sort::Log2, STR), (Sort::Each, STLR)] {
        let set = Set::new(machine, ThreadId::Call, by(argument(0, 64, false), sort), None);
        assert_eq!(sections(&set.words(set.room.next(), true, &[RET]), set.room.next(), commit), 1);
    }
}
