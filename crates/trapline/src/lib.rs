//! Count and time the functions of running programs, from outside, without traps.
#![forbid(unsafe_code)]

mod report;
mod spread;
mod target;

pub use report::{ByTactic, Count, Ended, Listed, ProcessReport, Refused, Site, Summary, Tactic, Times};
pub use spread::{Row, Scale, Spread};
pub use target::Target;
pub use trapline_image::{Pattern, ProbeKind, ProbeSpec, SpecError};
pub use trapline_record::hist::{BUCKETS, bucket};
