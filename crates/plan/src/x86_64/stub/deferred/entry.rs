//! The entry of a call with a deferred record: steps E1 to E4.
//!
//! ```text
//!   E1    S - step               all saved; rax, r11, r10, rdx used by the filter
//!   E2                           r11 = this CPU's word of begun calls; [r11] += 1
//!   E3                           rsi = the cell
//!   E4                           [rsi + 16] = 0;  [rsp - 120] (PLACE) = rsi;  rsi = [rsp - 112]
//!         rsp lower by depth     texts and fields are copied (`text`)
//!                                r10 = the cell, rdx = time; the record is written at r10
//!                                [r10 + 16] = key + kind = r10: the mark
//!         S - step               all loaded
//! ```
//!
//! In: a probe's records, with a late condition. Out: code that writes the entry's record into the call's cell, and
//! with it the mark; the paths of calls that do not pass, or have no cell.

use trapline_record::ring::RecordKind;

use super::call::{CallCell, Deferred, MARK, SAVED_RSI, Words};
use super::kept::keep;
use crate::x86_64::stub::asm::{Alu, Asm, Fix, Mem, R10, RDX, RSI, RSP};
use crate::x86_64::stub::counted::{Counted, count};
use crate::x86_64::stub::filtering::FilterExits;
use crate::x86_64::stub::latency::{Claim, Lookup};
use crate::x86_64::stub::{rseq, threads};

/// At an entry: offset of the cell's address.
const PLACE: i32 = -120;

/// What is left to append behind an entry's displaced code.
#[derive(Clone, Debug)]
pub(in crate::x86_64::stub) struct EntryTail {
    cell: CallCell,
    words: Words,
    passed: FilterExits,
    begun: Counted,
    /// Where the count of begun calls goes on.
    behind_begun: u64,
    lookup: Lookup,
    cramped: Option<Fix>,
    /// Where a call without a cell goes on, and one that does not pass.
    placeless: u64,
    leave: u64,
    fixups: Vec<(u64, u64)>,
}

impl EntryTail {
    /// Steps E1 to E4.
    pub(super) fn emit(asm: &mut Asm<'_>, deferred: &Deferred<'_>) -> Option<Self> {
        let Deferred { traced, cell, words, .. } = *deferred;
        let kind = RecordKind::Entry;
        let (saves, texts) = (traced.saves(kind), traced.texts(kind));
        traced.filter?;
        saves.enter(asm);
        threads::ask(traced.rings.id, asm);
        let passed = traced.hit_filter(kind).pass(asm);
        let begun = count(asm, &cell.machine);
        let behind_begun = asm.here();
        let lookup = cell.look(asm);
        asm.store_imm(MARK, 0);
        asm.store(Mem::At(RSP, PLACE), RSI);
        asm.load(RSI, SAVED_RSI);
        let cramped = texts.room(asm);
        let fixups = texts.fetch(asm);
        asm.load(R10, Mem::At(RSP, texts.depth() + PLACE));
        let writer = traced.ring_writer(kind);
        writer.copies(asm, deferred.values);
        asm.clock(RDX);
        writer.words(asm, deferred.values, cell.placed(R10, kind), None);
        texts.drop(asm);
        if deferred.kept().any(|(_, text)| !text.at_return) {
            asm.load(RSI, Mem::At(RSP, PLACE));
            keep(asm, deferred, kind);
            asm.load(RSI, SAVED_RSI);
        }
        let leave = asm.here();
        if let Some(rseq) = cell.machine.rseq {
            rseq::clear(asm, rseq);
        }
        saves.leave(asm);
        let placeless = leave;
        Some(Self { cell, words, passed, begun, behind_begun, lookup, cramped, placeless, leave, fixups })
    }
    pub(super) fn finish(self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        let Self { cell, words, leave, .. } = self;
        cell.unregistered(asm, self.begun, words.begun, self.behind_begun);
        // E3
        cell.search(asm, self.lookup, Claim::Yes);
        asm.load(RSI, SAVED_RSI);
        asm.alu_mem_imm(Alu::Add, cell.last_line(words.dropped), 1, true);
        asm.jmp(self.placeless);
        if let Some(cramped) = self.cramped {
            asm.bind(cramped);
            asm.alu_mem_imm(Alu::Add, cell.last_line(words.dropped), 1, true);
            asm.jmp(leave);
        }
        let rejected = self.reject(asm);
        let sample = self.passed.sample.and_then(|(section, _)| section);
        let rejects = rejected.and_then(|rejected| rejected.section());
        cell.descriptors(asm, &[self.begun.section(), sample, rejects]);
        asm.align(8);
        asm.bind(self.begun.line);
        asm.u64(words.begun);
        self.passed.addresses(asm, rejected);
        self.fixups
    }
    /// Step E1, for a call that does not pass.
    fn reject(&self, asm: &mut Asm<'_>) -> Option<Counted> {
        let Self { cell, words, .. } = self;
        if !self.passed.bind(asm) {
            return None;
        }
        let counted = count(asm, &cell.machine);
        let forget = asm.here();
        let lookup = cell.look(asm);
        asm.store_imm(MARK, 0);
        let none = asm.here();
        asm.load(RSI, SAVED_RSI);
        asm.jmp(self.leave);
        cell.search(asm, lookup, Claim::No);
        asm.jmp(none);
        cell.unregistered(asm, counted, words.rejected, forget);
        if !self.passed.unregistered.is_empty() {
            // A thread without an area has no sample of its own, so its call is counted as begun and dropped.
            self.passed.unregistered.iter().for_each(|&fix| asm.bind(fix));
            for word in [words.begun, words.dropped] {
                asm.alu_mem_imm(Alu::Add, cell.last_line(word), 1, true);
            }
            asm.jmp(forget);
        }
        Some(counted)
    }
}
