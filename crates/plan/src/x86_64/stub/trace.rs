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

use trapline_record::ring::{
    FIRST_TEXT, FIRST_VALUE, HEAD, Kind, LOCKED, RingArea, SLOTS, TAIL, TRIES, first_float,
};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg, Shift};
use super::filter::{ARGUMENT, Conditions};
use super::latency::{Claim, Mark};
use super::rseq::{self, CPU_ID, Section};
use super::stack::{self, Walk};
use super::stage::stage;
use super::text::{self, Known, Texts};
use super::{Latency, Machine, Pending, Rseq, Site, ThreadId, Timed};
use crate::filter::TargetFilter;
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

/// A filter, and where it counts.
#[derive(Clone, Copy, Debug)]
pub struct Filtered<'a> {
    /// What passes.
    pub filter: &'a TargetFilter,
    /// Address on line 0 of two words: hits that did not pass; and hits to leave out before the next sample.
    pub words: u64,
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
    /// A hit that does not pass goes on by itself, and where: what the filter spares has not been saved.
    apart: Option<(Site, u64)>,
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

/// What a filter's code has left open.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed {
    pub(super) rejected: Vec<Fix>,
    /// Jumps of threads without an area.
    pub(super) unregistered: Vec<Fix>,
    pub(super) words: u64,
    /// The section that counts samples, if there is rseq, and where the address of its words is wanted.
    pub(super) sample: Option<(Option<Section>, Fix)>,
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

/// How far ahead lines are asked for, so that a slot is in this CPU's cache when it is written.
const AHEAD: i32 = 1024;
/// The same in slots, where these are large.
const SLOTS_AHEAD: i32 = 4;
/// Lines of a stack that are asked for: of more there are few.
const STACK_LINES: i32 = 4;
const LINE: i32 = 64;
const RED_ZONE: i32 = 128;
const SAVED_RAX: i32 = -8;
const FLAGS: i32 = -16;
const SAVED_RDX: i32 = -24;
// Between these lie values of conditions, and later what `latency` saves; below them what `stack` does.
const SAVED_R11: i32 = -80;
const SAVED_R10: i32 = -88;

/// Appends the part of a stub that comes before the displaced code, for `values` arguments at an entry (of [`ARGUMENTS`] the first)
/// and the value returned at a return, where `values` are those of the entry. The stub starts at `at`.
pub fn trace(out: &mut Vec<u8>, at: u64, traced: &Traced<'_>, kind: Kind, values: usize) -> Pending {
    let machine = *traced.machine;
    let mut asm = Asm::new(out, at);
    if let Some(staged) = stage(&mut asm, traced, kind, values) {
        return staged;
    }
    let apart = traced.rejects_apart(kind);
    traced.enter_first(&mut asm, kind);
    if !apart {
        traced.enter_rest(&mut asm, kind);
    }
    let early = kind == Kind::Entry && traced.filters_by_thread();
    if early {
        traced.rings.id.ask(&mut asm);
    }
    let passed = match (kind, traced.filter) {
        (Kind::Entry, Some(filtered)) => traced.pass(&mut asm, filtered, Kind::Entry),
        _ => Passed::default(),
    };
    if apart {
        traced.enter_rest(&mut asm, kind);
    }
    let marks = traced.look(&mut asm, kind != Kind::Entry);
    if !early {
        traced.number(kind).ask(&mut asm);
    }
    let cramped = traced.room(&mut asm, kind);
    let fixups = traced.fetch(&mut asm, kind);
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
    let without_texts = asm.here();
    if let Some(rseq) = machine.rseq {
        rseq::clear(&mut asm, rseq);
    }
    traced.leave(&mut asm, kind);
    let apart = apart.then(|| (traced.site, asm.here()));
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
    /// What is saved besides what [`First`] saves.
    fn saved(&self, kind: Kind) -> impl Iterator<Item = (Reg, i32)> {
        let walked = if Walk::wanted(self.unwind, kind) { &stack::SAVED[..] } else { &[] };
        let r10 = (!self.site.is_dead(R10)).then_some((R10, SAVED_R10));
        [(RDX, SAVED_RDX)].into_iter().chain(r10).chain(walked.iter().copied())
    }
    const fn first(&self, kind: Kind) -> First {
        First { site: self.site, at_entry: matches!(kind, Kind::Entry) }
    }
    /// Whether a hit that does not pass can go on without what only a record spoils: the filter divides nothing, samples nothing, asks no
    /// system call and leaves no mark.
    fn rejects_apart(&self, kind: Kind) -> bool {
        let spares = |filtered: Filtered<'_>| {
            let filter = filtered.filter;
            filter.sample <= 1 && filter.condition.as_ref().is_some_and(|tree| !tree.divides())
        };
        let asks = self.filters_by_thread() && self.rings.id == ThreadId::Call;
        kind == Kind::Entry && self.marks.is_none() && !asks && self.filter.is_some_and(spares)
    }
    /// How far the stack pointer stands below the program's.
    pub(super) const fn step(&self) -> i32 {
        if self.site.red_zone_live { RED_ZONE } else { 0 }
    }
    pub(super) fn enter(&self, asm: &mut Asm<'_>, kind: Kind) {
        self.enter_first(asm, kind);
        self.enter_rest(asm, kind);
    }
    fn enter_first(&self, asm: &mut Asm<'_>, kind: Kind) {
        self.first(kind).enter(asm);
    }
    fn enter_rest(&self, asm: &mut Asm<'_>, kind: Kind) {
        self.saved(kind).for_each(|(reg, at)| asm.store(Mem::At(RSP, at), reg));
    }
    pub(super) fn leave(&self, asm: &mut Asm<'_>, kind: Kind) {
        self.saved(kind).for_each(|(reg, at)| asm.load(reg, Mem::At(RSP, at)));
        self.first(kind).leave(asm);
    }
    /// Jumps away with a hit that does not pass. Spoils rax, r11 and flags; r10 for samples, and without rseq rdx, which is read back.
    pub(super) fn pass(&self, asm: &mut Asm<'_>, filtered: Filtered<'_>, kind: Kind) -> Passed {
        let mut unregistered = Vec::new();
        let conditions = self.conditions(kind);
        let condition = filtered.filter.condition.as_ref();
        let mut rejected = condition.map_or_else(Vec::new, |tree| conditions.branch(asm, tree, false));
        let sample = (filtered.filter.sample > 1).then(|| {
            let sample = match self.machine.rseq {
                Some(rseq) => self.sample(asm, rseq, filtered.filter.sample, &mut unregistered),
                None => self.sample_shared(asm, filtered.filter.sample),
            };
            asm.test(RAX, RAX, true);
            rejected.push(asm.jcc_later(Cond::NotEqual));
            sample
        });
        Passed { rejected, unregistered, words: filtered.words, sample }
    }
    /// Counts down on this CPU's line. Out: rax = hits to leave out before this one.
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
    /// Without rseq: counts up on some line, where hits may be of many threads. Out: rax = 0 at each hit that is wanted.
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
    /// How what is known at a hit is read.
    pub(super) fn conditions(&self, kind: Kind) -> Conditions {
        let returned = (kind == Kind::Return).then_some(SAVED_RAX);
        Conditions { id: self.rings.id, rdx: SAVED_RDX, returned, left: None }
    }
    /// Leaves a mark at an entry; at an exit takes it back, or jumps away. Spoils rax, rdx and flags.
    fn look(&self, asm: &mut Asm<'_>, is_exit: bool) -> Option<Marks> {
        let latency = self.marks?;
        let (machine, probe, site) = (*self.machine, self.probe, self.site);
        let timed = Timed { machine: &machine, latency: &latency, function: probe, site };
        let mark = if is_exit { timed.take_mark(asm) } else { timed.mark(asm, true) };
        Some(Marks { machine, latency, probe, site, mark, is_exit })
    }
    /// Whether the filter asks which thread it is.
    pub(super) fn filters_by_thread(&self) -> bool {
        self.filter.is_some_and(|filtered| filtered.filter.asks_for_thread())
    }
    /// How a record of this kind learns its thread's number: exits and stacks ask nobody, since their entry did and sums need none.
    fn number(&self, kind: Kind) -> ThreadId {
        match self.rings.id {
            ThreadId::Call if kind != Kind::Entry || self.unwind != Unwind::None => ThreadId::Unknown,
            id => id,
        }
    }
    /// A thread whose number is not known has none (the planner refuses that).
    fn texts(&self, kind: Kind) -> Texts<'_> {
        let (known, machine, id) = (self.rings.known, Some(self.machine), self.rings.id);
        match kind == Kind::Entry && self.unwind == Unwind::None && id != ThreadId::Unknown {
            true => Texts { texts: self.texts, fields: self.fields, known, machine, id },
            false => Texts::default(),
        }
    }
    /// Jumps away where texts are copied and a goroutine's stack has no room for them.
    pub(super) fn room(&self, asm: &mut Asm<'_>, kind: Kind) -> Option<Fix> {
        let depth = self.depth(kind);
        self.rings.stacks.go.filter(|_| depth > 0).map(|go| text::room(asm, go, depth))
    }
    /// Copies texts onto the stack.
    pub(super) fn fetch(&self, asm: &mut Asm<'_>, kind: Kind) -> Vec<(u64, u64)> {
        self.texts(kind).fetch(asm, SAVED_RDX)
    }
    /// Lines of its slot that a record fills, about.
    fn lines(&self, kind: Kind) -> i32 {
        let texts = self.texts(kind).words();
        match kind {
            Kind::Entry if self.unwind != Unwind::None => STACK_LINES,
            _ if texts != 0 => (FIRST_TEXT as i32 + texts) * 8 / LINE + 1,
            _ => 1,
        }
    }
    pub(super) fn drop_texts(&self, asm: &mut Asm<'_>, kind: Kind) {
        let depth = self.depth(kind);
        if depth > 0 {
            asm.lea(RSP, Mem::At(RSP, depth));
        }
    }
    /// How far texts have moved the stack pointer.
    pub(super) fn depth(&self, kind: Kind) -> i32 {
        self.texts(kind).depth()
    }
    /// A record, and the store that commits it. In: as `slot` or `lock` leaves it.
    fn write(&self, asm: &mut Asm<'_>, kind: Kind, values: usize, walk: Option<Walk>) {
        self.fill(asm, kind, if walk.is_some() { 0 } else { values });
        let slot = self.rings.area.slot as i32;
        match walk {
            Some(walk) => {
                walk.fill(asm);
                // As many whole slots as were filled.
                asm.alu_imm(Alu::Add, RDX, slot - 1, false);
                asm.alu_imm(Alu::And, RDX, -slot, false);
                asm.alu(Alu::Add, RAX, RDX);
            }
            None => asm.lea(RAX, Mem::At(RAX, slot)),
        }
        asm.store(Mem::At(R11, HEAD as i32), RAX);
    }
    /// L1 to L3. Out: r11 = a ring, which is locked, rax = its head. Jumps where all were, and where one is `full`. Spoils rdx, r10.
    pub(super) fn lock(&self, asm: &mut Asm<'_>, full: u32) -> (Fix, Fix, Fix) {
        let area = &self.rings.area;
        rseq::likely_cpu(asm, R11, self.machine);
        asm.imul_imm(R11, R11, 2 * area.stride() as i32, true);
        let ring = asm.alu_load_later(Alu::Add, R11);
        asm.mov_imm32(RDX, TRIES);
        let again = asm.here();
        asm.load(RAX, Mem::At(R11, HEAD as i32));
        asm.test_imm32(RAX, LOCKED as u32);
        let taken = asm.jcc_later(Cond::NotEqual);
        asm.mov(R10, RAX);
        asm.alu_load(Alu::Sub, R10, Mem::At(R11, TAIL as i32));
        asm.alu_imm(Alu::Cmp, R10, full as i32, true);
        let full = asm.jcc_later(Cond::AboveEq);
        asm.lea(R10, Mem::At(RAX, LOCKED as i32));
        asm.cmpxchg(Mem::At(R11, HEAD as i32), R10);
        let locked = asm.jcc_later(Cond::Equal);
        asm.bind(taken);
        asm.alu_imm(Alu::Add, R11, area.stride() as i32, true);
        asm.alu_imm(Alu::Sub, RDX, 1, false);
        asm.jcc(Cond::NotEqual, again);
        let busy = asm.jmp_later();
        asm.bind(locked);
        (ring, busy, full)
    }
    /// Out: rdx = time. Spoils rax.
    pub(super) fn clock(&self, asm: &mut Asm<'_>) {
        asm.rdtsc();
        asm.shift(Shift::Left, RDX, 32, true);
        asm.alu(Alu::Or, RDX, RAX);
    }
    /// In: r11 = ring, r10 = head. Out: r10 = the slot behind it.
    pub(super) fn behind(&self, asm: &mut Asm<'_>) {
        asm.alu_imm(Alu::And, R10, self.rings.area.bytes as i32 - 1, false);
        asm.lea(R10, Mem::Sum(R11, R10, 0, SLOTS as i32));
    }
    /// Out: rdx = time, r11 = this CPU's ring, rax = its head, r10 = the slot behind it.
    fn slot(&self, asm: &mut Asm<'_>, rseq: Rseq) -> (Fix, Fix, Fix) {
        self.clock(asm);
        let fixes = self.find(asm, rseq, self.rings.area.full());
        asm.mov(R10, RAX);
        self.behind(asm);
        fixes
    }
    /// Out: r11 = this CPU's ring, rax = its head. Jumps in a thread without an area, and where the ring is `full`. Spoils r10.
    pub(super) fn find(&self, asm: &mut Asm<'_>, rseq: Rseq, full: u32) -> (Fix, Fix, Fix) {
        let area = &self.rings.area;
        asm.load32(R11, Mem::Fs(rseq.offset + CPU_ID));
        let unregistered = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, R11, self.machine.lines as i32 - 1, false);
            asm.jcc_later(Cond::AboveEq)
        });
        asm.imul_imm(R11, R11, area.stride() as i32, true);
        let ring = asm.alu_load_later(Alu::Add, R11);
        asm.load(RAX, Mem::At(R11, HEAD as i32));
        asm.mov(R10, RAX);
        asm.alu_load(Alu::Sub, R10, Mem::At(R11, TAIL as i32));
        let full = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, R10, full as i32, true);
            asm.jcc_later(Cond::AboveEq)
        });
        (ring, unregistered, full)
    }
    /// In: as `slot` leaves it. Spoils rdx.
    fn fill(&self, asm: &mut Asm<'_>, kind: Kind, values: usize) {
        let ahead = AHEAD.max(SLOTS_AHEAD * self.rings.area.slot as i32);
        (0..self.lines(kind)).for_each(|line| asm.prefetchw(Mem::At(R10, ahead + line * LINE)));
        self.put(asm, kind, values);
    }
    /// The words of a record. In: rdx = time, r10 = where. Spoils rdx.
    pub(super) fn put(&self, asm: &mut Asm<'_>, kind: Kind, values: usize) {
        let (depth, word) = (self.depth(kind), |n: u64| Mem::At(R10, n as i32 * 8));
        asm.store(word(1), RDX);
        match self.number(kind) {
            ThreadId::Unknown => asm.mov_imm32(RDX, self.probe),
            id => {
                id.load(asm, RDX, depth);
                asm.shift(Shift::Left, RDX, 32, true);
                asm.alu_imm(Alu::Or, RDX, self.probe as i32, true);
            }
        }
        asm.store(word(0), RDX);
        asm.lea(RDX, Mem::At(RSP, depth + self.step() + kind as i32));
        asm.store(word(2), RDX);
        let all: &[Reg] = match kind {
            Kind::Entry => &ARGUMENT[..values.min(ARGUMENTS)],
            Kind::Return if self.floats.returned => {
                asm.store_vector(word(FIRST_VALUE), 0);
                &[]
            }
            Kind::Return => &[RAX],
            Kind::Tail => &[],
        };
        for (&reg, n) in all.iter().take(self.rings.area.values()).zip(FIRST_VALUE..) {
            let saved = [(RAX, SAVED_RAX), (RDX, SAVED_RDX)].into_iter().find(|(other, _)| *other == reg);
            let from = saved.map_or(reg, |(_, at)| {
                asm.load(RDX, Mem::At(RSP, depth + at));
                RDX
            });
            asm.store(word(n), from);
        }
        let first = first_float(values.min(ARGUMENTS), self.texts(kind).count() as usize);
        if depth > 0 {
            self.texts(kind).fill(asm, first + u64::from(self.floats.arguments.count_ones()));
        }
        if kind == Kind::Entry && self.unwind == Unwind::None {
            let vectors = (0..8u8).filter(|n| self.floats.arguments >> n & 1 == 1);
            for (vector, n) in vectors.zip(first..u64::from(self.rings.area.slot) / 8) {
                asm.store_vector(word(n), vector);
            }
        }
    }
}

/// What is saved first, and is all that a filter spoils: flags, rax and r11, as far as they are live.
#[derive(Clone, Copy, Debug)]
struct First {
    site: Site,
    at_entry: bool,
}

impl First {
    /// At an exit rax holds what is returned.
    const fn saves_rax(self) -> bool {
        !(self.at_entry && self.site.is_dead(RAX))
    }
    fn enter(self, asm: &mut Asm<'_>) {
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
        }
        if self.saves_rax() {
            asm.store(Mem::At(RSP, SAVED_RAX), RAX);
        }
        if !self.site.flags_dead {
            asm.flags_to_rax();
            asm.store32(Mem::At(RSP, FLAGS), RAX);
        }
        if !self.site.is_dead(R11) {
            asm.store(Mem::At(RSP, SAVED_R11), R11);
        }
    }
    fn leave(self, asm: &mut Asm<'_>) {
        if !self.site.flags_dead {
            asm.load32(RAX, Mem::At(RSP, FLAGS));
            asm.flags_from_rax();
        }
        if !self.site.is_dead(R11) {
            asm.load(R11, Mem::At(RSP, SAVED_R11));
        }
        if self.saves_rax() {
            asm.load(RAX, Mem::At(RSP, SAVED_RAX));
        }
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, RED_ZONE));
        }
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
                true => marks.timed().finish_unmarked(asm, marks.mark, Claim::No, self.without_texts),
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
        if self.passed.rejected.is_empty() {
            return None;
        }
        self.passed.rejected.iter().for_each(|&fix| asm.bind(fix));
        let mark = self.marks.map(|marks| marks.timed().mark(asm, false));
        let counted = count(asm, &self.machine);
        let leave = self.go_on(asm);
        if counted.section().is_some() {
            counted.bind_unregistered(asm);
            asm.alu_mem_imm(Alu::Add, Mem::Rip(self.last_line(self.passed.words)), 1, true);
            asm.jmp(leave);
        }
        if let (Some(marks), Some(mark)) = (self.marks, mark) {
            // Without a block there is nothing to take away.
            marks.timed().finish_unmarked(asm, mark, Claim::Yes, mark.after());
        }
        if !self.passed.unregistered.is_empty() {
            self.passed.unregistered.iter().for_each(|&fix| asm.bind(fix));
            asm.alu_mem_imm(Alu::Add, Mem::Rip(self.last_line(self.dropped)), 1, true);
            asm.jmp(self.without_texts);
        }
        Some(counted)
    }
    /// The end of a hit that did not pass: where that is.
    fn go_on(&self, asm: &mut Asm<'_>) -> u64 {
        let Some((site, behind)) = self.apart else {
            asm.jmp(self.without_texts);
            return self.without_texts;
        };
        let leave = asm.here();
        if let Some(rseq) = self.machine.rseq {
            rseq::clear(asm, rseq);
        }
        First { site, at_entry: true }.leave(asm);
        asm.jmp(behind);
        leave
    }
    fn last_line(&self, word: u64) -> u64 {
        word.wrapping_add((u64::from(self.machine.lines.max(1)) - 1) * 64)
    }
}

impl Passed {
    /// Sections that want descriptors.
    pub(super) fn sections(&self, filtered: Option<Counted>) -> impl Iterator<Item = Section> {
        let sample = self.sample.and_then(|(section, _)| section);
        filtered.and_then(|counted| counted.section()).into_iter().chain(sample)
    }
    /// The address that the count of rejected hits wants, and that of samples.
    pub(super) fn addresses(&self, asm: &mut Asm<'_>, filtered: Option<Counted>) {
        let Some(counted) = filtered else { return };
        asm.bind(counted.line);
        if let Some((_, words)) = self.sample {
            asm.bind(words);
        }
        asm.u64(self.words);
    }
}

/// A count that waits for its word's address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// With rseq: its section, and the jump of threads without an area.
    owned: Option<(Section, Fix)>,
    pub(super) line: Fix,
}

impl Counted {
    pub(super) fn section(&self) -> Option<Section> {
        self.owned.map(|(section, _)| section)
    }
    pub(super) fn bind_unregistered(&self, asm: &mut Asm<'_>) {
        self.owned.into_iter().for_each(|(_, unregistered)| asm.bind(unregistered));
    }
}

/// Adds one to a word of this CPU's line; without rseq to that of some line. Spoils r11 and flags.
pub(super) fn count(asm: &mut Asm<'_>, machine: &Machine) -> Counted {
    let Some(rseq) = machine.rseq else {
        let line = any_line(asm, machine);
        asm.alu_mem_imm(Alu::Add, Mem::At(R11, 0), 1, true);
        return Counted { owned: None, line };
    };
    let (section, (unregistered, line)) = rseq::section_with(asm, rseq, R11, |asm| {
        asm.load32(R11, Mem::Fs(rseq.offset + CPU_ID));
        asm.alu_imm(Alu::Cmp, R11, machine.lines as i32 - 1, false);
        let unregistered = asm.jcc_later(Cond::AboveEq);
        asm.shift(Shift::Left, R11, 6, false);
        let line = asm.alu_load_later(Alu::Add, R11);
        asm.alu_mem_imm(Alu::Add, Mem::At(R11, 0), 1, false);
        (unregistered, line)
    });
    Counted { owned: Some((section, unregistered)), line }
}

/// Leaves in r11 the address of a word on some line, which waits for that on line 0. Spoils flags.
fn any_line(asm: &mut Asm<'_>, machine: &Machine) -> Fix {
    rseq::any_line(asm, R11, machine.rdpid, machine.lines);
    asm.shift(Shift::Left, R11, 6, false);
    asm.alu_load_later(Alu::Add, R11)
}
