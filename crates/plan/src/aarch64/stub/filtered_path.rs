//! A filter around a record: its code before the record's own code, and the paths of hits that do not pass.
//!
//! In: a filter, the marks that distinguish exits (`latency::mark`), what fields decide. Out: code that decides,
//! and loads all registers again, before a record's own code saves what that uses; the paths behind the displaced
//! code. A hit that does not pass takes away the mark that an abandoned call left in its cell, and is counted.
//! x86-64's twin runs such hits straight through; here they take the jumps.
//!
//! ```text
//!   before         sp = S - FRAME            the frame of `frame`: the decision, and a mark; at its end sp = S
//!   pass_fields    sp = S - step - depth     the frame of `saves`, with the copies (`text`)
//!   mark_late      sp = S - step             the mark of an entry that fields let pass
//!   behind…        the same as where the jump was; all go on at one place
//! ```

use trapline_record::ring::RecordKind;

use super::asm::{Asm, Fix, SP};
use super::counted::{count, count_last};
use super::filter::Conditions;
use super::filtering::{HitFilter, Rare, leave};
use super::frame;
use super::latency::{Mark, Marks};
use super::machine::Machine;
use super::rseq;
use super::text::Texts;
use crate::filter::Tree;
use crate::machine::ThreadId;

/// A filter's code that comes before a record's own code, with what is left to append behind the displaced
/// code.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    rare: Rare,
    /// A look for a mark; at an exit the mark is taken back.
    mark: Option<Mark>,
}

/// What comes before a record's own code, and the paths of hits that do not pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilteredPath<'a> {
    pub(super) machine: &'a Machine,
    pub(super) id: ThreadId,
    pub(super) hits: Option<HitFilter<'a>>,
    pub(super) marks: Option<Marks>,
    pub(super) kind: RecordKind,
    /// The condition that must hold for fields, at an entry.
    pub(super) by_fields: Option<&'a Tree>,
    /// What is copied for the record.
    pub(super) texts: Texts<'a>,
    /// By how many bytes the record's saves lower the stack pointer.
    pub(super) step: u32,
    /// Address of the counter of dropped records on line 0.
    pub(super) dropped: u64,
}

impl FilteredPath<'_> {
    /// Emits this before other code: it jumps if a hit does not pass, or if an exit's entry did not. If a hit
    /// passes, it runs on, with all registers as they were.
    pub(super) fn before(&self, asm: &mut Asm) -> Option<Before> {
        let late = self.by_fields.is_some();
        let (rare, mark) = match (self.kind, self.hits) {
            // What fields decide comes late.
            (RecordKind::Entry, Some(hits)) if late && hits.decides_early() => (hits.decide(asm), None),
            (RecordKind::Entry, Some(_)) if late => return None,
            (RecordKind::Entry, Some(hits)) => {
                let rare = hits.decide(asm);
                (rare, self.marks.map(|marks| marks.mark(asm, frame::FRAME.unsigned_abs(), true)))
            }
            (RecordKind::Entry, None) => return None,
            _ => {
                let marks = self.marks?;
                frame::enter(asm);
                (Rare::default(), Some(marks.look(asm, frame::FRAME.unsigned_abs())))
            }
        };
        leave(asm, self.machine);
        Some(Before { rare, mark })
    }
    /// Appends what that left. Hits that did not pass go on at `displaced_at`.
    pub(super) fn behind(&self, asm: &mut Asm, before: Before, displaced_at: u64) {
        let Before { mut rare, mark } = before;
        let leaves = asm.here();
        leave(asm, self.machine);
        asm.b(displaced_at);
        match (self.marks, mark, self.kind) {
            (Some(marks), mark, RecordKind::Entry) => {
                // An abandoned call may have left a mark in the cell of a call that does not pass.
                rare.rejected.drain(..).for_each(|fix| asm.bind(fix));
                let none = marks.mark(asm, frame::FRAME.unsigned_abs(), false);
                rare.rejected.push(asm.b_later());
                marks.finish_removed(asm, none);
                mark.into_iter().for_each(|mark| marks.finish_marked(asm, mark));
            }
            (Some(marks), Some(mark), _) => marks.finish_look(asm, mark, leaves),
            _ => {}
        }
        rare.finish(asm, self.machine, leaves);
    }
    /// Emits this behind `fetch`: it jumps if an entry does not pass because of what was read. Uses `A`, `B`,
    /// `C` and flags.
    pub(super) fn pass_fields(&self, asm: &mut Asm) -> Vec<Fix> {
        let Some(tree) = self.by_fields else { return Vec::new() };
        let (id, depth) = (self.id, self.texts.depth());
        let fields = Some(self.texts.copied_fields());
        Conditions { id, depth, fields, left: None }.branch(asm, &tree.decided(), false)
    }
    /// If fields decided, stores that the call is recorded.
    pub(super) fn mark_late(&self, asm: &mut Asm) -> Option<Mark> {
        self.by_fields?;
        self.marks.map(|marks| marks.mark(asm, self.step, true))
    }
    /// Appends the paths of entries that fields reject, and of marks; all go on at `behind`.
    pub(super) fn behind_fields(&self, asm: &mut Asm, deep: Vec<Fix>, mark: Option<Mark>, behind: u64) {
        if let Some((marks, mark)) = self.marks.zip(mark) {
            marks.finish_marked(asm, mark);
        }
        let Some(hits) = self.hits.filter(|_| !deep.is_empty()) else { return };
        deep.into_iter().for_each(|fix| asm.bind(fix));
        asm.add_imm(SP, SP, self.texts.depth().cast_signed());
        self.forget(asm, hits.filtered.words, behind);
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
        let none = self.marks.map(|marks| (marks, marks.mark(asm, self.step, false)));
        let counted = count(asm, self.machine, word);
        asm.b(behind);
        if let Some((marks, none)) = none {
            marks.finish_removed(asm, none);
        }
        if let Some((section, unregistered)) = counted {
            asm.bind(unregistered);
            count_last(asm, self.machine, word);
            asm.b(behind);
            rseq::descriptors(asm, &[section]);
        }
    }
}
