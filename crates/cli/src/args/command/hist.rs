//! What `hist` asks for: a value, what it is grouped by, and how it is shown.
//!
//! In: plain values. Out: [`Hist`], [`Columns`], [`ByKey`]. Does not: read expressions, or aggregate.

use trapline::filter::{Filter, Sort};
use trapline::{By, ProbeSpec};

use super::aggregation::Aggregation;
use super::run::{Ends, Run};
use super::types::Type;

/// `hist`, ready.
#[derive(Debug)]
pub(crate) struct Hist {
    /// What to trace and how to report it.
    pub(crate) run: Run,
    /// The value, as typed.
    pub(crate) expression: String,
    /// How values are sorted into rows.
    pub(crate) sort: Sort,
    /// The most rows that are shown, if only the most frequent values are.
    pub(crate) top: Option<u32>,
    /// What is shown of the values' sum and extremes, if those are aggregated.
    pub(crate) columns: Option<Columns>,
    /// What hits are split by, if it is not a value of the calls.
    pub(crate) by: Option<By>,
    /// What hits are grouped by, if it is a value of the calls.
    pub(crate) key: Option<ByKey>,
    /// Whether threads are selected by name.
    pub(crate) named: bool,
    /// Whether the value is shown as an unsigned number.
    pub(crate) unsigned: bool,
    /// For each probe, the type by which the value is shown, if it is just an argument or the returned value.
    pub(crate) shown: Vec<(ProbeSpec, Option<Type>)>,
    /// The filter of each probe.
    pub(crate) filters: Vec<Filter>,
    /// Where values are aggregated.
    pub(crate) aggregation: Aggregation,
    /// How the ends of calls are seen, if the value needs them.
    pub(crate) ends: Ends,
}

/// What is shown of the values' sum and extremes, besides the number of hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) sum: bool,
    pub(crate) min: bool,
    pub(crate) max: bool,
    pub(crate) avg: bool,
}

/// A value of the calls as group-by key.
#[derive(Debug)]
pub(crate) struct ByKey {
    /// As typed.
    pub(crate) text: String,
    /// Whether it is shown as an unsigned number.
    pub(crate) unsigned: bool,
    /// Whether it is the text that an argument points to.
    pub(crate) texts: bool,
    /// For each probe, the type by which it is shown, if it is just an argument or the returned value.
    pub(crate) shown: Vec<(ProbeSpec, Option<Type>)>,
}
