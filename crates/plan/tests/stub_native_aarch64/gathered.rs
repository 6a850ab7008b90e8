//! LOSS-1, FLT-1 and SAFE-2 for aggregation at returns. Buckets and rows are those that the language defines,
//! of the values at the entry and of the returned value. Buckets, overflow, unseen, dropped, filtered late
//! and not ended add up to the begun calls, exactly.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_plan::aarch64::stub::adding::ROW_BYTES;
use trapline_plan::aarch64::stub::deferred::DEFERRED_BYTES;
use trapline_plan::aarch64::stub::filter::code_bytes;
use trapline_plan::aarch64::stub::{Code as _, Machine, TableLocation, Tallied, aggregate_call};
use trapline_plan::filter::{
    Facts, GroupBy, Known, Late, MAX_TEMPORARIES, Sort, THREAD_UNIT, Tally, TargetFilter, Tree,
};
use trapline_plan::{Read, ThreadId};
use trapline_record::addr::Bias;
use trapline_record::ring::RecordKind;
use trapline_record::tally::{Rest, TallyArea};
use trapline_record::view::View;

use super::filters::{Random, float, number, tree};
use super::latency::{now, on_cpu};
use super::records::broken_off_at;
use super::stages::{Calls, TICK, leaf_at_return, read, with_returned};
use super::tallies::summing;
use super::threads::{ids, tid};
use super::{ADD, LINES, RET, by_hand, call, changes, machines, registered, run, storm};

pub(super) const TRUE: Tree = Tree::Number(1, false);

/// Calls, and the tables that they are added to.
pub(super) struct Set {
    pub(super) calls: Calls,
    pub(super) table: TableLocation,
    pub(super) words: Vec<AtomicU64>,
}

impl Set {
    fn new(machine: Machine, id: ThreadId, tally: Tally, conditions: (Option<Tree>, Tree)) -> Self {
        Self::reading(machine, id, tally, conditions, Vec::new())
    }
    pub(super) fn reading(
        machine: Machine,
        id: ThreadId,
        tally: Tally,
        (early, late): (Option<Tree>, Tree),
        reads: Vec<Read>,
    ) -> Self {
        let area = TallyArea { off: 0, tables: 1, lines: machine.lines, shape: tally.shape() };
        let words: Vec<AtomicU64> = (0..area.len() / 8).map(|_| AtomicU64::new(0)).collect();
        let table = TableLocation { area, base: words.as_ptr() as u64 };
        let late = Some(Late { condition: late, tick: TICK });
        let filter = TargetFilter {
            condition: early,
            sample: 1,
            tally: Some(tally),
            late,
            reads,
            ..TargetFilter::default()
        };
        let slot = filter.left_bytes();
        let floats = filter.left_floats();
        let mut calls = Calls::new(machine, (4096, slot), id, filter);
        (calls.floats, calls.reads) = (floats, calls.filter.reads.clone());
        Self { calls, table, words }
    }
    fn tally(&self) -> &Tally {
        self.calls.filter.tally.as_ref().expect("as set")
    }
    fn exit_words(&self, kind: RecordKind) -> Vec<u32> {
        let at = self.calls.bench.room.next();
        let what = Tallied {
            tally: self.tally(),
            table: self.table,
            reads: &self.calls.reads,
            bias: Bias::default(),
        };
        let pending = aggregate_call(at, self.calls.traced(), what, kind).expect("a late part");
        let words = pending.finish(&[RET], None).expect("in reach");
        let sums = summing(self.tally()) as u64;
        let most = 1024 + ROW_BYTES + DEFERRED_BYTES + code_bytes(&self.calls.filter) as u64 + sums;
        assert!(4 * words.len() as u64 <= most, "{} words of {most} bytes", words.len());
        words
    }
    pub(super) fn exit(&self, kind: RecordKind) -> u64 {
        self.calls.bench.room.put(&self.exit_words(kind))
    }
    pub(super) fn whole(&self, body: &[u32], kind: RecordKind) -> u64 {
        let exit = self.exit(kind);
        self.calls.entry(6, body, exit)
    }
    pub(super) fn read(&self) -> (BTreeMap<u64, u64>, Rest) {
        let (mut cells, mut sum) = (BTreeMap::new(), Rest::default());
        for line in 0..self.calls.bench.machine.lines {
            let view = View::new(&self.words);
            let rest =
                self.table.area.read(view, 0, line, |key, hits| *cells.entry(key).or_default() += hits);
            sum.overflow += rest.overflow;
            sum.unseen += rest.unseen;
        }
        (cells, sum)
    }
}

fn by(value: Tree, sort: Sort) -> Tally {
    Tally { value, sort, group_by: GroupBy::Nothing }
}

/// Whether a tree uses no duration, which is not known beforehand.
pub(super) fn is_timeless(tree: &Tree) -> bool {
    let mut timeless = true;
    tree.each_known(&mut |known| timeless &= known != Known::Took);
    timeless
}

#[test]
fn values_fall_where_the_language_says() {
    let mut random = Random(0x6a7e_4e00_1234_9876);
    let (machines, ids) = (machines(by_hand), ids());
    let (mut all, mut lost, mut refused) = (0, 0, 0);
    for round in 0..300_u32 {
        let value = tree(&mut random, 1 + round % 4, leaf_at_return);
        let late = if round & 1 == 0 { TRUE } else { tree(&mut random, 1 + round % 3, leaf_at_return) };
        let fits = |tree: &Tree| tree.temporaries() <= MAX_TEMPORARIES && tree.is_known_at_return();
        if !fits(&value) || !fits(&late) || !is_timeless(&value) || !is_timeless(&late) {
            continue;
        }
        let sort = [Sort::Log2, Sort::Each, Sort::Linear { min: -5, step: 3, count: 40 }][round as usize % 3];
        let by_thread = sort != Sort::Each && round % 5 == 0;
        let (machine, id) = (machines[round as usize % machines.len()], ids[round as usize / 2 % ids.len()]);
        let tally = Tally { group_by: GroupBy::threads(by_thread), ..by(value.clone(), sort) };
        let set = Set::new(machine, id, tally.clone(), (None, late.clone()));
        let kind = if round % 7 == 6 { RecordKind::Tail } else { RecordKind::Return };
        let code = set.whole(&[], kind);
        on_cpu(round % 8);
        let (mut expected, mut unseen, mut rejected) = (BTreeMap::<u64, u64>::new(), 0, 0);
        for _ in 0..10 {
            let (mut state, floats) = (random.state(), core::array::from_fn(|_| float(&mut random)));
            state[..6].fill_with(|| number(&mut random));
            let arguments: [u64; 6] = core::array::from_fn(|n| state[n]);
            let facts = Facts { arguments, floats, tid: tid(), ..Facts::default() };
            assert_eq!(run(code, state, floats), state, "{machine:?} {value:?}");
            let known = |tree: &Tree| match kind {
                RecordKind::Tail => tree.clone(),
                _ => with_returned(tree, arguments[0], floats[0]),
            };
            if known(&late).holds(&facts) != Some(true) {
                rejected += 1;
            } else if kind == RecordKind::Tail && value.asks_for_end() {
                unseen += 1;
            } else {
                let key = tally.key(known(&value).evaluate(&facts).expect("all is known"));
                let thread = if by_thread { u64::from(tid()) * THREAD_UNIT } else { 0 };
                *expected.entry(key | thread).or_default() += 1;
                all += 1;
            }
        }
        let (cells, rest) = set.read();
        let what = format!("{machine:?} {id:?} {kind:?} {value:?} {sort:?} {late:?}");
        assert_eq!(cells, expected, "{what}");
        assert_eq!((rest.overflow, rest.unseen), (0, unseen), "{what}");
        assert_eq!(set.calls.sums(), [10, 0, rejected, 0], "{what}");
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{what}");
        }
        (lost, refused) = (lost + unseen, refused + rejected);
        set.calls.bench.room.unmap();
    }
    assert!(all > 500 && lost > 10 && refused > 200, "{all} {lost} {refused}");
}

/// Calls with chosen durations: the times of their entries are set back.
#[test]
fn durations_are_tallied() {
    let mut random = Random(0x0dd0_ba12_1234_9876);
    for machine in machines(by_hand) {
        on_cpu(2);
        let mut expected = BTreeMap::<u64, u64>::new();
        let set = Set::new(machine, ThreadId::Unknown, by(read("dur"), Sort::Log2), (None, TRUE));
        let (enter, exit) = (set.calls.alone(6, &[RET]), set.exit(RecordKind::Return));
        for _ in 0..50 {
            // Far from a bucket's edge, so that a slightly longer duration is in the same bucket.
            let took = 3 << (random.next() % 20 + 24);
            let ticks = took * 3;
            if now() < 2 * ticks {
                continue;
            }
            for code in [enter, exit] {
                call(code, 7, 0);
                let stamps = &set.calls.stamps;
                let is_marked =
                    |slot: &u64| stamps.word(slot + 16).load(Ordering::Relaxed) == stamps.0 + slot;
                let marked: Vec<u64> = stamps.cells().filter(is_marked).collect();
                for slot in marked {
                    stamps.word(slot + 8).fetch_sub(ticks, Ordering::Relaxed);
                }
            }
            *expected.entry(set.tally().key(took)).or_default() += 1;
        }
        assert_eq!(set.read().0, expected, "{machine:?}");
        assert!(!expected.is_empty());
    }
}

/// Threads that migrate and are interrupted, with handlers that call too.
#[test]
fn every_call_is_in_a_cell_or_rejected() {
    for machine in machines(registered) {
        for sort in [Sort::Log2, Sort::Each] {
            let value = by(read("arg0 % 8 * 2 + ret % 2"), sort);
            let conditions = (Some(read("arg0 & 3")), read("arg0 & 7 && ret & 1"));
            let set = Set::new(machine, ThreadId::Unknown, value, conditions);
            let (called, handled) = storm(set.whole(&[ADD], RecordKind::Return));
            let (cells, rest) = set.read();
            let tallied: u64 = cells.values().sum();
            let [begun, early, late, dropped] = set.calls.sums();
            assert_eq!(begun, tallied + rest.overflow + late + dropped, "{machine:?} {sort:?}");
            assert_eq!(
                (begun + early, rest.unseen, rest.overflow),
                (called + handled, 0, 0),
                "{machine:?} {sort:?}"
            );
            let odd = |key: u64| {
                if sort == Sort::Each { [3, 7, 11, 15].contains(&key) } else { (3..=5).contains(&key) }
            };
            assert!(cells.keys().all(|&key| odd(key)) && tallied > called / 4, "{cells:?}");
        }
    }
}

/// The committing word leads back to the abort handler twice. One hit is added.
#[test]
fn what_is_broken_off_is_added_once() {
    let machine = Machine { rseq: by_hand(), lse: false, lines: LINES };
    on_cpu(3);
    let set = Set::new(machine, ThreadId::Unknown, by(read("arg0"), Sort::Log2), (None, TRUE));
    let words = set.exit_words(RecordKind::Return);
    // str x14, [x13, #16]
    let (exit, counter) = broken_off_at(&set.calls.bench.room, words, 0xF900_09AE, 3);
    let code = set.calls.entry(6, &[ADD], exit);
    assert_eq!(call(code, 40, 2), 42);
    assert_eq!(counter.load(Ordering::Relaxed), 0, "it was broken off");
    assert_eq!(set.read().0.values().sum::<u64>(), 1);
}

/// An exit of a call that began before tracing. The mark of the call before it at that place is gone.
#[test]
fn an_exit_without_an_entry_adds_nothing() {
    for machine in machines(by_hand) {
        on_cpu(2);
        let set = Set::new(machine, ThreadId::Unknown, by(read("arg0"), Sort::Each), (None, TRUE));
        let (whole, exit) = (set.whole(&[], RecordKind::Return), set.exit(RecordKind::Return));
        for code in [exit, whole, exit, exit, whole, exit] {
            call(code, 5, 0);
        }
        assert_eq!((set.read().0, set.calls.sums()), (BTreeMap::from([(5, 2)]), [2, 0, 0, 0]), "{machine:?}");
    }
}
