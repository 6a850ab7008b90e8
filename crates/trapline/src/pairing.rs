//! Pairs entry and exit records into calls.
//!
//! In: records in the order in which rings gave them. Out: an entry, and its exit if that was seen.
//! Invariants: CLS-1 an exit belongs to the last entry of the same thread, function and stack pointer (of any
//! thread where exits name none). CLS-2 an entry or exit without its other half is reported as such. CLS-3
//! calls are reported in the order in which they ended. Does not: read rings (`traced::rings`) or slots
//! (`decode`).
//!
//! A thread's records may be in several rings, since threads move and each CPU has a ring. The reader takes
//! one ring after the other, so it may read an exit a round before its entry:
//!
//! 1. The entry is committed to a ring that was already read, and the exit to one that comes later in the
//!    same round. Then the exit's time is after the round's begin. So a round reports only what happened
//!    before it began.
//! 2. The entry's time is before the round's begin, but its commit becomes visible to the reader late. Either
//!    its thread is held up between clock and commit (by an interrupt or a hypervisor; no other thread runs
//!    there meanwhile), or the store waits in its CPU. So a round reports only what happened before the
//!    *previous* round began: all rings were read once more since then.
//!
//! Records are taken in the order of the clock, so the entry that waits under a key is the latest before the
//! exit. Order is checked once more in case a record comes even later than that. An exit never takes an entry
//! that is younger, and an entry never replaces one that is younger. Such an exit has no entry, and such an
//! entry no exit; both are reported. Calls that were running at the attach have an exit without an entry.
//! Records of one key with equal times stay in the order of their ring.

use trapline_record::ring::{Record, RecordKind};

use crate::calls::CallEnd;
use crate::quick::Quick;

/// A record, and where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundRecord {
    /// Index of its segment in the process.
    pub(crate) segment: usize,
    pub(crate) record: Record,
}

impl FoundRecord {
    pub(crate) const fn new(segment: usize, record: Record) -> Self {
        Self { segment, record }
    }
}

/// Thread, stack pointer, segment, probe.
type Key = (u32, u64, usize, u32);

/// An entry and its exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Paired {
    pub(crate) segment: usize,
    pub(crate) entry: Record,
    pub(crate) exit: Option<Record>,
    pub(crate) how: CallEnd,
}

/// Notice about exits without an entry.
pub(crate) fn unpaired_notice(pid: u32, unpaired: u64) -> Option<String> {
    match unpaired {
        0 => None,
        1 => Some(format!("1 return in process {pid} was of a call without a recorded entry")),
        n => Some(format!("{n} returns in process {pid} were of calls without a recorded entry")),
    }
}

/// Entries that wait for their exits.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    open: Quick<Key, Record>,
    /// Only entries name their thread. Stack pointers alone suffice then: threads of one process have none in
    /// common, and a goroutine that moves to another thread keeps its own.
    pub(crate) exits_name_no_thread: bool,
    /// Entries are reported when they happen too, not only with their exits.
    pub(crate) announces: bool,
    /// Begin of the previous round, as a tick: all that happened before it has been read.
    begun: u64,
    /// Exits with an entry that was not seen: the call was running at the start, or the record was dropped.
    pub(crate) unpaired: u64,
}

impl Pairing {
    /// Feeds a round that began at tick `begun`; `None` if no round follows. Takes what happened before the
    /// previous round and calls `each` for the calls that it ended, in that order. What happened later stays
    /// in `round`. `waits` determines whether exits of a probe are recorded.
    pub(crate) fn feed(
        &mut self,
        round: &mut Vec<FoundRecord>,
        begun: Option<u64>,
        waits: impl Fn(usize, u32) -> bool,
        mut each: impl FnMut(Paired),
    ) {
        // Records of a single ring are in order.
        if !round.is_sorted_by_key(|found| found.record.ticks) {
            round.sort_by_key(|found| found.record.ticks);
        }
        let until = std::mem::replace(&mut self.begun, begun.unwrap_or(u64::MAX));
        let end = begun.map_or(round.len(), |_| round.partition_point(|found| found.record.ticks <= until));
        for FoundRecord { segment, record } in round.drain(..end) {
            let thread = if self.exits_name_no_thread { 0 } else { record.tid };
            let key = (thread, record.sp, segment, record.probe);
            match record.kind {
                RecordKind::Entry if waits(segment, record.probe) => {
                    if self.announces {
                        each(Paired { segment, entry: record, exit: None, how: CallEnd::Entered });
                    }
                    if let Some(entry) = self.enter(key, record) {
                        each(unfinished(segment, entry));
                    }
                }
                RecordKind::Entry => {
                    each(Paired { segment, entry: record, exit: None, how: CallEnd::Entered })
                }
                kind => match self.open.get(&key).copied().filter(|entry| entry.ticks <= record.ticks) {
                    Some(entry) => {
                        self.open.remove(&key);
                        let how =
                            if kind == RecordKind::Return { CallEnd::Returned } else { CallEnd::TailCall };
                        each(Paired { segment, entry, exit: Some(record), how });
                    }
                    None => self.unpaired += 1,
                },
            }
        }
    }
    /// Lets an entry wait for its exit. Returns the older one of two entries under the same key: its exit was
    /// not seen.
    fn enter(&mut self, key: Key, record: Record) -> Option<Record> {
        match self.open.insert(key, record) {
            Some(younger) if younger.ticks > record.ticks => self.open.insert(key, younger),
            older => older,
        }
    }
    /// Calls that have not ended; called when no more records will come.
    pub(crate) fn rest(&mut self) -> Vec<Paired> {
        let mut rest: Vec<Paired> =
            self.open.drain().map(|((_, _, segment, _), entry)| unfinished(segment, entry)).collect();
        rest.sort_by_key(|paired| paired.entry.ticks);
        rest
    }
}

const fn unfinished(segment: usize, entry: Record) -> Paired {
    Paired { segment, entry, exit: None, how: CallEnd::Unfinished }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{FoundRecord, Paired, Pairing};
    use crate::calls::CallEnd;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use trapline_record::ring::{MAX_VALUES, Record, RecordKind};

    fn record(kind: RecordKind, tid: u32, sp: u64, ticks: u64) -> (usize, Record) {
        (0, Record { kind, probe: 3, tid, ticks, sp, values: [ticks; MAX_VALUES] })
    }

    fn ended(pairing: &mut Pairing, round: Vec<(usize, Record)>) -> Vec<(u64, Option<u64>, CallEnd)> {
        let mut calls = Vec::new();
        let mut round =
            round.into_iter().map(|(segment, record)| FoundRecord::new(segment, record)).collect();
        let each = |c: Paired| calls.push((c.entry.ticks, c.exit.map(|exit| exit.ticks), c.how));
        pairing.feed(&mut round, None, |_, probe| probe == 3, each);
        calls
    }

    #[test]
    fn announced_entries_are_reported_before_what_happens_inside() {
        let records = [
            record(RecordKind::Entry, 1, 100, 10),
            record(RecordKind::Entry, 1, 80, 20),
            record(RecordKind::Return, 1, 80, 30),
            record(RecordKind::Return, 1, 100, 40),
        ];
        let mut pairing = Pairing { announces: true, ..Pairing::default() };
        let mut round = records.map(|(segment, record)| FoundRecord::new(segment, record)).to_vec();
        let mut seen = Vec::new();
        let each = |paired: Paired| seen.push((paired.how, paired.exit.unwrap_or(paired.entry).ticks));
        pairing.feed(&mut round, None, |_, _| true, each);
        let (entered, returned) = (CallEnd::Entered, CallEnd::Returned);
        assert_eq!(seen, [(entered, 10), (entered, 20), (returned, 30), (returned, 40)]);
    }
    #[test]
    fn a_round_tells_what_happened_before_the_one_before_it() {
        let mut pairing = Pairing::default();
        let mut round: Vec<FoundRecord> = Vec::new();
        let mut ended_in = |round: &mut Vec<FoundRecord>, ticks: &[u64], begun: Option<u64>| {
            let (mut ended, entries) =
                (Vec::new(), ticks.iter().map(|&ticks| record(RecordKind::Entry, 1, ticks, ticks)));
            round.extend(entries.map(|(segment, record)| FoundRecord::new(segment, record)));
            pairing.feed(round, begun, |_, _| false, |paired| ended.push(paired.entry.ticks));
            ended
        };
        assert_eq!(ended_in(&mut round, &[10, 30, 12, 25], Some(20)), [0; 0]);
        assert_eq!(ended_in(&mut round, &[21, 40, 22, 11], Some(30)), [10, 11, 12]);
        assert_eq!(ended_in(&mut round, &[], Some(50)), [21, 22, 25, 30]);
        assert_eq!(ended_in(&mut round, &[60], None), [40, 60]);
        assert!(round.is_empty());
    }

    #[test]
    fn recursion_and_threads_are_kept_apart() {
        use RecordKind::{Entry, Return, Tail};
        let mut pairing = Pairing::default();
        // Two rings, one after the other; thread 1 recurses, thread 2 interleaves.
        let round = vec![
            record(Entry, 1, 0x90, 10),
            record(Entry, 1, 0x80, 12),
            record(Return, 1, 0x90, 20),
            record(Entry, 2, 0x90, 11),
            record(Return, 1, 0x80, 15),
            record(Tail, 2, 0x90, 30),
        ];
        let expected = [
            (12, Some(15), CallEnd::Returned),
            (10, Some(20), CallEnd::Returned),
            (11, Some(30), CallEnd::TailCall),
        ];
        assert_eq!(ended(&mut pairing, round), expected);
        assert_eq!((pairing.rest(), pairing.unpaired), (vec![], 0));
    }

    #[test]
    fn an_exit_without_a_thread_is_of_whoever_has_that_stack() {
        let mut pairing = Pairing { exits_name_no_thread: true, ..Pairing::default() };
        let round = vec![
            record(RecordKind::Entry, 1, 0x90, 10),
            record(RecordKind::Entry, 2, 0x190, 11),
            record(RecordKind::Return, 0, 0x190, 12),
            record(RecordKind::Return, 0, 0x90, 13),
        ];
        assert_eq!(
            ended(&mut pairing, round),
            [(11, Some(12), CallEnd::Returned), (10, Some(13), CallEnd::Returned)]
        );
    }

    #[test]
    fn an_exit_belongs_to_no_entry_that_is_younger() {
        let mut pairing = Pairing::default();
        // This call was running at the attach; after it there are calls at the same place.
        let calls = |begin: u64| {
            [record(RecordKind::Entry, 1, 0x90, begin), record(RecordKind::Return, 1, 0x90, begin + 5)]
        };
        let mut round = vec![record(RecordKind::Return, 1, 0x90, 9)];
        round.extend([10, 20, 30].map(calls).concat());
        let expected = [10, 20, 30].map(|begin| (begin, Some(begin + 5), CallEnd::Returned));
        assert_eq!(ended(&mut pairing, round), expected);
        assert_eq!((pairing.rest(), pairing.unpaired), (vec![], 1));
        // Records that come too late for their place.
        assert_eq!(ended(&mut pairing, vec![record(RecordKind::Entry, 1, 0x90, 50)]), []);
        let late = vec![record(RecordKind::Entry, 1, 0x90, 40), record(RecordKind::Return, 1, 0x90, 45)];
        assert_eq!(ended(&mut pairing, late), [(40, None, CallEnd::Unfinished)]);
        let (exit, expected) = (record(RecordKind::Return, 1, 0x90, 50), (50, Some(50), CallEnd::Returned));
        assert_eq!(ended(&mut pairing, vec![exit]), [expected]);
        assert_eq!((pairing.rest(), pairing.unpaired), (vec![], 2));
    }

    #[test]
    fn an_entry_in_the_place_of_another_ends_it_unseen() {
        let mut pairing = Pairing::default();
        let entries = vec![record(RecordKind::Entry, 1, 0x90, 10), record(RecordKind::Entry, 1, 0x90, 12)];
        assert_eq!(ended(&mut pairing, entries), [(10, None, CallEnd::Unfinished)]);
        assert_eq!(pairing.rest().iter().map(|c| c.entry.ticks).collect::<Vec<_>>(), [12]);
        let (segment, record) = record(RecordKind::Entry, 1, 0x90, 13);
        let each = |other: Paired| assert_eq!(other.how, CallEnd::Entered);
        pairing.feed(&mut vec![FoundRecord::new(segment, record)], None, |_, _| false, each);
    }

    /// One step of a thread: the thread, whether it calls or returns from its innermost call, whether the
    /// record is lost, and how late it becomes visible.
    type ThreadStep = (u32, bool, bool, u64);

    /// A record, the time when the reader can see it, its ring, and its call.
    #[derive(Clone, Copy, Debug)]
    struct Written(Record, u64, usize, usize);

    /// What threads wrote, in the order of the clock. A record becomes visible a while after its time, but
    /// before the thread's next record.
    fn written(steps: &[ThreadStep], attach: u64) -> Vec<Written> {
        let (mut stacks, mut ticks, mut calls, mut all) = ([const { Vec::new() }; 3], 0, 0, Vec::new());
        for &(thread, enters, lost, late) in steps {
            let stack: &mut Vec<usize> = &mut stacks[thread as usize];
            ticks += 10;
            let kind = if enters && stack.len() < 4 {
                stack.push(calls);
                calls += 1;
                RecordKind::Entry
            } else if stack.is_empty() {
                continue;
            } else if late % 2 == 0 {
                RecordKind::Return
            } else {
                RecordKind::Tail
            };
            // Few stack pointers, so that calls have the same key again and again.
            let sp = 0x1000 * u64::from(thread + 1) - 0x10 * stack.len() as u64;
            let call = if kind == RecordKind::Entry { stack.last().copied() } else { stack.pop() };
            let (_, record) = record(kind, thread, sp, ticks);
            if ticks > attach && !lost {
                all.push(Written(record, ticks + late, late as usize % 2, call.expect("one")));
            }
        }
        all
    }

    /// Reads in rounds, ring by ring, as records become visible; `held` is the longest delay of a record.
    fn read(all: &[Written], held: u64) -> (Vec<Paired>, u64) {
        let (mut pairing, mut calls, mut round, mut now) = (Pairing::default(), Vec::new(), Vec::new(), 0);
        let mut taken = vec![false; all.len()];
        let end = all.iter().map(|written| written.1).max().unwrap_or(0);
        while now <= end + 2 * held {
            let begun = now;
            for ring in 0..2 {
                now += held / 2 + 1;
                let mut visible: Vec<usize> =
                    (0..all.len()).filter(|&n| all[n].2 == ring && all[n].1 <= now && !taken[n]).collect();
                visible.sort_by_key(|&n| all[n].1);
                visible.iter().for_each(|&n| taken[n] = true);
                round.extend(visible.into_iter().map(|n| FoundRecord::new(0, all[n].0)));
            }
            pairing.feed(&mut round, Some(begun), |_, _| true, |paired| calls.push(paired));
        }
        pairing.feed(&mut round, None, |_, _| true, |paired| calls.push(paired));
        calls.extend(pairing.rest());
        (calls, pairing.unpaired)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
        /// The attach comes in the midst of calls, and some records are dropped. Each exit gets the latest
        /// entry that was written before it; without drops that is its own. What has no other half is
        /// reported once.
        #[test]
        fn exits_belong_to_the_latest_entry_before_them(
            steps in vec((0..3u32, any::<bool>(), prop::bool::weighted(0.1), 0..25u64), 0..120),
            attach in 0..600u64,
            drops: bool,
        ) {
            let steps: Vec<ThreadStep> =
                steps.into_iter().map(|(thread, enters, lost, late)| (thread, enters, lost && drops, late)).collect();
            let all = written(&steps, attach);
            let mut open = HashMap::new();
            let (mut expected, mut unpaired) = (Vec::new(), 0);
            for &Written(record, _, _, call) in &all {
                let key = (record.tid, record.sp);
                if record.kind == RecordKind::Entry {
                    expected.extend(open.insert(key, (record, call)).map(|(entry, _)| (entry, None)));
                } else if let Some((entry, begun)) = open.remove(&key) {
                    prop_assert!(drops || begun == call, "the judge itself puts calls together that are not one");
                    expected.push((entry, Some(record)));
                } else {
                    unpaired += 1;
                }
            }
            expected.extend(open.into_values().map(|(entry, _)| (entry, None)));
            expected.sort_by_key(|(entry, _)| entry.ticks);
            let (calls, ours) = read(&all, 25);
            let ended = calls.iter().filter_map(|paired| Some(paired.exit?.ticks));
            prop_assert!(ended.is_sorted(), "calls are reported in the order in which they ended");
            let mut found: Vec<_> = calls.iter().map(|paired| (paired.entry, paired.exit)).collect();
            found.sort_by_key(|(entry, _)| entry.ticks);
            prop_assert_eq!((found, ours), (expected, unpaired));
        }
    }
}
