//! One hit that passes a filter, one increment.
//!
//! In: a filter, the counter's word, what is dead. Out: code that decides as before a record (`pass`), and
//! adds 1 on this CPU's line: to the counter, or to the filter's count of rejected hits. Then it runs into
//! the displaced code. Counted + rejected = hits, each by one commit. A thread without an area adds on the
//! last line. It has no sample of its own, so it does not pass one.
//! At an exit the condition is about the returned value. If a tail call leaves the condition undecided, the
//! hit does not pass ([`Tree::at_tail`](crate::filter::Tree::at_tail)).
//!
//! ```text
//!   the stack      as in `saves`: all that a record without a stack saves
//!   filter         rax, r11, flags; for samples also r10, rdx      (`filtering`)
//!   passes         r11 = this CPU's word of the counter;  [r11] += 1, the commit
//!   rejected       r11 = this CPU's word of the filter;   [r11] += 1, the commit
//!   no area        lock [word + 64 · (lines - 1)] += 1
//! ```

use trapline_record::ring::RecordKind;

use super::asm::{Alu, Asm, Mem};
use super::counted::{Counted, count};
use super::filtering::{FilterExits, Filtered, HitFilter};
use super::machine::Machine;
use super::traced::Traced;
use super::{rseq, threads};
use crate::filter::{TargetFilter, Tree};

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) struct FilteredCountTail {
    machine: Machine,
    counted: Counted,
    /// Address of the counter on line 0.
    word: u64,
    passed: FilterExits,
    /// Where all paths meet.
    leave: u64,
}

/// Appends the part of a stub that comes before the displaced code. The counter is the one of `traced`'s
/// dropped records. Of its rings only the way to read a thread's number is used.
pub(super) fn count_filtered(asm: &mut Asm<'_>, traced: &Traced<'_>, kind: RecordKind) -> FilteredCountTail {
    let machine = *traced.machine;
    let (saves, hits) = (traced.saves(kind), traced.hit_filter(kind));
    saves.enter(asm);
    if hits.by_thread() {
        threads::ask(hits.id, asm);
    }
    let passed = match hits.filtered {
        Some(filtered) if kind == RecordKind::Tail => {
            let filter = &filtered.filter.at_tail();
            HitFilter { filtered: Some(Filtered { filter, ..filtered }), ..hits }.pass(asm)
        }
        _ => hits.pass(asm),
    };
    let counted = count(asm, &machine);
    let leave = asm.here();
    if let Some(rseq) = machine.rseq {
        rseq::clear(asm, rseq);
    }
    saves.leave(asm);
    FilteredCountTail { machine, counted, word: traced.dropped, passed, leave }
}

impl TargetFilter {
    /// The same for an exit by a tail call.
    fn at_tail(&self) -> Self {
        Self { condition: self.condition.as_ref().map(Tree::at_tail), ..self.clone() }
    }
}

impl FilteredCountTail {
    /// Appends the paths of threads without an area and of rejected hits, the descriptors and the addresses.
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        self.shared(asm, self.counted, self.word);
        let rejected = self.passed.bind(asm).then(|| {
            let rejected = count(asm, &self.machine);
            asm.jmp(self.leave);
            self.passed.unregistered.iter().for_each(|&fix| asm.bind(fix));
            self.shared(asm, rejected, self.passed.words);
            rejected
        });
        for section in self.counted.section().into_iter().chain(self.passed.sections(rejected)) {
            self.machine.rseq.into_iter().for_each(|rseq| rseq::descriptors(asm, rseq, &[section]));
        }
        asm.align(8);
        asm.bind(self.counted.line);
        asm.u64(self.word);
        self.passed.addresses(asm, rejected);
    }
    /// The path of threads without an area: they count on the last line.
    fn shared(&self, asm: &mut Asm<'_>, counted: Counted, word: u64) {
        if counted.section().is_none() {
            return;
        }
        counted.bind_unregistered(asm);
        let last = word.wrapping_add((u64::from(self.machine.lines.max(1)) - 1) * 64);
        asm.alu_mem_imm(Alu::Add, Mem::Rip(last), 1, true);
        asm.jmp(self.leave);
    }
}
