//! The calls of one probe with deferred records: how a call's cell is found, and what its return knows.
//!
//! In: the probe's records, its late condition. Out: code that finds the cell, looks for the mark, reads the
//! time; how a condition reads what the entry kept. The steps are those of `deferred`.
//!
//! ```text
//!   sp +   0   what `frame` keeps              <- sp from `enter` to `leave`: S - DEPTH = S - 176
//!   sp + 144   PLACE: the cell's address
//!   sp + 152   STAMP: the time of the exit
//!   sp + 160   TOOK: nanoseconds that the call took
//!   sp + 168   not used
//!   sp + 176   <- S
//!
//!   cell +  0  probe | number << 32, the time at the entry
//!   cell + 16  MARK: the cell's own address, as the record's key; 0 if there is no mark
//!   cell + 24  arguments, texts, floats, fields, as in any record (`put`)
//!
//!   marked = [cell + 16] = cell and [cell] = probe, 32 bits
//!   took   = max(time - [cell + 8], 0)·tick >> 32      of 128 bits; `Late::nanos`
//! ```

use trapline_record::counters::filtered;
use trapline_record::ring::{RecordKind, first_float};

use crate::aarch64::stub::asm::{Asm, Cond, Fix, Reg, SP, ZERO};
use crate::aarch64::stub::counted::{count, count_last};
use crate::aarch64::stub::filter::{ARGUMENTS, Conditions, EntryRecord, Fields};
use crate::aarch64::stub::latency::{Claim, Lookup, StampCell};
use crate::aarch64::stub::rseq::Section;
use crate::aarch64::stub::saves::{A, B, C, TIME};
use crate::aarch64::stub::traced::Traced;
use crate::aarch64::stub::{filtering, frame, text};
use crate::filter::{Known, Late, Tree};
use crate::request::KeptText;

/// Offset of the words above what `frame` keeps: the cell's address; at an exit also the time, and the
/// nanoseconds that the call took.
const FRAME: u32 = frame::FRAME.unsigned_abs();
pub(in crate::aarch64::stub) const PLACE: u32 = FRAME;
pub(super) const STAMP: u32 = FRAME + 8;
const TOOK: u32 = FRAME + 16;
const MORE: i32 = 32;
/// By how many bytes the stack pointer is below the program's.
pub(super) const DEPTH: u32 = FRAME + MORE.unsigned_abs();
/// Register in which `StampCell::lookup` leaves a cell.
pub(super) const FOUND: Reg = frame::D;
/// Offset of the word that makes a cell marked.
pub(super) const MARK: u32 = 16;

/// Addresses, on line 0, of the words that count a probe's calls.
#[derive(Clone, Copy, Debug)]
pub(in crate::aarch64::stub) struct Words {
    pub(super) rejected: u64,
    pub(super) begun: u64,
    pub(in crate::aarch64::stub) rejected_late: u64,
    pub(super) dropped: u64,
}

/// The calls of one probe.
#[derive(Clone, Copy, Debug)]
pub(in crate::aarch64::stub) struct Deferred<'a> {
    pub(in crate::aarch64::stub) traced: Traced<'a>,
    pub(super) late: &'a Late,
    cell: StampCell,
    pub(in crate::aarch64::stub) words: Words,
    /// Number of arguments in an entry's record.
    pub(super) values: usize,
}

/// An exit's look for the mark.
#[derive(Clone, Copy, Debug)]
pub(in crate::aarch64::stub) struct Looked {
    pub(super) lookup: Lookup,
    pub(super) unmarked: [Fix; 2],
}

/// Makes room, and saves what is overwritten.
pub(in crate::aarch64::stub) fn enter(asm: &mut Asm) {
    asm.add_imm(SP, SP, -MORE);
    frame::enter(asm);
}

impl<'a> Deferred<'a> {
    /// `None` if no return decides about the probe's calls.
    pub(in crate::aarch64::stub) fn of(traced: Traced<'a>, values: usize) -> Option<Self> {
        let filtered = traced.filter?;
        let (late, latency) = (filtered.filter.late.as_ref()?, traced.marks?);
        let word = |n: u32| filtered.words + u64::from(n) * 8;
        let words = Words {
            rejected: word(filtered::REJECTED),
            begun: word(filtered::BEGUN),
            rejected_late: word(filtered::REJECTED_LATE),
            dropped: traced.dropped,
        };
        let cell = StampCell::of(&latency, traced.probe, traced.goroutine);
        Some(Self { traced, late, cell, words, values: values.min(ARGUMENTS) })
    }
    /// Undoes what [`enter`] did.
    pub(in crate::aarch64::stub) fn leave(&self, asm: &mut Asm) {
        filtering::leave(asm, self.traced.machine);
        asm.add_imm(SP, SP, MORE);
    }
    pub(super) const fn cell(&self) -> StampCell {
        self.cell
    }

    /// The texts that the call keeps, each with its first word in the record.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u32, KeptText)> {
        let kept = self.traced.filter.map_or(&[][..], |filtered| &filtered.filter.kept);
        let mut next = self.first_field() + text::words(self.traced.fields) as u32;
        kept.iter().map(move |text| {
            let word = next;
            next += text.words() as u32;
            (word, *text)
        })
    }
    /// Number of words in the entry's record.
    pub(super) fn length(&self) -> u32 {
        let kept: usize = self.kept().map(|(_, text)| text.words()).sum();
        let all = self.first_field() + (text::words(self.traced.fields) + kept) as u32;
        all.min(self.traced.rings.area.slot / 8)
    }

    /// Step X1: `[sp + PLACE]` = the cell's address.
    pub(in crate::aarch64::stub) fn look(&self, asm: &mut Asm) -> Looked {
        let lookup = self.cell.lookup(asm, DEPTH);
        asm.load_at(A, FOUND, MARK);
        asm.compare(A, FOUND);
        let elsewhere = asm.if_later(Cond::NotEqual);
        asm.load32(A, FOUND, 0);
        asm.number(B, self.traced.probe);
        asm.compare(A, B);
        let another = asm.if_later(Cond::NotEqual);
        asm.store(FOUND, SP, PLACE);
        Looked { lookup, unmarked: [elsewhere, another] }
    }
    /// Step X4.
    pub(in crate::aarch64::stub) fn unmark(&self, asm: &mut Asm) {
        asm.load_at(A, SP, PLACE);
        asm.store(ZERO, A, MARK);
    }

    /// The condition that must hold.
    pub(in crate::aarch64::stub) fn condition(&self, kind: RecordKind) -> Tree {
        match kind {
            RecordKind::Tail => self.late.condition.at_tail(),
            _ => self.late.condition.decided(),
        }
    }
    /// Reads the time and, if `took`, computes how long the call took. Uses `A`, `B`, `C`, `TIME` and flags.
    pub(in crate::aarch64::stub) fn time(&self, asm: &mut Asm, took: bool) {
        asm.clock(TIME);
        asm.store(TIME, SP, STAMP);
        if took {
            asm.load_at(A, SP, PLACE);
            asm.load_at(A, A, 8);
            asm.subs(A, TIME, A);
            asm.select(A, A, ZERO, Cond::AboveEq);
            asm.constant(B, self.late.tick);
            asm.multiply_high(C, A, B);
            asm.multiply(A, A, B);
            asm.extract(A, (C, A), 32);
            asm.store(A, SP, TOOK);
        }
    }
    /// How a condition reads what is known at a return.
    pub(in crate::aarch64::stub) fn known(&self) -> Conditions<'a> {
        let traced = &self.traced;
        let floats = (self.first_float(), traced.floats.arguments);
        let fields = Some(Fields { reads: traced.fields, at: 8 * self.first_field() });
        Conditions {
            left: Some(EntryRecord { place: PLACE, took: TOOK, floats }),
            fields,
            ..Conditions::of(traced.rings.id)
        }
    }
    /// Word of the entry's record at which fields begin.
    pub(super) fn first_field(&self) -> u32 {
        self.first_float() as u32 + self.traced.floats.arguments.count_ones()
    }
    fn first_float(&self) -> u64 {
        first_float(self.values, self.traced.texts(RecordKind::Entry).count() as usize)
    }
    /// Step X1 without a mark: goes on at `leave`.
    pub(in crate::aarch64::stub) fn unmarked(&self, asm: &mut Asm, looked: Looked, leave: u64) {
        self.cell.search(asm, looked.lookup, Claim::No);
        looked.unmarked.into_iter().for_each(|fix| asm.bind(fix));
        asm.b(leave);
    }
    /// Adds one to a word of this CPU's line, and goes on at `behind`.
    pub(in crate::aarch64::stub) fn counted(
        &self,
        asm: &mut Asm,
        word: u64,
        behind: u64,
        sections: &mut Vec<Section>,
    ) {
        let machine = self.traced.machine;
        let counted = count(asm, machine, word);
        asm.b(behind);
        if let Some((section, unregistered)) = counted {
            sections.push(section);
            asm.bind(unregistered);
            self.lost(asm, word, behind);
        }
    }
    /// Adds one to a word of the last line, and goes on at `behind`.
    pub(super) fn lost(&self, asm: &mut Asm, word: u64, behind: u64) {
        count_last(asm, self.traced.machine, word);
        asm.b(behind);
    }
}

pub(in crate::aarch64::stub) fn asks_for_duration(tree: &Tree) -> bool {
    let mut asks = false;
    tree.each_known(&mut |known| asks |= known == Known::Took);
    asks
}
