//! Deferred records: a call about which its return decides. Nothing is recorded before the return, and all of
//! it then.
//!
//! In: as for `trace`, with a filter that has a late part ([`Late`]): a condition on the returned value, on
//! the duration, and on the entry's arguments together with these. Out: the code of the entry, and of the
//! exits. General registers only. No system call except those that texts and threads' numbers take at any
//! entry.
//!
//! # Protocol
//!
//! The entry's record is written as usual, but into a stamp cell of the call's own (its *place*) in private
//! memory. The cell is as large as a ring slot, and lies in the block of its stack page (`record::latency`).
//! It is found by the stack pointer at the entry, which the exit has again. For a goroutine it is found by
//! the goroutine and the distance to its stack's end, which stays the same when the stack moves. A cell is
//! *marked* while the record's third word is the cell's own address, and its first word names the probe. Both
//! records are paired by that address.
//!
//! E1 The early condition and the sample decide. For a call that does not pass, a mark that an abandoned call
//!    left in its cell is taken away. The call is counted as rejected, and goes on.
//! E2 The call is counted as begun.
//! E3 Its cell is found. If there is none (all blocks that its page may have belong to other pages), the call
//!    is counted as dropped, and its exit finds no mark.
//! E4 The mark is taken away; texts are copied onto the stack; the clock is read; the record is written into
//!    the cell, and with it the mark.
//! X1 The exit looks for the mark. Without one, it is the exit of a call that E1 or E3 ended, or that began
//!    before the patch came. It goes on.
//! X2 In one restartable sequence: the clock is read; the late condition decides, by the record and by the
//!    returned value. This CPU's ring must have room for two records, or the call is dropped. Both records
//!    are written behind the head, the entry's first and then the exit's. The head is stored, two slots
//!    further.
//! X3 A call that X2 rejected or dropped is counted.
//! X4 The mark is taken away.
//!
//! Invariant: STG-1 begun = written + dropped + rejected late + calls that have not ended, each by one
//! commit. And hits = rejected early + begun. A reader sees both records of a call or none, beside each
//! other. It puts them in the order of the clock with all others, as it does with those of several rings.
//!
//! # Interleavings
//!
//! - *The thread is moved or interrupted in X2*: it starts again, with the present time: what is written is
//!   what was decided about. In a process without rseq, X2 reads the clock and decides before it locks a
//!   ring. The record has that time, however long locking took.
//! - *A signal handler anywhere*: the functions that it calls have lower cells on this stack, or others on
//!   its own. After E4 it may leave by longjmp: as below.
//! - *Recursion*: each depth has its own stack pointer, and so its own cell.
//! - *A call is left by longjmp, an exception, or the end of its thread*: its mark stays, and it counts as
//!   not ended. The next call with this stack pointer, of whichever thread has that stack by then, takes the
//!   mark away in E1 or E4, before any exit of its own. The exit of another probe's call there finds a
//!   different name in it.
//! - *A tail call*: the exit of the first function comes before the entry of the second one, which may have
//!   the same cell. What the first one returned is not known: a comparison with it decides neither way
//!   ([`Tree::at_tail`]).
//! - *Fork between entry and exit*: the child has the cells too, as its own copy. It comes back from the call
//!   as its parent does, and each writes what passes: two calls ended for one that began.
//! - *vfork*: the child runs on its parent's stack and in its memory, below it. It does not return from where
//!   it was called.
//! - *The thread is killed*: before X2's store nothing was written; behind it all was. Between X2 and X3 the
//!   call is one that has not ended.
//! - *Detaching* does not wait for calls: a call whose exit is no longer patched has not ended.
//! - *Cells of several segments* do not meet: each segment has memory of its own.
//! - *A goroutine's stack moves*: the cell stays where it was. If a function checks whether its stack
//!   suffices and begins anew on a larger one, its entry is met twice with one cell: the first is a call that
//!   has not ended.
//! - *A goroutine goes on in another thread*: the thread that hands it over and the thread that takes it are
//!   in order (Go's scheduler), so plain loads see what the entry stored. The exit's record names the entry's
//!   thread, as the reader pairs by it.
//! - *A goroutine ends between entry and exit* (a panic, Goexit), and another one gets its g: as a call that
//!   is left by longjmp.
//! - *A thread of a Go program without a goroutine* has cells as threads elsewhere have them.

use trapline_record::counters::filtered;
use trapline_record::ring::{HEAD, Kind, LOCKED, first_float};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R10, R11, RAX, RDX, RSI, RSP, Reg};
use super::counted::{Counted, count};
use super::filter::{Conditions, EntryRecord, Fields};
use super::filtering::FilterExits;
use super::latency::{Claim, Latency, Lookup, Timed};
use super::machine::{Liveness, Machine};
use super::put::Placed;
use super::rseq::{self, Section};
use super::threads;
use super::traced::{ARGUMENTS, Traced};
use crate::filter::{Known, Late, Tree};

/// Offset of this save, below those of `trace`.
pub(super) const SAVED_RSI: Mem = Mem::At(RSP, -112);
/// Where r8 is saved while a cell is looked for; no intermediate value of a condition lies there then.
const SAVED_R8: Mem = Mem::At(RSP, -56);
/// At an entry: offset of the cell's address.
const PLACE: i32 = -120;
/// At an exit: the time, and later the nanoseconds that the call took.
const TIME: Mem = Mem::At(RSP, -120);
const TOOK: i32 = -128;
/// The two words of a cell that make its mark: the record's probe, and the stack pointer.
const RECORD_IDS: Mem = Mem::At(RSI, 0);
const BEGAN: Mem = Mem::At(RSI, 8);
pub(super) const MARK: Mem = Mem::At(RSI, 16);
/// Number of words that are copied one by one; more are copied in a loop.
const UNROLLED: u64 = 8;

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) enum Tail {
    Entry(EntryTail),
    Exit(ExitTail),
}

/// The calls whose cell is looked for, with all that this depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfProbe {
    pub(super) machine: Machine,
    latency: Latency,
    probe: u32,
    site: Liveness,
}

impl OfProbe {
    const fn timed(&self) -> Timed<'_> {
        Timed { machine: &self.machine, latency: &self.latency, function: self.probe, site: self.site }
    }
    /// A word of a probe on the last line.
    fn last_line(&self, word: u64) -> Mem {
        Mem::Rip(word.wrapping_add((u64::from(self.machine.lines.max(1)) - 1) * 64))
    }
    /// Closes a count: emits the path of threads without an area, and jumps to where all go on.
    pub(super) fn unregistered(&self, asm: &mut Asm<'_>, counted: Counted, word: u64, behind: u64) {
        if counted.section().is_some() {
            counted.bind_unregistered(asm);
            asm.alu_mem_imm(Alu::Add, self.last_line(word), 1, true);
            asm.jmp(behind);
        }
    }
    /// Out: rsi = the cell, once it is found; the previous rsi is in [`SAVED_RSI`]. Spoils rax, rdx.
    pub(super) fn look(&self, asm: &mut Asm<'_>) -> Lookup {
        asm.store(SAVED_RSI, RSI);
        if self.timed().special() {
            asm.store(SAVED_R8, R8);
        }
        let lookup = self.timed().lookup(asm);
        self.restore(asm);
        lookup
    }
    /// Emits the search for the case that the first look did not find the cell. Falls out of the end if there
    /// is none.
    pub(super) fn search(&self, asm: &mut Asm<'_>, lookup: Lookup, claim: Claim) {
        self.timed().search(asm, lookup, claim);
        self.restore(asm);
    }
    fn restore(&self, asm: &mut Asm<'_>) {
        if self.timed().special() {
            asm.load(R8, SAVED_R8);
        }
    }
    /// How the records of the call are identified whose cell's address is in `at`.
    const fn placed(&self, at: Reg, kind: Kind) -> Option<Placed> {
        let names = self.latency.go.is_some() && !matches!(kind, Kind::Entry);
        Some(Placed { at, names })
    }
    pub(super) fn descriptors(&self, asm: &mut Asm<'_>, sections: &[Option<Section>]) {
        let Some(rseq) = self.machine.rseq else { return };
        sections.iter().flatten().for_each(|&section| rseq::descriptors(asm, rseq, &[section]));
    }
}

/// Addresses of the words that count a probe's calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    rejected: u64,
    begun: u64,
    pub(super) rejected_late: u64,
    dropped: u64,
}

#[derive(Clone, Debug)]
pub(super) struct EntryTail {
    of_probe: OfProbe,
    words: Words,
    passed: FilterExits,
    begun: Counted,
    /// Where the count of begun calls goes on.
    behind_begun: u64,
    lookup: Lookup,
    cramped: Option<Fix>,
    /// Where a call without a cell goes on, and one that does not pass.
    placeless: u64,
    leave: u64,
    fixups: Vec<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct ExitTail {
    of_probe: OfProbe,
    words: Words,
    base: u64,
    /// With rseq: the section, and the jump of threads without an area; otherwise the jump of calls that
    /// found all rings locked.
    section: Option<Section>,
    astray: Fix,
    ring: Fix,
    full: Fix,
    rejected: Vec<Fix>,
    lookup: Lookup,
    unmarked: [Fix; 2],
    /// Step X4, and what comes behind it.
    done: u64,
    leave: u64,
}

/// The calls of one probe.
pub(super) struct Deferred<'a> {
    pub(super) traced: &'a Traced<'a>,
    late: &'a Late,
    pub(super) of_probe: OfProbe,
    pub(super) words: Words,
    /// Number of arguments in an entry's record.
    values: usize,
}

/// Appends the part of a stub that comes before the displaced code; `None` if no return decides about the
/// probe's calls.
pub(super) fn defer(asm: &mut Asm<'_>, traced: &Traced<'_>, kind: Kind, values: usize) -> Option<Tail> {
    let defer = Deferred::of(traced, values)?;
    match kind {
        Kind::Entry => defer.entry(asm).map(Tail::Entry),
        _ => Some(Tail::Exit(defer.exit(asm, kind))),
    }
}

impl<'a> Deferred<'a> {
    /// `None` if no return decides about the probe's calls.
    pub(super) fn of(traced: &'a Traced<'a>, values: usize) -> Option<Self> {
        let filter = traced.filter?;
        let (late, latency) = (filter.filter.late.as_ref()?, traced.marks?);
        let word = |n: u32| filter.words + u64::from(n) * 8;
        let words = Words {
            rejected: word(filtered::REJECTED),
            begun: word(filtered::BEGUN),
            rejected_late: word(filtered::REJECTED_LATE),
            dropped: traced.dropped,
        };
        let of_probe = OfProbe { machine: *traced.machine, latency, probe: traced.probe, site: traced.site };
        let values = values.min(ARGUMENTS);
        Some(Self { traced, late, of_probe, words, values })
    }

    /// Steps E1 to E4.
    fn entry(&self, asm: &mut Asm<'_>) -> Option<EntryTail> {
        let (traced, kind) = (self.traced, Kind::Entry);
        traced.enter(asm, kind);
        threads::ask(traced.rings.id, asm);
        let passed = traced.pass(asm, traced.filter?, kind);
        let begun = count(asm, &self.of_probe.machine);
        let behind_begun = asm.here();
        let lookup = self.of_probe.look(asm);
        asm.store_imm(MARK, 0);
        asm.store(Mem::At(RSP, PLACE), RSI);
        asm.load(RSI, SAVED_RSI);
        let cramped = traced.room(asm, kind);
        let fixups = traced.fetch(asm, kind);
        asm.load(R10, Mem::At(RSP, traced.depth(kind) + PLACE));
        traced.clock(asm);
        traced.put(asm, kind, self.values, self.of_probe.placed(R10, kind));
        traced.drop_texts(asm, kind);
        let leave = asm.here();
        if let Some(rseq) = self.of_probe.machine.rseq {
            rseq::clear(asm, rseq);
        }
        traced.leave(asm, kind);
        let (of_probe, words) = (self.of_probe, self.words);
        let placeless = leave;
        Some(EntryTail {
            of_probe,
            words,
            passed,
            begun,
            behind_begun,
            lookup,
            cramped,
            placeless,
            leave,
            fixups,
        })
    }

    /// Steps X1 to X4.
    fn exit(&self, asm: &mut Asm<'_>, kind: Kind) -> ExitTail {
        let Self { traced, of_probe, words, .. } = *self;
        traced.enter(asm, kind);
        let lookup = of_probe.look(asm);
        let unmarked = self.look(asm);
        let (section, (rejected, (ring, astray, full))) = match of_probe.machine.rseq {
            Some(rseq) => {
                let (section, fixes) = rseq::section_with(asm, rseq, R11, |asm| {
                    let rejected = self.decide(asm, kind);
                    let fixes = traced.find(asm, rseq, self.full());
                    self.write(asm, kind);
                    (rejected, fixes)
                });
                (Some(section), fixes)
            }
            None => {
                let rejected = self.decide(asm, kind);
                let fixes = traced.lock(asm, self.full());
                self.write(asm, kind);
                (None, (rejected, fixes))
            }
        };
        let done = asm.here();
        asm.store_imm(MARK, 0);
        asm.load(RSI, SAVED_RSI);
        let leave = asm.here();
        if let Some(rseq) = of_probe.machine.rseq {
            rseq::clear(asm, rseq);
        }
        traced.leave(asm, kind);
        let base = traced.rings.base;
        ExitTail {
            of_probe,
            words,
            base,
            section,
            astray,
            ring,
            full,
            rejected,
            lookup,
            unmarked,
            done,
            leave,
        }
    }

    /// A ring with this many bytes in use, or more, has no room for two records.
    const fn full(&self) -> u32 {
        let area = &self.traced.rings.area;
        area.bytes.saturating_sub(area.slot)
    }

    /// Step X1. In: rsi = the cell.
    pub(super) fn look(&self, asm: &mut Asm<'_>) -> [Fix; 2] {
        let place = asm.unbroken(|asm| {
            asm.alu_load(Alu::Cmp, RSI, MARK);
            asm.jcc_later(Cond::NotEqual)
        });
        let probe = asm.unbroken(|asm| {
            asm.cmp_mem_imm32(RECORD_IDS, self.of_probe.probe);
            asm.jcc_later(Cond::NotEqual)
        });
        [place, probe]
    }

    /// The condition that must hold.
    pub(super) fn condition(&self, kind: Kind) -> Tree {
        match kind {
            Kind::Tail => self.late.condition.at_tail(),
            _ => self.late.condition.decided(),
        }
    }
    /// Reads the clock, computes the duration, and jumps if the condition does not hold. Spoils rax, rdx,
    /// r11.
    fn decide(&self, asm: &mut Asm<'_>, kind: Kind) -> Vec<Fix> {
        let tree = self.condition(kind);
        self.time(asm, asks_for_duration(&tree));
        self.known().branch(asm, &tree, false)
    }
    /// Reads the clock and, if `took`, computes how long the call took. Spoils rax, rdx, r11.
    pub(super) fn time(&self, asm: &mut Asm<'_>, took: bool) {
        self.traced.clock(asm);
        asm.store(TIME, RDX);
        if took {
            asm.mov(RAX, RDX);
            asm.alu_load(Alu::Sub, RAX, BEGAN);
            let forwards = asm.jcc_later(Cond::AboveEq);
            asm.mov_imm32(RAX, 0);
            asm.bind(forwards);
            asm.mov_imm64(R11, self.late.tick);
            asm.multiply_wide(R11);
            asm.shift_from(RAX, RDX, 32);
            asm.store(Mem::At(RSP, TOOK), RAX);
        }
    }
    /// How a condition reads what is known at a return. In: rsi = the cell.
    pub(super) fn known(&self) -> Conditions<'_> {
        let traced = self.traced;
        let first = first_float(self.values, traced.texts.count_ones() as usize);
        let left = EntryRecord { floats: (first, traced.floats.arguments), took: TOOK };
        let first_field = first + u64::from(traced.floats.arguments.count_ones());
        let fields = Some(Fields { reads: traced.fields, at: (EntryRecord::AT, first_field as i32 * 8) });
        Conditions { left: Some(left), fields, ..traced.conditions(Kind::Return) }
    }

    /// Number of words in the entry's record.
    fn length(&self) -> u64 {
        let traced = self.traced;
        let fields: usize = traced.fields.iter().map(crate::request::Read::words).sum();
        let behind = first_float(self.values, traced.texts.count_ones() as usize);
        let all = behind + u64::from(traced.floats.arguments.count_ones()) + fields as u64;
        all.min(u64::from(traced.rings.area.slot) / 8)
    }

    /// Writes both records, and commits them. In: r11 = ring, rax = its head, rsi = the cell. Spoils rdx,
    /// r10.
    fn write(&self, asm: &mut Asm<'_>, kind: Kind) {
        let traced = self.traced;
        let slot = traced.rings.area.slot as i32;
        asm.lea(R10, Mem::At(RAX, slot));
        traced.behind(asm);
        asm.load(RDX, TIME);
        traced.put(asm, kind, self.values, self.of_probe.placed(RSI, kind));
        asm.mov(R10, RAX);
        traced.behind(asm);
        let words = self.length();
        if words <= UNROLLED {
            for word in 0..words as i32 {
                asm.load(RDX, Mem::At(RSI, word * 8));
                asm.store(Mem::At(R10, word * 8), RDX);
            }
            asm.lea(RAX, Mem::At(RAX, 2 * slot));
        } else {
            asm.mov_imm32(RAX, words as u32);
            let again = asm.here();
            asm.load(RDX, Mem::Sum(RSI, RAX, 3, -8));
            asm.store(Mem::Sum(R10, RAX, 3, -8), RDX);
            asm.alu_imm(Alu::Sub, RAX, 1, false);
            asm.jcc(Cond::NotEqual, again);
            // The ring is still this CPU's, or still locked by this thread.
            let locked = if self.of_probe.machine.rseq.is_some() { 0 } else { LOCKED as i32 };
            asm.load(RAX, Mem::At(R11, HEAD as i32));
            asm.lea(RAX, Mem::At(RAX, 2 * slot - locked));
        }
        asm.store(Mem::At(R11, HEAD as i32), RAX);
    }
}

pub(super) fn asks_for_duration(tree: &Tree) -> bool {
    let mut asks = false;
    tree.each_known(&mut |known| asks |= known == Known::Took);
    asks
}

impl Tail {
    /// Appends what comes behind the displaced code. Returns the instructions that may fault, and where a thread
    /// goes on then.
    pub(super) fn finish(self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        match self {
            Self::Entry(tail) => tail.finish(asm),
            Self::Exit(tail) => {
                tail.finish(asm);
                Vec::new()
            }
        }
    }
}

impl EntryTail {
    fn finish(self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        let Self { of_probe, words, leave, .. } = self;
        of_probe.unregistered(asm, self.begun, words.begun, self.behind_begun);
        // E3
        of_probe.search(asm, self.lookup, Claim::Yes);
        asm.load(RSI, SAVED_RSI);
        asm.alu_mem_imm(Alu::Add, of_probe.last_line(words.dropped), 1, true);
        asm.jmp(self.placeless);
        if let Some(cramped) = self.cramped {
            asm.bind(cramped);
            asm.alu_mem_imm(Alu::Add, of_probe.last_line(words.dropped), 1, true);
            asm.jmp(leave);
        }
        let rejected = self.reject(asm);
        let sample = self.passed.sample.and_then(|(section, _)| section);
        let rejects = rejected.and_then(|rejected| rejected.section());
        of_probe.descriptors(asm, &[self.begun.section(), sample, rejects]);
        asm.align(8);
        asm.bind(self.begun.line);
        asm.u64(words.begun);
        self.passed.addresses(asm, rejected);
        self.fixups
    }
    /// Step E1, for a call that does not pass.
    fn reject(&self, asm: &mut Asm<'_>) -> Option<Counted> {
        let Self { of_probe, words, .. } = self;
        if !self.passed.bind(asm) {
            return None;
        }
        let counted = count(asm, &of_probe.machine);
        let forget = asm.here();
        let lookup = of_probe.look(asm);
        asm.store_imm(MARK, 0);
        let none = asm.here();
        asm.load(RSI, SAVED_RSI);
        asm.jmp(self.leave);
        of_probe.search(asm, lookup, Claim::No);
        asm.jmp(none);
        of_probe.unregistered(asm, counted, words.rejected, forget);
        if !self.passed.unregistered.is_empty() {
            // A thread without an area has no sample of its own, so its call is counted as begun and dropped.
            self.passed.unregistered.iter().for_each(|&fix| asm.bind(fix));
            for word in [words.begun, words.dropped] {
                asm.alu_mem_imm(Alu::Add, of_probe.last_line(word), 1, true);
            }
            asm.jmp(forget);
        }
        Some(counted)
    }
}

impl ExitTail {
    fn finish(self, asm: &mut Asm<'_>) {
        let Self { of_probe, words, done, .. } = self;
        // X3
        asm.bind(self.full);
        if self.section.is_none() {
            asm.bind(self.astray);
        }
        let dropped = count(asm, &of_probe.machine);
        asm.jmp(done);
        if self.section.is_some() {
            asm.bind(self.astray);
            // The count by a section would take the same way, since the thread has no area.
            asm.alu_mem_imm(Alu::Add, of_probe.last_line(words.dropped), 1, true);
            asm.jmp(done);
        }
        of_probe.unregistered(asm, dropped, words.dropped, done);
        self.rejected.iter().for_each(|&fix| asm.bind(fix));
        let rejected = count(asm, &of_probe.machine);
        asm.jmp(done);
        of_probe.unregistered(asm, rejected, words.rejected_late, done);
        // X1 without a mark.
        of_probe.search(asm, self.lookup, Claim::No);
        self.unmarked.into_iter().for_each(|fix| asm.bind(fix));
        asm.load(RSI, SAVED_RSI);
        asm.jmp(self.leave);
        of_probe.descriptors(asm, &[self.section, dropped.section(), rejected.section()]);
        asm.align(8);
        asm.bind(self.ring);
        asm.u64(self.base);
        asm.bind(dropped.line);
        asm.u64(words.dropped);
        asm.bind(rejected.line);
        asm.u64(words.rejected_late);
    }
}
