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

use super::asm::{Alu, Asm, Fix, Mem};
use super::counted::{Counted, count};
use super::latency::{Mark, MarkLookup, Marks};
use super::machine::Machine;
use super::rseq;
use super::saves::{Saves, Second};
use super::traced::Traced;

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
    looked: MarkLookup,
    leave: u64,
}

impl FilteredPath {
    /// Emits an entry of `traced` for which [`rejects_early`](super::filtering::HitFilter::rejects_early) holds.
    pub(super) fn emit(asm: &mut Asm<'_>, traced: &Traced<'_>) -> Self {
        let (machine, first) = (*traced.machine, traced.saves(RecordKind::Entry).first());
        first.enter(asm);
        let passes = traced.hit_filter(RecordKind::Entry).passes(asm);
        let marks = traced.entry_marks();
        if marks.is_some() {
            Second::enter(asm);
        }
        let marks = marks.map(|marks| (marks, marks.mark(asm, false)));
        let counted = count(asm, &machine);
        let leave = asm.here();
        if let Some(rseq) = machine.rseq {
            rseq::clear(asm, rseq);
        }
        if marks.is_some() {
            Second::leave(asm);
        }
        first.leave(asm);
        let word = traced.filter.map_or(traced.dropped, |filtered| filtered.words);
        Self { machine, passes, marks, counted, word, leave }
    }
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
            marks.finish_removed(asm, mark);
        }
        asm.align(8);
        asm.bind(self.counted.line);
        asm.u64(self.word);
    }
}

impl Unmarked {
    /// Emits an exit of calls that have `marks`.
    pub(super) fn emit(asm: &mut Asm<'_>, saves: Saves, marks: Marks) -> Self {
        let first = saves.first();
        first.enter(asm);
        Second::enter(asm);
        let looked = marks.look(asm);
        let leave = asm.here();
        Second::leave(asm);
        first.leave(asm);
        Self { marks, looked, leave }
    }
    /// Appends what is rare, and binds the jumps of exits that have a mark; the mark is taken back.
    pub(super) fn begin(&self, asm: &mut Asm<'_>) {
        self.marks.finish_look(asm, self.looked, self.leave);
    }
}
