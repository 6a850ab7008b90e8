//! Times and ranges as people type them. In: text. Out: values, or an error that names what would be right.

use std::time::Duration;

use crate::args::command::Linear;

/// A text that is no time or range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    /// It is not a time.
    #[error(
        "`{0}` is no time: write a number with ns, us, ms, s, m or h after it (seconds if nothing follows)"
    )]
    Time(String),
    /// It is zero where some time must pass.
    #[error("`{0}` is no useful time: it must be more than 0")]
    Zero(String),
    /// It is not a range.
    #[error(
        "`{0}` is no range: write MIN:MAX:STEP with MIN < MAX, STEP > 0 and at most 1000 steps, for example 0:1000:50"
    )]
    Range(String),
}

/// Limit for the rows of a linear histogram.
const MAX_ROWS: u64 = 1000;

/// A time: a decimal number and a unit; seconds without one.
pub(crate) fn time(text: &str) -> Result<Duration, UnitError> {
    let wrong = || UnitError::Time(text.to_owned());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let value: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "ns" => value / 1e9,
        "us" | "µs" => value / 1e6,
        "ms" => value / 1e3,
        "" | "s" | "sec" | "secs" => value,
        "m" | "min" => value * 60.0,
        "h" => value * 3600.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// A time that is greater than zero.
pub(crate) fn positive(text: &str) -> Result<Duration, UnitError> {
    let time = time(text)?;
    if time.is_zero() { Err(UnitError::Zero(text.to_owned())) } else { Ok(time) }
}

/// Parses `MIN:MAX:STEP`.
pub(crate) fn linear(text: &str) -> Result<Linear, UnitError> {
    let wrong = || UnitError::Range(text.to_owned());
    let mut parts = text.split(':').map(|part| part.trim().parse::<u64>());
    let mut next = || parts.next().and_then(Result::ok).ok_or_else(wrong);
    let range = Linear { min: next()?, max: next()?, step: next()? };
    let sane = parts.next().is_none()
        && range.min < range.max
        && range.step > 0
        && (range.max - range.min).div_ceil(range.step) <= MAX_ROWS;
    if sane { Ok(range) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::{Linear, UnitError, linear, positive, time};
    use std::time::Duration;

    #[test]
    fn times_have_units() {
        assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("20us"), Ok(Duration::from_micros(20)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "x", "-1", "1 parsec", "1e400", "nan", "1.2.3"] {
            assert_eq!(time(wrong), Err(UnitError::Time(wrong.to_owned())), "{wrong}");
        }
        assert_eq!(positive("0"), Err(UnitError::Zero("0".to_owned())));
    }

    #[test]
    fn ranges_are_sane() {
        assert_eq!(linear("0:100:10"), Ok(Linear { min: 0, max: 100, step: 10 }));
        for wrong in ["0:100", "100:0:1", "0:10:0", "0:1:1:1", "0:1000000:1", "a:b:c"] {
            assert_eq!(linear(wrong), Err(UnitError::Range(wrong.to_owned())), "{wrong}");
        }
    }
}
