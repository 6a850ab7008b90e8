//! The entry of a call with a deferred record: steps E1 to E4.
//!
//! ```text
//!   E1   sp = S - DEPTH            all registers of `frame` are saved and free
//!   E2   the same
//!   E3   the same                  x14 = cell, and [sp + PLACE] = cell
//!   E4   sp = S - DEPTH - depth    texts and fields copied (`text`)
//!        the same                  x13 SLOT = cell, x12 TIME = the time: the record (`put`)
//!   end  sp = S                    all registers are the program's
//! ```
//!
//! In: a probe's records, with a late condition. Out: code that writes the entry's record into the call's cell, and
//! with it the mark; the paths of calls that do not pass, or have no cell.

use trapline_record::ring::RecordKind;

use super::call::{DEPTH, Deferred, FOUND, MARK, PLACE, enter};
use super::kept::keep;
use crate::aarch64::stub::asm::{Asm, Fix, SP, ZERO};
use crate::aarch64::stub::counted::{count, count_last};
use crate::aarch64::stub::filtering::Rare;
use crate::aarch64::stub::latency::{Claim, Lookup};
use crate::aarch64::stub::record_parts::RecordKey;
use crate::aarch64::stub::rseq::{self, Section};
use crate::aarch64::stub::saves::{SLOT, TIME};
use crate::aarch64::stub::text::Texts;
use crate::aarch64::stub::threads;
use crate::filter::Tree;

/// What is left to append behind an entry's displaced code.
#[derive(Debug)]
pub(super) struct EntryTail {
    rare: Rare,
    begun: Option<(Section, Fix)>,
    behind_begun: u64,
    lookup: Lookup,
    /// The jump of hits on a goroutine's stack without room for the copies.
    cramped: Option<Fix>,
    leave: u64,
}

impl EntryTail {
    /// Steps E1 to E4.
    pub(super) fn emit(asm: &mut Asm, deferred: &Deferred<'_>) -> Option<Self> {
        let (traced, kind) = (&deferred.traced, RecordKind::Entry);
        let hits = traced.hit_filter()?;
        let filter = hits.filtered.filter;
        enter(asm);
        let by_condition = filter.condition.as_ref().is_some_and(Tree::asks_for_thread);
        if by_condition || filter.by_name {
            threads::ask(hits.id, asm);
        }
        let rare = hits.pass(asm);
        let begun = count(asm, traced.machine, deferred.words.begun);
        let behind_begun = asm.here();
        let lookup = deferred.cell().lookup(asm, DEPTH);
        asm.store(ZERO, FOUND, MARK);
        asm.store(FOUND, SP, PLACE);
        let texts = Texts { step: DEPTH, ..traced.texts(kind) };
        let cramped = texts.room(asm);
        texts.fetch(asm);
        asm.load_at(SLOT, SP, texts.depth() + PLACE);
        let writer = traced.ring_writer(kind);
        writer.copies(asm, deferred.values);
        asm.clock(TIME);
        writer.words(asm, deferred.values, RecordKey::Itself, None);
        texts.drop(asm);
        keep(asm, deferred, kind);
        let leave = asm.here();
        deferred.leave(asm);
        Some(Self { rare, begun, behind_begun, lookup, cramped, leave })
    }
    /// Step E1, for a call that does not pass, and for threads that have no sample.
    fn reject(asm: &mut Asm, deferred: &Deferred<'_>, rare: &mut Rare, leave: u64) {
        if rare.rejected.is_empty() && rare.unsampled.is_empty() {
            return;
        }
        let forget = asm.here();
        let lookup = deferred.cell().lookup(asm, DEPTH);
        asm.store(ZERO, FOUND, MARK);
        asm.b(leave);
        deferred.cell().search(asm, lookup, Claim::No);
        asm.b(leave);
        rare.rejected.drain(..).for_each(|fix| asm.bind(fix));
        deferred.counted(asm, deferred.words.rejected, forget, &mut rare.sections);
        if !rare.unsampled.is_empty() {
            rare.unsampled.drain(..).for_each(|fix| asm.bind(fix));
            count_last(asm, deferred.traced.machine, deferred.words.begun);
            deferred.lost(asm, deferred.words.dropped, forget);
        }
    }
    /// Appends the rare paths of an entry.
    pub(super) fn finish(self, asm: &mut Asm, deferred: &Deferred<'_>) {
        let Self { mut rare, begun, behind_begun, lookup, cramped, leave } = self;
        if let Some((section, unregistered)) = begun {
            rare.sections.push(section);
            asm.bind(unregistered);
            deferred.lost(asm, deferred.words.begun, behind_begun);
        }
        // E3
        deferred.cell().search(asm, lookup, Claim::Yes);
        deferred.lost(asm, deferred.words.dropped, leave);
        // The cell has no mark then.
        if let Some(cramped) = cramped {
            asm.bind(cramped);
            deferred.counted(asm, deferred.words.dropped, leave, &mut rare.sections);
        }
        Self::reject(asm, deferred, &mut rare, leave);
        rseq::descriptors(asm, &rare.sections);
    }
}
