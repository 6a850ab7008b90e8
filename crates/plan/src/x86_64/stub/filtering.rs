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
use super::rseq::{self, CPU_ID, Section};
use super::saves::{SAVED_RAX, SAVED_RDX};
use super::threads;
use super::traced::{Filtered, Traced};
use crate::machine::{Rseq, ThreadId};

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

impl Traced<'_> {
    /// Jumps if a hit does not pass. Uses rax, r11 and flags; for samples also r10, and without rseq rdx,
    /// which is loaded again.
    pub(super) fn pass(&self, asm: &mut Asm<'_>, filtered: Filtered<'_>, kind: RecordKind) -> FilterExits {
        let mut unregistered = Vec::new();
        let conditions = self.conditions(kind);
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
    pub(super) fn pass_fields(&self, asm: &mut Asm<'_>, kind: RecordKind) -> (Vec<Fix>, i32) {
        let condition = self.filter.and_then(|filtered| filtered.filter.fields.as_ref());
        let (Some(condition), RecordKind::Entry) = (condition, kind) else { return Default::default() };
        asm.load(RDX, Mem::At(RSP, self.depth(kind) + SAVED_RDX));
        (self.behind_fetch(kind).branch(asm, &condition.decided(), false), self.depth(kind))
    }
    /// How known values are read while the stack pointer is lower by the copies.
    pub(super) fn behind_fetch(&self, kind: RecordKind) -> Conditions<'_> {
        let depth = self.depth(kind);
        let fields = Some(Fields { reads: self.fields, at: (RSP, self.first_field_copied()) });
        Conditions { depth, rdx: depth + SAVED_RDX, fields, ..self.conditions(kind) }
    }
    /// Jumps if the table has this thread; with `NotEqual`, if it does not. Uses rax, r11 and flags.
    pub(super) fn is_named(&self, asm: &mut Asm<'_>, names: u64, when: Cond) -> Option<Fix> {
        let id = self.rings.id;
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
    pub(super) fn conditions(&self, kind: RecordKind) -> Conditions<'_> {
        let returned = (kind == RecordKind::Return).then_some(SAVED_RAX);
        Conditions { id: self.rings.id, depth: 0, rdx: SAVED_RDX, returned, left: None, fields: None }
    }
    /// Whether the filter depends on the thread.
    pub(super) fn filters_by_thread(&self) -> bool {
        self.filter.is_some_and(|filtered| filtered.filter.asks_for_thread())
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
