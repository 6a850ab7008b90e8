//! One hit, one more of its value (`record::tally`).
//!
//! In: what is tallied, where its table lies. Out: code that computes the value, finds its cell or row, and adds one there by one commit; then the displaced code. A
//! filter stands before it, and counts what it rejects. All cells + overflow + unseen + filtered = hits.
//! The value is computed before the restartable sequence, so that what starts again is short: find this CPU's table, find the row, add one. Who reads while
//! threads run must see a row's key no later than its hits: the first hit of a row is stored with release, and loaded with acquire (R1 to R3 of `record::tally`).
//! In a process without rseq all lines are written by atomic additions, and rows are taken by an exclusive pair. Not here yet: texts.

use trapline_record::tally::{CELLS, OVERFLOW, PHI, PROBES, Shape, TAKING, TallyArea, UNSEEN, bits_in_reach};

use super::asm::{Asm, Cond, Fix, Reg, ZERO};
use super::counted::{add_one, by_thread, cpu};
use super::filter::Conditions;
use super::pass::{self, Filtered, Pending, Rare, Shared};
use super::saves::{self, A, B, C, INDEX, KEY, SLOT, VALUE};
use super::{Machine, rseq, threads};
use crate::filter::{Sort, THREAD_UNIT, Tally};
use crate::request::ThreadId;

/// Where a probe's tables lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    /// Their shape; its offset is not used.
    pub area: TallyArea,
    /// Address of the table on line 0.
    pub base: u64,
}

/// The part of a stub that comes before the displaced code, for the address `at`. With `seen` false the hit has no value: an exit by a jump to another function.
pub fn tally(
    at: u64,
    machine: &Machine,
    id: ThreadId,
    filtered: Option<Filtered<'_>>,
    (tally, table): (&Tally, Table),
    seen: bool,
) -> Pending {
    let mut asm = Asm::new(at);
    saves::enter(&mut asm);
    let filtered = filtered.filter(|_| seen);
    if seen && (tally.asks_for_thread() || filtered.is_some_and(|one| one.filter.asks_for_thread())) {
        threads::ask(id, &mut asm);
    }
    let mut rare =
        filtered.map_or_else(Rare::default, |filtered| pass::pass(&mut asm, machine, id, filtered));
    if seen {
        Conditions::of(id).value(&mut asm, &tally.value, 0);
        key(&mut asm, tally, id);
        asm.mov(VALUE, A);
    }
    one_more(&mut asm, machine, table, seen, &mut rare);
    let last = last(machine, table);
    // A thread that has no sample of its own: it is told as one for which there was no room.
    let overflow = Shared::Word(last.wrapping_add(OVERFLOW));
    let unsampled = core::mem::take(&mut rare.unsampled);
    rare.shared.extend(unsampled.into_iter().map(|fix| (fix, overflow)));
    pass::ends(asm, *machine, rare)
}

/// The table on the last line.
fn last(machine: &Machine, table: Table) -> u64 {
    table.base.wrapping_add(u64::from(machine.lines.max(1) - 1) * table.area.stride())
}

/// One more, by one commit. In: `VALUE` = cell or key, of what was `seen`. Spoils all.
pub(super) fn one_more(asm: &mut Asm, machine: &Machine, table: Table, seen: bool, rare: &mut Rare) {
    let last = last(machine, table);
    match machine.rseq {
        Some(rseq) => {
            let mut unregistered = None;
            let section = rseq::section(asm, rseq, [B, A], |asm| {
                unregistered = Some(cpu(asm, machine));
                find_table(asm, table);
                add(asm, table.area.shape, seen);
            });
            rare.sections.push(section);
            let shared = match (seen, table.area.shape) {
                (false, _) => Shared::Word(last.wrapping_add(UNSEEN)),
                (true, Shape::Rows(_) | Shape::Texts(_)) => Shared::Word(last.wrapping_add(OVERFLOW)),
                (true, _) => Shared::Nth(last.wrapping_add(CELLS)),
            };
            rare.shared.extend(unregistered.map(|fix| (fix, shared)));
        }
        None => {
            by_thread(asm, [A, KEY], machine.lines);
            find_table(asm, table);
            add_anywhere(asm, machine, table.area.shape, seen);
        }
    }
}

/// In: `A` = a line's number. Out: `A` = the table there. Spoils `KEY`, `SLOT`.
fn find_table(asm: &mut Asm, table: Table) {
    asm.number(KEY, table.area.stride() as u32);
    asm.constant(SLOT, table.base);
    asm.mul_add(A, A, KEY, SLOT);
}

/// The rest of a section: one more on this CPU's line. In: `A` = table, `VALUE` = cell or key.
fn add(asm: &mut Asm, shape: Shape, seen: bool) {
    match shape {
        _ if !seen => asm.add_imm(B, A, UNSEEN as i32),
        Shape::Rows(bits) | Shape::Texts(bits) => row(asm, bits),
        _ => cell(asm),
    }
    asm.load(INDEX, B);
    asm.add_imm(INDEX, INDEX, 1);
    match shape {
        Shape::Rows(_) | Shape::Texts(_) if seen => asm.store_release(INDEX, B),
        _ => asm.store(INDEX, B, 0),
    }
}

/// Without rseq: one more on some line, which other threads write too.
fn add_anywhere(asm: &mut Asm, machine: &Machine, shape: Shape, seen: bool) {
    match shape {
        _ if !seen => asm.add_imm(B, A, UNSEEN as i32),
        Shape::Rows(bits) | Shape::Texts(bits) => return row_anywhere(asm, machine, bits),
        _ => cell(asm),
    }
    add_one(asm, machine);
}

/// Out: `B` = where the cell is.
fn cell(asm: &mut Asm) {
    asm.add_shifted(B, A, VALUE, 3);
    asm.add_imm(B, B, CELLS as i32);
}

/// In: `A` = value. Out: `A` = cell or key, as [`Tally::key`]. Spoils `B`, `C`, `KEY`.
pub(super) fn key(asm: &mut Asm, tally: &Tally, id: ThreadId) {
    let unsigned = tally.value.is_unsigned();
    match tally.sort {
        Sort::Each | Sort::Text(_) => return,
        Sort::Log2 => log2(asm, unsigned),
        Sort::Linear { min, step, count } => linear(asm, unsigned, (min, step.max(1), count)),
    }
    if tally.by_thread {
        threads::load(id, asm, B);
        asm.or_shifted(A, A, B, THREAD_UNIT.trailing_zeros());
    }
}

/// Cell 0 is below 0, 1 is 0, n + 2 has n as the number of its highest bit.
fn log2(asm: &mut Asm, unsigned: bool) {
    asm.leading_zeros(B, A);
    asm.number(C, 65);
    asm.sub(B, C, B);
    if !unsigned {
        asm.compare(A, ZERO);
        asm.select(B, ZERO, B, Cond::Negative);
    }
    asm.mov(A, B);
}

fn linear(asm: &mut Asm, unsigned: bool, (min, step, count): (i64, u64, u32)) {
    asm.constant(B, min.cast_unsigned());
    asm.sub(C, A, B);
    if step.is_power_of_two() {
        asm.shift_right_by(C, C, step.trailing_zeros());
    } else {
        asm.constant(KEY, step);
        asm.div(C, C, KEY);
    }
    asm.number(KEY, count);
    asm.compare(C, KEY);
    asm.select(C, C, KEY, Cond::BelowEq);
    asm.add_imm(C, C, 1);
    // No unsigned value is below a number that is not above 0.
    if !unsigned || min > 0 {
        asm.compare(A, B);
        asm.select(C, ZERO, C, if unsigned { Cond::Below } else { Cond::Less });
    }
    asm.mov(A, C);
}

const ROW: i32 = 16;

/// In: `VALUE` = key, `A` = table. Out: `B` = the hits of its first row, `C` = those behind its last. Spoils `INDEX`.
fn rows(asm: &mut Asm, bits: u8) {
    asm.constant(C, PHI);
    asm.multiply(INDEX, VALUE, C);
    asm.shift_right_by(INDEX, INDEX, 64 - u32::from(bits_in_reach(bits)));
    asm.add_shifted(B, A, INDEX, 4);
    asm.add_imm(B, B, CELLS as i32 + 8);
    asm.add_imm(C, B, ROW * PROBES as i32);
}

/// In: `VALUE` = key, `A` = table. Out: `B` = the hits of the key's row, or the overflow. Spoils `C`, `INDEX`, `KEY`.
fn row(asm: &mut Asm, bits: u8) {
    rows(asm, bits);
    let again = asm.here();
    asm.load_before(KEY, B);
    asm.compare(KEY, VALUE);
    let same = asm.if_later(Cond::Equal);
    asm.load(INDEX, B);
    let free = asm.if_zero_later(INDEX);
    let none = next(asm, again);
    asm.bind(free);
    asm.store_before(VALUE, B);
    asm.bind(same);
    asm.bind(none);
}

/// The next row is looked at, `again`; behind the last one goes away with the overflow.
fn next(asm: &mut Asm, again: u64) -> Fix {
    asm.add_imm(B, B, ROW);
    asm.compare(B, C);
    asm.if_to(Cond::NotEqual, again);
    asm.mov(B, A);
    const { assert!(OVERFLOW == 0) };
    asm.b_later()
}

/// One more by R1 to R3 of `record::tally`, where other threads are at the same table.
fn row_anywhere(asm: &mut Asm, machine: &Machine, bits: u8) {
    const FAILED: Reg = KEY;
    rows(asm, bits);
    let again = asm.here();
    asm.load_acquire(INDEX, B);
    let free = asm.if_zero_later(INDEX);
    let taking = asm.if_sign_later(INDEX);
    asm.load_before(KEY, B);
    asm.compare(KEY, VALUE);
    let same = asm.if_later(Cond::Equal);
    asm.bind(taking);
    let none = next(asm, again);
    asm.bind(free);
    asm.constant(SLOT, TAKING);
    let take = asm.here();
    asm.load_exclusive(INDEX, B);
    let gone = asm.unless_zero_later(INDEX);
    asm.store_exclusive(FAILED, SLOT, B);
    asm.unless_zero(FAILED, take);
    asm.store_before(VALUE, B);
    asm.one(INDEX);
    asm.store_release(INDEX, B);
    let taken = asm.b_later();
    asm.bind(gone);
    asm.b(again);
    asm.bind(same);
    asm.bind(none);
    add_one(asm, machine);
    asm.bind(taken);
}
