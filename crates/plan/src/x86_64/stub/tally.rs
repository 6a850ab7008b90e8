//! One hit, one more of its value (`record::tally`).
//!
//! In: what is aggregated, where its table lies, what is dead. Out: code that computes the value, finds its
//! histogram bucket (*cell* in the code) or row, and adds one there by one commit; then the displaced code. A
//! filter comes before it, as before a record, and counts what it rejects. All cells + overflow + unseen +
//! filtered = hits.
//! A value may depend on fields, which are copied onto the stack at entries, as for a record. A hit is unseen
//! if one of its fields cannot be read.
//! The value of a text is a hash, computed over a copy on the stack (`text`). A text of which not even one
//! byte can be read is unseen. The group-by key (`GroupBy`) is computed beside the value, and is unseen for
//! the same reasons. Value and key are looked up together, as one row (`programs::rows`).
//! The value is computed before the restartable sequence, so that what may be repeated is short: find this
//! CPU's table, find the row, add one. In a process without rseq all lines are written by `lock add`, and
//! rows are claimed by a compare-and-swap. Registers are saved below the stack pointer, as in `trace`.
//!
//! The registers behind each step; what is saved lies where `saves` shows it:
//!
//! ```text
//!   step          rax            rdx                r10          r11
//!   read          cell or value  used               used         used
//!   owner         cell or key    group-by key       used         -
//!   keep          the same, stored at rsp - 32 and rsp - 48 if rows have texts or group-by keys (`adding`)
//!   add           cell or key    used by rows       row          table = base + stride · CPU
//!   the commit    [r11 + CELLS + 8 · rax] += 1,  or [r10] += 1,  or [r11 + UNSEEN] += 1
//!   no area       lock [last + CELLS + 8 · rax] += 1,  or OVERFLOW or UNSEEN;  last = base + stride · (lines - 1)
//! ```

use trapline_code::Memory;
use trapline_record::ring::RecordKind;
use trapline_record::tally::TallyArea;

use super::adding::{Copied, Into, text_key};
use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Shift};
use super::counted::{Counted, count};
use super::filter::Conditions;
use super::filtering::FilterExits;
use super::machine::Machine;
use super::rseq::{self, CPU_ID, Section};
use super::threads;
use super::traced::Traced;
use crate::filter::{GroupBy, Sort, THREAD_UNIT, Tally};

/// Where a probe's tables lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableLocation {
    /// Shape of the tables; its offset is not used.
    pub area: TallyArea,
    /// Address of the table on line 0; it may lie anywhere.
    pub base: u64,
}

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) struct TallyTail {
    machine: Machine,
    table: TableLocation,
    /// With rseq: the section, and the jump of threads without an area.
    owned: Option<(Section, Fix)>,
    pointer: Fix,
    /// Where a thread without an area adds one: in a cell, or in a word of the table.
    shared: Into,
    passed: FilterExits,
    /// Where the common path goes on.
    counted: u64,
    /// The same, behind the code that frees a text's part of the stack.
    without_text: u64,
    /// The jump of hits on a goroutine's stack without room for a text.
    cramped: Option<Fix>,
    fixups: Vec<(u64, u64)>,
    /// The jumps of hits with a value that depends on something that cannot be read.
    unread: Vec<Fix>,
}

/// Appends the part of a stub that comes before the displaced code. Of the rings and texts in `traced` only
/// the way to read a thread's number is used.
pub(super) fn tally(
    asm: &mut Asm<'_>,
    traced: &Traced<'_>,
    (tally, table): (&Tally, TableLocation),
    kind: RecordKind,
) -> TallyTail {
    let machine = *traced.machine;
    let copied = Copied::ON_STACK;
    let (saves, hits, texts) = (traced.saves(kind), traced.hit_filter(kind), traced.texts(kind));
    saves.enter(asm);
    let seen = kind != RecordKind::Tail;
    let reads = kind == RecordKind::Entry && !traced.fields.is_empty();
    if seen && (reads || tally.asks_for_thread() || hits.by_thread()) {
        threads::ask(traced.rings.id, asm);
    }
    let mut passed = if seen { hits.pass(asm) } else { FilterExits::default() };
    let (mut cramped, mut fixups, mut unread) = (None, Vec::new(), Vec::new());
    if reads || seen && tally.texts() != 0 {
        cramped = texts.room(asm);
        fixups = texts.fetch(asm);
        passed.deep = hits.pass_fields(asm);
    }
    let into = Into::of(table.area.shape, tally, copied, seen);
    if seen {
        unread = value(asm, tally, (hits.behind_fetch(), copied), into);
    }
    let (owned, pointer) = one_more(asm, (machine, table), into);
    let counted = asm.here();
    texts.drop(asm);
    let without_text = asm.here();
    if let Some(rseq) = machine.rseq {
        rseq::clear(asm, rseq);
    }
    saves.leave(asm);
    TallyTail {
        machine,
        table,
        owned,
        pointer,
        shared: into.without_area(),
        passed,
        counted,
        without_text,
        cramped,
        fixups,
        unread,
    }
}

/// Adds one, by one commit; rax = cell or key. With rseq, returns the section, and the jump of threads without
/// an area; and always the fix that waits for the table's address.
pub(super) fn one_more(
    asm: &mut Asm<'_>,
    what: (Machine, TableLocation),
    into: Into,
) -> (Option<(Section, Fix)>, Fix) {
    let Some(rseq) = what.0.rseq else { return (None, add_anywhere(asm, what, into)) };
    let (section, (unregistered, pointer)) = rseq::section_with(asm, rseq, R11, |asm| add(asm, what, into));
    (Some((section, unregistered)), pointer)
}

/// The body of a section: adds one on this CPU's line; rax = cell or key. Uses r11; with rows, rax, rdx, r10.
fn add(asm: &mut Asm<'_>, (machine, table): (Machine, TableLocation), into: Into) -> (Fix, Fix) {
    let area = machine.rseq.map_or(0, |rseq| rseq.offset);
    asm.load32(R11, Mem::Fs(area + CPU_ID));
    let unregistered = asm.unbroken(|asm| {
        asm.alu_imm(Alu::Cmp, R11, machine.lines as i32 - 1, false);
        asm.jcc_later(Cond::AboveEq)
    });
    asm.imul_imm(R11, R11, table.area.stride() as i32, true);
    let pointer = asm.alu_load_later(Alu::Add, R11);
    into.add(asm, Memory::Mine);
    (unregistered, pointer)
}

/// Without rseq: adds one on some line, which other threads write too.
fn add_anywhere(asm: &mut Asm<'_>, (machine, table): (Machine, TableLocation), into: Into) -> Fix {
    rseq::any_line(asm, R11, machine.rdpid, machine.lines);
    asm.imul_imm(R11, R11, table.area.stride() as i32, true);
    let pointer = asm.alu_load_later(Alu::Add, R11);
    into.add(asm, Memory::Shared);
    pointer
}

/// Where the group-by key waits while the rest is computed. What `defer` keeps there is no longer needed
/// then.
const OWNED: Mem = Mem::At(RSP, -120);

/// What [`Into`] uses to find the place. Jumps if that depends on something that could not be read.
///
/// ```text
///   out   rax = cell or key, as `Tally::key`, or as rows store it
///   uses  rdx, r10, r11, flags, [rsp - 40] (`adding`), [rsp - 120] (OWNED)
/// ```
pub(super) fn value(
    asm: &mut Asm<'_>,
    tally: &Tally,
    (known, copied): (Conditions<'_>, Copied),
    into: Into,
) -> Vec<Fix> {
    let mut unread = Vec::new();
    if let GroupBy::Number(key) = &tally.group_by {
        unread = known.read(asm, (key, Sort::Each), true);
        asm.store(OWNED, RAX);
    }
    let by_text = matches!(tally.group_by, GroupBy::Text(_));
    if !matches!(tally.sort, Sort::Text(_)) {
        unread.extend(known.read(asm, (&tally.value, tally.sort), false));
    }
    if by_text {
        asm.store(OWNED, RAX);
    }
    if tally.texts() != 0 {
        unread.extend(text_key(asm, copied));
    }
    owner(asm, tally, known, into);
    if tally.sort == Sort::Sums && !by_text {
        // The group-by key is the row's key.
        asm.exchange(RAX, RDX);
    }
    into.keep(asm);
    unread
}

/// The group-by key.
///
/// ```text
///   by a number, by a text    rdx = [OWNED]
///   by thread                 rdx = thread;  for cells also rax = cell | thread · THREAD_UNIT
///   by nothing                rdx = 0, if rows have a group-by key
///   in    rax = key or cell
///   uses  r10, flags
/// ```
fn owner(asm: &mut Asm<'_>, tally: &Tally, known: Conditions<'_>, into: Into) {
    match tally.group_by {
        GroupBy::Number(_) | GroupBy::Text(_) => asm.load(RDX, OWNED),
        GroupBy::Thread => {
            known.thread(asm, RDX);
            if matches!(tally.sort, Sort::Log2 | Sort::Linear { .. }) {
                asm.mov(R10, RDX);
                asm.shift(Shift::Left, R10, THREAD_UNIT.trailing_zeros() as u8, true);
                asm.alu(Alu::Or, RAX, R10);
            }
        }
        GroupBy::Nothing if into.is_owned() => asm.mov_imm32(RDX, 0),
        GroupBy::Nothing => {}
    }
}

impl TallyTail {
    /// Appends the paths of threads without an area and of rejected hits, the descriptors and the addresses.
    /// Returns the instructions that may fault, and where a thread goes on then.
    pub(super) fn finish(self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        if let Some((_, unregistered)) = self.owned {
            asm.bind(unregistered);
            add_shared(asm, (self.machine, self.table), self.shared);
            asm.jmp(self.counted);
        }
        if let Some(cramped) = self.cramped {
            asm.bind(cramped);
            add_shared(asm, (self.machine, self.table), Into::OVERFLOW);
            asm.jmp(self.without_text);
        }
        let unread = unseen(asm, (self.machine, self.table), &self.unread, self.counted);
        let filtered = self.reject(asm);
        let own = self.owned.map(|(section, _)| section);
        let unseen = unread.and_then(|(section, _)| section);
        for section in own.into_iter().chain(unseen).chain(self.passed.sections(filtered)) {
            self.machine.rseq.into_iter().for_each(|rseq| rseq::descriptors(asm, rseq, &[section]));
        }
        asm.align(8);
        asm.bind(self.pointer);
        unread.into_iter().for_each(|(_, pointer)| asm.bind(pointer));
        asm.u64(self.table.base);
        self.passed.addresses(asm, filtered);
        self.fixups
    }
    fn reject(&self, asm: &mut Asm<'_>) -> Option<Counted> {
        if !self.passed.bind(asm) {
            return None;
        }
        let counted = count(asm, &self.machine);
        asm.jmp(self.without_text);
        if counted.section().is_some() {
            counted.bind_unregistered(asm);
            let last = self.passed.words.wrapping_add((u64::from(self.machine.lines.max(1)) - 1) * 64);
            asm.alu_mem_imm(Alu::Add, Mem::Rip(last), 1, true);
            asm.jmp(self.without_text);
        }
        if !self.passed.unregistered.is_empty() {
            // A thread without an area has no sample of its own. It is counted as if there were no room for
            // it (overflow).
            self.passed.unregistered.iter().for_each(|&fix| asm.bind(fix));
            add_shared(asm, (self.machine, self.table), Into::OVERFLOW);
            asm.jmp(self.without_text);
        }
        Some(counted)
    }
}

/// Adds one on the last line, which many threads share. Uses r11 and flags.
pub(super) fn add_shared(asm: &mut Asm<'_>, (machine, table): (Machine, TableLocation), into: Into) {
    let last = u64::from(machine.lines.max(1) - 1) * table.area.stride();
    asm.mov_imm64(R11, table.base.wrapping_add(last));
    into.add(asm, Memory::Shared);
}

/// The path of hits without a known value; they go on at `behind`. Returns the section, if there is rseq,
/// and the fix that waits for the table's address.
pub(super) fn unseen(
    asm: &mut Asm<'_>,
    what: (Machine, TableLocation),
    unread: &[Fix],
    behind: u64,
) -> Option<(Option<Section>, Fix)> {
    if unread.is_empty() {
        return None;
    }
    unread.iter().for_each(|&fix| asm.bind(fix));
    let (owned, pointer) = one_more(asm, what, Into::UNSEEN);
    asm.jmp(behind);
    if let Some((_, unregistered)) = owned {
        asm.bind(unregistered);
        add_shared(asm, what, Into::UNSEEN);
        asm.jmp(behind);
    }
    Some((owned.map(|(section, _)| section), pointer))
}
