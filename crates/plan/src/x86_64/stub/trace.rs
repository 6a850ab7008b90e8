//! One hit, one record in the ring of the CPU that it happened on (`record::ring`).
//!
//! Input: where the rings lie, which probe, what is told (arguments at an entry, the value at a return), what is dead. Output: code
//! that writes the record, or counts it as dropped where the ring is full, and runs into the displaced code.
//! One restartable sequence reads the clock, finds the CPU's ring, fills the slot behind the head and commits by storing the head.
//! In a process without rseq a ring is locked for that, by a compare-and-swap; where none is to be had at once the record is dropped.
//! A dropped record, and one of a thread without an rseq area where others have one, adds one to the probe's counter. A filter stands before all that: a
//! hit that it rejects adds one to a counter of its own. Written + dropped + filtered = hits. Where exits are recorded too, the
//! entry leaves a mark for them (`latency::mark`).
//! Registers are saved below the stack pointer, as in `count`.

use trapline_record::ring::{Kind, RingArea};

use super::asm::{Alu, Asm, Fix, Mem, R10, R11, RAX};
use super::counted::{Counted, count};
use super::filter::ARGUMENT;
use super::latency::{Claim, Mark};
use super::pass::{Filtered, Passed};
use super::rseq::{self, Section};
use super::saves::{First, Second};
use super::stack::Walk;
use super::stage::stage;
use super::text::Known;
use super::{Latency, Machine, Pending, Site, ThreadId, Timed};
use crate::request::{Floats, Read, Stacks, Unwind};

/// Arguments that registers hold.
pub const ARGUMENTS: usize = ARGUMENT.len();

/// Where records go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Their shape; its offset is not used. One for each line of counters but the last; without rseq [`RingArea::shared`] for so many.
    pub area: RingArea,
    /// Address of ring 0.
    pub base: u64,
    /// How a thread's number is learnt. Where a call tells it, only entries' records hold it, and stacks' do not.
    pub id: ThreadId,
    /// Where stacks end.
    pub stacks: Stacks,
    /// Where it is noted which pages texts are loaded from; `None` where the kernel copies all of them.
    pub known: Option<Known>,
}

/// Everything that one probe's records depend on.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// What the process offers.
    pub machine: &'a Machine,
    /// Where to.
    pub rings: &'a Rings,
    /// Whose hit it is; below 2³¹.
    pub probe: u32,
    /// The counter of dropped records on line 0.
    pub dropped: u64,
    /// What is dead where the stub runs.
    pub site: Site,
    /// Which entries are recorded; `None` for all.
    pub filter: Option<Filtered<'a>>,
    /// Bit `n`: at an entry, argument `n` points to text.
    pub texts: u8,
    /// Floats: in the record behind arguments and texts; at a return in the place of the value.
    pub floats: Floats,
    /// What is read of memory at an entry: in the record behind floats.
    pub fields: &'a [Read],
    /// Where entries leave marks for exits: the exits of filtered entries are not recorded. `None` where all are.
    pub marks: Option<Latency>,
    /// What an entry's record holds of the stack; then no arguments and no texts.
    pub unwind: Unwind,
    /// The stub stands at a function's entry.
    pub at_entry: bool,
}

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    machine: Machine,
    commit: Commit,
    ring: Fix,
    base: u64,
    full: Fix,
    /// The jump of those whose stack has no room for texts.
    cramped: Option<Fix>,
    /// Where the usual path goes on.
    written: u64,
    /// The same, for what left it before texts were copied.
    without_texts: u64,
    dropped: u64,
    passed: Passed,
    marks: Option<Marks>,
    /// A hit that does not pass, and an exit without a mark, goes on by itself, and where: what it spares has not been saved.
    apart: Option<(First, u64)>,
    fixups: Vec<(u64, u64)>,
}

/// How a record comes to be in its ring, and the jump of those that found none.
#[derive(Clone, Copy, Debug)]
enum Commit {
    /// By a restartable sequence; a thread may have no area.
    Section(Section, Fix),
    /// The ring was locked; all may have been.
    Lock(Fix),
}

/// A look for a mark, and all that it depends on.
#[derive(Clone, Copy, Debug)]
struct Marks {
    machine: Machine,
    latency: Latency,
    probe: u32,
    site: Site,
    mark: Mark,
    is_exit: bool,
}

/// Appends the part of a stub that comes before the displaced code, for `values` arguments at an entry (of [`ARGUMENTS`] the first)
/// and the value returned at a return, where `values` are those of the entry. The stub starts at `at`.
pub fn trace(out: &mut Vec<u8>, at: u64, traced: &Traced<'_>, kind: Kind, values: usize) -> Pending {
    let machine = *traced.machine;
    let mut asm = Asm::new(out, at);
    if let Some(staged) = stage(&mut asm, traced, kind, values) {
        return staged;
    }
    let (apart, exits) = (traced.rejects_apart(kind), kind != Kind::Entry && traced.marks.is_some());
    traced.enter_first(&mut asm, kind);
    if !apart {
        Second::enter(&mut asm);
    }
    if !apart && !exits {
        traced.enter_rest(&mut asm, kind);
    }
    let early = kind == Kind::Entry && traced.filters_by_thread();
    if early {
        traced.rings.id.ask(&mut asm);
    }
    let mut passed = match (kind, traced.filter) {
        (Kind::Entry, Some(filtered)) => traced.pass(&mut asm, filtered, Kind::Entry),
        _ => Passed::default(),
    };
    if apart {
        Second::enter(&mut asm);
        traced.enter_rest(&mut asm, kind);
    }
    // What fields reject is known late.
    let by_fields =
        kind == Kind::Entry && traced.filter.is_some_and(|filtered| filtered.filter.fields.is_some());
    let mut marks = if by_fields { None } else { traced.look(&mut asm, kind != Kind::Entry) };
    if exits {
        traced.enter_rest(&mut asm, kind);
    }
    if !early {
        traced.number(kind).ask(&mut asm);
    }
    let cramped = traced.room(&mut asm, kind);
    let fixups = traced.fetch(&mut asm, kind);
    passed.deep = traced.pass_fields(&mut asm, kind);
    let walk = traced.walk(kind);
    if let Some(walk) = walk {
        walk.bound(&mut asm);
    }
    let (commit, ring, full) = match machine.rseq {
        Some(rseq) => {
            let (section, (ring, unregistered, full)) = rseq::section_with(&mut asm, rseq, R11, |asm| {
                let fixes = traced.slot(asm, rseq);
                traced.write(asm, kind, values, walk);
                fixes
            });
            (Commit::Section(section, unregistered), ring, full)
        }
        None => {
            let (ring, busy, full) = traced.lock(&mut asm, traced.rings.area.full());
            asm.mov(R10, RAX);
            traced.clock(&mut asm);
            asm.mov(RAX, R10);
            traced.behind(&mut asm);
            traced.write(&mut asm, kind, values, walk);
            (Commit::Lock(busy), ring, full)
        }
    };
    let written = asm.here();
    traced.drop_texts(&mut asm, kind);
    if by_fields {
        marks = traced.look(&mut asm, false);
    }
    let without_texts = asm.here();
    if let Some(rseq) = machine.rseq {
        rseq::clear(&mut asm, rseq);
    }
    traced.leave(&mut asm, kind);
    let first = First { site: traced.site, at_entry: kind == Kind::Entry };
    let apart = (apart || exits).then(|| (first, asm.here()));
    let (base, dropped) = (traced.rings.base, traced.dropped);
    let tail = Tail {
        machine,
        commit,
        ring,
        base,
        full,
        cramped,
        written,
        without_texts,
        dropped,
        passed,
        marks,
        apart,
        fixups,
    };
    Pending::new(&asm, super::Kind::Traced(tail))
}

impl Traced<'_> {
    fn walk(&self, kind: Kind) -> Option<Walk> {
        let Self { unwind, at_entry, .. } = *self;
        let (stacks, most) = (self.rings.stacks, self.rings.area.most);
        Walk::wanted(unwind, kind).then(|| Walk { stacks, unwind, step: self.step(), most, at_entry })
    }
    /// Leaves a mark at an entry; at an exit takes it back, or jumps away. Spoils rax, rdx, r11 and flags.
    fn look(&self, asm: &mut Asm<'_>, is_exit: bool) -> Option<Marks> {
        let latency = self.marks?;
        let (machine, probe, site) = (*self.machine, self.probe, self.site);
        let timed = Timed { machine: &machine, latency: &latency, function: probe, site };
        let mark = if is_exit { timed.take_mark(asm) } else { timed.mark(asm, true) };
        Some(Marks { machine, latency, probe, site, mark, is_exit })
    }
}

impl Marks {
    const fn timed(&self) -> Timed<'_> {
        Timed { machine: &self.machine, latency: &self.latency, function: self.probe, site: self.site }
    }
}

impl Tail {
    pub(super) fn fixups(&self) -> &[(u64, u64)] {
        &self.fixups
    }
    /// Appends what happens to a record that is not written, the descriptors and the rings' address.
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        asm.bind(self.full);
        if let Commit::Lock(busy) = self.commit {
            asm.bind(busy);
        }
        let dropped = count(asm, &self.machine);
        asm.jmp(self.written);
        let cramped = self.cramped.map(|fix| {
            asm.bind(fix);
            let cramped = count(asm, &self.machine);
            asm.jmp(self.without_texts);
            cramped
        });
        if let Commit::Section(_, unregistered) = self.commit {
            asm.bind(unregistered);
            dropped.bind_unregistered(asm);
            asm.alu_mem_imm(Alu::Add, Mem::Rip(self.last_line(self.dropped)), 1, true);
            asm.jmp(self.written);
            if let Some(cramped) = cramped {
                cramped.bind_unregistered(asm);
                asm.alu_mem_imm(Alu::Add, Mem::Rip(self.last_line(self.dropped)), 1, true);
                asm.jmp(self.without_texts);
            }
        }
        let filtered = self.reject(asm);
        if let Some(marks) = self.marks {
            match marks.is_exit {
                true => {
                    marks.timed().finish_unmarked(asm, marks.mark, Claim::No);
                    self.go_on(asm, false);
                }
                false => marks.timed().finish_mark(asm, marks.mark),
            }
        }
        if let (Some(rseq), Commit::Section(section, _)) = (self.machine.rseq, self.commit) {
            rseq::descriptors(asm, rseq, &[section]);
        }
        let counts = [Some(dropped), cramped].into_iter().flatten().filter_map(|counted| counted.section());
        for section in counts.chain(self.passed.sections(filtered)) {
            self.machine.rseq.into_iter().for_each(|rseq| rseq::descriptors(asm, rseq, &[section]));
        }
        asm.align(8);
        asm.bind(self.ring);
        asm.u64(self.base);
        asm.bind(dropped.line);
        cramped.into_iter().for_each(|cramped| asm.bind(cramped.line));
        asm.u64(self.dropped);
        self.passed.addresses(asm, filtered);
    }
    /// What becomes of a hit that does not pass.
    fn reject(&self, asm: &mut Asm<'_>) -> Option<Counted> {
        if !self.passed.bind(asm) {
            return None;
        }
        if self.marks.is_some() && self.apart.is_some() {
            Second::enter(asm);
        }
        let mark = self.marks.map(|marks| marks.timed().mark(asm, false));
        let counted = count(asm, &self.machine);
        let leave = self.go_on(asm, true);
        if counted.section().is_some() {
            counted.bind_unregistered(asm);
            asm.alu_mem_imm(Alu::Add, Mem::Rip(self.last_line(self.passed.words)), 1, true);
            asm.jmp(leave);
        }
        if let (Some(marks), Some(mark)) = (self.marks, mark) {
            // Without a block there is nothing to take away.
            marks.timed().finish_unmarked(asm, mark, Claim::Yes);
            asm.jmp(mark.after());
        }
        if !self.passed.unregistered.is_empty() {
            self.passed.unregistered.iter().for_each(|&fix| asm.bind(fix));
            asm.alu_mem_imm(Alu::Add, Mem::Rip(self.last_line(self.dropped)), 1, true);
            asm.jmp(self.without_texts);
        }
        Some(counted)
    }
    /// The end of a hit that did not pass, and was `counted`, or of an exit without a mark: where that is.
    fn go_on(&self, asm: &mut Asm<'_>, counted: bool) -> u64 {
        let Some((first, behind)) = self.apart else {
            asm.jmp(self.without_texts);
            return self.without_texts;
        };
        let leave = asm.here();
        if let Some(rseq) = self.machine.rseq.filter(|_| counted) {
            rseq::clear(asm, rseq);
        }
        if self.marks.is_some() {
            Second::leave(asm);
        }
        first.leave(asm);
        asm.jmp(behind);
        leave
    }
    fn last_line(&self, word: u64) -> u64 {
        word.wrapping_add((u64::from(self.machine.lines.max(1)) - 1) * 64)
    }
}
