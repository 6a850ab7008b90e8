//! What the target decides about a hit, and how it aggregates it.
//!
//! In: conditions and values. Out: [`TargetFilter`], from which code is generated; the shape of a table, the
//! key of a value in it, and how much an entry keeps for its return.
//! Does not: generate code.

use std::sync::Arc;

use trapline_code::Width;
use trapline_image::MARK_ARGUMENTS;
use trapline_record::ring::RingArea;
use trapline_record::tally::{BITS, LOG2_CELLS, Rows, TableShape, log2_cell};

use super::tree::{ARGUMENTS, Tree};
use crate::hit::{HitProgram, input};
use crate::request::{Floats, KeptText, Operand, Read};

/// A late condition: decides at a call's return whether the call is recorded, from what its entry kept for
/// that (`x86_64::stub::deferred`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Late {
    /// The condition, which must hold. It is one that [`Tree::decided`] made, and
    /// [`Tree::is_known_at_return`].
    pub condition: Tree,
    /// Nanoseconds of a tick, times 2³². The target uses it to compute durations.
    pub tick: u64,
}

impl Late {
    /// The [`Self::tick`] of a clock.
    #[must_use]
    pub fn tick_of(ns_per_tick: f64) -> u64 {
        (ns_per_tick * (1_u64 << 32) as f64).round() as u64
    }
    /// Nanoseconds of this many ticks. Generated code must give the same result.
    #[must_use]
    pub const fn nanos(&self, ticks: u64) -> u64 {
        ((ticks as u128 * self.tick as u128) >> 32) as u64
    }
}

/// What decides in the target whether a hit is recorded, and how it is aggregated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TargetFilter {
    /// Must hold; [`Tree::is_known_at_entry`] or, if exits are aggregated, [`Tree::is_known_at_exit`].
    pub condition: Option<Tree>,
    /// One of this many hits that pass is recorded, on each CPU; 1 for all.
    pub sample: u32,
    /// The aggregation, if hits are aggregated instead of recorded.
    pub tally: Option<Tally>,
    /// What records hold in addition at entries, or what the aggregated value depends on there: see [`Read`].
    pub reads: Vec<Read>,
    /// Must hold for what was read: [`Tree::is_known_with_fields`]. `None` if there is a [`Self::late`]
    /// condition, which includes it then.
    pub fields: Option<Tree>,
    /// Decides at returns about calls that passed at their entry. If hits are aggregated, the aggregated
    /// value is known at returns, and hits are whole calls (`x86_64::stub::aggregate_at_return`).
    pub late: Option<Late>,
    /// Texts that calls keep for their return, behind [`Self::reads`] in their record; only with [`Self::late`].
    pub kept: Vec<KeptText>,
    /// Hits of threads in the pass-over table are rejected (`trapline_record::names`). If hits are
    /// aggregated, the reader decides about other threads by the rows' threads.
    pub by_name: bool,
    /// What a hit runs instead of being aggregated or recorded; then there is nothing else but what takes arguments' place.
    pub program: Option<Arc<HitProgram>>,
    /// At a USDT probe: what takes the place of the six argument registers, and then what words on the stack hold
    /// ([`Read::STACK`]); [`OPERANDS`] at most, and [`TEXTS_OF_KEYS`](crate::hit::TEXTS_OF_KEYS) more for texts.
    pub operands: Vec<Operand>,
    /// The hit is at an instruction, and not at a function's entry or exit.
    pub inside: bool,
    /// There, what becomes of these places once memory is read, before the program begins. In this order.
    pub taken: Vec<Taken>,
}

/// What the place of an argument holds when a hit's program begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// A number.
    Number {
        /// Of which argument.
        nth: u8,
        /// The field of this index ([`TargetFilter::reads`]); without it, the operand.
        field: Option<u8>,
        /// Which bits count.
        width: Width,
    },
    /// The number of a text; its place is behind those of [`OPERANDS`] arguments.
    Text {
        /// Which of the program's texts.
        nth: u8,
        /// The field that holds its bytes.
        field: u8,
    },
    /// Something that the program asks for is not known here: no hit runs it.
    Unknown,
}

/// An aggregation: what a hit adds to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally {
    /// The value; it is known at the hit. It may depend on fields only at entries ([`TargetFilter::reads`]).
    /// If a field cannot be read, the hit is unseen.
    pub value: Tree,
    /// How its cell (histogram bucket) or row is chosen.
    pub sort: Sort,
    /// The group-by key.
    pub group_by: GroupBy,
}

/// The group-by key: what hits of one value are grouped by.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum GroupBy {
    /// No grouping.
    #[default]
    Nothing,
    /// By thread. The key of a cell is the thread's number times [`THREAD_UNIT`], plus the cell; rows of
    /// values and texts have the thread as their owner.
    Thread,
    /// By a value that is known where the aggregated one is. It is the owner of the rows of all values and
    /// cells.
    Number(Tree),
    /// By the text that this argument points to at the entry. The text is the key of a row, and the value or
    /// cell its owner. Not for aggregations of texts.
    Text(u8),
}

impl GroupBy {
    /// Groups by thread, if that is requested.
    #[must_use]
    pub const fn threads(asked: bool) -> Self {
        if asked { Self::Thread } else { Self::Nothing }
    }
}

/// Upper bound of a USDT probe's operands.
pub const OPERANDS: usize = MARK_ARGUMENTS;
/// Number of cells of one thread, in a key.
pub const THREAD_UNIT: u64 = 1 << 16;
/// Number of rows, as a power of two, if rows are kept.
pub const ROW_BITS: u8 = 12;
/// The same, if they are grouped by values of the calls: each of these may have many values.
pub const KEY_BITS: u8 = 13;

/// How values are sorted into cells (histogram buckets).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// By magnitude: [`trapline_record::tally::log2_cell`].
    Log2,
    /// Cell 0 is for values below `min`; then come `count` cells of `step`; then one for all above.
    Linear {
        /// Lower bound of cell 1, in the value's type.
        min: i64,
        /// Width of a cell, at least 1.
        step: u64,
        /// Number of cells, at most [`trapline_record::tally::MAX_CELLS`] - 2.
        count: u32,
    },
    /// Each value has a row of its own.
    Each,
    /// Each text that this argument points to at the entry has a row of its own; the value is not used.
    Text(u8),
    /// All values of a group-by key have one row, with their number, their sum, the least and the greatest. Not for
    /// threads that are selected by their names.
    Sums,
}

impl Tally {
    /// Shape of its table.
    #[must_use]
    pub const fn shape(&self) -> TableShape {
        match (self.sort, &self.group_by) {
            (Sort::Sums, group_by) => TableShape::Sums(Rows {
                bits: if matches!(group_by, GroupBy::Nothing) { BITS.0 } else { ROW_BITS },
                texts: matches!(group_by, GroupBy::Text(_)),
                owned: false,
                sums: true,
            }),
            (Sort::Text(_), GroupBy::Number(_)) | (_, GroupBy::Text(_)) => TableShape::OwnedTexts(KEY_BITS),
            (_, GroupBy::Number(_)) => TableShape::OwnedRows(KEY_BITS),
            (Sort::Text(_), GroupBy::Nothing) => TableShape::Texts(ROW_BITS),
            (Sort::Text(_), GroupBy::Thread) => TableShape::OwnedTexts(ROW_BITS),
            (Sort::Each, GroupBy::Thread) => TableShape::OwnedRows(ROW_BITS),
            (Sort::Each, GroupBy::Nothing) | (_, GroupBy::Thread) => TableShape::Rows(ROW_BITS),
            (Sort::Log2, GroupBy::Nothing) => TableShape::Cells(LOG2_CELLS),
            (Sort::Linear { count, .. }, GroupBy::Nothing) => TableShape::Cells(count + 2),
        }
    }
    /// The trees that are computed for a hit.
    pub fn trees(&self) -> impl Iterator<Item = &Tree> {
        let key = if let GroupBy::Number(key) = &self.group_by { Some(key) } else { None };
        key.into_iter().chain([&self.value])
    }
    /// The same, each with how its values are sorted: those of a group-by key are not.
    pub(crate) fn sorted(&self) -> impl Iterator<Item = (&Tree, Sort)> {
        let is_value = |tree: &Tree| core::ptr::eq(tree, &self.value);
        self.trees().map(move |tree| (tree, if is_value(tree) { self.sort } else { Sort::Each }))
    }
    /// Whether it depends on the thread.
    #[must_use]
    pub fn asks_for_thread(&self) -> bool {
        self.group_by == GroupBy::Thread || self.texts() != 0 || self.trees().any(Tree::asks_for_thread)
    }
    /// Whether it depends on the returned value.
    #[must_use]
    pub fn asks_for_end(&self) -> bool {
        self.trees().any(Tree::asks_for_end)
    }
    /// Arguments that point to text, as bits: at most one ([`Self::is_sound`]).
    #[must_use]
    pub const fn texts(&self) -> u8 {
        match (self.sort, &self.group_by) {
            (Sort::Text(argument), _) | (_, &GroupBy::Text(argument)) => 1 << (argument & 7) & 0x3f,
            _ => 0,
        }
    }
    /// Whether code can be generated for it: not for texts grouped by texts.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        !matches!((self.sort, &self.group_by), (Sort::Text(_), GroupBy::Text(_)))
    }
    /// Whether its rows have owners.
    #[must_use]
    pub const fn has_owners(&self) -> bool {
        match self.group_by {
            GroupBy::Nothing => false,
            GroupBy::Thread => matches!(self.sort, Sort::Each | Sort::Text(_)),
            GroupBy::Number(_) | GroupBy::Text(_) => !matches!(self.sort, Sort::Sums),
        }
    }
    /// The cell of a value, or the value itself. Generated code must give the same result.
    #[must_use]
    pub fn key(&self, value: u64) -> u64 {
        let negative = !self.value.is_unsigned() && value.cast_signed() < 0;
        match self.sort {
            Sort::Log2 => log2_cell(value, negative).into(),
            Sort::Linear { min, step, count } => {
                let below = if self.value.is_unsigned() {
                    min > 0 && value < min.cast_unsigned()
                } else {
                    value.cast_signed() < min
                };
                let over = value.wrapping_sub(min.cast_unsigned()) / step.max(1);
                if below { 0 } else { over.min(count.into()) + 1 }
            }
            Sort::Each | Sort::Text(_) | Sort::Sums => value,
        }
    }
}

impl TargetFilter {
    /// Whether every hit passes.
    #[must_use]
    pub const fn passes_all(&self) -> bool {
        self.condition.is_none()
            && self.sample <= 1
            && self.late.is_none()
            && self.fields.is_none()
            && !self.by_name
    }
    /// Floats that an entry keeps for what its return aggregates or decides.
    #[must_use]
    pub fn left_floats(&self) -> Floats {
        let Some((late, tally)) = self.late.as_ref().zip(self.tally.as_ref()) else {
            return Floats::default();
        };
        tally.trees().fold(late.condition.floats(), |all, tree| all.and(tree.floats()))
    }
    /// Bytes that an entry keeps if its return aggregates; 0 if no return does.
    #[must_use]
    pub fn left_bytes(&self) -> u32 {
        let Some(tally) = self.tally.as_ref().filter(|_| self.late.is_some()) else { return 0 };
        let floats = self.left_floats().arguments.count_ones() as usize;
        let fields: usize = self.reads.iter().map(Read::words).sum();
        RingArea::slot_with_floats(ARGUMENTS, tally.texts().count_ones() as usize, floats + fields)
    }
    /// Whether a hit's program reads the clock.
    #[must_use]
    pub fn reads_clock(&self) -> bool {
        self.program.as_ref().is_some_and(|program| program.reads(input::NANOS))
    }
    /// Whether it depends on the thread, for example because the kernel reads memory for it.
    #[must_use]
    pub fn asks_for_thread(&self) -> bool {
        self.by_name
            || self
                .program
                .as_ref()
                .is_some_and(|program| [input::THREAD, input::MEMBER].iter().any(|nth| program.reads(*nth)))
            || (self.tally.is_some() || self.program.is_some()) && !self.reads.is_empty()
            || self.condition.as_ref().is_some_and(Tree::asks_for_thread)
            || self.tally.as_ref().is_some_and(Tally::asks_for_thread)
            || self.fields.as_ref().is_some_and(Tree::asks_for_thread)
            || self.late.as_ref().is_some_and(|late| late.condition.asks_for_thread())
    }
}
