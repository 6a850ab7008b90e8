//! One value of a map: a plain value, or what has been added up.
//!
//! In: values, one by one. Out: the sum of them in each of its forms. Invariant: adding never fails; what has no room in
//! 64 bits wraps. Does not: know keys.

use std::collections::BTreeMap;

use crate::amount::Amount;
use crate::bytes::wrap;
use crate::program::SumArgs;
use crate::shown::{Names, Shown};
use crate::types::{Sum, Type};
use crate::value::Value;

/// A value in a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cell {
    Plain(Value),
    /// Of `count` and `sum`.
    Total(i64),
    /// Of `min` and `max`; `None` before the first value.
    Extreme(Option<i64>),
    /// Of `avg` and `stats`.
    Stats {
        count: u64,
        total: i64,
    },
    Buckets(BTreeMap<u32, u64>),
    /// By number of the interval: how many values, and what became of them.
    Series(BTreeMap<u64, (u64, i64)>),
}

impl Cell {
    /// What a map of a type begins with.
    pub(crate) fn empty(ty: &Type) -> Self {
        match ty {
            Type::Sum(Sum::Count | Sum::Total, _) => Self::Total(0),
            Type::Sum(Sum::Min | Sum::Max, _) => Self::Extreme(None),
            Type::Sum(Sum::Avg | Sum::Stats, _) => Self::Stats { count: 0, total: 0 },
            Type::Sum(Sum::Hist | Sum::Lhist, _) => Self::Buckets(BTreeMap::new()),
            Type::Sum(Sum::Tseries, _) => Self::Series(BTreeMap::new()),
            _ => Self::Plain(Value::Nothing),
        }
    }
    /// Adds a value. `now` is wall time in nanoseconds, for series.
    pub(crate) fn add(&mut self, sum: Sum, value: i64, signed: bool, args: SumArgs, now: u64) {
        match self {
            Self::Total(total) => *total = total.wrapping_add(value),
            Self::Extreme(extreme) => {
                *extreme = Some(extreme.map_or(value, |old| pick(sum, old, value, signed)));
            }
            Self::Stats { count, total } => {
                *count += 1;
                *total = total.wrapping_add(value);
            }
            Self::Buckets(buckets) => *buckets.entry(bucket(value, args)).or_default() += 1,
            Self::Series(series) => {
                let SumArgs::Tseries { interval, count, by } = args else { return };
                let epoch = now / interval;
                let (seen, kept) = series.entry(epoch).or_insert((0, 0));
                *kept = match by {
                    Sum::Total | Sum::Avg => kept.wrapping_add(value),
                    Sum::Min | Sum::Max if *seen > 0 => pick(by, *kept, value, signed),
                    // The last value is the one with the latest time, and 0 is no time, as in bpftrace.
                    Sum::Tseries if now == 0 => 0,
                    _ => value,
                };
                *seen += 1;
                while series.len() as u64 > count {
                    series.pop_first();
                }
            }
            Self::Plain(old) => *old = Value::Int(value),
        }
    }
    /// Adds what the target has counted.
    pub(crate) fn add_all(&mut self, ty: &Type, more: &Amount) {
        match self {
            Self::Total(total) => {
                let count = matches!(ty, Type::Sum(Sum::Count, _));
                *total = total.wrapping_add(if count { more.hits as i64 } else { more.sum as i64 });
            }
            Self::Extreme(extreme) => {
                let (Some((least, greatest)), Type::Sum(sum, signed)) = (more.extremes, ty) else { return };
                let value = if *sum == Sum::Min { least } else { greatest } as i64;
                *extreme = Some(extreme.map_or(value, |old| pick(*sum, old, value, *signed)));
            }
            Self::Stats { count, total } => {
                *count = count.wrapping_add(more.hits);
                *total = total.wrapping_add(more.sum as i64);
            }
            Self::Buckets(buckets) => {
                for (bucket, hits) in &more.buckets {
                    *buckets.entry(*bucket as u32).or_default() += hits;
                }
            }
            Self::Plain(value) => {
                let sum = value.int().wrapping_add(more.sum as i64);
                *value = Value::Int(if let Type::Int(int) = ty { wrap(sum, int) } else { sum });
            }
            Self::Series(_) => {}
        }
    }
    /// Sets what was added up to nothing.
    pub(crate) fn zero(&mut self, ty: &Type) {
        *self = match ty {
            Type::Int(_) | Type::Bool | Type::Pointer(_) => Self::Plain(Value::Int(0)),
            ty => Self::empty(ty),
        };
    }
    /// The value as an expression reads it.
    pub(crate) fn value(&self, signed: bool) -> Value {
        match self {
            Self::Plain(value) => value.clone(),
            Self::Total(total) => Value::Int(*total),
            Self::Extreme(extreme) => Value::Int(extreme.unwrap_or(0)),
            Self::Stats { count, total } => Value::Int(average(*count, *total, signed)),
            Self::Buckets(_) | Self::Series(_) => Value::Nothing,
        }
    }
    /// The value as it is shown, divided.
    pub(crate) fn shown(&self, ty: &Type, names: &Names<'_>, div: i64) -> Shown {
        let signed = ty.is_signed();
        let number = |value: i64| if signed { Shown::Int(value) } else { Shown::Uint(value as u64) };
        match (self, ty) {
            (Self::Stats { count, total }, Type::Sum(Sum::Stats, _)) => Shown::Record(vec![
                ("count".to_owned(), number(*count as i64)),
                ("average".to_owned(), number(average(*count, *total, signed)).divided(div)),
                ("total".to_owned(), number(*total)),
            ]),
            (Self::Plain(value), ty) => Shown::of(value, ty, names).divided(div),
            (cell, _) => number(cell.value(signed).int()).divided(div),
        }
    }
    /// What rows of numbers are sorted by.
    pub(crate) fn order(&self, ty: &Type) -> i128 {
        let value = self.value(ty.is_signed()).int();
        if ty.is_signed() { i128::from(value) } else { i128::from(value as u64) }
    }
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u32, u64)> {
        let buckets = if let Self::Buckets(buckets) = self { Some(buckets) } else { None };
        buckets.into_iter().flatten().map(|(index, count)| (*index, *count))
    }
    pub(crate) fn bucket(&self, index: u32) -> u64 {
        match self {
            Self::Buckets(buckets) => buckets.get(&index).copied().unwrap_or(0),
            _ => 0,
        }
    }
    /// The number of the newest interval.
    pub(crate) fn newest(&self) -> Option<u64> {
        match self {
            Self::Series(series) => series.last_key_value().map(|(epoch, _)| *epoch),
            _ => None,
        }
    }
    /// The intervals of a series with their values.
    pub(crate) fn epochs(&self, by: Sum, signed: bool) -> BTreeMap<u64, i128> {
        let series = if let Self::Series(series) = self { Some(series) } else { None };
        let value = |(epoch, (count, kept)): (&u64, &(u64, i64))| {
            let value = if by == Sum::Avg { average(*count, *kept, signed) } else { *kept };
            (*epoch, if signed { i128::from(value) } else { i128::from(value as u64) })
        };
        series.into_iter().flatten().map(value).collect()
    }
}

/// The less or the greater of two.
fn pick(sum: Sum, old: i64, new: i64, signed: bool) -> i64 {
    let less = if signed { new < old } else { (new as u64) < old as u64 };
    if less == (sum == Sum::Min) { new } else { old }
}

/// An average, cut towards zero.
pub(crate) fn average(count: u64, total: i64, signed: bool) -> i64 {
    match (count, signed) {
        (0, _) => 0,
        (count, true) => (i128::from(total) / i128::from(count)) as i64,
        (count, false) => (total as u64 / count) as i64,
    }
}

/// The bucket of a value. 0 is for what is below all others.
fn bucket(value: i64, args: SumArgs) -> u32 {
    match args {
        SumArgs::Lhist { min, .. } if value < min => 0,
        SumArgs::Lhist { min, max, step } => (1 + (value.min(max) - min) / step) as u32,
        SumArgs::Hist(bits) => power(value, bits),
        _ => power(value, 0),
    }
}

/// 0 for what is negative; then one bucket for each value below 2 to the `bits`, and so many for each power of two.
fn power(value: i64, bits: u32) -> u32 {
    let Ok(value) = u64::try_from(value) else { return 0 };
    let mask = (1u64 << bits) - 1;
    if value <= mask {
        return value as u32 + 1;
    }
    let shift = value.ilog2() - bits;
    (((shift + 1) << bits) as u64 + ((value >> shift) & mask) + 1) as u32
}

#[cfg(test)]
mod tests {
    use super::{Cell, average, power};
    use crate::program::SumArgs;
    use crate::types::{Sum, Type};

    #[test]
    fn powers_of_two_have_buckets() {
        assert_eq!([-1, 0, 1, 2, 3, 4, 1024].map(|value| power(value, 0)), [0, 1, 2, 3, 3, 4, 12]);
        // The example of bpftrace's own documentation of its function.
        assert_eq!(power(225, 2), 28);
        assert_eq!(power(i64::MAX, 5), 1888);
    }

    #[test]
    fn averages_are_cut_towards_zero() {
        assert_eq!(average(3, -10, true), -3);
        assert_eq!(average(0, 5, true), 0);
        assert_eq!(average(2, -1, false), (u64::MAX / 2) as i64);
    }

    #[test]
    fn extremes_respect_the_sign() {
        let extreme = |sum, signed| {
            let mut cell = Cell::empty(&Type::Sum(sum, signed));
            for value in [3, -1, 7] {
                cell.add(sum, value, signed, SumArgs::None, 0);
            }
            cell.value(signed).int()
        };
        assert_eq!((extreme(Sum::Min, true), extreme(Sum::Max, true)), (-1, 7));
        assert_eq!((extreme(Sum::Min, false), extreme(Sum::Max, false)), (3, -1));
    }
}
