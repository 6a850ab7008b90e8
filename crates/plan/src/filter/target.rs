//! What the target decides of a hit, and as what it adds it up.
//!
//! In: conditions and values. Out: [`TargetFilter`], of which generated code is made; what a table is like, what a value's key in it is, and how much a call leaves for its return.
//! Does not: make code.

use trapline_record::ring::RingArea;
use trapline_record::tally::{LOG2_CELLS, Shape, log2_cell};

use super::{ARGUMENTS, Tree};
use crate::request::{Floats, Operand, Read};

/// What decides at a call's return whether it is recorded, from what its entry left for that (`x86_64::stub::stage`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Late {
    /// Must hold, as [`Tree::decided`] has it; [`Tree::is_known_at_return`].
    pub condition: Tree,
    /// Nanoseconds of a tick, times 2³²: what durations are computed with in the target.
    pub tick: u64,
}

impl Late {
    /// [`Self::tick`] of a clock.
    #[must_use]
    pub fn tick_of(ns_per_tick: f64) -> u64 {
        (ns_per_tick * (1_u64 << 32) as f64).round() as u64
    }
    /// Nanoseconds of so many ticks: what generated code must agree with.
    #[must_use]
    pub const fn nanos(&self, ticks: u64) -> u64 {
        ((ticks as u128 * self.tick as u128) >> 32) as u64
    }
}

/// What decides in the target whether a hit is recorded, and as what it is tallied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TargetFilter {
    /// Must hold; [`Tree::is_known_at_entry`], or, where exits are tallied, [`Tree::is_known_at_exit`].
    pub condition: Option<Tree>,
    /// Of those hits one in so many is recorded, on each CPU; 1 for all.
    pub sample: u32,
    /// Of what values are tallied, where a hit is not recorded but tallied.
    pub tally: Option<Tally>,
    /// What records hold besides, at entries, or what is tallied there depends on: see [`Read`].
    pub reads: Vec<Read>,
    /// Must hold of what was read: [`Tree::is_known_with_fields`]. Not beside [`Self::late`], which has it then.
    pub fields: Option<Tree>,
    /// What decides at returns about calls that passed at their entry. Where hits are tallied, what is tallied is known at returns, and they
    /// are whole calls' (`x86_64::stub::gather`).
    pub late: Option<Late>,
    /// Hits of threads that the reader noted are rejected (`trapline_record::names`); where hits are tallied, of others the reader decides by rows' threads.
    pub by_name: bool,
    /// At a mark: what stands for the six argument registers.
    pub operands: Vec<Operand>,
}

/// What a hit adds to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally {
    /// The value; known where the hit is. Of fields only at entries ([`TargetFilter::reads`]): where one cannot be read, the hit is unseen.
    pub value: Tree,
    /// Which cell or row is its.
    pub sort: Sort,
    /// What hits of one value are told apart by.
    pub apart: Apart,
}

/// What hits of one value are told apart by.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Apart {
    /// Nothing.
    #[default]
    Nothing,
    /// Their threads: of cells the key is the thread's number times [`THREAD_UNIT`], plus the cell; values' and texts' rows have an owner.
    Thread,
    /// A value that is known where theirs is: it is the owner of the rows of all values and cells.
    Number(Tree),
    /// The text that this argument points to at the entry: it is the key of a row, and the value or cell its owner. Not of texts.
    Text(u8),
}

impl Apart {
    /// Threads, if that is asked.
    #[must_use]
    pub const fn threads(asked: bool) -> Self {
        if asked { Self::Thread } else { Self::Nothing }
    }
}

/// Cells of one thread, in a key.
pub const THREAD_UNIT: u64 = 1 << 16;
/// Bits of the number of rows, where rows are kept.
pub const ROW_BITS: u8 = 12;
/// The same, where they are told apart by what calls say themselves: of each there may be many values.
pub const KEY_BITS: u8 = 13;

/// How values fall into cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// By magnitude: [`trapline_record::tally::log2_cell`].
    Log2,
    /// Cell 0 is below `min`; then `count` cells of `step`; then one for all above.
    Linear {
        /// Where cell 1 begins, as the value's type has it.
        min: i64,
        /// Width of a cell, at least 1.
        step: u64,
        /// So many, at most [`trapline_record::tally::MAX_CELLS`] - 2.
        count: u32,
    },
    /// Each value has a row.
    Each,
    /// Each text that this argument points to at the entry has a row; the value is not used.
    Text(u8),
}

impl Tally {
    /// What its table is like.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        match (self.sort, &self.apart) {
            (Sort::Text(_), Apart::Number(_)) | (_, Apart::Text(_)) => Shape::OwnedTexts(KEY_BITS),
            (_, Apart::Number(_)) => Shape::OwnedRows(KEY_BITS),
            (Sort::Text(_), Apart::Nothing) => Shape::Texts(ROW_BITS),
            (Sort::Text(_), Apart::Thread) => Shape::OwnedTexts(ROW_BITS),
            (Sort::Each, Apart::Thread) => Shape::OwnedRows(ROW_BITS),
            (Sort::Each, Apart::Nothing) | (_, Apart::Thread) => Shape::Rows(ROW_BITS),
            (Sort::Log2, Apart::Nothing) => Shape::Cells(LOG2_CELLS),
            (Sort::Linear { count, .. }, Apart::Nothing) => Shape::Cells(count + 2),
        }
    }
    /// What is computed of a hit.
    pub fn trees(&self) -> impl Iterator<Item = &Tree> {
        let key = if let Apart::Number(key) = &self.apart { Some(key) } else { None };
        key.into_iter().chain([&self.value])
    }
    /// Whether it depends on the thread.
    #[must_use]
    pub fn asks_for_thread(&self) -> bool {
        self.apart == Apart::Thread || self.texts() != 0 || self.trees().any(Tree::asks_for_thread)
    }
    /// Whether it depends on what is returned.
    #[must_use]
    pub fn asks_for_end(&self) -> bool {
        self.trees().any(Tree::asks_for_end)
    }
    /// Arguments that point to text, as bits: at most one ([`Self::is_sound`]).
    #[must_use]
    pub const fn texts(&self) -> u8 {
        match (self.sort, &self.apart) {
            (Sort::Text(argument), _) | (_, &Apart::Text(argument)) => 1 << (argument & 7) & 0x3f,
            _ => 0,
        }
    }
    /// Whether there is code for it: of texts by texts there is none.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        !matches!((self.sort, &self.apart), (Sort::Text(_), Apart::Text(_)))
    }
    /// Whether its rows have owners.
    #[must_use]
    pub const fn has_owners(&self) -> bool {
        match self.apart {
            Apart::Nothing => false,
            Apart::Thread => matches!(self.sort, Sort::Each | Sort::Text(_)),
            Apart::Number(_) | Apart::Text(_) => true,
        }
    }
    /// The cell of a value, or the value itself: what generated code must agree with.
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
            Sort::Each | Sort::Text(_) => value,
        }
    }
}

impl TargetFilter {
    /// Whether it lets every hit pass.
    #[must_use]
    pub const fn passes_all(&self) -> bool {
        self.condition.is_none()
            && self.sample <= 1
            && self.late.is_none()
            && self.fields.is_none()
            && !self.by_name
    }
    /// Floats that an entry leaves for what its return tallies, or decides of that.
    #[must_use]
    pub fn left_floats(&self) -> Floats {
        let Some((late, tally)) = self.late.as_ref().zip(self.tally.as_ref()) else {
            return Floats::default();
        };
        tally.trees().fold(late.condition.floats(), |all, tree| all.and(tree.floats()))
    }
    /// Bytes of what an entry leaves where its return tallies; 0 where none does.
    #[must_use]
    pub fn left_bytes(&self) -> u32 {
        let Some(tally) = self.tally.as_ref().filter(|_| self.late.is_some()) else { return 0 };
        let floats = self.left_floats().arguments.count_ones() as usize;
        let fields: usize = self.reads.iter().map(Read::words).sum();
        RingArea::slot_with_floats(ARGUMENTS, tally.texts().count_ones() as usize, floats + fields)
    }
    /// Whether it depends on the thread, as what the kernel reads for it does.
    #[must_use]
    pub fn asks_for_thread(&self) -> bool {
        self.by_name
            || self.tally.is_some() && !self.reads.is_empty()
            || self.condition.as_ref().is_some_and(Tree::asks_for_thread)
            || self.tally.as_ref().is_some_and(Tally::asks_for_thread)
            || self.fields.as_ref().is_some_and(Tree::asks_for_thread)
            || self.late.as_ref().is_some_and(|late| late.condition.asks_for_thread())
    }
}
