//! LOSS-2, FLT-1 and SAFE-2 for filtered calls with recorded returns. The records are those of the calls that
//! the language lets pass, with entry and exit beside each other if the return decides. Written, dropped,
//! filtered and not ended add up to the begun calls, exactly.

use std::sync::atomic::{AtomicU64, Ordering};

use trapline_insn::aarch64::encode;
use trapline_plan::aarch64::stub::deferred::DEFERRED_BYTES;
use trapline_plan::aarch64::stub::filter::code_bytes;
use trapline_plan::aarch64::stub::{Code as _, Filtered, Latency, Machine, Traced, defer, trace};
use trapline_plan::filter::{
    Facts, Float, Int, Known, Late, MAX_TEMPORARIES, Symbol, Tally, TargetFilter, Tree, parse, registers,
};
use trapline_plan::{Buckets, Floats, Read, Results, ThreadId, Unwind};
use trapline_record::counters::filtered::{BEGUN, REJECTED, REJECTED_LATE};
use trapline_record::latency as words;
use trapline_record::ring::{Record, RecordKind, RingArea};

use super::fields::put_with_kernel;
use super::filters::{Random, float, leaf, number, tree};
use super::latency::{Stamps, now, on_cpu};
use super::records::{Bench, FILTER, PROBE, kept, machines};
use super::threads::{ids, tid};
use super::{AREA, DATA, LINES, RET, by_hand, call, changes, run};

/// Three ticks to a nanosecond.
pub(super) const TICK: u64 = (1 << 32) / 3;
/// Bytes of a stub without its trees.
const RECORD: u64 = 1024;

pub(super) fn late(condition: Tree) -> TargetFilter {
    TargetFilter { late: Some(Late { condition, tick: TICK }), sample: 1, ..TargetFilter::default() }
}

pub(super) fn read(text: &str) -> Tree {
    let mut names = registers();
    names.push(("ret".to_owned(), Symbol::Known(Known::Returned(Int { bits: 32, signed: true }))));
    names.push(("dur".to_owned(), Symbol::Known(Known::Took)));
    parse(text, &names).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Functions with a filter, and what is found of their calls.
pub(super) struct Calls {
    pub(super) bench: Bench,
    pub(super) stamps: Stamps,
    pub(super) filter: TargetFilter,
    pub(super) floats: Floats,
    pub(super) reads: Vec<Read>,
    /// Whether entries leave marks, rather than records.
    pub(super) marked: bool,
    /// Address of the words of threads that are passed over.
    pub(super) names: Option<u64>,
    /// The calls belong to the goroutine that x28 names.
    pub(super) goroutine: bool,
    /// Number of the probe.
    probe: u32,
}

impl Calls {
    pub(super) fn new(
        machine: Machine,
        (bytes, slot): (u32, u32),
        id: ThreadId,
        filter: TargetFilter,
    ) -> Self {
        let shape = if filter.late.is_some() { words::Stamps::of(slot) } else { words::Stamps::default() };
        let bench = Bench::new(machine, bytes, slot, id);
        Self {
            bench,
            stamps: Stamps::new(shape),
            filter,
            floats: Floats::default(),
            reads: Vec::new(),
            marked: true,
            names: None,
            goroutine: false,
            probe: PROBE,
        }
    }
    fn latency(&self) -> Latency {
        let (area, missed) = (0, self.bench.room.base + DATA + 2 * FILTER + 64);
        let (stamps, shape) = (self.stamps.0, self.stamps.1);
        Latency {
            area,
            functions: PROBE + 2,
            stamps,
            shape,
            missed,
            min_ticks: 0,
            buckets: Buckets::Log,
            outermost: false,
            trampolines: None,
        }
    }
    pub(super) fn missed(&self) -> u64 {
        self.bench.room.word(2 * FILTER / 64 + 1).load(Ordering::Relaxed)
    }
    pub(super) fn traced(&self) -> Traced<'_> {
        let words = self.bench.room.base + DATA + FILTER;
        let filter = Some(Filtered { filter: &self.filter, words, names: self.names });
        let (marks, floats, fields) = (self.marked.then(|| self.latency()), self.floats, &self.reads[..]);
        let texts = self.filter.tally.as_ref().map_or(0, Tally::texts);
        let goroutine = self.goroutine;
        Traced {
            goroutine,
            probe: self.probe,
            filter,
            marks,
            texts,
            floats,
            fields,
            ..self.bench.traced(Unwind::None)
        }
    }
    /// A stub in front of `rest`, for the next place.
    pub(super) fn words(
        &self,
        kind: RecordKind,
        values: usize,
        rest: impl Fn(u64) -> Vec<u32>,
        back: Option<u64>,
    ) -> Vec<u32> {
        let at = self.bench.room.next();
        let words = match defer(at, self.traced(), kind, values) {
            Some(pending) => {
                let rest = rest(pending.displaced_at());
                pending.finish(&rest, back)
            }
            None => {
                let pending = trace(at, self.traced(), kind, values);
                let rest = rest(pending.displaced_at());
                pending.finish(&rest, back)
            }
        };
        let words = words.expect("in reach");
        let texts = self.filter.tally.as_ref().map_or(0, |tally| u64::from(tally.texts().count_ones()));
        let loads = texts + self.reads.iter().map(|read| read.offsets.len() as u64).sum::<u64>();
        let most = RECORD + DEFERRED_BYTES + loads * 256 + code_bytes(&self.filter) as u64;
        assert!(4 * words.len() as u64 <= most, "{} words of {most} bytes", words.len());
        words
    }
    /// Puts code there. System calls that an emulator may lack are replaced.
    fn put(&self, words: Vec<u32>) -> u64 {
        put_with_kernel(&self.bench.room, words)
    }
    pub(super) fn exit(&self, kind: RecordKind, values: usize) -> u64 {
        self.put(self.words(kind, values, |_| vec![RET], None))
    }
    pub(super) fn entry(&self, values: usize, body: &[u32], exit: u64) -> u64 {
        self.put(self.words(RecordKind::Entry, values, |_| body.to_vec(), Some(exit)))
    }
    /// A function that does `body`, with its exit.
    pub(super) fn whole(&self, values: usize, body: &[u32], kind: RecordKind) -> u64 {
        let exit = self.exit(kind, values);
        self.entry(values, body, exit)
    }
    /// An entry alone, followed by `rest`.
    pub(super) fn alone(&self, values: usize, rest: &[u32]) -> u64 {
        self.put(self.words(RecordKind::Entry, values, |_| rest.to_vec(), None))
    }
    /// A function that is entered and left by a jump: its return is not seen.
    pub(super) fn abandoned(&self, values: usize) -> u64 {
        self.alone(values, &[RET])
    }
    pub(super) fn counted(&self, word: u32) -> u64 {
        let first = FILTER / 64;
        let lines = first..first + u64::from(LINES);
        let at = |line| (self.bench.room.base + DATA + 64 * line + 8 * u64::from(word)) as *const AtomicU64;
        // SAFETY: words of the room's data, accessed as atomics only.
        lines.map(|line| unsafe { &*at(line) }.load(Ordering::Relaxed)).sum()
    }
    /// Begun, filtered early, filtered late, dropped.
    pub(super) fn sums(&self) -> [u64; 4] {
        let [begun, early, late] = [BEGUN, REJECTED, REJECTED_LATE].map(|word| self.counted(word));
        [begun, early, late, self.bench.dropped()]
    }
}

/// Leaves of a tree with what a return knows in addition.
pub(super) fn leaf_at_return(random: &mut Random) -> Tree {
    let word = random.next();
    let int = Int { bits: 8 << (word >> 8 & 3), signed: word >> 10 & 1 == 1 };
    let float = if word >> 8 & 1 == 0 { Float::Single } else { Float::Double };
    match word >> 32 & 3 {
        0 => Tree::Known(Known::Returned(int)),
        1 => Tree::Known(Known::FloatReturned(float)),
        _ => leaf(random),
    }
}

/// Replaces the names for the returned value by numbers: an integer and a float. No function returns both.
pub(super) fn with_returned(tree: &Tree, integer: u64, float: u64) -> Tree {
    match tree {
        Tree::Known(Known::Returned(int)) => Tree::Number(int.value(integer), int.bits == 64 && !int.signed),
        Tree::Known(Known::FloatReturned(of)) => Tree::Number(of.key(float).cast_unsigned(), false),
        Tree::Unary(op, of) => Tree::Unary(*op, Box::new(with_returned(of, integer, float))),
        Tree::Binary(op, left, right) => {
            let side = |side| Box::new(with_returned(side, integer, float));
            Tree::Binary(*op, side(left), side(right))
        }
        other => other.clone(),
    }
}

/// Whether a call passes if its function returns these values, or if it went on as another function.
pub(super) fn holds(condition: &Tree, facts: &Facts, kind: RecordKind) -> bool {
    let returned = (facts.arguments[0], facts.floats[0]);
    let known = if kind == RecordKind::Tail {
        condition.clone()
    } else {
        with_returned(condition, returned.0, returned.1)
    };
    known.holds(facts) == Some(true)
}

#[test]
fn returns_decide_as_the_language_says() {
    let mut random = Random(0x57a6_ed00_1234_9876);
    let (machines, ids) = (machines(by_hand), ids());
    let (mut passed, mut rejected) = (0, 0);
    for round in 0..500_u32 {
        let condition = tree(&mut random, 1 + round % 4, leaf_at_return);
        let arguments = [0b1111_1111, 0b0100_1010][round as usize & 1];
        let mut known = condition.temporaries() <= MAX_TEMPORARIES && condition.is_known_at_return();
        condition.each_known(&mut |one| {
            known &= !matches!(one, Known::Float(n, _) if arguments >> n & 1 == 0);
        });
        if !known {
            continue;
        }
        let (machine, id) = (machines[round as usize % machines.len()], ids[round as usize / 2 % ids.len()]);
        let slot = RingArea::slot_with_floats(6, 0, 8);
        let mut calls = Calls::new(machine, (1 << 12, slot), id, late(condition.clone()));
        let results = [Results::default(), Results { general: 5, vectors: 4 }];
        calls.floats = Floats { arguments, results: results[round as usize >> 1 & 1] };
        let kind = if round % 5 == 4 { RecordKind::Tail } else { RecordKind::Return };
        let code = calls.whole(6, &[], kind);
        on_cpu(round % 8);
        let mut late = 0;
        for turn in 0..10 {
            let (mut state, floats) = (random.state(), core::array::from_fn(|_| float(&mut random)));
            state[..6].fill_with(|| number(&mut random));
            let arguments: [u64; 6] = core::array::from_fn(|n| state[n]);
            let facts = Facts { arguments, floats, tid: tid(), ..Facts::default() };
            let what = format!("{machine:?} {id:?} {kind:?} {condition:?} {facts:x?}");
            assert_eq!(run(code, state, floats), state, "{what}");
            let (holds, seen) = (holds(&condition, &facts, kind), calls.bench.take());
            late += u64::from(!holds);
            assert_eq!(calls.sums(), [turn + 1, 0, late, 0], "{what}");
            if !holds {
                assert_eq!(seen, [], "{what}");
                continue;
            }
            let [first, last] = seen[..] else { panic!("{seen:?} {what}") };
            let (first, last) = if first.kind == RecordKind::Entry { (first, last) } else { (last, first) };
            assert_eq!((first.kind, last.kind, first.sp), (RecordKind::Entry, kind, last.sp), "{what}");
            let named = if matches!(id, ThreadId::At(_)) { tid() } else { 0 };
            assert_eq!(
                [first.probe, last.probe, first.tid, last.tid],
                [PROBE, PROBE, named, named],
                "{what}"
            );
            assert!(first.ticks <= last.ticks, "{what}");
            assert_eq!(first.values[..6], facts.arguments, "{what}");
            let left = calls.floats.arguments;
            let all = (0..8).filter(|n| left >> n & 1 == 1).map(|n| facts.floats[n]);
            all.zip(&first.values[6..]).for_each(|(expected, is)| assert_eq!(*is, expected, "{what}"));
            if kind == RecordKind::Return {
                let Results { general, vectors } = calls.floats.results;
                let returned = [&arguments[..general.into()], &facts.floats[..vectors.into()]].concat();
                assert_eq!(last.values[..returned.len()], returned, "{what}");
            }
        }
        passed += 10 - late;
        rejected += late;
        // Until the ring is full, and after that.
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{machine:?} {condition:?}");
        }
        let [begun, early, all, dropped] = calls.sums();
        let written = calls.bench.take().len() as u64 / 2 + (10 - late);
        assert_eq!((begun, early), (26, 0));
        assert_eq!(begun, written + all + dropped);
        assert_eq!(AREA.with(|area| area.section.load(Ordering::Relaxed)), 0, "cleared");
        calls.bench.room.unmap();
    }
    assert!(passed > 500 && rejected > 500, "{passed} {rejected}");
}

/// A function that calls itself with its argument less one, until that is 0, and returns its argument.
pub(super) fn recursive(calls: &Calls, kind: RecordKind) -> u64 {
    let exit = calls.exit(kind, 1);
    let code = calls.bench.room.next();
    // cbz x0, past it; stp x0, x30, [sp, #-16]!; sub x0, x0, #1; bl; ldp x0, x30, [sp], #16
    let body = |at: u64| {
        let again = encode::b(at + 12, code).expect("near") | 1 << 31;
        vec![0xB400_00A0, 0xA9BF_7BE0, 0xD100_0400, again, 0xA8C1_7BE0]
    };
    assert_eq!(calls.bench.room.put(&calls.words(RecordKind::Entry, 1, body, Some(exit))), code);
    code
}

pub(super) fn values(records: &[Record], kind: RecordKind) -> Vec<u64> {
    records.iter().filter(|record| record.kind == kind).map(|record| record.values[0]).collect()
}

#[test]
fn each_depth_and_each_abandoned_call_is_its_own() {
    for machine in machines(by_hand) {
        on_cpu(2);
        let early = Some(read("arg0 != 5"));
        let filter = TargetFilter { condition: early, ..late(read("arg0 % 3 == 1 && ret < 10")) };
        let mut calls = Calls::new(machine, (1 << 14, 64), kept(), filter);
        let code = recursive(&calls, RecordKind::Return);
        let (mut all, mut written) = (0, 0);
        for depth in [0_u64, 1, 7, 20, 300] {
            assert_eq!(call(code, depth, 0), depth);
            let records = calls.bench.take();
            let expected: Vec<u64> = (0..=depth).filter(|n| n % 3 == 1 && *n < 10).collect();
            // From the deepest call on, each with its entry beside it.
            assert_eq!(values(&records, RecordKind::Return), expected, "{machine:?}");
            assert_eq!(values(&records, RecordKind::Entry), expected, "{machine:?}");
            assert!(records.chunks(2).all(|pair| pair[0].sp == pair[1].sp && pair[0].kind != pair[1].kind));
            all += depth + 1;
            written += expected.len() as u64;
            let [begun, early, late, dropped] = calls.sums();
            assert_eq!((begun + early, begun, dropped), (all, written + late, 0), "{machine:?} {depth}");
        }
        // A call that is left by a jump, and then calls at its place on the stack: one that the entry
        // rejects, and one that passes.
        let (abandoned, end) = (calls.abandoned(1), calls.exit(RecordKind::Return, 1));
        calls.probe = PROBE + 1;
        let another = calls.exit(RecordKind::Return, 1);
        let late = calls.counted(REJECTED_LATE);
        // Calls from one place on the stack: the code, its argument, and the recorded returns.
        for (code, n, returns) in [
            (abandoned, 1, &[][..]),
            (code, 5, &[1, 4]),
            (abandoned, 1, &[]),
            (code, 0, &[]),
            (end, 4, &[]),
            (abandoned, 4, &[]),
            (another, 4, &[]),
            (end, 4, &[4]),
            (end, 4, &[]),
            (abandoned, 4, &[]),
            (code, 5, &[1, 4]),
            (end, 4, &[]),
        ] {
            assert_eq!(call(code, n, 0), n);
            assert_eq!(values(&calls.bench.take(), RecordKind::Return), returns, "{machine:?} {n}");
        }
        assert_eq!((calls.counted(REJECTED_LATE), calls.bench.dropped()), (late + 7, 0));
    }
}

/// Calls with chosen durations: the times of their entries are set back.
#[test]
fn what_a_call_took_decides() {
    let mut random = Random(0x0dd0_ba11_1234_9876);
    for machine in machines(by_hand) {
        on_cpu(2);
        for tick in [TICK, 16 << 32, Late::tick_of(41.6), 1] {
            for turn in 0..8_u64 {
                let long = random.next() % (now() / 2);
                // The call took a little longer than that.
                let most = Late { condition: Tree::Number(1, false), tick }.nanos(long + (1 << 30));
                let least = Late { condition: Tree::Number(1, false), tick }.nanos(long);
                let (over, filter) = match turn % 4 {
                    0 => (true, read(&format!("dur >= {least}"))),
                    1 => (false, read(&format!("dur > {most}"))),
                    2 => (true, read(&format!("dur <= {most} && dur >= {least}"))),
                    // An entry from the future: the call took no time.
                    _ => (true, read("dur == 0")),
                };
                let filter = TargetFilter {
                    late: Some(Late { condition: filter, tick }),
                    ..late(Tree::Number(1, false))
                };
                let mut calls = Calls::new(machine, (1 << 12, 64), kept(), filter);
                let (enter, exit) = (calls.abandoned(1), calls.exit(RecordKind::Return, 1));
                let future = turn % 4 == 3;
                for code in [enter, exit] {
                    call(code, 7, 0);
                    let is_marked = |slot: &u64| {
                        calls.stamps.word(slot + 16).load(Ordering::Relaxed) == calls.stamps.0 + slot
                    };
                    let marked: Vec<u64> = calls.stamps.cells().filter(is_marked).collect();
                    assert_eq!(marked.len(), usize::from(code == enter));
                    for slot in marked {
                        let by = if future { 1 << 40 } else { long.wrapping_neg() };
                        calls.stamps.word(slot + 8).fetch_add(by, Ordering::Relaxed);
                    }
                }
                let what = format!("{machine:?} {tick} {long} {turn}");
                let written = calls.bench.take().len();
                assert_eq!(written, if over { 2 } else { 0 }, "{what}");
                assert_eq!(calls.sums(), [1, 0, u64::from(!over), 0], "{what}");
            }
        }
    }
}
