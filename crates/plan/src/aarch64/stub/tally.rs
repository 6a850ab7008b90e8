//! One hit, one more of its value (`record::tally`).
//!
//! In: what is aggregated, where its table lies. Out: code that computes the value, finds its histogram
//! bucket (*cell* in the code) or row, and adds one there by one commit; then the displaced code. A filter
//! comes before it, and counts what it rejects. All cells + overflow + unseen + filtered = hits.
//!
//! ```text
//!   table of line l = base + stride·l
//!   word of a cell  = table + CELLS + 8 cell                       CELLS = 16, UNSEEN = 8, OVERFLOW = 0
//!
//!            sp                  x16 A          x17 B       x15 KEY   x14 D     x13 INDEX  x12 VALUE      x11 C
//!   pass     S - FRAME           (`filtering`)
//!   value    S - FRAME - depth   the value      scratch     scratch   scratch   scratch    group-by key   scratch
//!   add      S - FRAME - depth   line, table    area        scratch   scratch   scratch    cell or key    scratch
//!   end      S                   all registers are the program's
//! ```
//!
//! The frame is that of `frame`, and depth is what `text` takes. `add`: `adding`.
//!
//! A value may depend on fields, which are copied onto the stack at entries, as for a record (`text`). A hit
//! is unseen if one of its fields cannot be read. The value of a text is a hash, computed over a copy on the
//! stack. A text of which not even one byte can be read is unseen. So is the hit of a goroutine if its stack
//! has no room for the copies. The group-by key (`GroupBy`) is computed beside the value, and is unseen for
//! the same reasons. Value and key are looked up together, as one row.
//! The value is computed before the restartable sequence, so that what may be repeated is short: find this
//! CPU's table, find the row (`programs::rows`), add one. In a process without rseq all lines are written by atomic
//! additions, and rows are claimed by an exclusive pair.

use trapline_code::Memory;
use trapline_record::addr::Bias;
use trapline_record::tally::{CELLS, OVERFLOW, TallyArea};

use super::adding::{Copied, Into, text_key};
use super::asm::{Asm, Fix, NoWords, ZERO};
use super::counted::{by_thread, cpu};
use super::filter::Conditions;
use super::filtering::{self, Filtered, HitFilter, Rare, Shared};
use super::frame::{self, A, B, D, KEY, VALUE};
use super::machine::Machine;
use super::pending::Code;
use super::text::Texts;
use super::{rseq, threads};
use crate::filter::{GroupBy, Sort, THREAD_UNIT, Tally};
use crate::machine::ThreadId;
use crate::programs::Adding;
use crate::request::Read;

/// Where a probe's tables lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableLocation {
    /// Shape of the tables; its offset is not used.
    pub area: TallyArea,
    /// Address of the table on line 0.
    pub base: u64,
}

/// What is aggregated, and where.
#[derive(Clone, Copy, Debug)]
pub struct Tallied<'a> {
    /// The aggregation.
    pub tally: &'a Tally,
    /// The table.
    pub table: TableLocation,
    /// What is read from memory, at entries, for the value and for the decision.
    pub reads: &'a [Read],
    /// Where the probe's file is mapped.
    pub bias: Bias,
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedTally {
    asm: Asm,
    machine: Machine,
    table: TableLocation,
    /// Paths of what is decided before anything is read.
    early: Rare,
    /// The jump of a goroutine without room for the copies on its stack.
    cramped: Option<Fix>,
    leave: u64,
    /// The same behind that, where the stack pointer is lower by the copies.
    deep: Rare,
    counted: u64,
    unread: Vec<Fix>,
}

/// The part of a stub that comes before the displaced code, for the address `at`. With `seen` false the hit
/// has no value: it is an exit by a jump to another function. With `goroutine` it belongs to the goroutine
/// that x28 names.
pub fn tally(
    at: u64,
    machine: &Machine,
    id: ThreadId,
    filtered: Option<Filtered<'_>>,
    what: Tallied<'_>,
    (seen, goroutine): (bool, bool),
) -> UnfinishedTally {
    let Tallied { tally, table, reads, bias } = what;
    let mut asm = Asm::new(at);
    frame::enter(&mut asm);
    let filtered = filtered.filter(|_| seen);
    if seen && (tally.asks_for_thread() || filtered.is_some_and(|one| one.filter.asks_for_thread())) {
        threads::ask(id, &mut asm);
    }
    let mut early = filtered.map_or_else(Rare::default, |filtered| {
        let hits = HitFilter { machine, id, filtered };
        hits.pass(&mut asm)
    });
    let step = frame::FRAME.unsigned_abs();
    let texts = Texts {
        texts: if seen { tally.texts() } else { 0 },
        ended: 0,
        fields: reads,
        id,
        goroutine,
        step,
        beside: false,
        bias,
    };
    let cramped = texts.room(&mut asm);
    texts.fetch(&mut asm);
    let known =
        Conditions { depth: texts.depth(), fields: Some(texts.copied_fields()), ..Conditions::of(id) };
    let mut deep = filtered.map_or_else(Rare::default, |filtered| Rare::of(filtered.words));
    if let Some(tree) = filtered.and_then(|filtered| filtered.filter.fields.as_ref()) {
        deep.rejected = known.branch(&mut asm, &tree.decided(), false);
    }
    let copied = Copied::Here(texts.first_text());
    let into = Into::of(table.area.shape, tally, (copied, texts.depth()), seen);
    let unread = if seen { value(&mut asm, what, (known, copied), into) } else { Vec::new() };
    one_more(&mut asm, machine, table, into, &mut deep);
    // A thread without an area has no sample of its own. It is counted as if there were no room for it
    // (overflow).
    let overflow = Shared::Word(last(machine, table).wrapping_add(OVERFLOW));
    let unsampled = core::mem::take(&mut early.unsampled);
    early.shared.extend(unsampled.into_iter().map(|fix| (fix, overflow)));
    let counted = asm.here();
    texts.drop(&mut asm);
    let leave = asm.here();
    filtering::leave(&mut asm, machine);
    UnfinishedTally { asm, machine: *machine, table, early, cramped, leave, deep, counted, unread }
}

/// `VALUE` = cell or key, and what rows keep is in the frame. Jumps if that depends on something that could
/// not be read.
pub(super) fn value(
    asm: &mut Asm,
    what: Tallied<'_>,
    (known, copied): (Conditions<'_>, Copied),
    into: Into,
) -> Vec<Fix> {
    let tally = what.tally;
    let mut unread = Vec::new();
    if let GroupBy::Number(key) = &tally.group_by {
        unread = known.read(asm, key, Sort::Each);
        asm.mov(VALUE, A);
    }
    let by_text = matches!(tally.group_by, GroupBy::Text(_));
    if !matches!(tally.sort, Sort::Text(_)) {
        unread.extend(known.read(asm, &tally.value, tally.sort));
    }
    if by_text {
        asm.mov(VALUE, A);
    }
    if tally.texts() != 0 {
        unread.extend(text_key(asm, copied));
    }
    owner(asm, tally, known, into);
    asm.mov(VALUE, A);
    unread
}

/// Stores the owner, if rows have one; for cells of a thread, `A` gets the thread's number too. Uses `B`.
///
/// ```text
///   in    A = key or cell, VALUE = the group-by key, if that is a value of the call
///   out   A = cell | number·THREAD_UNIT     cells of a thread
///         A = the group-by key, or 0        rows with sums
/// ```
fn owner(asm: &mut Asm, tally: &Tally, known: Conditions<'_>, into: Into) {
    let group_key = match tally.group_by {
        GroupBy::Number(_) | GroupBy::Text(_) => VALUE,
        GroupBy::Thread => {
            threads::load_below(known.id, asm, B, known.depth);
            if matches!(tally.sort, Sort::Log2 | Sort::Linear { .. }) {
                asm.or_shifted(A, A, B, THREAD_UNIT.trailing_zeros());
            }
            B
        }
        GroupBy::Nothing => {
            if into.is_owned() {
                asm.mov(B, ZERO);
            }
            B
        }
    };
    if tally.sort == Sort::Sums && !matches!(tally.group_by, GroupBy::Text(_)) {
        // The value waits, and the group-by key is the row's key.
        into.keep(asm, A);
        return asm.mov(A, group_key);
    }
    into.keep(asm, group_key);
}

impl Code for UnfinishedTally {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, machine, table, mut early, cramped, leave, mut deep, counted, unread } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        unseen(&mut asm, &machine, table, unread, counted, &mut deep);
        unseen(&mut asm, &machine, table, cramped.into_iter().collect(), leave, &mut early);
        deep.finish(&mut asm, &machine, counted);
        early.finish(&mut asm, &machine, leave);
        asm.pool();
        asm.words()
    }
}

/// Address of the table on the last line.
fn last(machine: &Machine, table: TableLocation) -> u64 {
    table.base.wrapping_add(u64::from(machine.lines.max(1) - 1) * table.area.stride())
}

/// Adds one, by one commit, for `VALUE` = cell or key and what rows keep. `VALUE` stays.
pub(super) fn one_more(asm: &mut Asm, machine: &Machine, table: TableLocation, into: Into, rare: &mut Rare) {
    let last = last(machine, table);
    match machine.rseq {
        Some(rseq) => {
            let mut unregistered = None;
            let section = rseq::section(asm, rseq, [B, A], |asm| {
                unregistered = Some(cpu(asm, machine));
                find_table(asm, table);
                into.add(asm, Memory::Mine, machine.lse);
            });
            rare.sections.push(section);
            let shared = match into.without_area() {
                Adding::Word(word) => Shared::Word(last.wrapping_add(word)),
                _ => Shared::Nth(last.wrapping_add(CELLS)),
            };
            rare.shared.extend(unregistered.map(|fix| (fix, shared)));
        }
        None => {
            by_thread(asm, [A, KEY], machine.lines);
            find_table(asm, table);
            into.add(asm, Memory::Shared, machine.lse);
        }
    }
}

/// The path of hits without a known value; they go on at `behind`.
pub(super) fn unseen(
    asm: &mut Asm,
    machine: &Machine,
    table: TableLocation,
    unread: Vec<Fix>,
    behind: u64,
    rare: &mut Rare,
) {
    if !unread.is_empty() {
        unread.into_iter().for_each(|fix| asm.bind(fix));
        one_more(asm, machine, table, Into::UNSEEN, rare);
        asm.b(behind);
    }
}

/// `A = base + stride·A`. Uses `KEY`, `D`.
fn find_table(asm: &mut Asm, table: TableLocation) {
    asm.number(KEY, table.area.stride() as u32);
    asm.constant(D, table.base);
    asm.mul_add(A, A, KEY, D);
}
