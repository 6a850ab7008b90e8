//! Reads a recording of words, round by round.
//!
//! In: untrusted bytes. Out: calls, handed on as they begin and end; processes, functions and threads by their indices. A
//! round hands on what happened before the previous round began, as in `pairing`. Invariants: REC-3, REC-4, SAV-1, SAV-2.
//! Does not: merge rings, or put entries and exits together.

use std::collections::VecDeque;
use std::io::{Read, Seek};
use std::sync::Arc;
use std::time::Duration;

use trapline_record::calls::CallRecord;
use trapline_record::ring::RecordKind;

use super::range::Range;
use super::stacks::{Stack, Taken, Visit};
use super::streams::{Piece, Streams};
use super::{Function, Process, TakenOut, Thread, Ticks, Totals};
use crate::decode::{Clock, ProbeFacts};
use crate::quick::Quick;
use crate::saved::blocks::{Blocks, Head};
use crate::saved::frame::{Get, Kind};
use crate::saved::tables::{self, Loss, Round, Table, WordsHead, get_losses, get_names};
use crate::saved::{SavedError, Step};

/// Most processes of a file, rings of it, and threads.
const MOST_PROCESSES: usize = 1 << 16;
const MOST_RINGS: usize = 1 << 16;
const MOST_THREADS: usize = 1 << 22;

/// What is known of a process besides its name.
#[derive(Debug, Default)]
struct Known {
    /// Index of each function, by segment and probe.
    functions: Vec<Vec<Option<u32>>>,
    names: Quick<u32, Option<String>>,
    losses: Vec<Loss>,
}

/// A recording of words that is being read.
#[derive(Debug)]
pub struct Recorded<R> {
    blocks: Blocks<R>,
    began: Duration,
    note: Vec<u8>,
    clock: Clock,
    streams: Streams,
    who: Who,
    /// Tick at which the previous round began.
    begun: u64,
    is_over: bool,
    range: Range,
    words: u64,
    passed: u64,
    /// Functions that are to be taken out when records come to that tick; processes and functions, in their order.
    pending: VecDeque<(u64, usize, Vec<usize>)>,
    taken_out: Vec<TakenOut>,
}

/// Processes, functions and threads.
#[derive(Debug, Default)]
struct Who {
    processes: Vec<Process>,
    known: Vec<Known>,
    functions: Vec<Function>,
    /// What values of each function's calls are, if its calls have any.
    facts: Vec<Option<ProbeFacts>>,
    threads: Vec<Thread>,
    index: Quick<(u32, u32), usize>,
    stacks: Vec<Stack>,
    /// The thread of each ring's last record.
    last: Vec<Option<(u32, usize)>>,
    calls: u64,
    unpaired: u64,
    skipped: u64,
}

impl<R: Read + Seek> Recorded<R> {
    /// Reads the file's head and first block.
    ///
    /// # Errors
    /// If it is not a recording, or has another version.
    pub fn open(from: R) -> Result<Self, SavedError> {
        let (blocks, begin) = Blocks::open(from)?;
        Ok(Self {
            blocks,
            began: begin.began,
            note: begin.note,
            clock: begin.clock,
            streams: Streams::default(),
            who: Who::default(),
            begun: begin.clock.0,
            is_over: false,
            range: Range::ALL,
            words: 0,
            passed: 0,
            pending: VecDeque::new(),
            taken_out: Vec::new(),
        })
    }
    /// Hands on what was recorded between two times since the begin, as if nothing else had been. Blocks without such
    /// records are passed over.
    #[must_use]
    pub fn between(self, since: Duration, until: Option<Duration>) -> Self {
        Self { range: Range::new(since, until), ..self }
    }
    /// Passes over all words, so that only what stands beside them is read.
    #[must_use]
    pub fn without_words(self) -> Self {
        Self { range: Range::NONE, ..self }
    }
    /// Reads on to the end of a round, and hands on what is complete by then.
    ///
    /// # Errors
    /// If the file cannot be read, or not further. What was whole before that has been handed on.
    pub fn round(&mut self, visit: &mut dyn Visit) -> Result<Step, SavedError> {
        let step = self.blocks_of_round(visit);
        if step.is_err() && !self.is_over {
            self.finish(visit);
        }
        step
    }
    fn blocks_of_round(&mut self, visit: &mut dyn Visit) -> Result<Step, SavedError> {
        loop {
            let Some(kind) = self.next()? else {
                if self.is_over {
                    return Ok(Step::Cut(self.blocks.at.1));
                }
                self.finish(visit);
                return Ok(Step::Round { last: true });
            };
            if self.is_over && kind != Kind::End {
                return Err(self.blocks.damaged("stands behind the last round"));
            }
            match kind {
                Kind::Begin => return Err(self.blocks.damaged("is a second begin")),
                Kind::Probes => self.probes(visit)?,
                Kind::Slots => return Err(SavedError::NotCompact),
                Kind::Words => self.words()?,
                Kind::TakenOut => {
                    self.take_out()
                        .ok_or_else(|| self.blocks.damaged("is of functions that there are not"))?;
                }
                Kind::Names => {
                    let names = get_names(&self.blocks.block);
                    let (process, names) = names.ok_or_else(|| self.blocks.damaged("holds no names"))?;
                    let known = self.who.known.get_mut(process as usize);
                    known
                        .ok_or_else(|| self.blocks.damaged("names threads of no process"))?
                        .names
                        .extend(names);
                }
                Kind::Losses => {
                    let losses = get_losses(&self.blocks.block);
                    let (process, losses) = losses.ok_or_else(|| self.blocks.damaged("holds no losses"))?;
                    let known = self.who.known.get_mut(process as usize);
                    known.ok_or_else(|| self.blocks.damaged("is of losses of no process"))?.losses = losses;
                }
                Kind::Round => {
                    let round = Round::get(&self.blocks.block);
                    let round = round.ok_or_else(|| self.blocks.damaged("is no round"))?;
                    self.clock = round.clock;
                    let Some(until) = round.until else {
                        self.finish(visit);
                        return Ok(Step::Round { last: true });
                    };
                    let before = std::mem::replace(&mut self.begun, until);
                    // What is in later rounds happened behind it.
                    self.range.pass(before, self.ticks());
                    self.hand_on(before, visit);
                    return Ok(Step::Round { last: false });
                }
                Kind::End => {
                    if !self.is_over {
                        self.finish(visit);
                    }
                    return self.blocks.end().map(Step::End);
                }
            }
        }
    }
    /// Reads the next block that is not passed over.
    fn next(&mut self) -> Result<Option<Kind>, SavedError> {
        while let Some(head) = self.blocks.head()? {
            if !self.is_outside(&head)? {
                return Ok(self.blocks.contents(&head)?.then_some(head.kind));
            }
            if !self.blocks.pass(&head)? {
                return Ok(None);
            }
            self.passed += head.len;
        }
        Ok(None)
    }
    /// Whether a block has no words that may be handed on.
    fn is_outside(&mut self, head: &Head) -> Result<bool, SavedError> {
        if head.kind != Kind::Words || self.range == Range::ALL {
            return Ok(false);
        }
        let is_there = self.blocks.peek(head, WordsHead::BYTES as u64)?;
        let words = WordsHead::get(&mut Get(&self.blocks.block)).filter(|_| is_there);
        Ok(words.is_some_and(|words| self.range.is_outside(words.taken, self.ticks())))
    }
    fn probes(&mut self, visit: &mut dyn Visit) -> Result<(), SavedError> {
        let table = Table::get(&self.blocks.block);
        let table = table.ok_or_else(|| self.blocks.damaged("is no table of probes"))?;
        for (segment, probe, facts) in table.probes.iter().filter(|(.., facts)| facts.shape.is_some()) {
            self.streams.values_of((table.process, segment as u32), probe, facts.behind());
        }
        self.who.learn(&table, visit).ok_or_else(|| self.blocks.damaged("is of a process that was left out"))
    }
    fn words(&mut self) -> Result<(), SavedError> {
        let mut get = Get(&self.blocks.block);
        let head = WordsHead::get(&mut get).filter(|head| {
            let is_known = (head.process as usize) < self.who.processes.len();
            is_known && get.0.len().is_multiple_of(8) && self.streams.len() < MOST_RINGS
        });
        let Some(WordsHead { process, segment, ring, from, context, .. }) = head else {
            return Err(self.blocks.damaged("holds no words"));
        };
        self.words += get.0.len() as u64 / 8;
        let piece = Piece { from, floor: self.begun, context, bytes: get.0.to_vec() };
        self.streams.push((process, segment, ring), piece);
        Ok(())
    }
    /// Notes which functions are recorded no longer. `None` if the file has not said that there are such.
    fn take_out(&mut self) -> Option<()> {
        let (process, out) = tables::TakenOut::get(&self.blocks.block)?;
        let mut functions = Vec::new();
        for tables::TakenProbe { segment, probe, calls } in out.probes {
            let known = self.who.known.get(process as usize)?;
            let function = (*known.functions.get(segment as usize)?.get(probe as usize)?)? as usize;
            let (at, share, record_ns) = (out.at, out.share, out.record_ns);
            // Once is enough, and all that a session writes.
            if self.who.functions[function].taken_out.replace(at).is_some() {
                return None;
            }
            self.taken_out.push(TakenOut { function, calls, at, share, record_ns });
            functions.push(function);
        }
        functions.sort_unstable();
        if functions.is_empty() {
            return None;
        }
        self.pending.push_back((out.at, process as usize, functions));
        Some(())
    }
    fn hand_on(&mut self, until: u64, visit: &mut dyn Visit) {
        visit.clock(self.ticks());
        let (from, to) = self.range.ticks(self.ticks());
        let Self { streams, who, clock, pending, .. } = self;
        who.last.resize(streams.len(), None);
        streams.take(until, |ring, (process, segment, _), record, values| {
            if record.ticks >= from && record.ticks <= to {
                while let Some((at, process, functions)) =
                    pending.front().filter(|(at, ..)| *at < record.ticks)
                {
                    who.take_out(*at, *process, functions, visit);
                    pending.pop_front();
                }
                who.take((ring, *clock), (process, segment), (record, values), visit);
            }
        });
    }
    /// Hands on all that is left, and ends all calls.
    fn finish(&mut self, visit: &mut dyn Visit) {
        self.is_over = true;
        self.hand_on(u64::MAX, visit);
        for (thread, stack) in self.who.stacks.iter_mut().enumerate() {
            stack.finish(thread, visit);
        }
    }
}

impl<R> Recorded<R> {
    /// Time at which the recording began, since 1970.
    pub const fn began(&self) -> Duration {
        self.began
    }
    /// Note that the recording program put at the begin.
    pub fn note(&self) -> &[u8] {
        &self.note
    }
    /// The recorded processes so far.
    pub fn processes(&self) -> &[Process] {
        &self.who.processes
    }
    /// The recorded functions so far.
    pub fn functions(&self) -> &[Function] {
        &self.who.functions
    }
    /// The recorded threads so far.
    pub fn threads(&self) -> &[Thread] {
        &self.who.threads
    }
    /// Name of a thread when its first record was saved.
    pub fn thread_name(&self, thread: usize) -> Option<&str> {
        let thread = self.who.threads.get(thread)?;
        self.who.known.get(thread.process)?.names.get(&thread.tid)?.as_deref()
    }
    /// Threads of a process whose first records were saved, with their names.
    pub fn named_threads(&self, process: usize) -> Vec<(u32, Option<&str>)> {
        let known = self.who.known.get(process).into_iter();
        known.flat_map(|known| &known.names).map(|(tid, name)| (*tid, name.as_deref())).collect()
    }
    /// Functions that were taken out while the recording ran, as far as was read.
    pub fn taken_out(&self) -> &[TakenOut] {
        &self.taken_out
    }
    /// Tick at which the last round so far began.
    pub const fn last_round(&self) -> u64 {
        self.begun
    }
    /// The clock, as exactly as it is known by now.
    pub const fn ticks(&self) -> Ticks {
        Ticks { start: self.clock.0, ns: self.clock.1 }
    }
    /// What was read so far.
    pub fn totals(&self) -> Totals {
        let lost = self.who.known.iter().flat_map(|known| &known.losses).map(|loss| loss.records);
        let Who { calls, unpaired, skipped, .. } = self.who;
        Totals {
            calls,
            words: self.words,
            passed: self.passed,
            lost: lost.fold(0, u64::wrapping_add),
            unpaired,
            skipped: skipped + self.streams.skipped(),
        }
    }
}

impl Who {
    /// Adds what a table says of a process. `None` if its number is not the next one.
    fn learn(&mut self, table: &Table, visit: &mut dyn Visit) -> Option<()> {
        let process = table.process as usize;
        if process > self.processes.len() || process >= MOST_PROCESSES {
            return None;
        }
        if process == self.processes.len() {
            self.processes.push(Process::default());
            self.known.push(Known::default());
        }
        self.processes[process] = Process { pid: table.pid, name: table.name.clone() };
        let known = &mut self.known[process];
        for (segment, probe, facts) in table.probes.iter() {
            if known.functions.len() <= segment {
                known.functions.resize_with(segment + 1, Vec::new);
            }
            let of = &mut known.functions[segment];
            if of.len() <= probe as usize {
                of.resize(probe as usize + 1, None);
            }
            let next = self.functions.len() as u32;
            if of[probe as usize].is_none() {
                of[probe as usize] = Some(next);
                let function = Function {
                    process,
                    site: facts.site.clone(),
                    ends: facts.waits,
                    is_libcall: facts.is_libcall,
                    taken_out: None,
                };
                visit.function(&function);
                self.functions.push(function);
                self.facts.push(facts.shape.is_some().then(|| facts.clone()));
            }
        }
        Some(())
    }
    /// Ends calls of functions that are recorded no longer.
    fn take_out(&mut self, at: u64, process: usize, functions: &[usize], visit: &mut dyn Visit) {
        let Self { threads, stacks, .. } = self;
        let is_out = |function: usize| functions.binary_search(&function).is_ok();
        for (thread, stack) in
            stacks.iter_mut().enumerate().filter(|(nth, _)| threads[*nth].process == process)
        {
            stack.take_out(thread, at, is_out, visit);
        }
    }
    fn take(
        &mut self,
        (ring, clock): (usize, Clock),
        (process, segment): (u32, u32),
        (record, values): (CallRecord, &[u64]),
        visit: &mut dyn Visit,
    ) {
        let known = self.known.get(process as usize).and_then(|known| known.functions.get(segment as usize));
        let function = known.and_then(|of| of.get(record.probe as usize).copied().flatten());
        let Some(function) = function.map(|function| function as usize) else {
            self.skipped += 1;
            return;
        };
        let thread = match self.last[ring] {
            Some((tid, thread)) if tid == record.tid => thread,
            _ => {
                let thread = *self.index.entry((process, record.tid)).or_insert_with(|| {
                    let thread = Thread { process: process as usize, tid: record.tid };
                    visit.thread(thread, &self.processes[thread.process]);
                    self.threads.push(thread);
                    self.stacks.push(Stack::default());
                    self.threads.len() - 1
                });
                self.last[ring] = Some((record.tid, thread));
                thread
            }
        };
        let is_entry = record.kind == RecordKind::Entry;
        self.calls += u64::from(is_entry);
        let Function { ends, is_libcall, taken_out, .. } = self.functions[function];
        // A thread was in a stub when its function was taken out: that call has no exit, or its end is known already.
        let is_late = taken_out.is_some_and(|at| record.ticks > at);
        let ends = ends && !is_late;
        let (call, returned) = match &self.facts[function] {
            Some(facts) if is_entry => {
                let pid = self.processes[process as usize].pid;
                (facts.entered(pid, record, values, clock).map(Arc::new), None)
            }
            Some(_) => (None, values.first().copied()),
            None => (None, None),
        };
        let taken = Taken { record, ends, is_libcall, call, returned };
        if thread < MOST_THREADS && !self.stacks[thread].take((thread, function), taken, visit) && !is_late {
            self.unpaired += 1;
        }
    }
}
