//! What tracers have left in processes, and cleaning up after them: `status`, `detach`.
//!
//! In: a pid. Out: the segments that are mapped there; with [`clean_up`], the process as it was. Does not:
//! touch what a tracer that still runs has patched.

use trapline_patch::{Options, recover, status};
use trapline_tracee::Process;

pub use trapline_patch::{DetachReport, Restored, SegmentStatus, Untouched as NotRestored};
pub use trapline_record::control::State as SegmentState;

use crate::error::Error;

/// Lists what is patched in a process, and by which tracers.
///
/// # Errors
/// If the process cannot be looked at.
pub fn patched(pid: u32) -> Result<Vec<SegmentStatus>, Error> {
    Ok(status(&Process::look_into(pid)?)?)
}

/// Cleans up after a tracer that died.
///
/// # Errors
/// If the process cannot be traced, or another tracer is at work in it.
pub fn clean_up(pid: u32) -> Result<DetachReport, Error> {
    Ok(recover(&Process::open(pid)?, &Options::default())?)
}
