//! What `lat` asks for, and the shape of a histogram of durations.
//!
//! In: plain values. Out: [`Lat`], [`HistogramStyle`]. Does not: draw.

use super::run::{Ends, Run};

/// `lat`, ready.
#[derive(Debug)]
pub(crate) struct Lat {
    /// What to trace and how to report it.
    pub(crate) run: Run,
    /// Whether each function has a histogram of its own.
    pub(crate) per_function: bool,
    /// Whether only the outermost of recursive calls are timed.
    pub(crate) outermost: bool,
    /// How the ends of calls are seen.
    pub(crate) ends: Ends,
    /// How the histogram is drawn.
    pub(crate) shape: HistogramStyle,
}

/// The unit in which durations are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TimeUnit {
    /// Nanoseconds.
    #[default]
    Nanos,
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
}

impl TimeUnit {
    /// Nanoseconds in one unit.
    pub(crate) const fn nanos(self) -> u64 {
        match self {
            Self::Nanos => 1,
            Self::Micros => 1_000,
            Self::Millis => 1_000_000,
        }
    }
    /// The unit's word, as bcc writes it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Nanos => "nsecs",
            Self::Micros => "usecs",
            Self::Millis => "msecs",
        }
    }
}

/// How a histogram is drawn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HistogramStyle {
    /// The unit of the rows.
    pub(crate) unit: TimeUnit,
    /// Equal steps instead of powers of two, if requested.
    pub(crate) linear: Option<Linear>,
    /// Shorter calls are left out. In nanoseconds.
    pub(crate) min_ns: u64,
}

/// Equal steps, in the unit in which values are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Linear {
    /// Lowest value with a row of its own.
    pub(crate) min: u64,
    /// First value beyond the rows.
    pub(crate) max: u64,
    /// Width of a row.
    pub(crate) step: u64,
}
