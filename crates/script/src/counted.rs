//! What a target counts for a block: one table, and the maps that are made of it.
//!
//! In: nothing; `lower` makes it. Out: plain data. Does not: decide, or read tables.

use std::collections::BTreeMap;

use crate::value::Value;
use crate::word::Word;

/// Where a block runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    /// It is no block of a program's hits.
    Own,
    /// In the reader, over records; the reason.
    Read(String),
    /// In the target.
    Counted(Counted),
}

/// What the target does at the hits of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted {
    /// Only hits for which this is not 0 count.
    pub condition: Option<Word>,
    /// What hits are grouped by.
    pub group: Group,
    /// What is counted.
    pub table: Table,
    /// The maps that are made of the table.
    pub updates: Vec<Update>,
}

/// What hits are grouped by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// Nothing.
    All,
    /// Their thread.
    Thread,
    /// This number.
    By(Word),
}

/// What is counted, for each group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Table {
    /// Hits.
    Hits,
    /// Hits, and sum and extremes of a value.
    Sums(Word),
    /// Hits by a value's power of two.
    Powers(Word),
    /// Hits by a value's step.
    Steps {
        /// The value.
        of: Word,
        /// The least of the first step.
        min: i64,
        /// The width of a step.
        step: i64,
        /// How many there are.
        count: u32,
    },
}

/// A map that is made of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    pub(crate) map: usize,
    pub(crate) key: Vec<Part>,
    /// Whether the key is a tuple of its parts.
    pub(crate) is_tuple: bool,
}

/// A part of a map's key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    Func,
    Probe,
    Sort,
    Pid,
    /// What hits are grouped by.
    Group,
    Constant(Value),
}

impl Update {
    /// Whether its key has what hits are grouped by. If not, it is about all hits.
    #[must_use]
    pub fn is_grouped(&self) -> bool {
        self.key.contains(&Part::Group)
    }
}

impl Counted {
    /// Whether a hit counts only if it is known what was returned.
    #[must_use]
    pub fn asks_for_return(&self) -> bool {
        let group = if let Group::By(word) = &self.group { Some(word) } else { None };
        let value = match &self.table {
            Table::Hits => None,
            Table::Sums(of) | Table::Powers(of) | Table::Steps { of, .. } => Some(of),
        };
        self.condition.iter().chain(group).chain(value).any(Word::asks_for_return)
    }
}

/// What a table holds for one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amount {
    /// Hits.
    pub hits: u64,
    /// The sum of their values; only its low 64 bits matter.
    pub sum: i128,
    /// The least of them, and the greatest.
    pub extremes: Option<(i128, i128)>,
    /// Hits by power of two or step.
    pub buckets: BTreeMap<u64, u64>,
}

impl Amount {
    /// Adds what another table holds for the same key.
    pub(crate) fn add(&mut self, more: &Self) {
        self.hits = self.hits.wrapping_add(more.hits);
        self.sum = self.sum.wrapping_add(more.sum);
        self.extremes = match (self.extremes, more.extremes) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, other) => one.or(other),
        };
        for (bucket, hits) in &more.buckets {
            let sum = self.buckets.entry(*bucket).or_default();
            *sum = sum.wrapping_add(*hits);
        }
    }
    /// What it is more than before. Extremes are those of all hits.
    pub(crate) fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        let bucket = |(bucket, hits): (&u64, &u64)| {
            (*bucket, hits.saturating_sub(before.buckets.get(bucket).copied().unwrap_or(0)))
        };
        Self {
            hits: self.hits.saturating_sub(before.hits),
            sum: self.sum.wrapping_sub(before.sum),
            extremes: self.extremes,
            buckets: self.buckets.iter().map(bucket).filter(|(_, hits)| *hits > 0).collect(),
        }
    }
}
