//! Which hits are counted, aggregated or recorded: the code of a filter, and the paths of hits that do not
//! pass.
//!
//! In: a condition, a sample. Out: code that jumps if a hit does not pass, before anything is written. Behind
//! the displaced code (`Rare`) such hits are counted, and threads without an area do with atomic additions
//! what others do in sections.
//!
//! ```text
//!   passed over   [names + 8 (number mod PLACES)] = number + 1
//!   sample        n = [words + 64 cpu + 8]; it becomes n - 1, or every - 1 if n = 0; passes if n = 0
//!   without rseq  n = [words + 64 line + 8] mod every; the word becomes one more; passes if n = 0
//!
//!                sp          x16 A          x17 B      x15 KEY      x14 SLOT  x13 INDEX   x12 VALUE      x11 C
//!   condition    S - FRAME   (`filter`)     (`filter`)              -         -           kept           scratch
//!   pass_over    S - FRAME   [place]        names      number + 1   -         place       kept           -
//!   sample       S - FRAME   cpu, words     area       n's next     scratch   n           kept           scratch
//!   count        S - FRAME   (`counted`)                                                  kept
//!   end          S           all registers are the program's
//! ```
//!
//! The frame is that of `frame`; all of it uses flags. A late part (`pass_fields`) runs in the frame of
//! `saves`.

use trapline_record::names::PLACES;
use trapline_record::ring::RecordKind;

use super::asm::{Asm, Cond, Fix, SP};
use super::counted::{add_one, by_thread, count, count_last, cpu};
use super::filter::Conditions;
use super::frame::{self, A, B, C, INDEX, KEY, SLOT, VALUE};
use super::latency::{Mark, Timed};
use super::machine::{Machine, Rseq};
use super::pending::Code;
use super::rseq::{self, Section};
use super::threads;
use super::traced::{Filtered, Traced};
use crate::filter::TargetFilter;
use crate::machine::ThreadId;

/// The word on the last line to which a thread without an area adds one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shared {
    /// This word.
    Word(u64),
    /// Word number `VALUE` from here on.
    Nth(u64),
}

/// What is left to append behind the displaced code.
#[derive(Clone, Debug, Default)]
pub(super) struct Rare {
    pub(super) sections: Vec<Section>,
    pub(super) shared: Vec<(Fix, Shared)>,
    pub(super) rejected: Vec<Fix>,
    /// Jumps of threads that have no sample of their own.
    pub(super) unsampled: Vec<Fix>,
    /// Address on line 0 of the filter's words.
    words: u64,
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedFilteredCount {
    pub(super) asm: Asm,
    pub(super) machine: Machine,
    pub(super) rare: Rare,
    /// Where all paths meet.
    pub(super) leave: u64,
}

/// A stub that counts hits that pass: the part before the displaced code, for the address `at`. `word` is the
/// counter on line 0.
pub fn count_filtered(
    at: u64,
    machine: &Machine,
    id: ThreadId,
    filtered: Filtered<'_>,
    word: u64,
) -> UnfinishedFilteredCount {
    let mut asm = Asm::new(at);
    let mut rare = decide(&mut asm, machine, id, filtered);
    if let Some((section, unregistered)) = count(&mut asm, machine, word) {
        rare.sections.push(section);
        rare.shared.push((unregistered, Shared::Word(last(machine, word))));
    }
    ends(asm, *machine, rare)
}

/// Saves what is overwritten, and jumps if a hit does not pass.
fn decide(asm: &mut Asm, machine: &Machine, id: ThreadId, filtered: Filtered<'_>) -> Rare {
    frame::enter(asm);
    if filtered.filter.asks_for_thread() {
        threads::ask(id, asm);
    }
    let mut rare = pass(asm, machine, id, filtered);
    // Such a thread has no sample of its own, so its hit did not pass one.
    let unsampled = core::mem::take(&mut rare.unsampled);
    let rejected = Shared::Word(last(machine, filtered.words));
    rare.shared.extend(unsampled.into_iter().map(|fix| (fix, rejected)));
    rare
}

/// A filter's code that comes before a record's own code, with what is left to append behind the displaced
/// code.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    rare: Rare,
    /// A look for a mark; at an exit the mark is taken back.
    mark: Option<Mark>,
}

impl Traced<'_> {
    /// Emits this before other code: it jumps if a hit does not pass, or if an exit's entry did not. If a hit
    /// passes, it runs on, with all registers as they were.
    pub(super) fn before(&self, asm: &mut Asm, kind: RecordKind) -> Option<Before> {
        let late = self.by_fields().is_some();
        let (rare, mark) = match (kind, self.filter) {
            // What fields decide comes late.
            (RecordKind::Entry, Some(filtered)) if late && decides_early(filtered.filter) => {
                (decide(asm, self.machine, self.rings.id, filtered), None)
            }
            (RecordKind::Entry, Some(_)) if late => return None,
            (RecordKind::Entry, Some(filtered)) => {
                let rare = decide(asm, self.machine, self.rings.id, filtered);
                (rare, self.timed().map(|timed| timed.mark(asm, frame::FRAME.unsigned_abs(), true)))
            }
            (RecordKind::Entry, None) => return None,
            _ => {
                let timed = self.timed()?;
                frame::enter(asm);
                (Rare::default(), Some(timed.take_mark(asm, frame::FRAME.unsigned_abs())))
            }
        };
        leave(asm, self.machine);
        Some(Before { rare, mark })
    }
    /// Appends what that left. Hits that did not pass go on at `displaced_at`.
    pub(super) fn behind(&self, asm: &mut Asm, kind: RecordKind, before: Before, displaced_at: u64) {
        let Before { mut rare, mark } = before;
        let leaves = asm.here();
        leave(asm, self.machine);
        asm.b(displaced_at);
        match (self.timed(), mark, kind) {
            (Some(timed), mark, RecordKind::Entry) => {
                // An abandoned call may have left a mark in the cell of a call that does not pass.
                rare.rejected.drain(..).for_each(|fix| asm.bind(fix));
                let none = timed.mark(asm, frame::FRAME.unsigned_abs(), false);
                rare.rejected.push(asm.b_later());
                timed.finish_unmarked(asm, none, none.after());
                mark.into_iter().for_each(|mark| timed.finish_mark(asm, mark));
            }
            (Some(timed), Some(mark), _) => timed.finish_unmarked(asm, mark, leaves),
            _ => {}
        }
        rare.finish(asm, self.machine, leaves);
    }
    /// Emits this behind `fetch`: it jumps if an entry does not pass because of what was read. Uses `A`, `B`,
    /// `C` and flags.
    pub(super) fn pass_fields(&self, asm: &mut Asm, kind: RecordKind) -> Vec<Fix> {
        let (Some(tree), RecordKind::Entry) = (self.by_fields(), kind) else { return Vec::new() };
        let texts = self.texts(kind);
        let (id, depth) = (self.rings.id, texts.depth());
        let fields = Some(texts.copied_fields());
        Conditions { id, depth, fields, left: None }.branch(asm, &tree.decided(), false)
    }
    /// If fields decided, stores that the call is recorded.
    pub(super) fn mark_late(&self, asm: &mut Asm, kind: RecordKind) -> Option<Mark> {
        let (Some(_), RecordKind::Entry) = (self.by_fields(), kind) else { return None };
        self.timed().map(|timed| timed.mark(asm, self.step(kind), true))
    }
    /// Appends the paths of entries that fields reject, and of marks; all go on at `behind`.
    pub(super) fn behind_fields(&self, asm: &mut Asm, deep: Vec<Fix>, mark: Option<Mark>, behind: u64) {
        if let Some((timed, mark)) = self.timed().zip(mark) {
            timed.finish_mark(asm, mark);
        }
        let Some(filtered) = self.filter.filter(|_| !deep.is_empty()) else { return };
        deep.into_iter().for_each(|fix| asm.bind(fix));
        asm.add_imm(SP, SP, self.texts(RecordKind::Entry).depth().cast_signed());
        self.forget(asm, filtered.words, behind);
    }
    /// Appends the path of entries with no room for copies on a goroutine's stack; all go on at `behind`.
    pub(super) fn behind_room(&self, asm: &mut Asm, cramped: Option<Fix>, behind: u64) {
        if let Some(cramped) = cramped {
            asm.bind(cramped);
            self.forget(asm, self.dropped, behind);
        }
    }
    /// Adds one to this counter for an entry that is not recorded, and takes away a mark: an abandoned call
    /// before it may have left one.
    fn forget(&self, asm: &mut Asm, word: u64, behind: u64) {
        let timed = self.timed();
        let none = timed.map(|timed| (timed, timed.mark(asm, self.step(RecordKind::Entry), false)));
        let counted = count(asm, self.machine, word);
        asm.b(behind);
        if let Some((timed, none)) = none {
            timed.finish_unmarked(asm, none, none.after());
        }
        if let Some((section, unregistered)) = counted {
            asm.bind(unregistered);
            count_last(asm, self.machine, word);
            asm.b(behind);
            rseq::descriptors(asm, &[section]);
        }
    }
    /// Where marks are kept.
    const fn timed(&self) -> Option<Timed<'_>> {
        match &self.marks {
            Some(latency) => {
                let goroutine = self.goroutine;
                Some(Timed { machine: self.machine, latency, function: self.probe, goroutine })
            }
            None => None,
        }
    }
}

/// Whether a filter decides before anything is read.
fn decides_early(filter: &TargetFilter) -> bool {
    filter.condition.is_some() || filter.sample > 1 || filter.by_name
}

/// Clears the announcement, so that no section of ours is announced while other code runs, and loads the
/// program's registers.
pub(super) fn leave(asm: &mut Asm, machine: &Machine) {
    if let Some(rseq) = machine.rseq {
        rseq::clear(asm, rseq, B);
    }
    frame::leave(asm);
}

/// Ends the part that comes before the displaced code.
pub(super) fn ends(mut asm: Asm, machine: Machine, rare: Rare) -> UnfinishedFilteredCount {
    let leaves = asm.here();
    leave(&mut asm, &machine);
    UnfinishedFilteredCount { asm, machine, rare, leave: leaves }
}

/// Address of a word on the last line, from its address on line 0.
const fn last(machine: &Machine, word: u64) -> u64 {
    word.wrapping_add(64 * (machine.lines as u64 - (machine.lines > 0) as u64))
}

/// Jumps if a hit does not pass. `VALUE` stays.
pub(super) fn pass(asm: &mut Asm, machine: &Machine, id: ThreadId, filtered: Filtered<'_>) -> Rare {
    let conditions = Conditions::of(id);
    let condition = filtered.filter.condition.as_ref();
    let mut rejected = condition.map_or_else(Vec::new, |tree| conditions.branch(asm, tree, false));
    rejected.extend(filtered.names.and_then(|names| pass_over(asm, id, names)));
    let mut rare = Rare { rejected, ..Rare::of(filtered.words) };
    let every = filtered.filter.sample;
    if every > 1 {
        match machine.rseq {
            Some(rseq) => sample(asm, machine, rseq, every, &mut rare),
            None => sample_shared(asm, machine, every, &rare),
        }
        rare.rejected.push(asm.unless_zero_later(INDEX));
    }
    rare
}

/// Jumps if the pass-over table has this thread (`record::names`).
fn pass_over(asm: &mut Asm, id: ThreadId, names: u64) -> Option<Fix> {
    if id == ThreadId::Unknown {
        return None;
    }
    threads::load(id, asm, KEY);
    asm.bits(INDEX, KEY, 0, PLACES.trailing_zeros());
    asm.constant(B, names);
    asm.load_nth(A, B, INDEX);
    asm.add_imm(KEY, KEY, 1);
    asm.compare(A, KEY);
    Some(asm.if_later(Cond::Equal))
}

/// Counts down on this CPU's line. `INDEX` = number of hits to leave out before this one.
fn sample(asm: &mut Asm, machine: &Machine, rseq: Rseq, every: u32, rare: &mut Rare) {
    let words = rare.words;
    let section = rseq::section(asm, rseq, [B, A], |asm| {
        rare.unsampled.push(cpu(asm, machine));
        asm.constant(KEY, words);
        asm.add_shifted(A, KEY, A, 6);
        asm.load_at(INDEX, A, 8);
        asm.add_imm(KEY, INDEX, -1);
        let waits = asm.unless_zero_later(INDEX);
        asm.number(KEY, every - 1);
        asm.bind(waits);
        asm.store(KEY, A, 8);
    });
    rare.sections.push(section);
}

/// Without rseq: counts up on some line, where hits may be of many threads. `INDEX` = 0 at each hit that is
/// sampled.
fn sample_shared(asm: &mut Asm, machine: &Machine, every: u32, rare: &Rare) {
    by_thread(asm, [A, KEY], machine.lines);
    asm.constant(B, rare.words.wrapping_add(8));
    asm.add_shifted(B, B, A, 6);
    asm.one(A);
    asm.fetch_add(machine.lse, INDEX, A, B, [C, KEY]);
    asm.number(KEY, every);
    asm.div(SLOT, INDEX, KEY);
    asm.mul_sub(INDEX, SLOT, KEY, INDEX);
}

impl Rare {
    /// An empty list, for a filter that counts in these words.
    pub(super) fn of(words: u64) -> Self {
        Self { words, ..Self::default() }
    }
    /// Appends all paths, behind code that does not run on; each goes to `leave`.
    pub(super) fn finish(mut self, asm: &mut Asm, machine: &Machine, leave: u64) {
        if !self.rejected.is_empty() {
            self.rejected.iter().for_each(|&fix| asm.bind(fix));
            let counted = count(asm, machine, self.words);
            asm.b(leave);
            if let Some((section, unregistered)) = counted {
                self.sections.push(section);
                self.shared.push((unregistered, Shared::Word(last(machine, self.words))));
            }
        }
        for (fix, what) in self.shared {
            asm.bind(fix);
            match what {
                Shared::Word(word) => asm.constant(B, word),
                Shared::Nth(first) => {
                    asm.constant(B, first);
                    asm.add_shifted(B, B, VALUE, 3);
                }
            }
            add_one(asm, machine);
            asm.b(leave);
        }
        rseq::descriptors(asm, &self.sections);
    }
}

impl Code for UnfinishedFilteredCount {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
        let Self { mut asm, machine, rare, leave } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        rare.finish(&mut asm, &machine, leave);
        asm.pool();
        asm.words()
    }
}
