//! Deferred records: a call about which its return decides. Nothing is recorded before the return, and all of
//! it then; the same as x86-64's twin.
//!
//! In: as for `trace`, with a filter that has a late part ([`Late`]): a condition on the returned value, on
//! the duration, and on the entry's arguments together with these. Out: the code of the entry, and of the
//! exits.
//!
//! The entry's record is written into a stamp cell of the call's own (its *place*) in private memory
//! (`record::latency`). The cell is found by the stack pointer at the entry, which an exit has again. A cell
//! is *marked* while the record's third word is the cell's own address, and its first word names the probe;
//! both records are paired by that address.
//!
//! | step | what | a signal or a move to another CPU there |
//! |---|---|---|
//! | E1 | the early condition and the sample decide. For a call that does not pass, a mark that an abandoned call left in its cell is taken away; the call is counted as rejected, and goes on | its handler's calls have lower cells |
//! | E2 | the call is counted as begun | back to E2's beginning: once |
//! | E3 | its cell is found; without one the call is counted as dropped, and its exit finds no mark | as E1 |
//! | E4 | the mark is taken away; texts and fields are copied onto the stack; the counter is read; the record is written into the cell, and with it the mark | as E1 |
//! | X1 | an exit looks for the mark: without one, it is the exit of a call that E1 or E3 ended, or that began before the patch came. It goes on | as E1 |
//! | X2 | in one section: the counter is read; the late condition decides; this CPU's ring must have room for two records, or the call is dropped; both records are written behind the head, the entry's first and then the exit's; the head is stored with release, two slots further | back to X2, with the present time: what is written is what was decided about |
//! | X3 | a call that X2 rejected or dropped is counted | once |
//! | X4 | the mark is taken away | a call is recorded once |
//!
//! So begun = written + dropped + rejected late + calls that have not ended (STG-1), each by one commit, and
//! hits = rejected early + begun. Without rseq X2 reads the counter and decides before it locks a ring. What
//! else may come in between is described in the twin. Cells are the thread's own memory, so none of it
//! depends on the order in which others see stores. A goroutine's cell is its own, wherever its stack is, and
//! in whichever thread it returns (`latency::stamp_cell`). It goes to another thread by what the runtime does
//! to hand it over, which orders stores. A function that begins anew on a larger stack is begun twice, in one
//! cell. A thread without an area has neither sample nor ring: its call is dropped, at the entry or at the
//! return.

use trapline_record::counters::filtered;
use trapline_record::ring::{HEAD, Kind, first_float};

use super::asm::{Asm, Cond, Fix, Reg, SP, ZERO};
use super::counted::{count, count_last};
use super::filter::{Conditions, EntryRecord, Fields};
use super::filtering::{self, Rare};
use super::frame;
use super::latency::{Claim, Latency, Lookup, Timed};
use super::pending::Code;
use super::put::Key;
use super::rseq::{self, Section};
use super::saves::{A, AT, B, C, RING, SLOT, TIME};
use super::traced::{ARGUMENTS, Traced};
use super::{text, threads};
use crate::filter::{Known, Late, Tree};

/// Offset of the words above what `frame` keeps: the cell's address; at an exit also the time, and the
/// nanoseconds that the call took.
const FRAME: u32 = frame::FRAME.unsigned_abs();
pub(super) const PLACE: u32 = FRAME;
const STAMP: u32 = FRAME + 8;
const TOOK: u32 = FRAME + 16;
const MORE: i32 = 32;
/// By how many bytes the stack pointer is below the program's.
const DEPTH: u32 = FRAME + MORE.unsigned_abs();
/// Register in which `Timed::lookup` leaves a cell.
const FOUND: Reg = frame::SLOT;
/// Offset of the word that makes a cell marked.
const MARK: u32 = 16;
/// Number of words that are copied one by one; more are copied in a loop.
const UNROLLED: u32 = 8;
/// Upper bound of the code bytes, without trees and texts.
pub const DEFERRED_BYTES: u64 = 1536;

/// Addresses, on line 0, of the words that count a probe's calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    rejected: u64,
    begun: u64,
    pub(super) rejected_late: u64,
    dropped: u64,
}

/// The calls of one probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferred<'a> {
    pub(super) traced: Traced<'a>,
    late: &'a Late,
    latency: Latency,
    pub(super) words: Words,
    /// Number of arguments in an entry's record.
    values: usize,
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct Pending<'a> {
    asm: Asm,
    defer: Deferred<'a>,
    tail: Tail,
}

#[derive(Debug)]
enum Tail {
    Entry {
        rare: Rare,
        begun: Option<(Section, Fix)>,
        behind_begun: u64,
        lookup: Lookup,
        /// The jump of hits whose goroutine stack has no room for the copies.
        cramped: Option<Fix>,
        leave: u64,
    },
    Exit {
        looked: Looked,
        section: Option<Section>,
        /// The jump of threads without an area, or of calls that found all rings locked.
        astray: Fix,
        full: Fix,
        rejected: Vec<Fix>,
        done: u64,
        leave: u64,
    },
}

/// An exit's look for the mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looked {
    lookup: Lookup,
    unmarked: [Fix; 2],
}

/// The part of a stub that comes before the displaced code, for the address `at`; `None` if no return decides
/// about the probe's calls.
pub fn defer<'a>(at: u64, traced: Traced<'a>, kind: Kind, values: usize) -> Option<Pending<'a>> {
    let defer = Deferred::of(traced, values)?;
    let mut asm = Asm::new(at);
    let tail = if kind == Kind::Entry { defer.entry(&mut asm)? } else { defer.exit(&mut asm, kind) };
    Some(Pending { asm, defer, tail })
}

/// Makes room, and saves what is spoilt.
pub(super) fn enter(asm: &mut Asm) {
    asm.add_imm(SP, SP, -MORE);
    frame::enter(asm);
}

impl<'a> Deferred<'a> {
    /// `None` if no return decides about the probe's calls.
    pub(super) fn of(traced: Traced<'a>, values: usize) -> Option<Self> {
        let filtered = traced.filter?;
        let (late, latency) = (filtered.filter.late.as_ref()?, traced.marks?);
        let word = |n: u32| filtered.words + u64::from(n) * 8;
        let words = Words {
            rejected: word(filtered::REJECTED),
            begun: word(filtered::BEGUN),
            rejected_late: word(filtered::REJECTED_LATE),
            dropped: traced.dropped,
        };
        Some(Self { traced, late, latency, words, values: values.min(ARGUMENTS) })
    }
    /// Undoes what [`enter`] did.
    pub(super) fn leave(&self, asm: &mut Asm) {
        filtering::leave(asm, self.traced.machine);
        asm.add_imm(SP, SP, MORE);
    }
    const fn timed(&self) -> Timed<'_> {
        Timed {
            machine: self.traced.machine,
            latency: &self.latency,
            function: self.traced.probe,
            goroutine: self.traced.goroutine,
        }
    }

    /// Steps E1 to E4.
    fn entry(&self, asm: &mut Asm) -> Option<Tail> {
        let (traced, kind) = (&self.traced, Kind::Entry);
        let filtered = traced.filter?;
        enter(asm);
        let by_condition = filtered.filter.condition.as_ref().is_some_and(Tree::asks_for_thread);
        if by_condition || filtered.filter.by_name {
            threads::ask(traced.rings.id, asm);
        }
        let rare = filtering::pass(asm, traced.machine, traced.rings.id, filtered);
        let begun = count(asm, traced.machine, self.words.begun);
        let behind_begun = asm.here();
        let lookup = self.timed().lookup(asm, DEPTH);
        asm.store(ZERO, FOUND, MARK);
        asm.store(FOUND, SP, PLACE);
        let texts = traced.texts(kind);
        let cramped = texts.room(asm);
        texts.fetch(asm);
        asm.load_at(SLOT, SP, texts.depth() + PLACE);
        asm.clock(TIME);
        traced.put(asm, kind, self.values, Key::Itself);
        if texts.depth() > 0 {
            asm.add_imm(SP, SP, texts.depth().cast_signed());
        }
        let leave = asm.here();
        self.leave(asm);
        Some(Tail::Entry { rare, begun, behind_begun, lookup, cramped, leave })
    }

    /// Steps X1 to X4.
    fn exit(&self, asm: &mut Asm, kind: Kind) -> Tail {
        let traced = &self.traced;
        let condition = self.condition(kind);
        enter(asm);
        if condition.asks_for_thread() {
            threads::ask(traced.rings.id, asm);
        }
        let looked = self.look(asm);
        let (section, (rejected, (astray, full))) = match traced.machine.rseq {
            Some(rseq) => {
                let (section, fixes) = rseq::section_with(asm, rseq, [B, A], |asm| {
                    let rejected = self.decide(asm, &condition);
                    rseq::find_area(asm, rseq, B);
                    let fixes = traced.find(asm, self.full());
                    self.write(asm, kind);
                    (rejected, fixes)
                });
                (Some(section), fixes)
            }
            None => {
                let rejected = self.decide(asm, &condition);
                let fixes = traced.lock(asm, self.full());
                self.write(asm, kind);
                (None, (rejected, fixes))
            }
        };
        let done = asm.here();
        self.unmark(asm);
        let leave = asm.here();
        self.leave(asm);
        Tail::Exit { looked, section, astray, full, rejected, done, leave }
    }

    /// A ring with this many bytes in use, or more, has no room for two records.
    const fn full(&self) -> u32 {
        let area = &self.traced.rings.area;
        area.bytes.saturating_sub(area.slot)
    }

    /// Step X1. Out: the cell's address, in its word of the frame.
    pub(super) fn look(&self, asm: &mut Asm) -> Looked {
        let lookup = self.timed().lookup(asm, DEPTH);
        asm.load_at(A, FOUND, MARK);
        asm.compare(A, FOUND);
        let elsewhere = asm.if_later(Cond::NotEqual);
        asm.load32(A, FOUND, 0);
        asm.number(B, self.traced.probe);
        asm.compare(A, B);
        let another = asm.if_later(Cond::NotEqual);
        asm.store(FOUND, SP, PLACE);
        Looked { lookup, unmarked: [elsewhere, another] }
    }
    /// Step X4.
    pub(super) fn unmark(&self, asm: &mut Asm) {
        asm.load_at(A, SP, PLACE);
        asm.store(ZERO, A, MARK);
    }

    /// The condition that must hold.
    pub(super) fn condition(&self, kind: Kind) -> Tree {
        match kind {
            Kind::Tail => self.late.condition.at_tail(),
            _ => self.late.condition.decided(),
        }
    }
    /// Reads the time, computes the duration, and jumps if the condition does not hold.
    fn decide(&self, asm: &mut Asm, condition: &Tree) -> Vec<Fix> {
        self.time(asm, asks_for_duration(condition));
        self.known().branch(asm, condition, false)
    }
    /// Reads the time and, if `took`, computes how long the call took: [`Late::nanos`]. Spoils `A`, `B`, `C`,
    /// `TIME`.
    pub(super) fn time(&self, asm: &mut Asm, took: bool) {
        asm.clock(TIME);
        asm.store(TIME, SP, STAMP);
        if took {
            asm.load_at(A, SP, PLACE);
            asm.load_at(A, A, 8);
            asm.subs(A, TIME, A);
            asm.select(A, A, ZERO, Cond::AboveEq);
            asm.constant(B, self.late.tick);
            asm.multiply_high(C, A, B);
            asm.multiply(A, A, B);
            asm.extract(A, (C, A), 32);
            asm.store(A, SP, TOOK);
        }
    }
    /// How a condition reads what is known at a return.
    pub(super) fn known(&self) -> Conditions<'a> {
        let traced = &self.traced;
        let floats = (self.first_float(), traced.floats.arguments);
        let fields = Some(Fields { reads: traced.fields, at: 8 * self.first_field() });
        Conditions {
            left: Some(EntryRecord { place: PLACE, took: TOOK, floats }),
            fields,
            ..Conditions::of(traced.rings.id)
        }
    }
    /// Word of the entry's record at which fields begin.
    fn first_field(&self) -> u32 {
        self.first_float() as u32 + self.traced.floats.arguments.count_ones()
    }
    fn first_float(&self) -> u64 {
        first_float(self.values, self.traced.texts(Kind::Entry).count() as usize)
    }
    /// Number of words in the entry's record.
    fn length(&self) -> u32 {
        let all = self.first_field() + text::words(self.traced.fields) as u32;
        all.min(self.traced.rings.area.slot / 8)
    }

    /// Writes both records, and commits them. In: `RING`, `AT` = its head. Spoils all but `RING`.
    fn write(&self, asm: &mut Asm, kind: Kind) {
        let (traced, slot) = (&self.traced, self.traced.rings.area.slot.cast_signed());
        asm.add_imm(AT, AT, slot);
        traced.slot(asm);
        asm.load_at(TIME, SP, STAMP);
        traced.put(asm, kind, self.values, Key::Left(PLACE));
        asm.add_imm(AT, AT, -slot);
        traced.slot(asm);
        asm.load_at(A, SP, PLACE);
        let words = self.length();
        if words <= UNROLLED {
            for word in 0..words {
                asm.load_at(C, A, 8 * word);
                asm.store(C, SLOT, 8 * word);
            }
        } else {
            asm.number(B, 8 * words);
            let again = asm.here();
            asm.add_imm(B, B, -8);
            asm.load_past(C, A, B);
            asm.store_past(C, SLOT, B);
            asm.unless_zero(B, again);
        }
        asm.add_imm(AT, AT, 2 * slot);
        const { assert!(HEAD == 0, "the head is stored through the ring's own address") };
        asm.store_release(AT, RING);
    }

    /// Step X1 without a mark: goes on at `leave`.
    pub(super) fn unmarked(&self, asm: &mut Asm, looked: Looked, leave: u64) {
        self.timed().search(asm, looked.lookup, Claim::No);
        looked.unmarked.into_iter().for_each(|fix| asm.bind(fix));
        asm.b(leave);
    }
    /// Adds one to a word of this CPU's line, and goes on at `behind`.
    pub(super) fn counted(&self, asm: &mut Asm, word: u64, behind: u64, sections: &mut Vec<Section>) {
        let machine = self.traced.machine;
        let counted = count(asm, machine, word);
        asm.b(behind);
        if let Some((section, unregistered)) = counted {
            sections.push(section);
            asm.bind(unregistered);
            self.lost(asm, word, behind);
        }
    }
    /// Adds one to a word of the last line, and goes on at `behind`.
    fn lost(&self, asm: &mut Asm, word: u64, behind: u64) {
        count_last(asm, self.traced.machine, word);
        asm.b(behind);
    }
    /// Step E1, for a call that does not pass, and for threads that have no sample.
    fn reject(&self, asm: &mut Asm, rare: &mut Rare, leave: u64) {
        if rare.rejected.is_empty() && rare.unsampled.is_empty() {
            return;
        }
        let forget = asm.here();
        let lookup = self.timed().lookup(asm, DEPTH);
        asm.store(ZERO, FOUND, MARK);
        asm.b(leave);
        self.timed().search(asm, lookup, Claim::No);
        asm.b(leave);
        rare.rejected.drain(..).for_each(|fix| asm.bind(fix));
        self.counted(asm, self.words.rejected, forget, &mut rare.sections);
        if !rare.unsampled.is_empty() {
            rare.unsampled.drain(..).for_each(|fix| asm.bind(fix));
            count_last(asm, self.traced.machine, self.words.begun);
            self.lost(asm, self.words.dropped, forget);
        }
    }
    /// Appends the rare paths.
    fn finish(&self, asm: &mut Asm, tail: Tail) {
        match tail {
            Tail::Entry { mut rare, begun, behind_begun, lookup, cramped, leave } => {
                if let Some((section, unregistered)) = begun {
                    rare.sections.push(section);
                    asm.bind(unregistered);
                    self.lost(asm, self.words.begun, behind_begun);
                }
                // E3
                self.timed().search(asm, lookup, Claim::Yes);
                self.lost(asm, self.words.dropped, leave);
                // The cell has no mark then.
                if let Some(cramped) = cramped {
                    asm.bind(cramped);
                    self.counted(asm, self.words.dropped, leave, &mut rare.sections);
                }
                self.reject(asm, &mut rare, leave);
                rseq::descriptors(asm, &rare.sections);
            }
            Tail::Exit { looked, section, astray, full, rejected, done, leave } => {
                // X3
                let mut sections: Vec<Section> = section.into_iter().collect();
                asm.bind(full);
                match section {
                    None => asm.bind(astray),
                    Some(_) => {
                        let full = asm.b_later();
                        asm.bind(astray);
                        // The count by a section would take the same way, since the thread has no area.
                        self.lost(asm, self.words.dropped, done);
                        asm.bind(full);
                    }
                }
                self.counted(asm, self.words.dropped, done, &mut sections);
                rejected.into_iter().for_each(|fix| asm.bind(fix));
                self.counted(asm, self.words.rejected_late, done, &mut sections);
                self.unmarked(asm, looked, leave);
                rseq::descriptors(asm, &sections);
            }
        }
    }
}

pub(super) fn asks_for_duration(tree: &Tree) -> bool {
    let mut asks = false;
    tree.each_known(&mut |known| asks |= known == Known::Took);
    asks
}

impl Code for Pending<'_> {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
        let Self { mut asm, defer, tail } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        defer.finish(&mut asm, tail);
        asm.pool();
        asm.words()
    }
}
