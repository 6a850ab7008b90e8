//! The writes: sites changed from one set of bytes to another, in the order that `protocol` argues.
//!
//! In: a [`CodeSpace`] and changes. Out: for each change what became of it. Invariants: PATCH-3, PATCH-5, PATCH-6, PATCH-11.
//! Does not: choose sites, keep the journal.

use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, Kind, MAX_PATCH};

use crate::run::{change_run, in_word, same_run};
use crate::space::{CodeSpace, LINE, SpaceError};

/// The instruction that traps.
const INT3: u8 = 0xcc;
/// Writes between two looks for stops: about 20 µs.
const SERVE_EVERY: u32 = 16;
/// The same for runs of windows.
const SERVE_EVERY_RUN: usize = 8;
/// Bytes of text read at once; what was read is used within a millisecond.
const RUN: u64 = 16 * 1024;

/// Which way sites change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From old to new.
    Publish,
    /// From new to old.
    Remove,
}

/// What became of one change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Written.
    Done,
    /// It already held the bytes to be written; nothing was written.
    Already,
    /// It held neither; nothing was written.
    Differs {
        /// What it held; the first `len` bytes count.
        found: [u8; MAX_PATCH],
    },
    /// Somebody's breakpoint (a kernel uprobe) stands at the head. The bytes behind it were written, it was kept.
    KeptBreakpoint,
    /// It could not be read or written: not mapped any more.
    Unreachable,
}

/// What a window holds now, in view of what we would write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Present {
    /// What we expect to replace.
    Before,
    /// What we want.
    After,
    /// One of our own intermediate states, or ours with somebody's breakpoint put on it or taken off it.
    Between,
    /// Something else.
    Foreign,
}

/// The window of an entry, `before` and `after` by the way it goes.
pub(crate) struct Change<'e> {
    entry: &'e Entry,
    before: &'e [u8],
    after: &'e [u8],
}

impl<'e> Change<'e> {
    pub(crate) fn new(entry: &'e Entry, way: Way) -> Self {
        let len = usize::from(entry.len).min(MAX_PATCH);
        let (old, new) = (&entry.old[..len], &entry.new[..len]);
        match way {
            Way::Publish => Self { entry, before: old, after: new },
            Way::Remove => Self { entry, before: new, after: old },
        }
    }
    pub(crate) fn addr(&self) -> u64 {
        self.entry.addr.0
    }
    /// What the window is to hold.
    pub(crate) fn after(&self) -> &'e [u8] {
        self.after
    }
    fn len(&self) -> u64 {
        self.after.len() as u64
    }
    /// Bytes in the lower line.
    fn low(&self) -> usize {
        (LINE - self.addr() % LINE).min(self.len()) as usize
    }
    fn crosses(&self) -> bool {
        (self.low() as u64) < self.len()
    }
    fn classify(&self, present: &[u8], way: Way) -> Present {
        if present == self.after {
            return Present::After;
        }
        if present == self.before {
            return Present::Before;
        }
        let (old, new) = (&self.entry.old, &self.entry.new);
        let ours = |i: usize| present[i] == new[i] || (self.crosses() && present[i] == old[i]);
        let head = [old[0], new[0], INT3].contains(&present[0]);
        if way == Way::Remove && head && (1..present.len()).all(ours) {
            Present::Between
        } else {
            Present::Foreign
        }
    }
    /// What becomes of a window that holds `present`, and from which of its bytes on it is to be written, if at all.
    pub(crate) fn decide(&self, present: &[u8], way: Way) -> (Outcome, Option<usize>) {
        match self.classify(present, way) {
            Present::After => (Outcome::Already, None),
            Present::Foreign => {
                let mut found = [0; MAX_PATCH];
                found[..present.len()].copy_from_slice(present);
                (Outcome::Differs { found }, None)
            }
            Present::Before => (Outcome::Done, Some(0)),
            Present::Between if present[0] == INT3 && self.before[0] != INT3 => {
                (Outcome::KeptBreakpoint, Some(1))
            }
            Present::Between => (Outcome::Done, Some(0)),
        }
    }
}

/// Phase of a kind: islands, exits, entries (PATCH-3). Semaphores are no code.
pub(crate) const fn phase(kind: Kind) -> u8 {
    match kind {
        Kind::Island => 0,
        Kind::Exit => 1,
        Kind::Entry => 2,
        Kind::Semaphore => 3,
    }
}

/// Changes all entries that are code, phase by phase, and says what became of each (in the order of `entries`).
///
/// # Errors
/// [`SpaceError::Gone`] when the process ended; what was written until then is in `outcomes`.
pub(crate) fn change(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    way: Way,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), SpaceError> {
    outcomes.clear();
    outcomes.resize(entries.len(), Outcome::Already);
    let mut order: Vec<usize> = (0..entries.len()).filter(|&i| entries[i].kind != Kind::Semaphore).collect();
    let rank = |kind| if way == Way::Publish { phase(kind) } else { 2 - phase(kind) };
    order.sort_unstable_by_key(|&i| (rank(entries[i].kind), entries[i].addr));
    for group in order.chunk_by(|&a, &b| entries[a].kind == entries[b].kind) {
        change_phase(space, entries, group, way, outcomes)?;
    }
    Ok(())
}

/// What publishing would meet at each entry, in the order of `entries` (sorted by address); writes nothing. `Done` stands
/// for "may be written".
pub(crate) fn verify(space: &mut impl CodeSpace, entries: &[Entry]) -> Vec<Outcome> {
    let mut text = Text::default();
    (0..entries.len())
        .map(|index| {
            let change = Change::new(&entries[index], Way::Publish);
            if text.prepare(space, entries[index..].iter()).is_err() {
                return Outcome::Unreachable;
            }
            let len = change.after.len();
            let mut found = [0; MAX_PATCH];
            found[..len].copy_from_slice(text.window(change.addr(), len));
            match change.classify(&found[..len], Way::Publish) {
                Present::Before => Outcome::Done,
                _ => Outcome::Differs { found },
            }
        })
        .collect()
}

/// One phase: windows inside a word by the page where that is proven, others inside a line one by one, then those that cross
/// lines together.
fn change_phase(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    group: &[usize],
    way: Way,
    outcomes: &mut [Outcome],
) -> Result<(), SpaceError> {
    let by_page = |&index: &usize| space.takes_runs() && in_word(&entries[index]);
    let (runs, mut group): (Vec<usize>, Vec<usize>) = group.iter().partition(|index| by_page(index));
    for (nth, run) in runs.chunk_by(|&a, &b| same_run(&entries[a], &entries[b])).enumerate() {
        match change_run(space, entries, run, way, outcomes) {
            // Not all of the stretch is there: each by itself.
            Err(SpaceError::Place(_)) => group.extend(run),
            other => other?,
        }
        if nth % SERVE_EVERY_RUN == SERVE_EVERY_RUN - 1 {
            space.serve()?;
        }
    }
    group.sort_unstable_by_key(|&index| entries[index].addr);
    let mut text = Text::default();
    let mut crossing = Vec::new();
    let mut writes = 0u32;
    for (nth, &index) in group.iter().enumerate() {
        let change = Change::new(&entries[index], way);
        if change.crosses() {
            crossing.push(index);
            continue;
        }
        let ahead = group[nth..].iter().map(|&i| &entries[i]);
        outcomes[index] =
            place(text.prepare(space, ahead).and_then(|()| one(space, &mut text, &change, way)))?;
        writes += 1;
        if writes.is_multiple_of(SERVE_EVERY) {
            space.serve()?;
        }
    }
    space.serve()?;
    if crossing.is_empty() { Ok(()) } else { across(space, entries, &crossing, way, outcomes) }
}

/// A failure of one place is that place's outcome; the others go on.
fn place(result: Result<Outcome, SpaceError>) -> Result<Outcome, SpaceError> {
    match result {
        Err(SpaceError::Place(_)) => Ok(Outcome::Unreachable),
        other => other,
    }
}

/// One window inside one line.
fn one(
    space: &mut impl CodeSpace,
    text: &mut Text,
    change: &Change<'_>,
    way: Way,
) -> Result<Outcome, SpaceError> {
    let (outcome, part) = change.decide(text.window(change.addr(), change.after.len()), way);
    if let Some(part) = part {
        text.put(space, change.addr() + part as u64, &change.after[part..])?;
    }
    Ok(outcome)
}

/// Windows that cross a line: C1 to C6 of `protocol`, or the same backwards. All of them share each core sync.
fn across(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    crossing: &[usize],
    way: Way,
    outcomes: &mut [Outcome],
) -> Result<(), SpaceError> {
    let mut open = Vec::with_capacity(crossing.len());
    for &index in crossing {
        let change = Change::new(&entries[index], way);
        let mut window = [0; MAX_PATCH];
        let present = &mut window[..change.after.len()];
        let outcome = place(space.read(change.entry.addr, present).map(|()| Outcome::Done))?;
        outcomes[index] = match change.classify(present, way) {
            _ if outcome != Outcome::Done => outcome,
            Present::Before | Present::Between => Outcome::Done,
            Present::After => Outcome::Already,
            Present::Foreign => Outcome::Differs { found: window },
        };
        if outcomes[index] == Outcome::Done {
            open.push(index);
        }
    }
    for step in 0..3 {
        if open.is_empty() {
            return Ok(());
        }
        let mut still = Vec::with_capacity(open.len());
        for index in open {
            let change = Change::new(&entries[index], way);
            let outcome = place(cross_step(space, &change, way, step).map(|()| Outcome::Done))?;
            if outcome == Outcome::Done {
                still.push(index);
            } else {
                outcomes[index] = outcome;
            }
            space.serve()?;
        }
        open = still;
        space.sync()?;
        space.serve()?;
    }
    Ok(())
}

/// Step 0, 1 or 2 of a window across a line.
fn cross_step(space: &mut impl CodeSpace, change: &Change<'_>, way: Way, step: u8) -> Result<(), SpaceError> {
    let low = change.low();
    let (addr, high) = (change.addr(), change.addr() + low as u64);
    let mut text = Text::default();
    text.read(space, addr / LINE * LINE, (addr / LINE + 2) * LINE)?;
    match (step, way) {
        (0, Way::Publish) => {
            let mut part = [0; MAX_PATCH];
            part[..low].copy_from_slice(&change.after[..low]);
            part[0] = INT3;
            text.put(space, addr, &part[..low])
        }
        (0, Way::Remove) => text.put(space, addr, &[INT3]),
        (1, _) => text.put(space, high, &change.after[low..]),
        (_, Way::Publish) => text.put(space, addr, &change.after[..1]),
        (_, Way::Remove) => text.put(space, addr, &change.after[..low]),
    }
}

/// A stretch of text as read, kept true to our own writes.
#[derive(Default)]
struct Text {
    start: u64,
    bytes: Vec<u8>,
}

impl Text {
    fn holds(&self, from: u64, to: u64) -> bool {
        from >= self.start && to <= self.start + self.bytes.len() as u64
    }
    /// Makes sure that the lines of the first entry are there, reading ahead for those that follow it closely.
    fn prepare<'e>(
        &mut self,
        space: &mut impl CodeSpace,
        mut ahead: impl Iterator<Item = &'e Entry>,
    ) -> Result<(), SpaceError> {
        let lines = |e: &Entry| (e.addr.0 / LINE * LINE, (e.addr.0 + u64::from(e.len)).div_ceil(LINE) * LINE);
        let Some((from, mut to)) = ahead.next().map(lines) else { return Ok(()) };
        if self.holds(from, to) {
            return Ok(());
        }
        let first = to;
        for (_, end) in ahead.map(lines).take_while(|&(_, end)| end - from <= RUN) {
            to = to.max(end);
        }
        // A hole behind the first site must not make the first unreachable.
        self.read(space, from, to).or_else(|_| self.read(space, from, first))
    }
    fn read(&mut self, space: &mut impl CodeSpace, from: u64, to: u64) -> Result<(), SpaceError> {
        self.start = from;
        self.bytes.resize((to - from) as usize, 0);
        let result = space.read(RemoteAddr(from), &mut self.bytes);
        if result.is_err() {
            self.bytes.clear();
        }
        result
    }
    fn window(&self, addr: u64, len: usize) -> &[u8] {
        let at = (addr - self.start) as usize;
        &self.bytes[at..at + len]
    }
    /// Writes `bytes`, which lie in one line, as one word of eight inside that line (PATCH-5).
    fn put(&mut self, space: &mut impl CodeSpace, addr: u64, bytes: &[u8]) -> Result<(), SpaceError> {
        let last = addr / LINE * LINE + LINE - MAX_PATCH as u64;
        let word = addr.min(last);
        let at = (word - self.start) as usize;
        let inner = (addr - word) as usize;
        let mut composed = [0; MAX_PATCH];
        composed.copy_from_slice(&self.bytes[at..at + MAX_PATCH]);
        composed[inner..inner + bytes.len()].copy_from_slice(bytes);
        space.write(RemoteAddr(word), &composed)?;
        self.bytes[at..at + MAX_PATCH].copy_from_slice(&composed);
        Ok(())
    }
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
