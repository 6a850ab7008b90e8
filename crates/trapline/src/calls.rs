//! Records put together to calls.
//!
//! In: records as rings gave them. Out: calls: an entry with its arguments, and the exit that belongs to it. Invariants: CLS-1 an exit
//! belongs to the last entry of the same thread, function and stack pointer (of any thread where exits name none); CLS-2 what has no other half is told as such; CLS-3 calls are told in the order in which they ended.
//! Does not: read rings (`traced::records`) or slots (`decode`).
//!
//! A thread's records may lie in several rings, for it moves, and threads have rings of their own. All are put in the order of the clock: a
//! round tells what happened until it began (CLS-3), since all rings are looked at after that. Only a thread that is held up between its clock
//! and its commit while a round looks (no other thread runs there meanwhile: an interrupt, a hypervisor) comes too late for its place; should
//! that be an entry, its exit waits for one more round.

use std::sync::Arc;
use std::time::Duration;

use trapline_record::ring::{Kind, Record, TEXT_BYTES};

use crate::quick::Quick;
use crate::report::Site;

/// How a call ended, as far as was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Only the entry was asked for.
    Entered,
    /// It returned.
    Returned,
    /// It went on as another function.
    TailCall,
    /// It had not ended when tracing did, or its exit was not seen (a longjmp, an exception, a dropped record).
    Unfinished,
}

/// One call of a function, or one hit of an instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The process that was traced; a forked child's calls count as its parent's.
    pub pid: u32,
    /// The thread that entered; 0 where its number cannot be had (its C library keeps none, and a seccomp filter may forbid the question).
    pub tid: u32,
    /// The function.
    pub site: Arc<Site>,
    /// When it was entered, from the session's start on.
    pub at: Duration,
    /// The first integer arguments, as registers hold them; as many as were asked for.
    pub arguments: [u64; 6],
    /// The low 64 bits of the vector registers that hold the first floats; 0 for those that were not asked for.
    pub floats: [u64; 8],
    /// What arguments pointed to at the entry, where that was asked for.
    pub texts: Vec<Text>,
    /// What was read of memory for it ([`Filter::reads`](crate::filter::Filter::reads)), in that order; `argument` is the place there.
    pub fields: Vec<Text>,
    /// What it returned; the bits of a float, where that was asked for.
    pub returned: Option<u64>,
    /// How long it took.
    pub took: Option<Duration>,
    /// How it ended.
    pub how: How,
}

/// What an argument pointed to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text {
    /// The argument, from 0 on.
    pub argument: u8,
    /// The first bytes there, at most [`TEXT_BYTES`].
    pub bytes: Vec<u8>,
    /// Why there are no more.
    pub reading: Reading,
}

/// How far the kernel read for the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// As far as records go.
    Whole,
    /// The program could not have read further: nothing is mapped behind these bytes.
    Fault,
    /// It did not read at all, for this error.
    Failed(i32),
}

impl Text {
    /// The bytes as a number, if all were read.
    #[must_use]
    pub fn word(&self) -> Option<u64> {
        let mut word = [0; 8];
        let len = self.bytes.len().min(8);
        word[..len].copy_from_slice(&self.bytes[..len]);
        (self.reading == Reading::Whole).then_some(u64::from_le_bytes(word))
    }
    /// From the words of a record: the answer of process_vm_readv, or the same of our own loads, then the bytes.
    pub(crate) fn new(argument: u8, words: impl Fn(u64) -> u64) -> Self {
        Self::of(argument, TEXT_BYTES, words)
    }
    /// The same, where so many bytes were asked for.
    pub(crate) fn of(argument: u8, asked: usize, words: impl Fn(u64) -> u64) -> Self {
        const EFAULT: i64 = 14;
        let answer = words(0).cast_signed();
        let read = usize::try_from(answer).unwrap_or(0).min(asked.min(TEXT_BYTES));
        let mut bytes: Vec<u8> =
            (1..=asked.div_ceil(8) as u64).flat_map(|n| words(n).to_le_bytes()).collect();
        bytes.truncate(read);
        let reading = match answer {
            0.. if read == asked => Reading::Whole,
            0.. => Reading::Fault,
            _ if answer == -EFAULT => Reading::Fault,
            _ => Reading::Failed(i32::try_from(answer.wrapping_neg()).unwrap_or(i32::MAX)),
        };
        Self { argument, bytes, reading }
    }
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// In which segment of its process it was.
    pub(crate) segment: usize,
    pub(crate) record: Record,
    /// It was there a round ago.
    waited: bool,
}

impl Found {
    pub(crate) const fn new(segment: usize, record: Record) -> Self {
        Self { segment, record, waited: false }
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
    pub(crate) how: How,
}

/// Calls of several processes, in the order in which they ended.
pub(crate) fn in_order(calls: &mut [Call]) {
    calls.sort_by_key(|call| call.at + call.took.unwrap_or_default());
}

/// What a user should know of exits without an entry.
pub(crate) fn unpaired_notice(pid: u32, unpaired: u64) -> Option<String> {
    let say = || format!("{unpaired} returns in process {pid} were of calls whose entry was not recorded");
    (unpaired > 0).then(say)
}

/// Entries that wait for their exits.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    open: Quick<Key, Record>,
    /// Only entries name their thread. Threads of one process have no stack pointer in common, and a goroutine that goes on in another
    /// thread keeps its own.
    pub(crate) exits_name_no_thread: bool,
    /// Exits that found no entry in their round.
    early: Vec<Found>,
    /// Exits of calls whose entry was not seen: they ran at the start, or the record was dropped.
    pub(crate) unpaired: u64,
}

impl Pairing {
    /// Takes what was found until a tick, and tells the calls that it ended, in that order; what was found later stays. `waits` says whether an
    /// entry's exit is recorded.
    pub(crate) fn feed(
        &mut self,
        round: &mut Vec<Found>,
        until: u64,
        waits: impl Fn(usize, u32) -> bool,
        mut each: impl FnMut(Paired),
    ) {
        round.append(&mut self.early);
        // One ring's records are in order.
        if !round.is_sorted_by_key(|found| found.record.ticks) {
            round.sort_by_key(|found| found.record.ticks);
        }
        let end = round.partition_point(|found| found.record.ticks <= until);
        for Found { segment, record, waited } in round.drain(..end) {
            let thread = if self.exits_name_no_thread { 0 } else { record.tid };
            let key = (thread, record.sp, segment, record.probe);
            match record.kind {
                Kind::Entry if waits(segment, record.probe) => {
                    if let Some(entry) = self.open.insert(key, record) {
                        each(unfinished(segment, entry));
                    }
                }
                Kind::Entry => each(Paired { segment, entry: record, exit: None, how: How::Entered }),
                kind => match self.open.remove(&key) {
                    Some(entry) => {
                        let how = if kind == Kind::Return { How::Returned } else { How::TailCall };
                        each(Paired { segment, entry, exit: Some(record), how });
                    }
                    None if waited => self.unpaired += 1,
                    None => self.early.push(Found { segment, record, waited: true }),
                },
            }
        }
    }
    /// Nothing more will come: what waits has not ended.
    pub(crate) fn rest(&mut self) -> Vec<Paired> {
        self.unpaired += self.early.drain(..).count() as u64;
        let mut rest: Vec<Paired> =
            self.open.drain().map(|((_, _, segment, _), entry)| unfinished(segment, entry)).collect();
        rest.sort_by_key(|paired| paired.entry.ticks);
        rest
    }
}

const fn unfinished(segment: usize, entry: Record) -> Paired {
    Paired { segment, entry, exit: None, how: How::Unfinished }
}

#[cfg(test)]
mod tests {
    use super::{Found, How, Paired, Pairing};
    use trapline_record::ring::{Kind, MAX_VALUES, Record};

    fn record(kind: Kind, tid: u32, sp: u64, ticks: u64) -> (usize, Record) {
        (0, Record { kind, probe: 3, tid, ticks, sp, values: [ticks; MAX_VALUES] })
    }

    fn ended(pairing: &mut Pairing, round: Vec<(usize, Record)>) -> Vec<(u64, Option<u64>, How)> {
        let mut calls = Vec::new();
        let mut round = round.into_iter().map(|(segment, record)| Found::new(segment, record)).collect();
        let each = |c: Paired| calls.push((c.entry.ticks, c.exit.map(|exit| exit.ticks), c.how));
        pairing.feed(&mut round, u64::MAX, |_, probe| probe == 3, each);
        calls
    }

    #[test]
    fn what_happened_later_is_told_later() {
        let mut pairing = Pairing::default();
        let mut round: Vec<Found> = Vec::new();
        let mut told = |round: &mut Vec<Found>, ticks: &[u64], until: u64| {
            let (mut ended, entries) =
                (Vec::new(), ticks.iter().map(|&ticks| record(Kind::Entry, 1, ticks, ticks)));
            round.extend(entries.map(|(segment, record)| Found::new(segment, record)));
            pairing.feed(round, until, |_, _| false, |paired| ended.push(paired.entry.ticks));
            ended
        };
        assert_eq!(told(&mut round, &[10, 30, 12, 25], 20), [10, 12]);
        assert_eq!(told(&mut round, &[21, 40, 22], 30), [21, 22, 25, 30]);
        assert_eq!(told(&mut round, &[], u64::MAX), [40]);
        assert!(round.is_empty());
    }

    #[test]
    fn recursion_and_threads_are_told_apart() {
        use Kind::{Entry, Return, Tail};
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
        let want =
            [(12, Some(15), How::Returned), (10, Some(20), How::Returned), (11, Some(30), How::TailCall)];
        assert_eq!(ended(&mut pairing, round), want);
        assert_eq!((pairing.rest(), pairing.unpaired), (vec![], 0));
    }

    #[test]
    fn an_exit_without_a_thread_is_of_whoever_has_that_stack() {
        let mut pairing = Pairing { exits_name_no_thread: true, ..Pairing::default() };
        let round = vec![
            record(Kind::Entry, 1, 0x90, 10),
            record(Kind::Entry, 2, 0x190, 11),
            record(Kind::Return, 0, 0x190, 12),
            record(Kind::Return, 0, 0x90, 13),
        ];
        assert_eq!(
            ended(&mut pairing, round),
            [(11, Some(12), How::Returned), (10, Some(13), How::Returned)]
        );
    }

    #[test]
    fn an_exit_read_before_its_entry_waits_for_one_round() {
        let mut pairing = Pairing::default();
        let early = vec![record(Kind::Return, 1, 0x90, 20), record(Kind::Return, 1, 0x50, 21)];
        assert_eq!(ended(&mut pairing, early), []);
        let late = vec![record(Kind::Entry, 1, 0x90, 10)];
        assert_eq!(ended(&mut pairing, late), [(10, Some(20), How::Returned)]);
        assert_eq!((pairing.rest(), pairing.unpaired), (vec![], 1));
    }

    #[test]
    fn an_entry_in_the_place_of_another_ends_it_unseen() {
        let mut pairing = Pairing::default();
        let entries = vec![record(Kind::Entry, 1, 0x90, 10), record(Kind::Entry, 1, 0x90, 12)];
        assert_eq!(ended(&mut pairing, entries), [(10, None, How::Unfinished)]);
        assert_eq!(pairing.rest().iter().map(|c| c.entry.ticks).collect::<Vec<_>>(), [12]);
        let (segment, record) = record(Kind::Entry, 1, 0x90, 13);
        let each = |other: Paired| assert_eq!(other.how, How::Entered);
        pairing.feed(&mut vec![Found::new(segment, record)], u64::MAX, |_, _| false, each);
    }
}
