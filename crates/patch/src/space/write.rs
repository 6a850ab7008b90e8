//! Writes sites: changes them from one set of bytes to another, in the order that `protocol` argues.
//!
//! In: a [`CodeSpace`] and changes. Out: for each change what became of it. Invariants: PATCH-3, PATCH-5,
//! PATCH-6, PATCH-11.
//! Does not: choose sites, keep the journal.

use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, EntryKind, MAX_PATCH};

use crate::native::staged::{STEPS, change_steps};
use crate::native::traps::is_staged;
use crate::space::change::{Change, Direction, Outcome};
use crate::space::run::{change_run, in_word, same_run};
use crate::space::{CodeSpace, LINE, SpaceError};

/// Number of writes between two looks for stops: about 20 µs.
const SERVE_EVERY: u32 = 16;
/// The same for runs of windows.
pub(crate) const SERVE_EVERY_RUN: usize = 8;
/// Bytes of text that are read at once. What was read is used within a millisecond.
const RUN: u64 = 16 * 1024;

/// The phase in which a kind is written: handlers of faults, islands, exits, entries (PATCH-3). Semaphores are no
/// code.
pub(crate) const fn phase(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Handler => 0,
        EntryKind::Island => 1,
        EntryKind::Exit => 2,
        EntryKind::Entry => 3,
        EntryKind::Semaphore => 4,
    }
}

/// Changes all entries that are code, phase by phase. Puts the result of each into `outcomes`, in the order
/// of `entries`.
///
/// # Errors
/// [`SpaceError::Gone`] if the process ended; what was written until then is in `outcomes`.
pub(crate) fn change(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    way: Direction,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), SpaceError> {
    outcomes.clear();
    outcomes.resize(entries.len(), Outcome::Already);
    let mut order: Vec<usize> =
        (0..entries.len()).filter(|&i| entries[i].kind != EntryKind::Semaphore).collect();
    let rank = |kind| if way.installs() { phase(kind) } else { 3 - phase(kind) };
    order.sort_unstable_by_key(|&i| (rank(entries[i].kind), entries[i].addr));
    let words = space.takes_words();
    let mut phases: Vec<Phase> = order
        .chunk_by(|&a, &b| entries[a].kind == entries[b].kind)
        .map(|group| {
            let (staged, at_once) = group.iter().partition(|&&index| is_staged(&entries[index], words));
            Phase { staged, at_once }
        })
        .collect();
    // A phase begins a round behind the one before it: see `protocol`.
    for round in 0..phases.len() + STEPS - 1 {
        let mut steps: Vec<(usize, u8)> = Vec::new();
        for (nth, phase) in phases.iter_mut().enumerate() {
            let Some(step) = round.checked_sub(nth).filter(|step| *step < STEPS) else { continue };
            // As soon as it may be in place, as late as it must be gone.
            if step == if way.installs() { 0 } else { STEPS - 1 } {
                change_at_once(space, entries, &phase.at_once, way, outcomes)?;
            }
            if step > 0 {
                let is_open = |o| matches!(o, Outcome::Done | Outcome::KeptBreakpoint);
                phase.staged.retain(|&index| is_open(outcomes[index]));
            }
            steps.extend(phase.staged.iter().map(|&index| (index, step as u8)));
        }
        change_steps(space, entries, &mut steps, way, outcomes)?;
    }
    Ok(())
}

/// The windows of a kind, in order of address: those that change in steps, and those that one write changes. Indices
/// into the entries.
struct Phase {
    staged: Vec<usize>,
    at_once: Vec<usize>,
}

/// What publishing would meet at each entry, in the order of `entries` (sorted by address); writes nothing.
/// `Done` means "may be written".
pub(crate) fn verify(space: &mut impl CodeSpace, entries: &[Entry]) -> Vec<Outcome> {
    let mut text = Text::default();
    (0..entries.len())
        .map(|index| {
            let change = Change::new(&entries[index], Direction::Publish);
            if text.prepare(space, entries[index..].iter()).is_err() {
                return Outcome::Unreachable;
            }
            let present = text.window(change.addr(), change.after().len());
            match change.decide(space, present, Direction::Publish).0 {
                Outcome::Already => Outcome::Differs { found: entries[index].new },
                other => other,
            }
        })
        .collect()
}

/// Writes windows of one phase. Those inside a word are written by the page if that is proven, others inside a line
/// one by one.
fn change_at_once(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    group: &[usize],
    way: Direction,
    outcomes: &mut [Outcome],
) -> Result<(), SpaceError> {
    let by_page = |&index: &usize| space.takes_runs() && in_word(&entries[index]);
    let (runs, mut group): (Vec<usize>, Vec<usize>) = group.iter().partition(|index| by_page(index));
    for (nth, run) in runs.chunk_by(|&a, &b| same_run(&entries[a], &entries[b])).enumerate() {
        match change_run(space, entries, run, way, outcomes) {
            // Not all of the stretch is mapped, so each is written by itself.
            Err(SpaceError::Place(_)) => group.extend(run),
            other => other?,
        }
        if nth % SERVE_EVERY_RUN == SERVE_EVERY_RUN - 1 {
            space.serve()?;
        }
    }
    group.sort_unstable_by_key(|&index| entries[index].addr);
    let mut text = Text::default();
    let mut writes = 0u32;
    for (nth, &index) in group.iter().enumerate() {
        let change = Change::new(&entries[index], way);
        let ahead = group[nth..].iter().map(|&i| &entries[i]);
        outcomes[index] =
            Outcome::of(text.prepare(space, ahead).and_then(|()| one(space, &mut text, &change, way)))?;
        writes += 1;
        if writes.is_multiple_of(SERVE_EVERY) {
            space.serve()?;
        }
    }
    space.serve()
}

/// Writes one window inside one line.
fn one(
    space: &mut impl CodeSpace,
    text: &mut Text,
    change: &Change<'_>,
    way: Direction,
) -> Result<Outcome, SpaceError> {
    let (outcome, part) = change.decide(space, text.window(change.addr(), change.after().len()), way);
    if let Some(part) = part {
        text.put(space, change.addr() + part as u64, &change.after()[part..])?;
    }
    Ok(outcome)
}

/// A stretch of text as it was read, updated with our own writes.
#[derive(Default)]
struct Text {
    start: u64,
    bytes: Vec<u8>,
}

impl Text {
    fn holds(&self, from: u64, to: u64) -> bool {
        from >= self.start && to <= self.start + self.bytes.len() as u64
    }
    /// Makes sure that the lines of the first entry are read, and reads ahead for those that follow it
    /// closely.
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
