//! Aggregations: `count()`, `hist(x)` and the like, with their constants.
//!
//! In: calls. Out: typed expressions that are assigned to maps, and the constants with the maps. Does not: add up.

use super::checker::Checker;
use crate::calls::Arg;
use crate::diagnostic::{Diagnostic, Severity};
use crate::program::{Op, SumArgs, Typed};
use crate::source::Span;
use crate::tree::Expr;
use crate::types::{Sum, Type};

/// Most buckets of a linear histogram.
const MOST_BUCKETS: i64 = 1000;
/// Most intervals of a time series.
const MOST_INTERVALS: i64 = 1_000_000;

impl<'a> Checker<'a> {
    /// A call of an aggregation. Its constants are kept with the map when it is assigned.
    pub(super) fn sum(&mut self, sum: Sum, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        let name = match sum {
            Sum::Count => "count",
            Sum::Total => "sum",
            Sum::Min => "min",
            Sum::Max => "max",
            Sum::Avg => "avg",
            Sum::Stats => "stats",
            Sum::Hist => "hist",
            Sum::Lhist => "lhist",
            Sum::Tseries => "tseries",
        };
        let value = match args.first() {
            Some(arg) => self.argument(name, Arg::Int, arg),
            None => Typed::int(1, Type::uint(8), &at),
        };
        let constants = match sum {
            Sum::Hist => self.hist(args, span),
            Sum::Lhist => self.lhist(args, span),
            Sum::Tseries => self.tseries(args, span),
            _ => SumArgs::None,
        };
        let keeps_sign = !matches!(sum, Sum::Count | Sum::Hist | Sum::Lhist);
        let ty = Type::Sum(sum, keeps_sign && value.ty.is_signed());
        Typed::new(Op::Sum(sum, value, constants), ty, &at)
    }
    /// Keeps the constants of an aggregation with the map to which it is assigned.
    pub(super) fn note_sums(&mut self, map: usize, value: &Typed, span: Span) {
        match &*value.op {
            Op::Sum(_, _, constants) => {
                let kept = self.maps[map].info.sums;
                if kept == SumArgs::None {
                    self.maps[map].info.sums = *constants;
                } else if kept != *constants && *constants != SumArgs::None {
                    let name = self.maps[map].info.name.clone();
                    self.error(format!("{name} adds up with other constants elsewhere"), span);
                }
            }
            Op::Block { value, .. } => self.note_sums(map, value, span),
            Op::If { then, other, .. } => {
                self.note_sums(map, then, span);
                self.note_sums(map, other, span);
            }
            _ => {}
        }
    }
    fn constant(&mut self, name: &str, arg: &'a Expr) -> Option<i64> {
        self.argument(name, Arg::Number, arg).constant()
    }
    fn hist(&mut self, args: &'a [Expr], span: Span) -> SumArgs {
        let bits = args.get(1).map_or(Some(0), |arg| self.constant("hist", arg)).unwrap_or(0);
        if !(0..=5).contains(&bits) {
            self.error(format!("hist: bits {bits} must be 0..5"), span);
            return SumArgs::Hist(0);
        }
        SumArgs::Hist(bits as u32)
    }
    fn lhist(&mut self, args: &'a [Expr], span: Span) -> SumArgs {
        let numbers: Option<Vec<i64>> = args[1..].iter().map(|arg| self.constant("lhist", arg)).collect();
        let Some([min, max, step]) = numbers.as_deref().and_then(|numbers| numbers.first_chunk()).copied()
        else {
            return SumArgs::None;
        };
        let message = match () {
            () if step <= 0 => Some(format!("lhist() step must be >= 1 ({step} provided)")),
            () if min < 0 => Some(format!("lhist() min must be non-negative (provided min {min})")),
            () if min >= max => {
                Some(format!("lhist() min must be less than max (provided min {min} and max {max})"))
            }
            () if max - min < step => Some(format!("lhist() step is too large (provided step {step})")),
            () if (max - min) / step > MOST_BUCKETS => {
                let buckets = (max - min) / step;
                Some(format!("lhist() too many buckets, must be <= {MOST_BUCKETS} (would need {buckets})"))
            }
            () => None,
        };
        if let Some(message) = message {
            self.error(message, span);
            return SumArgs::None;
        }
        SumArgs::Lhist { min, max, step }
    }
    fn tseries(&mut self, args: &'a [Expr], span: Span) -> SumArgs {
        let interval = self.constant("tseries", &args[1]).unwrap_or(1);
        let count = self.constant("tseries", &args[2]).unwrap_or(1);
        if interval <= 0 {
            self.error(format!("tseries() interval_ns must be >= 1 ({interval} provided)"), span);
        }
        if !(1..=MOST_INTERVALS).contains(&count) {
            let message =
                format!("tseries() num_intervals must be >= 1 and <= {MOST_INTERVALS} ({count} provided)");
            self.error(message, span);
        }
        let by = args.get(3).map_or(Sum::Tseries, |by| self.tseries_by(by, span));
        match self.config.unstable_tseries.as_str() {
            "error" => self.error("tseries() is not enabled (unstable_tseries=error)", span),
            "warn" => {
                let message = "Script is using an unstable feature: tseries. To prevent this warning, set \
                               unstable_tseries=enable in the config";
                let at = self.at(span);
                self.say(Diagnostic::new(Severity::Warning, message.to_owned(), at).placeless());
            }
            _ => {}
        }
        let (interval, count) = (interval.max(1) as u64, count.clamp(1, MOST_INTERVALS) as u64);
        SumArgs::Tseries { interval, count, by }
    }
    /// What `tseries` does with the values of an interval.
    fn tseries_by(&mut self, by: &'a Expr, span: Span) -> Sum {
        let by = self.argument("tseries", Arg::Literal, by);
        match by.literal().unwrap_or_default() {
            b"avg" => Sum::Avg,
            b"min" => Sum::Min,
            b"max" => Sum::Max,
            b"sum" => Sum::Total,
            other => {
                let other = String::from_utf8_lossy(other).into_owned();
                if self.last {
                    let message = format!(
                        "tseries() expects one of the following aggregation functions: avg, max, min, sum (\"{other}\" provided)"
                    );
                    self.error(message, span);
                }
                Sum::Tseries
            }
        }
    }
}
