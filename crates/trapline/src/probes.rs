//! Probes as users write them, besides [`ProbeSpec`](crate::ProbeSpec): what they name, and by which patterns.
//!
//! In: text in bpftrace's syntax. Out: its parts. Does not: look functions up; a session does.

pub use trapline_image::{Pattern, ProbeKind};

pub use crate::modules::is_short_name;
