//! One hit, one record in the ring of the CPU that it happened on (`record::ring`); what x86-64's twin does.
//!
//! In: where the rings lie, which probe, what is told (arguments at an entry, the value at a return, the stack). Out: code that writes the record, or counts it as
//! dropped where the ring is full, and runs into the displaced code. Written + dropped + filtered = hits.
//!
//! | step | what | a signal or a move to another CPU there |
//! |---|---|---|
//! | T0 | where a filter decides: save what its code uses, decide (`pass`), load it again. A hit that does not pass adds one to the counter of those, and goes on behind T5 | nothing was written |
//! | T1 | save what is used; find the stack's end, or copy texts (`text`), if that is wanted | its handler's hits write records of their own |
//! | T2 | announce the section; read the CPU's number, `HEAD` and `TAIL`. No area, or no room: T6 | back to T2 |
//! | T3 | read the counter, fill the slot behind the head | back to T2: the slot is written over |
//! | T4 | store `HEAD`, with release: the commit, and the last of the section | before it, back to T2; behind it, written |
//! | T5 | clear the announcement, load what was saved | written; the kernel clears it too |
//! | T6 | add one to the probe's counter on this CPU's line, by a section of its own; without an area on the last line, atomically. T5 | once |
//!
//! In a process without rseq T2 is L1 to L3 of `record::ring`, and T4 is L5. The clock is the virtual counter, which runs at one rate on all CPUs (Arm ARM D12.1) but
//! may stand still for two records of one thread: readers keep the order in which a ring has them.
//! Not here yet: marks, by which exits would know whose entries passed, fields.

use trapline_record::ring::{Kind, RingArea};

use super::asm::{Asm, Fix, SP};
use super::counted::{count, count_last};
use super::frame::{A, B};
use super::pass::{Filtered, Rare, before};
use super::rseq::{self, Section};
use super::stack::Walk;
use super::{Code, Machine};
use crate::request::{Floats, Stacks, ThreadId, Unwind};

/// Arguments that a record holds of those that registers do.
pub const ARGUMENTS: usize = 6;

/// Where records go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Their shape; its offset is not used. One for each line of counters but the last; without rseq [`RingArea::shared`] for so many.
    pub area: RingArea,
    /// Address of ring 0.
    pub base: u64,
    /// How a thread's number is learnt. Where a call would tell it, records hold none: a system call loses what vectors of SVE hold above 128 bits.
    pub id: ThreadId,
    /// Where stacks end.
    pub stacks: Stacks,
}

/// Everything that one probe's records depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traced<'a> {
    /// What the process offers.
    pub machine: &'a Machine,
    /// Where to.
    pub rings: &'a Rings,
    /// Whose hit it is; below 2³¹.
    pub probe: u32,
    /// The counter of dropped records on line 0.
    pub dropped: u64,
    /// Bit `n`: at an entry, argument `n` points to text.
    pub texts: u8,
    /// Floats: in the record behind arguments and texts; at a return in the place of the value.
    pub floats: Floats,
    /// What an entry's record holds of the stack; then no arguments and no texts.
    pub unwind: Unwind,
    /// The stub stands at a function's entry.
    pub at_entry: bool,
    /// The call is that of the goroutine that x28 names: what stands for the stack pointer is the same wherever its stack is.
    pub goroutine: bool,
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct Pending<'a> {
    asm: Asm,
    traced: Traced<'a>,
    /// The section; none where rings are locked.
    section: Option<Section>,
    /// Threads without an area, or those that found all rings locked.
    none: Fix,
    full: Fix,
    /// Where the usual path goes on.
    written: u64,
    /// What the filter left to do.
    rare: Option<Rare>,
}

/// The part of a stub that comes before the displaced code, for `values` arguments at an entry (of [`ARGUMENTS`] the first) and the value returned at a return. The
/// stub starts at `at`.
pub fn trace(at: u64, traced: Traced<'_>, kind: Kind, values: usize) -> Pending<'_> {
    trace_passing(at, traced, None, kind, values)
}

/// The same, of hits that a filter lets pass.
pub fn trace_passing<'a>(
    at: u64,
    traced: Traced<'a>,
    filtered: Option<Filtered<'_>>,
    kind: Kind,
    values: usize,
) -> Pending<'a> {
    let mut asm = Asm::new(at);
    let rare = filtered.map(|filtered| before(&mut asm, traced.machine, traced.rings.id, filtered));
    traced.enter(&mut asm, kind);
    let texts = traced.texts(kind);
    texts.fetch(&mut asm);
    let walk = traced.walk(kind);
    if let Some(walk) = walk {
        walk.bound(&mut asm);
    }
    let (section, (none, full)) = match traced.machine.rseq {
        Some(rseq) => {
            let (section, fixes) = rseq::section_with(&mut asm, rseq, [B, A], |asm| {
                let fixes = traced.find(asm);
                traced.write(asm, kind, values, walk);
                fixes
            });
            (Some(section), fixes)
        }
        None => {
            let fixes = traced.lock(&mut asm);
            traced.write(&mut asm, kind, values, walk);
            (None, fixes)
        }
    };
    let written = asm.here();
    if let Some(rseq) = traced.machine.rseq {
        rseq::clear(&mut asm, rseq, B);
    }
    if texts.depth() > 0 {
        asm.add_imm(SP, SP, texts.depth().cast_signed());
    }
    traced.leave(&mut asm, kind);
    Pending { asm, traced, section, none, full, written, rare }
}

impl Traced<'_> {
    fn walk(&self, kind: Kind) -> Option<Walk> {
        let Self { unwind, at_entry, .. } = *self;
        let (stacks, most) = (self.rings.stacks, self.rings.area.most);
        let step = self.step(kind);
        Walk::wanted(unwind, kind).then_some(Walk { stacks, unwind, step, most, at_entry })
    }
}

impl Code for Pending<'_> {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
        let Self { mut asm, traced, section, none, full, written, rare } = self;
        let displaced_at = asm.here();
        let Traced { machine, dropped, .. } = traced;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        if let Some(rare) = rare {
            rare.behind(&mut asm, machine, displaced_at);
        }
        asm.bind(full);
        if section.is_none() {
            asm.bind(none);
        }
        let counted = count(&mut asm, machine, dropped);
        asm.b(written);
        if let (Some(section), Some((counting, unregistered))) = (section, counted) {
            asm.bind(none);
            asm.bind(unregistered);
            count_last(&mut asm, machine, dropped);
            asm.b(written);
            rseq::descriptors(&mut asm, &[section, counting]);
        }
        asm.pool();
        asm.words()
    }
}
