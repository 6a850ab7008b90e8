//! The exit of a call with a deferred record: steps X1 to X4.
//!
//! ```text
//!   X1   sp = S - DEPTH     x14 = cell, and [sp + PLACE] = cell
//!   X2   the same           [sp + STAMP] = the time, [sp + TOOK] = nanoseconds, if the condition asks
//!        the same           x14 RING = ring, x15 AT = head, x17 B = area (`put`)
//!        the same           record at head + slot: the exit's; record at head: the entry's, copied from the cell
//!        the same           [ring + HEAD] = head + 2 slot
//!   X4   the same           x16 = [sp + PLACE], [x16 + MARK] = 0
//!   end  sp = S             all registers are the program's
//! ```
//!
//! In: a probe's records, with a late condition. Out: code that decides about a marked call, and writes both records
//! by one commit; the paths of calls that are not marked, rejected or dropped.

use trapline_record::ring::{HEAD, RecordKind};

use super::call::{Deferred, Looked, PLACE, STAMP, asks_for_duration, enter};
use crate::aarch64::stub::asm::{Asm, Fix, SP};
use crate::aarch64::stub::put::RecordKey;
use crate::aarch64::stub::rseq::{self, Section};
use crate::aarch64::stub::saves::{A, AT, B, C, RING, SLOT, TIME};
use crate::aarch64::stub::{text, threads};
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

impl Deferred<'_> {
    /// Steps X1 to X4.
    pub(super) fn exit(&self, asm: &mut Asm, kind: RecordKind) -> ExitTail {
        let traced = &self.traced;
        let condition = self.condition(kind);
        enter(asm);
        if condition.asks_for_thread() {
            threads::ask(traced.rings.id, asm);
        }
        let looked = self.look(asm);
        let (section, (rejected, (astray, full))) = match traced.machine.rseq {
            Some(rseq) => {
                let (section, fixes) = rseq::section_with(asm, rseq, [B, A], |asm| {
                    let rejected = self.decide(asm, &condition);
                    rseq::find_area(asm, rseq, B);
                    let fixes = traced.find(asm, self.full());
                    self.write(asm, kind);
                    (rejected, fixes)
                });
                (Some(section), fixes)
            }
            None => {
                let rejected = self.decide(asm, &condition);
                let fixes = traced.lock(asm, self.full());
                self.write(asm, kind);
                (None, (rejected, fixes))
            }
        };
        let done = asm.here();
        self.unmark(asm);
        let leave = asm.here();
        self.leave(asm);
        ExitTail { looked, section, astray, full, rejected, done, leave }
    }

    /// A ring with this many bytes in use, or more, has no room for two records.
    const fn full(&self) -> u32 {
        let area = &self.traced.rings.area;
        area.bytes.saturating_sub(area.slot)
    }

    /// Reads the time, computes the duration, and jumps if the condition does not hold.
    fn decide(&self, asm: &mut Asm, condition: &Tree) -> Vec<Fix> {
        self.time(asm, asks_for_duration(condition));
        self.known().branch(asm, condition, false)
    }

    /// Number of words in the entry's record.
    fn length(&self) -> u32 {
        let all = self.first_field() + text::words(self.traced.fields) as u32;
        all.min(self.traced.rings.area.slot / 8)
    }

    /// Writes both records, and commits them, as `find` or `lock` left `RING` and `AT`. All other registers
    /// of a record's code are free.
    fn write(&self, asm: &mut Asm, kind: RecordKind) {
        let (traced, slot) = (&self.traced, self.traced.rings.area.slot.cast_signed());
        asm.add_imm(AT, AT, slot);
        traced.slot(asm);
        asm.load_at(TIME, SP, STAMP);
        traced.put(asm, kind, self.values, RecordKey::Left(PLACE));
        asm.add_imm(AT, AT, -slot);
        traced.slot(asm);
        asm.load_at(A, SP, PLACE);
        let words = self.length();
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
        asm.add_imm(AT, AT, 2 * slot);
        const { assert!(HEAD == 0, "the head is stored through the ring's own address") };
        asm.store_release(AT, RING);
    }

    /// Appends the rare paths of an exit.
    pub(super) fn finish_exit(&self, asm: &mut Asm, tail: ExitTail) {
        let ExitTail { looked, section, astray, full, rejected, done, leave } = tail;

        // X3
        let mut sections: Vec<Section> = section.into_iter().collect();
        asm.bind(full);
        match section {
            None => asm.bind(astray),
            Some(_) => {
                let full = asm.b_later();
                asm.bind(astray);
                // The count by a section would take the same way, since the thread has no area.
                self.lost(asm, self.words.dropped, done);
                asm.bind(full);
            }
        }
        self.counted(asm, self.words.dropped, done, &mut sections);
        rejected.into_iter().for_each(|fix| asm.bind(fix));
        self.counted(asm, self.words.rejected_late, done, &mut sections);
        self.unmarked(asm, looked, leave);
        rseq::descriptors(asm, &sections);
    }
}
