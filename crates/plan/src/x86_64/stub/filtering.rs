//! Which hits are recorded or aggregated: the code of a filter.
//!
//! In: a condition, a sample. Out: code that jumps if a hit does not pass, before anything is written; those
//! jumps, and what waits for addresses ([`FilterExits`]).
//!
//! ```text
//!   condition    as in `filter`; rdx as saved at rsp + SAVED_RDX, rax at rsp + SAVED_RAX
//!   names        r11 = names + 8 · (thread mod PLACES);  the thread is in the table if [r11] = thread + 1
//!   sample       r11 = words + 64 · CPU;  rax = [r11 + 8], the hits to leave out before this one
//!                [r11 + 8] = rax - 1, or every - 1 if rax = 0          the commit
//!   no rseq      r11 = words + 64 · some line;  rax = [r11 + 8]++ mod every
//!   passes       if rax = 0
//!   fields       rsp is lower by depth; rdx = [rsp + depth + SAVED_RDX]
//! ```

use trapline_record::names::PLACES;
use trapline_record::ring::RecordKind;

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Shift};
use super::counted::{Counted, any_line};
use super::filter::{Conditions, Fields};
use super::machine::Machine;
use super::rseq::{self, CPU_ID, Section};
use super::saves::{SAVED_RAX, SAVED_RDX};
use super::threads;
use crate::filter::{TargetFilter, Tree};
use crate::machine::{Rseq, ThreadId};
use crate::request::Read;

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

/// Jumps and addresses that a filter's code has left open.
#[derive(Clone, Debug, Default)]
pub(super) struct FilterExits {
    pub(super) rejected: Vec<Fix>,
    /// Jumps of hits that are rejected because of what was read from memory, and by how many bytes the stack
    /// pointer is lower there.
    pub(super) deep: (Vec<Fix>, i32),
    /// Jumps of threads without an area.
    pub(super) unregistered: Vec<Fix>,
    pub(super) words: u64,
    /// The section that counts samples, if there is rseq, and the fix that waits for the address of its
    /// words.
    pub(super) sample: Option<(Option<Section>, Fix)>,
}

/// The decision about one probe's hits of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct HitFilter<'a> {
    pub(super) machine: &'a Machine,
    pub(super) id: ThreadId,
    pub(super) filtered: Option<Filtered<'a>>,
    pub(super) kind: RecordKind,
    /// What is read from memory at an entry.
    pub(super) reads: &'a [Read],
    /// Where the copy of the first of that is, from the stack pointer on, behind `fetch`.
    pub(super) first_field: i32,
    /// By how many bytes the copies lower the stack pointer.
    pub(super) depth: i32,
}

impl<'a> HitFilter<'a> {
    /// Jumps if a hit does not pass. Uses rax, r11 and flags; for samples also r10, and without rseq rdx,
    /// which is loaded again.
    pub(super) fn pass(&self, asm: &mut Asm<'_>) -> FilterExits {
        let Some(filtered) = self.filtered else { return FilterExits::default() };
        let mut unregistered = Vec::new();
        let conditions = self.conditions();
        let condition = filtered.filter.condition.as_ref();
        let mut rejected = condition.map_or_else(Vec::new, |tree| conditions.branch(asm, tree, false));
        rejected.extend(filtered.names.and_then(|names| self.is_named(asm, names, Cond::Equal)));
        let sample = (filtered.filter.sample > 1).then(|| {
            let sample = match self.machine.rseq {
                Some(rseq) => self.sample(asm, rseq, filtered.filter.sample, &mut unregistered),
                None => self.sample_shared(asm, filtered.filter.sample),
            };
            asm.test(RAX, RAX, true);
            rejected.push(asm.jcc_later(Cond::NotEqual));
            sample
        });
        FilterExits { rejected, unregistered, words: filtered.words, sample, ..FilterExits::default() }
    }
    /// Jumps, behind `fetch`, if a hit does not pass because of what was read. Uses rax, rdx, r11 and flags.
    pub(super) fn pass_fields(&self, asm: &mut Asm<'_>) -> (Vec<Fix>, i32) {
        let condition = self.filtered.and_then(|filtered| filtered.filter.fields.as_ref());
        let (Some(condition), RecordKind::Entry) = (condition, self.kind) else { return Default::default() };
        asm.load(RDX, Mem::At(RSP, self.depth + SAVED_RDX));
        (self.behind_fetch().branch(asm, &condition.decided(), false), self.depth)
    }
    /// How known values are read while the stack pointer is lower by the copies.
    pub(super) fn behind_fetch(&self) -> Conditions<'a> {
        let fields = Some(Fields { reads: self.reads, at: (RSP, self.first_field) });
        Conditions { depth: self.depth, rdx: self.depth + SAVED_RDX, fields, ..self.conditions() }
    }
    /// Jumps if the table has this thread; with `NotEqual`, if it does not. Uses rax, r11 and flags.
    fn is_named(&self, asm: &mut Asm<'_>, names: u64, when: Cond) -> Option<Fix> {
        let id = self.id;
        if id == ThreadId::Unknown {
            return None;
        }
        threads::load(id, asm, R11, 0);
        asm.alu_imm(Alu::And, R11, PLACES as i32 - 1, false);
        asm.lea(RAX, Mem::Rip(names));
        asm.lea(R11, Mem::Sum(RAX, R11, 3, 0));
        threads::load(id, asm, RAX, 0);
        asm.lea(RAX, Mem::At(RAX, 1));
        Some(asm.unbroken(|asm| {
            asm.alu_load(Alu::Cmp, RAX, Mem::At(R11, 0));
            asm.jcc_later(when)
        }))
    }
    /// Counts down on this CPU's line. rax = number of hits to leave out before this one.
    fn sample(
        &self,
        asm: &mut Asm<'_>,
        rseq: Rseq,
        every: u32,
        unregistered: &mut Vec<Fix>,
    ) -> (Option<Section>, Fix) {
        let (section, words) = rseq::section_with(asm, rseq, R11, |asm| {
            asm.load32(R11, Mem::Fs(rseq.offset + CPU_ID));
            asm.alu_imm(Alu::Cmp, R11, self.machine.lines as i32 - 1, false);
            unregistered.push(asm.jcc_later(Cond::AboveEq));
            asm.shift(Shift::Left, R11, 6, false);
            let words = asm.alu_load_later(Alu::Add, R11);
            asm.load(RAX, Mem::At(R11, 8));
            asm.lea(R10, Mem::At(RAX, -1));
            asm.test(RAX, RAX, true);
            let waits = asm.jcc_later(Cond::NotEqual);
            asm.mov_imm32(R10, every - 1);
            asm.bind(waits);
            asm.store(Mem::At(R11, 8), R10);
            words
        });
        (Some(section), words)
    }
    /// Without rseq: counts up on some line, where hits may be of many threads. rax = 0 at each hit that is
    /// sampled.
    fn sample_shared(&self, asm: &mut Asm<'_>, every: u32) -> (Option<Section>, Fix) {
        let words = any_line(asm, self.machine);
        asm.mov_imm32(RAX, 1);
        asm.exchange_add(Mem::At(R11, 8), RAX);
        if every.is_power_of_two() {
            asm.alu_imm(Alu::And, RAX, every.wrapping_sub(1).cast_signed(), false);
        } else {
            asm.mov_imm32(R10, every);
            asm.mov_imm32(RDX, 0);
            asm.div(R10);
            asm.mov(RAX, RDX);
            asm.load(RDX, Mem::At(RSP, SAVED_RDX));
        }
        (None, words)
    }
    /// How the values that are known at a hit are read.
    pub(super) fn conditions(&self) -> Conditions<'a> {
        let returned = (self.kind == RecordKind::Return).then_some(SAVED_RAX);
        Conditions { id: self.id, depth: 0, rdx: SAVED_RDX, returned, left: None, fields: None }
    }
    /// Whether the filter depends on the thread.
    pub(super) fn by_thread(&self) -> bool {
        self.filtered.is_some_and(|filtered| filtered.filter.asks_for_thread())
    }
    /// Whether the filter needs no register beyond those of the first save (`saves`). That is so if it does not divide, does
    /// not sample and makes no system call.
    pub(super) fn rejects_early(&self) -> bool {
        let Some(filtered) = self.filtered else { return false };
        let (filter, id) = (filtered.filter, self.id);
        let by_name = filtered.names.is_some() && id != ThreadId::Unknown;
        self.kind == RecordKind::Entry
            && (by_name || filter.condition.is_some())
            && filter.sample <= 1
            && filter.fields.is_none()
            && !filter.condition.as_ref().is_some_and(Tree::divides)
            && !(self.by_thread() && id == ThreadId::Call)
    }
    /// Jumps if the hit passes. Uses rax, r11 and flags.
    pub(super) fn passes(&self, asm: &mut Asm<'_>) -> Vec<Fix> {
        let conditions = self.conditions();
        let condition = self.filtered.and_then(|filtered| filtered.filter.condition.as_ref());
        match (condition, self.filtered.and_then(|filtered| filtered.names)) {
            (Some(tree), None) => conditions.branch(asm, tree, true),
            (condition, names) => {
                let rejected = condition.map_or_else(Vec::new, |tree| conditions.branch(asm, tree, false));
                let passes = names.and_then(|names| self.is_named(asm, names, Cond::NotEqual));
                rejected.into_iter().for_each(|fix| asm.bind(fix));
                passes.into_iter().collect()
            }
        }
    }
}

impl FilterExits {
    /// Binds the jumps of hits that do not pass; false if there are none.
    pub(super) fn bind(&self, asm: &mut Asm<'_>) -> bool {
        let (deep, depth) = &self.deep;
        if !deep.is_empty() {
            deep.iter().for_each(|&fix| asm.bind(fix));
            asm.lea(RSP, Mem::At(RSP, *depth));
        }
        self.rejected.iter().for_each(|&fix| asm.bind(fix));
        !(deep.is_empty() && self.rejected.is_empty())
    }
    /// Sections that need descriptors.
    pub(super) fn sections(&self, filtered: Option<Counted>) -> impl Iterator<Item = Section> {
        let sample = self.sample.and_then(|(section, _)| section);
        filtered.and_then(|counted| counted.section()).into_iter().chain(sample)
    }
    /// Appends the addresses for the count of rejected hits, and for samples.
    pub(super) fn addresses(&self, asm: &mut Asm<'_>, filtered: Option<Counted>) {
        let Some(counted) = filtered else { return };
        asm.bind(counted.line);
        if let Some((_, words)) = self.sample {
            asm.bind(words);
        }
        asm.u64(self.words);
    }
}
