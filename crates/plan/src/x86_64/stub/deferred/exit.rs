//! The exit of a call with a deferred record: steps X1 to X4.
//!
//! ```text
//!   X1    rsi = the cell; a jump unless it is marked
//!   X2    [rsp - 120] = time, [rsp - 128] = nanoseconds     rax, rdx, r11 used
//!         the condition                                     rax, r11 used
//!         r11 = ring, rax = its head h                      r10 used; without rseq: locked, rdx used
//!         r10 = slot of h                                   the entry's words are copied from rsi to r10
//!         r10 = slot of h + slot, rdx = time                the exit's record is written there
//!         [r11 + HEAD] += 2 · slot                          the commit; without rseq it also unlocks
//!   X4    [rsi + 16] = 0;  rsi = [rsp - 112]
//! ```
//!
//! The ring has no room if `head - [ring + TAIL] >= bytes - slot`, where `bytes` is the ring's length.
//!
//! In: a probe's records, with a late condition. Out: code that decides about a marked call, and writes both records
//! by one commit; the paths of calls that are not marked, rejected or dropped.

use trapline_record::ring::{HEAD, LOCKED, RecordKind};

use super::call::{CallCell, Deferred, MARK, SAVED_RSI, TIME, Words, asks_for_duration};
use super::kept::keep;
use crate::x86_64::stub::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSI};
use crate::x86_64::stub::counted::count;
use crate::x86_64::stub::latency::{Claim, Lookup};
use crate::x86_64::stub::put::RingWriter;
use crate::x86_64::stub::rseq::{self, Section};

/// Number of words that are copied one by one; more are copied in a loop.
const UNROLLED: u64 = 8;

/// What is left to append behind an exit's displaced code.
#[derive(Clone, Debug)]
pub(in crate::x86_64::stub) struct ExitTail {
    cell: CallCell,
    words: Words,
    /// With rseq: the section, and the jump of threads without an area; otherwise the jump of calls that
    /// found all rings locked.
    section: Option<Section>,
    astray: Fix,
    full: Fix,
    rejected: Vec<Fix>,
    lookup: Lookup,
    unmarked: [Fix; 2],
    /// Step X4, and what comes behind it.
    done: u64,
    leave: u64,
}

/// The code of one exit.
struct Exit<'a> {
    deferred: &'a Deferred<'a>,
    kind: RecordKind,
    writer: RingWriter<'a>,
}

impl Exit<'_> {
    /// Steps X1 to X4.
    fn emit(&self, asm: &mut Asm<'_>) -> ExitTail {
        let Deferred { traced, cell, words, .. } = *self.deferred;
        let saves = traced.saves(self.kind);
        saves.enter(asm);
        let lookup = cell.look(asm);
        let unmarked = self.deferred.look(asm);
        keep(asm, self.deferred, self.kind);
        let (section, (rejected, (astray, full))) = match cell.machine.rseq {
            Some(rseq) => {
                let (section, fixes) = rseq::section_with(asm, rseq, R11, |asm| {
                    let rejected = self.decide(asm);
                    let fixes = self.writer.find(asm, self.full());
                    self.write(asm);
                    (rejected, fixes)
                });
                (Some(section), fixes)
            }
            None => {
                let rejected = self.decide(asm);
                let fixes = self.writer.lock(asm, self.full());
                self.write(asm);
                (None, (rejected, fixes))
            }
        };
        let done = asm.here();
        asm.store_imm(MARK, 0);
        asm.load(RSI, SAVED_RSI);
        let leave = asm.here();
        if let Some(rseq) = cell.machine.rseq {
            rseq::clear(asm, rseq);
        }
        saves.leave(asm);
        ExitTail { cell, words, section, astray, full, rejected, lookup, unmarked, done, leave }
    }

    /// A ring with this many bytes in use, or more, has no room for two records.
    const fn full(&self) -> u32 {
        let area = &self.writer.rings.area;
        area.bytes.saturating_sub(area.slot)
    }

    /// Reads the clock, computes the duration, and jumps if the condition does not hold. Uses rax, rdx, r11
    /// and flags.
    fn decide(&self, asm: &mut Asm<'_>) -> Vec<Fix> {
        let tree = self.deferred.condition(self.kind);
        self.deferred.time(asm, asks_for_duration(&tree));
        self.deferred.known().branch(asm, &tree, false)
    }

    /// Writes both records, and commits them: r11 = ring, rax = its head, rsi = the cell. Uses rdx, r10 and
    /// flags.
    fn write(&self, asm: &mut Asm<'_>) {
        let Self { deferred, kind, writer } = self;
        let slot = writer.rings.area.slot;
        writer.slot(asm, 0);
        let words = deferred.length();
        if words <= UNROLLED {
            for word in 0..words as i32 {
                asm.load(RDX, Mem::At(RSI, word * 8));
                asm.store(Mem::At(R10, word * 8), RDX);
            }
        } else {
            asm.mov_imm32(RAX, words as u32);
            let again = asm.here();
            asm.load(RDX, Mem::Sum(RSI, RAX, 3, -8));
            asm.store(Mem::Sum(R10, RAX, 3, -8), RDX);
            asm.alu_imm(Alu::Sub, RAX, 1, false);
            asm.jcc(Cond::NotEqual, again);
            // The ring is still this CPU's, or still locked by this thread.
            asm.load(RAX, Mem::At(R11, HEAD as i32));
            if deferred.cell.machine.rseq.is_none() {
                asm.lea(RAX, Mem::At(RAX, -(LOCKED as i32)));
            }
        }
        writer.slot(asm, slot);
        writer.copies(asm, deferred.values);
        asm.load(RDX, TIME);
        let publish = Some(writer.publish(2 * slot, false));
        writer.words(asm, deferred.values, deferred.cell.placed(RSI, *kind), publish);
    }
}

impl ExitTail {
    /// Appends the part before the displaced code.
    pub(super) fn emit(asm: &mut Asm<'_>, deferred: &Deferred<'_>, kind: RecordKind) -> Self {
        Exit { deferred, kind, writer: deferred.traced.ring_writer(kind) }.emit(asm)
    }
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        let Self { cell, words, done, .. } = self;
        // X3
        asm.bind(self.full);
        if self.section.is_none() {
            asm.bind(self.astray);
        }
        let dropped = count(asm, &cell.machine);
        asm.jmp(done);
        if self.section.is_some() {
            asm.bind(self.astray);
            // The count by a section would take the same way, since the thread has no area.
            asm.alu_mem_imm(Alu::Add, cell.last_line(words.dropped), 1, true);
            asm.jmp(done);
        }
        cell.unregistered(asm, dropped, words.dropped, done);
        self.rejected.iter().for_each(|&fix| asm.bind(fix));
        let rejected = count(asm, &cell.machine);
        asm.jmp(done);
        cell.unregistered(asm, rejected, words.rejected_late, done);
        // X1 without a mark.
        cell.search(asm, self.lookup, Claim::No);
        self.unmarked.into_iter().for_each(|fix| asm.bind(fix));
        asm.load(RSI, SAVED_RSI);
        asm.jmp(self.leave);
        cell.descriptors(asm, &[self.section, dropped.section(), rejected.section()]);
        asm.align(8);
        asm.bind(dropped.line);
        asm.u64(words.dropped);
        asm.bind(rejected.line);
        asm.u64(words.rejected_late);
    }
}
