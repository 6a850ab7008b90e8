//! A map as it is shown: rows in their order, histograms with labels, series with moments.
//!
//! In: the cells of a map. Out: a [`Table`]. Numbers come in the order of their values, all else in the order of keys;
//! with `top`, only the last rows. Does not: write.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use trapline_order::Order as _;

use crate::cell::Cell;
use crate::program::{MapInfo, SumArgs};
use crate::shown::{Names, Shown};
use crate::time::Moment;
use crate::types::{Sum, Type};
use crate::value::Value;

/// A map that can be written.
#[derive(Debug)]
pub(crate) enum Table {
    /// `stats` if each value is an average or more.
    Values {
        rows: Vec<(Option<Shown>, Shown)>,
        stats: bool,
    },
    Histograms(Vec<(Option<Shown>, Histogram)>),
    Series(Vec<(Option<Shown>, Series)>),
}

/// The buckets of a histogram, from the first that is not empty to the last.
pub(crate) type Histogram = Vec<Bucket>;

/// One bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) from: Option<Label>,
    pub(crate) to: Option<Label>,
    pub(crate) count: u64,
}

/// An end of a bucket.
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) text: String,
    pub(crate) value: i128,
    /// Whether the text is the number itself.
    pub(crate) is_plain: bool,
}

/// Values by time.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) points: Vec<(Moment, Option<i128>)>,
    /// Nanoseconds between points; 0 with one point alone.
    pub(crate) interval: u64,
    /// The least number that a value can be.
    pub(crate) least: i128,
}

/// What is asked of a table.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked {
    /// How many rows at most; 0 for all.
    pub(crate) top: usize,
    /// What numbers are divided by; 0 is 1.
    pub(crate) div: i64,
}

/// Rows of a map, by key.
pub(crate) type Rows<'a> = Vec<(&'a Value, &'a Cell)>;

impl Table {
    /// The table of a map's cells. `moment` makes a moment of a number of nanoseconds of wall time.
    pub(crate) fn new(
        info: &MapInfo,
        mut rows: Rows<'_>,
        asked: Asked,
        names: &Names<'_>,
        moment: &dyn Fn(u64) -> Moment,
    ) -> Self {
        rows.order_by(|(a, _), (b, _)| compare_keys(a, b, info.key.as_ref()));
        let key = |value: &Value| info.key.as_ref().map(|ty| Shown::of(value, ty, names));
        match (&info.value, info.sums) {
            (Type::Sum(Sum::Hist | Sum::Lhist, _), sums) => {
                rows.order_by_key(|(_, cell)| cell.buckets().map(|(_, count)| count).sum::<u64>());
                let shown = last(rows, asked.top);
                let histogram = |cell: &Cell| histogram(cell, sums, asked.div.max(1) as u64);
                Self::Histograms(shown.map(|(value, cell)| (key(value), histogram(cell))).collect())
            }
            (Type::Sum(Sum::Tseries, signed), SumArgs::Tseries { interval, count, by }) => {
                let least = if *signed { i128::from(i64::MIN) } else { 0 };
                let newest = rows.iter().filter_map(|(_, cell)| cell.newest()).max().unwrap_or(0);
                let range = (newest + 1).saturating_sub(count)..=newest;
                let one = |cell: &Cell| {
                    let values = cell.epochs(by, *signed);
                    series(&values, range.clone(), interval, least, moment)
                };
                Self::Series(rows.into_iter().map(|(value, cell)| (key(value), one(cell))).collect())
            }
            (ty, _) => {
                let stats = matches!(ty, Type::Sum(Sum::Avg | Sum::Stats, _));
                if matches!(ty, Type::Sum(..) | Type::Int(_)) {
                    rows.order_by_key(|(_, cell)| cell.order(ty));
                }
                let shown = last(rows, asked.top);
                let value = |cell: &Cell| cell.shown(ty, names, asked.div);
                Self::Values { rows: shown.map(|(of, cell)| (key(of), value(cell))).collect(), stats }
            }
        }
    }
    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Values { rows, .. } => rows.is_empty(),
            Self::Histograms(rows) => rows.is_empty(),
            Self::Series(rows) => rows.is_empty(),
        }
    }
}

fn last<'a>(rows: Rows<'a>, top: usize) -> impl Iterator<Item = (&'a Value, &'a Cell)> {
    let skipped = if top > 0 { rows.len().saturating_sub(top) } else { 0 };
    rows.into_iter().skip(skipped)
}

/// Keys by their parts: numbers by value, texts by letters.
fn compare_keys(a: &Value, b: &Value, ty: Option<&Type>) -> std::cmp::Ordering {
    let unsigned = matches!(ty, Some(Type::Pointer(_)));
    match (a, b, ty) {
        (Value::Parts(a), Value::Parts(b), Some(ty)) => {
            let types = ty.parts();
            let pairs = a.iter().zip(b.iter()).enumerate();
            let first = pairs.map(|(index, (a, b))| compare_keys(a, b, types.get(index).copied()));
            first.into_iter().find(|order| order.is_ne()).unwrap_or(a.len().cmp(&b.len()))
        }
        (Value::Int(a), Value::Int(b), _) if unsigned => (*a as u64).cmp(&(*b as u64)),
        (a, b, _) => a.cmp(b),
    }
}

fn histogram(cell: &Cell, sums: SumArgs, div: u64) -> Histogram {
    let (first, end) = cell
        .buckets()
        .filter(|(_, count)| *count > 0)
        .fold((u32::MAX, 0), |(first, end), (at, _)| (first.min(at), end.max(at + 1)));
    let bucket = |index: u32| match sums {
        SumArgs::Lhist { min, max, step } => Bucket {
            from: index.checked_sub(1).map(|before| linear(min, step, before)),
            to: Some(linear(min, step, index)).filter(|to| to.value <= i128::from(max)),
            count: cell.bucket(index),
        },
        sums => {
            let bits = if let SumArgs::Hist(bits) = sums { bits } else { 0 };
            let from = index.checked_sub(1).map(|before| power(before, bits));
            Bucket { from, to: Some(power(index, bits)), count: cell.bucket(index) / div }
        }
    };
    (first..end).map(bucket).collect()
}

fn plain(value: i128) -> Label {
    Label { text: value.to_string(), value, is_plain: true }
}

/// The upper end of a bucket of a histogram of powers of two, with `bits` behind the first one.
fn power(index: u32, bits: u32) -> Label {
    if index <= 2 << bits {
        return plain(i128::from(index));
    }
    let (intervals, at) = (1u32 << bits, index & ((1 << bits) - 1));
    let exponent = (index >> bits) - 1;
    let mantissa = i128::from(intervals + at);
    let suffix = ["", "K", "M", "G", "T", "P", "E"][(exponent / 10).min(6) as usize];
    let text = format!("{}{suffix}", mantissa << (exponent % 10));
    Label { text, value: mantissa << exponent, is_plain: false }
}

/// The upper end of a bucket of a linear histogram.
fn linear(min: i64, step: i64, index: u32) -> Label {
    let value = i128::from(min) + i128::from(index) * i128::from(step);
    let (kilo, mega) = (1024, 1024 * 1024);
    let text = match value {
        value if i128::from(step) % kilo != 0 => return plain(value),
        0 => "0".to_owned(),
        value if value % mega == 0 => format!("{}M", value / mega),
        value if value % kilo == 0 => format!("{}K", value / kilo),
        value => value.to_string(),
    };
    Label { text, value, is_plain: false }
}

fn series(
    values: &BTreeMap<u64, i128>,
    range: RangeInclusive<u64>,
    interval: u64,
    least: i128,
    moment: &dyn Fn(u64) -> Moment,
) -> Series {
    let Some((&first, _)) = values.range(range.clone()).next() else {
        return Series { points: Vec::new(), interval: 0, least };
    };
    let point = |epoch: u64| (moment(epoch.saturating_mul(interval)), values.get(&epoch).copied());
    let points: Vec<_> = (first..=*range.end()).map(point).collect();
    let interval = if points.len() > 1 { interval } else { 0 };
    Series { points, interval, least }
}
