//! What tests must know of arm64.

/// Sites of a process with one probe: its own.
pub(crate) const SITES_OF_ONE_PROBE: u32 = 1;
