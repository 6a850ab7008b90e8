//! A filter's usual answer is no. This is the code for it: hits that do not pass, and exits of calls that did
//! not pass.
//!
//! In: a condition that needs no more than rax, r11 and flags; the marks that distinguish exits
//! (`latency::mark`). Out: code that such a hit runs straight through, into the displaced code. Hits that
//! pass, and exits with a mark, jump to the record's code (`written`), which lies behind and jumps back. Each
//! taken jump costs about as much as the condition, and a rejected call has an entry and an exit: so the
//! recorded calls take the jumps.
//! A hit that does not pass takes away the mark that an abandoned call left in its cell, and is counted.
//!
//! ```text
//!   rsp - 80       r11     First
//!   rsp - 24       rdx     Second: if entries leave marks, and at exits
//!   rsp - 16       flags   First
//!   rsp - 8        rax     First
//!   rsp            = S - step
//!   condition      rax, r11 and flags are overwritten; a jump if it holds
//!   mark           rax, rdx, r11: the call's stamp cell; [cell + 8] = 0
//!   count          r11 = this CPU's word of rejected hits; [r11] += 1
//! ```

use trapline_record::ring::RecordKind;

use super::asm::{Alu, Asm, Cond, Fix, Mem};
use super::counted::{Counted, count};
use super::latency::{Claim, Mark, MarkLookup};
use super::machine::Machine;
use super::rseq;
use super::saves::{First, Second};
use super::traced::{Marks, Traced};
use crate::filter::Tree;
use crate::machine::ThreadId;

/// Hits that ran straight through, and the jumps of those that pass.
#[derive(Clone, Debug)]
pub(super) struct FilteredPath {
    machine: Machine,
    passes: Vec<Fix>,
    marks: Option<(Marks, Mark)>,
    counted: Counted,
    /// Address of the counter on line 0.
    word: u64,
    /// Where a hit goes on when it is counted.
    leave: u64,
}

/// Exits that ran straight through, and the jump of those that have a mark.
#[derive(Clone, Debug)]
pub(super) struct Unmarked {
    marks: Marks,
    asked: MarkLookup,
    leave: u64,
}

impl Traced<'_> {
    /// Whether the filter needs no register beyond those of [`First`]. That is so if it does not divide, does
    /// not sample and makes no system call.
    pub(super) fn rejects_early(&self, kind: RecordKind) -> bool {
        let Some(filtered) = self.filter else { return false };
        let (filter, id) = (filtered.filter, self.rings.id);
        let by_name = filtered.names.is_some() && id != ThreadId::Unknown;
        kind == RecordKind::Entry
            && (by_name || filter.condition.is_some())
            && filter.sample <= 1
            && filter.fields.is_none()
            && !filter.condition.as_ref().is_some_and(Tree::divides)
            && !(self.filters_by_thread() && id == ThreadId::Call)
    }
    /// Emits an entry for which [`rejects_early`](Self::rejects_early) holds.
    pub(super) fn reject(&self, asm: &mut Asm<'_>) -> FilteredPath {
        let first = First { site: self.site, at_entry: true };
        first.enter(asm);
        let passes = self.passes(asm);
        let marks = self.entry_marks();
        if marks.is_some() {
            Second::enter(asm);
        }
        let marks = marks.map(|marks| (marks, marks.timed().mark(asm, false)));
        let counted = count(asm, self.machine);
        let leave = asm.here();
        if let Some(rseq) = self.machine.rseq {
            rseq::clear(asm, rseq);
        }
        if marks.is_some() {
            Second::leave(asm);
        }
        first.leave(asm);
        let word = self.filter.map_or(self.dropped, |filtered| filtered.words);
        FilteredPath { machine: *self.machine, passes, marks, counted, word, leave }
    }
    /// Jumps if the hit passes. Uses rax, r11 and flags.
    fn passes(&self, asm: &mut Asm<'_>) -> Vec<Fix> {
        let conditions = self.conditions(RecordKind::Entry);
        let condition = self.filter.and_then(|filtered| filtered.filter.condition.as_ref());
        match (condition, self.filter.and_then(|filtered| filtered.names)) {
            (Some(tree), None) => conditions.branch(asm, tree, true),
            (condition, names) => {
                let rejected = condition.map_or_else(Vec::new, |tree| conditions.branch(asm, tree, false));
                let passes = names.and_then(|names| self.is_named(asm, names, Cond::NotEqual));
                rejected.into_iter().for_each(|fix| asm.bind(fix));
                passes.into_iter().collect()
            }
        }
    }
    /// Emits an exit of calls that have `marks`.
    pub(super) fn unmarked(&self, asm: &mut Asm<'_>, marks: Marks) -> Unmarked {
        let first = First { site: self.site, at_entry: false };
        first.enter(asm);
        Second::enter(asm);
        let asked = marks.timed().ask_mark(asm);
        let leave = asm.here();
        Second::leave(asm);
        first.leave(asm);
        Unmarked { marks, asked, leave }
    }
}

impl FilteredPath {
    /// Binds the jumps of all hits that pass.
    pub(super) fn begin(&self, asm: &mut Asm<'_>) {
        self.passes.iter().for_each(|&fix| asm.bind(fix));
    }
    /// Appends what is rare for a hit that does not pass, the descriptor and the address.
    pub(super) fn finish(&self, asm: &mut Asm<'_>) {
        if let Some(section) = self.counted.section() {
            self.counted.bind_unregistered(asm);
            let last = self.word.wrapping_add((u64::from(self.machine.lines.max(1)) - 1) * 64);
            asm.alu_mem_imm(Alu::Add, Mem::Rip(last), 1, true);
            asm.jmp(self.leave);
            self.machine.rseq.into_iter().for_each(|rseq| rseq::descriptors(asm, rseq, &[section]));
        }
        if let Some((marks, mark)) = self.marks {
            // Without a block there is no mark to take away.
            marks.timed().search(asm, mark.lookup(), Claim::Yes);
            asm.jmp(mark.after());
        }
        asm.align(8);
        asm.bind(self.counted.line);
        asm.u64(self.word);
    }
}

impl Unmarked {
    /// Appends what is rare, and binds the jumps of exits that have a mark; the mark is taken back.
    pub(super) fn begin(&self, asm: &mut Asm<'_>) {
        let timed = self.marks.timed();
        timed.search(asm, self.asked.lookup(), Claim::No);
        asm.jmp(self.leave);
        timed.take_mark(asm, self.asked);
    }
}
