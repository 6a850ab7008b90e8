//! One hit, one record in the ring of the CPU on which it happened (`record::ring`); the same as x86-64's
//! twin.
//!
//! In: where the rings lie, which probe, what is recorded (arguments at an entry, the value at a return, the
//! stack). Out: code that writes the record, or counts it as dropped if the ring is full, and runs into the
//! displaced code. Written + dropped + filtered = hits.
//!
//! x86-64's twin has the record's own code in a file of its own (`written`), since it lies in one of two places there.
//!
//! | step | what | a signal or a move to another CPU there |
//! |---|---|---|
//! | T0 | if a filter decides: save what its code uses, decide (`pass`), load it again. | nothing was written |
//! | | A hit that does not pass adds one to the counter of those, and goes on behind T5. | |
//! | | If exits are recorded too, the entry leaves a mark (`latency::mark`), | |
//! | | and an exit that finds none goes on behind T5 | |
//! | T1 | save what is used; find the stack's end, or copy texts and fields (`text`), | its handler's hits |
//! | | if requested; if fields decide, a hit that does not pass goes to T7 | write records of their own |
//! | T2 | announce the section; read the CPU's number, `HEAD` and `TAIL`. No area, or no room: T6 | back to T2 |
//! | T3 | copy texts or the stack, read the counter, fill the slot behind the head | back to T2: the slot is written over |
//! | T4 | store `HEAD`, with release: the commit, and the last of the section | before it, back to T2; behind it, written |
//! | T5 | clear the announcement, load what was saved | written; the kernel clears it too |
//! | T6 | add one to the probe's counter on this CPU's line, by a section of its own; | once |
//! | | without an area on the last line, atomically. T5 | |
//! | T7 | add one to the counter of what does not pass, take away what an abandoned | once |
//! | | call left in the cell of the mark; T5. If fields decide, T5 leaves the mark of a call that passes | |
//!
//! If a goroutine's stack has no room for what T1 copies: T7, but with the counter of T6.
//!
//! ```text
//!   T0       sp = S - frame::FRAME     only for a filter or a mark; at its end sp = S, all registers loaded
//!   T1       sp = S - step             registers saved (`saves`), E at [sp + END] if a stack is recorded
//!            sp = Q = S - step - depth texts and fields copied, if any (`text`); then to the end of T4
//!                                      in a compact ring, texts are packed (`programs::packed`)
//!   T2       sp = Q                    RING = ring, AT = head, B = area        (`put`)
//!   T3, T4   sp = Q                    SLOT = slot, TIME = time
//!   T5       sp = S - step, then S     all registers are the program's
//!   T6       sp = Q                    goes back to T5's beginning, where the copies are given back
//!   T7       sp = S - step             goes back to T5 behind that
//! ```
//!
//! In a compact ring (`programs::calls`) T2 to T4 are C1 to C4, in one of two sequences. In a process without rseq T2 is L1 to L3 of `record::ring`, and T4 is L5. The clock is the virtual
//! counter, which runs at one rate on all CPUs (Arm ARM D12.1). It may show the same time for two records of
//! one thread: readers keep the order in which a ring has them. If the return decides, see `defer`.

use trapline_record::ring::RecordKind;

use super::asm::{Asm, Fix, NoWords};
use super::counted::{count, count_last};
use super::filtered_path::{Before, FilteredPath};
use super::latency::Mark;
use super::machine::{Machine, Rseq};
use super::pending::Code;
use super::put::RingWriter;
use super::rseq::{self, Section};
use super::saves::{A, B};
use super::threads;
use super::traced::Traced;
use crate::filter::Tree;
use crate::programs::records::Behind;

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedTrace<'a> {
    asm: Asm,
    machine: &'a Machine,
    /// Address of the counter of dropped records on line 0.
    dropped: u64,
    path: FilteredPath<'a>,
    /// The section; `None` if rings are locked.
    section: Option<Section>,
    /// The jump of threads without an area, or of records that found all rings locked.
    none: Fix,
    full: Fix,
    /// A compact ring: what appends the second sequence, and the jump that leads there.
    compact: Option<(RingWriter<'a>, Rseq, Option<Fix>, Behind)>,
    /// Where the common path goes on.
    written: u64,
    /// What the filter has left to append.
    before: Option<Before>,
    /// The jump of goroutines without room for the copies on their stack.
    cramped: Option<Fix>,
    /// Jumps of entries that fields rejected.
    deep: Vec<Fix>,
    /// The look for the cell of the mark that is left if fields let the call pass.
    mark: Option<Mark>,
    /// Where the common path goes on, behind the code that frees the copies.
    leaves: u64,
}

/// The part of a stub that comes before the displaced code. At an entry it records the first `values` of the
/// [`ARGUMENTS`](super::filter::ARGUMENTS), at a return the returned value. The stub starts at `at`.
pub fn trace(at: u64, traced: Traced<'_>, kind: RecordKind, values: usize) -> UnfinishedTrace<'_> {
    let mut asm = Asm::new(at);
    let (saves, path) = (traced.saves(kind), traced.filtered_path(kind));
    let (writer, texts) = (traced.ring_writer(kind), traced.texts(kind));
    let before = path.before(&mut asm);
    let full = traced.rings.area.full();
    saves.enter(&mut asm);
    if traced.by_fields(kind).is_some_and(Tree::asks_for_thread) {
        threads::ask(traced.rings.id, &mut asm);
    }
    let cramped = texts.room(&mut asm);
    texts.fetch(&mut asm);
    let deep = path.pass_fields(&mut asm);
    let walk = traced.walk(kind);
    if let Some(walk) = walk {
        walk.bound(&mut asm);
    }
    let mut compact = None;
    let (section, (none, full)) = match traced.machine.rseq {
        Some(rseq) if traced.rings.area.is_compact() => {
            let behind = writer.behind(values, traced.valued);
            writer.pack(&mut asm, behind);
            let (section, [none, full, switch]) =
                rseq::section_with(&mut asm, rseq, [B, A], |asm| writer.write_compact(asm, false, behind));
            compact = Some((writer, rseq, switch, behind));
            // A part that has no code has no jumps; then the stub is never finished.
            let [none, full] = [none, full].map(|fix| fix.unwrap_or_else(|| asm.b_later()));
            (Some(section), (none, full))
        }
        Some(rseq) => {
            let (section, fixes) = rseq::section_with(&mut asm, rseq, [B, A], |asm| {
                let fixes = writer.find(asm, full);
                writer.write(asm, values, walk);
                fixes
            });
            (Some(section), fixes)
        }
        None => {
            let fixes = writer.lock(&mut asm, full);
            writer.write(&mut asm, values, walk);
            (None, fixes)
        }
    };
    let written = asm.here();
    texts.drop(&mut asm);
    let mark = path.mark_late(&mut asm);
    let leaves = asm.here();
    if let Some(rseq) = traced.machine.rseq {
        rseq::clear(&mut asm, rseq, B);
    }
    saves.leave(&mut asm);
    let (machine, dropped) = (traced.machine, traced.dropped);
    UnfinishedTrace {
        asm,
        machine,
        dropped,
        path,
        section,
        none,
        full,
        compact,
        written,
        before,
        cramped,
        deep,
        mark,
        leaves,
    }
}

impl Code for UnfinishedTrace<'_> {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, machine, dropped, path, section, none, full, compact, written, leaves, .. } =
            self;
        let displaced_at = asm.here();
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        if let Some(before) = self.before {
            path.behind(&mut asm, before, displaced_at);
        }
        path.behind_fields(&mut asm, self.deep, self.mark, leaves);
        path.behind_room(&mut asm, self.cramped, leaves);
        let second = compact.map(|(writer, rseq, switch, behind)| {
            switch.into_iter().for_each(|switch| asm.bind(switch));
            let second =
                rseq::section_with(&mut asm, rseq, [B, A], |asm| writer.write_compact(asm, true, behind));
            asm.b(written);
            second
        });
        let jumps = second.map_or([None; 3], |(_, jumps)| jumps);
        asm.bind(full);
        jumps[1].into_iter().for_each(|fix| asm.bind(fix));
        if section.is_none() {
            asm.bind(none);
        }
        let counted = count(&mut asm, machine, dropped);
        asm.b(written);
        if let (Some(section), Some((counting, unregistered))) = (section, counted) {
            asm.bind(none);
            jumps[0].into_iter().for_each(|fix| asm.bind(fix));
            asm.bind(unregistered);
            count_last(&mut asm, machine, dropped);
            asm.b(written);
            rseq::descriptors(&mut asm, &[section, counting]);
            second.into_iter().for_each(|(section, _)| rseq::descriptors(&mut asm, &[section]));
        }
        asm.pool();
        asm.words()
    }
}
