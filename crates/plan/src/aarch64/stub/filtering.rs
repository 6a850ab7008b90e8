//! Which hits are counted, aggregated or recorded: the code of a filter.
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
//!                sp          x16 A          x17 B      x15 KEY      x14 D     x13 INDEX   x12 VALUE      x11 C
//!   condition    S - FRAME   (`filter`)     (`filter`)              -         -           kept           scratch
//!   pass_over    S - FRAME   [place]        names      number + 1   -         place       kept           -
//!   sample       S - FRAME   cpu, words     area       n's next     scratch   n           kept           scratch
//!   count        S - FRAME   (`counted`)                                                  kept
//!   end          S           all registers are the program's
//! ```
//!
//! The frame is that of `frame`; all of it uses flags. What fields decide comes
//! later (`filtered_path`).

use trapline_record::names::PLACES;

use super::asm::{Asm, Cond, Fix};
use super::counted::{add_one, by_thread, count, cpu};
use super::filter::Conditions;
use super::frame::{self, A, B, C, D, INDEX, KEY, VALUE};
use super::machine::{Machine, Rseq};
use super::rseq::{self, Section};
use super::threads;
use crate::filter::TargetFilter;
use crate::machine::ThreadId;

/// A filter, and the words in which it counts.
#[derive(Clone, Copy, Debug)]
pub struct Filtered<'a> {
    /// Which hits pass.
    pub filter: &'a TargetFilter,
    /// Address on line 0 of two words: number of hits that did not pass, and number of hits to leave out
    /// before the next sample.
    pub words: u64,
    /// Address of the pass-over table, if the filter depends on thread names.
    pub names: Option<u64>,
}

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

/// The decision about one probe's hits.
#[derive(Clone, Copy, Debug)]
pub(super) struct HitFilter<'a> {
    pub(super) machine: &'a Machine,
    pub(super) id: ThreadId,
    pub(super) filtered: Filtered<'a>,
}

impl HitFilter<'_> {
    /// Saves what is overwritten, and jumps if a hit does not pass.
    pub(super) fn decide(&self, asm: &mut Asm) -> Rare {
        let Self { machine, id, filtered } = *self;
        frame::enter(asm);
        if filtered.filter.asks_for_thread() {
            threads::ask(id, asm);
        }
        let mut rare = self.pass(asm);
        // Such a thread has no sample of its own, so its hit did not pass one.
        let unsampled = core::mem::take(&mut rare.unsampled);
        let rejected = Shared::Word(last(machine, filtered.words));
        rare.shared.extend(unsampled.into_iter().map(|fix| (fix, rejected)));
        rare
    }
    /// Jumps if a hit does not pass. `VALUE` stays.
    pub(super) fn pass(&self, asm: &mut Asm) -> Rare {
        let Self { machine, id, filtered } = *self;
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
    /// Whether it decides before anything is read.
    pub(super) fn decides_early(&self) -> bool {
        let filter = self.filtered.filter;
        filter.condition.is_some() || filter.sample > 1 || filter.by_name
    }
}

/// Clears the announcement, so that no section of ours is announced while other code runs, and loads the
/// program's registers.
pub(super) fn leave(asm: &mut Asm, machine: &Machine) {
    if let Some(rseq) = machine.rseq {
        rseq::clear(asm, rseq, B);
    }
    frame::leave(asm);
}

/// Address of a word on the last line, from its address on line 0.
pub(super) const fn last(machine: &Machine, word: u64) -> u64 {
    word.wrapping_add(64 * (machine.lines as u64 - (machine.lines > 0) as u64))
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
    asm.div(D, INDEX, KEY);
    asm.mul_sub(INDEX, D, KEY, INDEX);
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
