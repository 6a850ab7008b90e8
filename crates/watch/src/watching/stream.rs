//! From the kernel's rings to events in the order of time.
//!
//! Each CPU has rings of its own, so records of several rings must be merged. A record's time is taken before
//! the record is published, by code that is not preempted. So if a round of reading begins at time *t*, a
//! later round has seen all records from before *t*. Records are therefore handed on one round late: all up
//! to the time at which the previous round began. Births and ends of threads are taken in the same order,
//! since the thread to which a sample belongs depends on them.
//!
//! A sample is marked if a sample of another CPU, for the same bytes, is close to it in time. It cannot be
//! determined which of the two was first, or whether the value read at one trap had been written by the other
//! meanwhile. To know this for the last samples too, the records handed on end [`CLOSE_NS`] earlier, if
//! values are requested.

use std::collections::HashMap;

use trapline_tracee::perf::{SampleRings, monotonic_ns};

use super::words::{First, Trap};
use crate::births::Births;
use crate::record::{self, Layout, Read, Record, Sample, TaskRecord};

/// Limit for the time from an access to its sample's timestamp, in nanoseconds. It takes some 5 µs, and a few
/// interrupts.
const CLOSE_NS: u64 = 100_000;

/// An entry of the merged stream.
#[derive(Debug)]
pub(super) enum Entry {
    Trap(Trap),
    Task(TaskRecord),
    /// A ring may drop records from here on.
    Doubt,
    /// The ring had space again, at this time.
    Trust(u64),
    First(First),
    /// A trap without its reason, so without the point.
    Lost(Sample),
}

/// The entries that were read and not handed on yet.
#[derive(Debug, Default)]
pub(super) struct Stream {
    layout: Layout,
    pending: Vec<(u64, Entry)>,
    horizon_ns: u64,
    /// Time of the latest sample of each CPU.
    last_ns: HashMap<u32, u64>,
    /// Number of records that the kernel dropped.
    pub(super) lost: u64,
    pub(super) malformed: u64,
    /// Whether a ring may have been full when it was read last.
    pub(super) ends_in_doubt: bool,
}

impl Stream {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout, ..Self::default() }
    }
    pub(super) fn push(&mut self, time_ns: u64, entry: Entry) {
        self.pending.push((time_ns, entry));
    }
    /// Whether a record about a thread is not handed on yet.
    pub(super) fn has_tasks(&self) -> bool {
        self.pending.iter().any(|(_, entry)| matches!(entry, Entry::Task(_)))
    }
    /// Takes all records out of the rings, and hands on those that are certain to be in order. Returns false
    /// when births were dropped.
    pub(super) fn round(&mut self, rings: &SampleRings, births: &mut Births) -> (Vec<Entry>, bool) {
        let now = monotonic_ns();
        let sound = self.read(rings, births);
        let wait = if self.layout.registers { CLOSE_NS } else { 0 };
        let ready = self.until(self.horizon_ns.saturating_sub(wait));
        self.horizon_ns = now;
        (ready, sound)
    }
    /// Takes the rest, in order.
    pub(super) fn rest(&mut self, rings: &SampleRings, births: &mut Births) -> Vec<Entry> {
        self.read(rings, births);
        self.until(u64::MAX)
    }
    fn until(&mut self, until_ns: u64) -> Vec<Entry> {
        self.pending.sort_by_key(|(time_ns, _)| *time_ns);
        self.mark_disputed();
        let ready = self.pending.partition_point(|(time_ns, _)| *time_ns <= until_ns);
        self.pending.drain(..ready).map(|(_, entry)| entry).collect()
    }
    /// Marks any two accesses of a place that are close in time and on different CPUs.
    fn mark_disputed(&mut self) {
        for index in 1..self.pending.len() {
            let (before, rest) = self.pending.split_at_mut(index);
            let (time_ns, Entry::Trap(one)) = &mut rest[0] else { continue };
            let close = before.iter_mut().rev().take_while(|(then, _)| *time_ns - then < CLOSE_NS);
            for (_, other) in close {
                let Entry::Trap(other) = other else { continue };
                let (a, b) = (&one.sample, &other.sample);
                let same_place = (a.pid, a.addr) == (b.pid, b.addr);
                // If the same thread made both because it moved, one came after the other.
                if same_place && a.cpu != b.cpu && a.tid != b.tid {
                    (one.disputed, other.disputed) = (true, true);
                }
            }
        }
    }
    fn read(&mut self, rings: &SampleRings, births: &mut Births) -> bool {
        let sound = births.read();
        self.pending.extend(births.take().into_iter().map(|task| (task.time_ns, Entry::Task(task))));
        let Self { layout, pending, last_ns, lost, malformed, .. } = self;
        let mut read: HashMap<u32, Read> = HashMap::new();
        let doubtful = rings.drain(|cpu, kind, body| match record::parse(layout, kind, body) {
            Record::Read(one) => drop(read.insert(cpu, one)),
            Record::Sample(sample) => {
                let same = |read: &Read| (read.tid, read.addr) == (sample.tid, sample.addr);
                let word = read.remove(&cpu).filter(same).and_then(|read| read.word);
                last_ns.insert(cpu, sample.time_ns);
                pending.push((sample.time_ns, Entry::Trap(Trap { sample, word, disputed: false })));
            }
            // The ring in which this record was had been reported as doubtful.
            Record::Lost(count) => *lost += count,
            Record::Malformed => *malformed += 1,
            Record::Other => {}
        });
        self.ends_in_doubt = !doubtful.is_empty();
        for cpu in doubtful {
            // From its last complete record up to now.
            let from = self.last_ns.get(&cpu).map_or(0, |last| last + 1);
            self.push(from, Entry::Doubt);
            let now = monotonic_ns();
            self.push(now, Entry::Trust(now));
        }
        sound
    }
}

#[cfg(test)]
mod tests {
    use super::{CLOSE_NS, Entry, Stream, Trap};
    use crate::record::Sample;

    fn trap(time_ns: u64, cpu: u32, addr: u64) -> (u64, Entry) {
        // One thread on each CPU.
        let sample = Sample { time_ns, cpu, addr, tid: cpu, ..Sample::default() };
        (time_ns, Entry::Trap(Trap { sample, ..Trap::default() }))
    }

    #[test]
    fn what_comes_late_is_handed_on_in_its_place() {
        let mut stream = Stream::default();
        for time_ns in [30, 10, 20] {
            stream.pending.push(trap(time_ns, 0, 8));
        }
        stream.push(15, Entry::Doubt);
        let times = |entries: Vec<Entry>| -> Vec<u64> {
            let time = |entry| if let Entry::Trap(trap) = entry { trap.sample.time_ns } else { 0 };
            entries.into_iter().map(time).collect()
        };
        assert_eq!(times(stream.until(20)), [10, 0, 20]);
        assert_eq!(times(stream.until(29)), [0; 0]);
        assert_eq!(times(stream.until(u64::MAX)), [30]);
    }

    #[test]
    fn close_accesses_of_two_cpus_are_disputed() {
        let mut stream = Stream::default();
        let moved = Trap { sample: Sample { cpu: 1, addr: 8, ..Sample::default() }, ..Trap::default() };
        stream.push(0, Entry::Trap(moved));
        let all = [(0, 0, 8), (10, 0, 8), (20, 1, 8), (30, 1, 16), (40, 0, 8), (CLOSE_NS + 40, 1, 8)];
        stream.pending.extend(all.map(|(time_ns, cpu, addr)| trap(time_ns, cpu, addr)));
        let disputed = |entry| matches!(entry, Entry::Trap(Trap { disputed: true, .. }));
        let marked: Vec<bool> = stream.until(u64::MAX).into_iter().map(disputed).collect();
        // The first access is by the thread that is on CPU 0 then.
        assert_eq!(marked, [false, true, true, true, false, true, false]);
    }
}
