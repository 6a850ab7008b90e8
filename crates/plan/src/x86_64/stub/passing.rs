//! One hit that passes a filter, one increment.
//!
//! Input: a filter, the counter's word, what is dead. Output: code that decides as before a record (`pass`), adds 1 to this CPU's line of the counter,
//! or of the filter's count of rejected hits, and runs into the displaced code. Counted + rejected = hits, each by one commit; a thread without an area
//! adds to the last line, and has no sample of its own: it did not pass one.
//! At an exit the condition is about the value; one that a tail call leaves undecided does not pass ([`Tree::at_tail`](crate::filter::Tree::at_tail)).

use trapline_record::ring::Kind;

use super::asm::{Alu, Asm, Mem};
use super::counted::{Counted, count};
use super::pass::{Filtered, Passed};
use super::rseq;
use super::trace::Traced;
use super::{Machine, Pending};
use crate::filter::{TargetFilter, Tree};

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    machine: Machine,
    counted: Counted,
    /// The counter on line 0.
    word: u64,
    passed: Passed,
    /// Where all paths meet.
    leave: u64,
}

/// Appends the part of a stub that comes before the displaced code. The stub starts at `at`; the counter is that of `traced`'s dropped records, and of
/// its rings only how a thread's number is learnt is used.
pub fn count_passing(out: &mut Vec<u8>, at: u64, traced: &Traced<'_>, kind: Kind) -> Pending<'static> {
    let machine = *traced.machine;
    let mut asm = Asm::new(out, at);
    traced.enter(&mut asm, kind);
    if traced.filters_by_thread() {
        traced.rings.id.ask(&mut asm);
    }
    let passed = traced.filter.map_or_else(Passed::default, |filtered| {
        let tail = filtered.filter.at_tail();
        let filter = if kind == Kind::Tail { &tail } else { filtered.filter };
        traced.pass(&mut asm, Filtered { filter, ..filtered }, kind)
    });
    let counted = count(&mut asm, &machine);
    let leave = asm.here();
    if let Some(rseq) = machine.rseq {
        rseq::clear(&mut asm, rseq);
    }
    traced.leave(&mut asm, kind);
    let tail = Tail { machine, counted, word: traced.dropped, passed, leave };
    Pending::new(&asm, super::Kind::Passing(tail))
}

impl TargetFilter {
    /// The same, of an exit by a tail call.
    fn at_tail(&self) -> Self {
        Self { condition: self.condition.as_ref().map(Tree::at_tail), ..self.clone() }
    }
}

impl Tail {
    /// Appends what threads without an area do, what becomes of hits that do not pass, the descriptors and the addresses.
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
    /// Threads without an area, on the last line.
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
