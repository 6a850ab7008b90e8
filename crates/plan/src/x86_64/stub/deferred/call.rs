//! The calls of one probe with deferred records: how a call's cell is found, and what its return knows.
//!
//! In: the probe's records, its late condition. Out: code that finds the cell, looks for the mark, reads the clock;
//! how a condition reads what the entry kept. The steps are those of `deferred`.
//!
//! What is stored besides the saves of `saves`, and the cell, which is as large as a ring slot:
//!
//! ```text
//!   rsp - 128    TOOK        exits: nanoseconds since the entry
//!   rsp - 120    TIME        exits: the time;  entries: PLACE, the cell's address
//!   rsp - 112    SAVED_RSI   rsi
//!   rsp - 56     SAVED_R8    r8, while a cell is looked for, in a Go program
//!   rsp          = S - step
//! ```
//!
//! ```text
//!   rsi + 0      RECORD_IDS  thread << 32 | probe
//!   rsi + 8      BEGAN       the time of the entry
//!   rsi + 16     MARK        rsi itself if the cell is marked; 0 if the mark was taken away
//!   rsi + 24 …   arguments, texts, floats, fields, as in any entry's record (`put`)
//! ```
//!
//! ```text
//!   X1           marked  =  [rsi + 16] = rsi  and  low half of [rsi] = probe
//!   took         (max(time - [rsi + 8], 0) · tick) >> 32      tick: nanoseconds · 2^32 for a tick
//! ```

use trapline_record::counters::filtered;
use trapline_record::ring::{RecordKind, first_float};

use crate::filter::{Known, Late, Tree};
use crate::request::{KeptText, Read};
use crate::x86_64::stub::asm::{Alu, Asm, Cond, Fix, Mem, R8, R11, RAX, RDX, RSI, RSP, Reg};
use crate::x86_64::stub::counted::Counted;
use crate::x86_64::stub::filter::{ARGUMENTS, Conditions, EntryRecord, Fields};
use crate::x86_64::stub::latency::{Claim, Lookup, StampCell};
use crate::x86_64::stub::machine::Machine;
use crate::x86_64::stub::put::Placed;
use crate::x86_64::stub::rseq::{self, Section};
use crate::x86_64::stub::saves;
use crate::x86_64::stub::traced::Traced;

/// Offset of this save, below those of `trace`.
pub(in crate::x86_64::stub) const SAVED_RSI: Mem = Mem::At(RSP, saves::SAVED_RSI);
/// Where r8 is saved while a cell is looked for; no intermediate value of a condition lies there then.
const SAVED_R8: Mem = Mem::At(RSP, -56);
/// At an exit: the time, and later the nanoseconds that the call took.
pub(super) const TIME: Mem = Mem::At(RSP, -120);
pub(super) const TOOK: i32 = -128;
/// The two words of a cell that make its mark: the record's probe, and the stack pointer.
const RECORD_IDS: Mem = Mem::At(RSI, 0);
const BEGAN: Mem = Mem::At(RSI, 8);
pub(in crate::x86_64::stub) const MARK: Mem = Mem::At(RSI, 16);

/// The stamp cell of a call, where its record waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::x86_64::stub) struct CallCell {
    pub(in crate::x86_64::stub) machine: Machine,
    cell: StampCell,
    probe: u32,
}

impl CallCell {
    /// A word of a probe on the last line.
    pub(super) fn last_line(&self, word: u64) -> Mem {
        Mem::Rip(word.wrapping_add((u64::from(self.machine.lines.max(1)) - 1) * 64))
    }
    /// Closes a count: emits the path of threads without an area, and jumps to where all go on.
    pub(in crate::x86_64::stub) fn unregistered(
        &self,
        asm: &mut Asm<'_>,
        counted: Counted,
        word: u64,
        behind: u64,
    ) {
        if counted.section().is_some() {
            counted.bind_unregistered(asm);
            asm.alu_mem_imm(Alu::Add, self.last_line(word), 1, true);
            asm.jmp(behind);
        }
    }
    /// rsi = the cell, once it is found; `[SAVED_RSI]` = the earlier rsi. Uses rax, rdx and flags.
    pub(in crate::x86_64::stub) fn look(&self, asm: &mut Asm<'_>) -> Lookup {
        asm.store(SAVED_RSI, RSI);
        if self.cell.keeps_s() {
            asm.store(SAVED_R8, R8);
        }
        let lookup = self.cell.lookup(asm);
        self.restore(asm);
        lookup
    }
    /// Emits the search for the case that the first look did not find the cell. Falls out of the end if there
    /// is none.
    pub(in crate::x86_64::stub) fn search(&self, asm: &mut Asm<'_>, lookup: Lookup, claim: Claim) {
        self.cell.search(asm, lookup, claim);
        self.restore(asm);
    }
    fn restore(&self, asm: &mut Asm<'_>) {
        if self.cell.keeps_s() {
            asm.load(R8, SAVED_R8);
        }
    }
    /// How the records of a call are identified; `at` holds the address of its cell.
    pub(super) const fn placed(&self, at: Reg, kind: RecordKind) -> Option<Placed> {
        let names = self.cell.in_go() && !matches!(kind, RecordKind::Entry);
        Some(Placed { at, names })
    }
    pub(in crate::x86_64::stub) fn descriptors(&self, asm: &mut Asm<'_>, sections: &[Option<Section>]) {
        let Some(rseq) = self.machine.rseq else { return };
        sections.iter().flatten().for_each(|&section| rseq::descriptors(asm, rseq, &[section]));
    }
}

/// Addresses of the words that count a probe's calls.
#[derive(Clone, Copy, Debug)]
pub(in crate::x86_64::stub) struct Words {
    pub(super) rejected: u64,
    pub(super) begun: u64,
    pub(in crate::x86_64::stub) rejected_late: u64,
    pub(super) dropped: u64,
}

/// The calls of one probe.
pub(in crate::x86_64::stub) struct Deferred<'a> {
    pub(in crate::x86_64::stub) traced: &'a Traced<'a>,
    pub(super) late: &'a Late,
    pub(in crate::x86_64::stub) cell: CallCell,
    pub(in crate::x86_64::stub) words: Words,
    /// Number of arguments in an entry's record.
    pub(super) values: usize,
}

impl<'a> Deferred<'a> {
    /// `None` if no return decides about the probe's calls.
    pub(in crate::x86_64::stub) fn of(traced: &'a Traced<'a>, values: usize) -> Option<Self> {
        let filter = traced.filter?;
        let (late, latency) = (filter.filter.late.as_ref()?, traced.marks?);
        let word = |n: u32| filter.words + u64::from(n) * 8;
        let words = Words {
            rejected: word(filtered::REJECTED),
            begun: word(filtered::BEGUN),
            rejected_late: word(filtered::REJECTED_LATE),
            dropped: traced.dropped,
        };
        let cell = StampCell::of(&latency, traced.probe, traced.site);
        let cell = CallCell { machine: *traced.machine, cell, probe: traced.probe };
        let values = values.min(ARGUMENTS);
        Some(Self { traced, late, cell, words, values })
    }

    /// The texts that the call keeps, each with its first word in the record.
    pub(super) fn kept(&self) -> impl Iterator<Item = (i32, KeptText)> {
        let kept = self.traced.filter.map_or(&[][..], |filter| &filter.filter.kept);
        let mut next = self.first_kept();
        kept.iter().map(move |text| {
            let word = next;
            next += text.words() as i32;
            (word, *text)
        })
    }
    /// Word of the record at which they begin.
    fn first_kept(&self) -> i32 {
        let traced = self.traced;
        let fields: usize = traced.fields.iter().map(Read::words).sum();
        let behind = first_float(self.values, traced.texts.count_ones() as usize);
        (behind + u64::from(traced.floats.arguments.count_ones()) + fields as u64) as i32
    }
    /// Number of words in the entry's record.
    pub(super) fn length(&self) -> u64 {
        let kept: usize = self.kept().map(|(_, text)| text.words()).sum();
        (self.first_kept() as u64 + kept as u64).min(u64::from(self.traced.rings.area.slot) / 8)
    }

    /// Step X1: jumps unless the cell at rsi is marked. Uses flags.
    pub(in crate::x86_64::stub) fn look(&self, asm: &mut Asm<'_>) -> [Fix; 2] {
        let place = asm.unbroken(|asm| {
            asm.alu_load(Alu::Cmp, RSI, MARK);
            asm.jcc_later(Cond::NotEqual)
        });
        let probe = asm.unbroken(|asm| {
            asm.cmp_mem_imm32(RECORD_IDS, self.cell.probe);
            asm.jcc_later(Cond::NotEqual)
        });
        [place, probe]
    }

    /// The condition that must hold.
    pub(in crate::x86_64::stub) fn condition(&self, kind: RecordKind) -> Tree {
        match kind {
            RecordKind::Tail => self.late.condition.at_tail(),
            _ => self.late.condition.decided(),
        }
    }
    /// `[TIME]` = the clock; if `took`, also `[TOOK]`. rsi = the cell. Uses rax, rdx, r11 and flags.
    pub(in crate::x86_64::stub) fn time(&self, asm: &mut Asm<'_>, took: bool) {
        asm.clock(RDX);
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
    /// How a condition reads what is known at a return; rsi = the cell.
    pub(in crate::x86_64::stub) fn known(&self) -> Conditions<'_> {
        let traced = self.traced;
        let first = first_float(self.values, traced.texts.count_ones() as usize);
        let left = EntryRecord { floats: (first, traced.floats.arguments), took: TOOK };
        let first_field = first + u64::from(traced.floats.arguments.count_ones());
        let fields = Some(Fields { reads: traced.fields, at: (EntryRecord::AT, first_field as i32 * 8) });
        Conditions { left: Some(left), fields, ..traced.hit_filter(RecordKind::Return).conditions() }
    }
}

pub(in crate::x86_64::stub) fn asks_for_duration(tree: &Tree) -> bool {
    let mut asks = false;
    tree.each_known(&mut |known| asks |= known == Known::Took);
    asks
}
