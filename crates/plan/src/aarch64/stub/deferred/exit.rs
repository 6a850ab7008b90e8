//! The exit of a call with a deferred record: steps X1 to X4.
//!
//! ```text
//!   X1   sp = S - DEPTH     x14 = cell, and [sp + PLACE] = cell
//!   X2   the same           [sp + STAMP] = the time, [sp + TOOK] = nanoseconds, if the condition asks
//!        the same           x14 RING = ring, x15 AT = head, x17 B = area (`put`)
//!        the same           record at head: the entry's, copied from the cell; record at head + slot: the exit's
//!        the same           [ring + HEAD] += 2 slot
//!   X4   the same           x16 = [sp + PLACE], [x16 + MARK] = 0
//!   end  sp = S             all registers are the program's
//! ```
//!
//! In: a probe's records, with a late condition. Out: code that decides about a marked call, and writes both records
//! by one commit; the paths of calls that are not marked, rejected or dropped.

use trapline_record::ring::RecordKind;

use super::call::{Deferred, Looked, PLACE, STAMP, asks_for_duration, enter};
use super::kept::keep;
use crate::aarch64::stub::asm::{Asm, Fix, SP};
use crate::aarch64::stub::put::RingWriter;
use crate::aarch64::stub::record_parts::RecordKey;
use crate::aarch64::stub::rseq::{self, Section};
use crate::aarch64::stub::saves::{A, B, C, SLOT, TIME};
use crate::aarch64::stub::threads;
use crate::filter::Tree;

/// Number of words that are copied one by one; more are copied in a loop.
const UNROLLED: u32 = 8;

/// What is left to append behind an exit's displaced code.
#[derive(Debug)]
pub(super) struct ExitTail {
    looked: Looked,
    section: Option<Section>,
    /// The jump of threads without an area, or of calls that found all rings locked.
    astray: Fix,
    full: Fix,
    rejected: Vec<Fix>,
    done: u64,
    leave: u64,
}

/// The code of one exit.
struct Exit<'a> {
    deferred: &'a Deferred<'a>,
    writer: RingWriter<'a>,
}

impl Exit<'_> {
    /// Steps X1 to X4.
    fn emit(&self, asm: &mut Asm) -> ExitTail {
        let Self { deferred, writer } = self;
        let traced = &deferred.traced;
        let condition = deferred.condition(writer.kind);
        enter(asm);
        if condition.asks_for_thread() {
            threads::ask(traced.rings.id, asm);
        }
        let looked = deferred.look(asm);
        keep(asm, deferred, writer.kind);
        let (section, (rejected, (astray, full))) = match traced.machine.rseq {
            Some(rseq) => {
                let (section, fixes) = rseq::section_with(asm, rseq, [B, A], |asm| {
                    let rejected = self.decide(asm, &condition);
                    rseq::find_area(asm, rseq, B);
                    let fixes = writer.find(asm, self.full());
                    self.write(asm);
                    (rejected, fixes)
                });
                (Some(section), fixes)
            }
            None => {
                let rejected = self.decide(asm, &condition);
                let fixes = writer.lock(asm, self.full());
                self.write(asm);
                (None, (rejected, fixes))
            }
        };
        let done = asm.here();
        deferred.unmark(asm);
        let leave = asm.here();
        deferred.leave(asm);
        ExitTail { looked, section, astray, full, rejected, done, leave }
    }

    /// A ring with this many bytes in use, or more, has no room for two records.
    const fn full(&self) -> u32 {
        let area = &self.writer.rings.area;
        area.bytes.saturating_sub(area.slot)
    }

    /// Reads the time, computes the duration, and jumps if the condition does not hold.
    fn decide(&self, asm: &mut Asm, condition: &Tree) -> Vec<Fix> {
        self.deferred.time(asm, asks_for_duration(condition));
        self.deferred.known().branch(asm, condition, false)
    }

    /// Writes both records, and commits them, as `find` or `lock` left `RING` and `AT`. All other registers
    /// of a record's code are free.
    fn write(&self, asm: &mut Asm) {
        let Self { deferred, writer } = self;
        let slot = writer.rings.area.slot;
        writer.slot(asm, 0);
        asm.load_at(A, SP, PLACE);
        let words = deferred.length();
        if words <= UNROLLED {
            for word in 0..words {
                asm.load_at(C, A, 8 * word);
                asm.store(C, SLOT, 8 * word);
            }
        } else {
            asm.number(B, 8 * words);
            let again = asm.here();
            asm.add_imm(B, B, -8);
            asm.load_past(C, A, B);
            asm.store_past(C, SLOT, B);
            asm.unless_zero(B, again);
        }
        writer.slot(asm, slot);
        writer.copies(asm, deferred.values);
        asm.load_at(TIME, SP, STAMP);
        let publish = Some(writer.publish(2 * slot, false));
        writer.words(asm, deferred.values, RecordKey::Left(PLACE), publish);
    }
}

impl ExitTail {
    /// The part before the displaced code.
    pub(super) fn emit(asm: &mut Asm, deferred: &Deferred<'_>, kind: RecordKind) -> Self {
        Exit { deferred, writer: deferred.traced.ring_writer(kind) }.emit(asm)
    }
    /// Appends the rare paths of an exit.
    pub(super) fn finish(self, asm: &mut Asm, deferred: &Deferred<'_>) {
        let Self { looked, section, astray, full, rejected, done, leave } = self;
        // X3
        let mut sections: Vec<Section> = section.into_iter().collect();
        asm.bind(full);
        match section {
            None => asm.bind(astray),
            Some(_) => {
                let full = asm.b_later();
                asm.bind(astray);
                // The count by a section would take the same way, since the thread has no area.
                deferred.lost(asm, deferred.words.dropped, done);
                asm.bind(full);
            }
        }
        deferred.counted(asm, deferred.words.dropped, done, &mut sections);
        rejected.into_iter().for_each(|fix| asm.bind(fix));
        deferred.counted(asm, deferred.words.rejected_late, done, &mut sections);
        deferred.unmarked(asm, looked, leave);
        rseq::descriptors(asm, &sections);
    }
}
