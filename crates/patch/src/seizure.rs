//! How a seized process is treated: where a trapped thread goes on, and which thread makes our calls.

use trapline_tracee::RemoteOptions;

/// What calls of a seized process' batch take.
#[derive(Clone, Copy)]
pub(crate) struct Seizure<'a> {
    /// Returns where a thread that trapped goes on.
    pub(crate) guard: &'a dyn Fn(u64) -> Option<u64>,
    /// How to choose the thread that makes our calls.
    pub(crate) remote: &'a RemoteOptions,
}
