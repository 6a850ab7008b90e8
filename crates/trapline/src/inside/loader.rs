//! Whether code in the dynamic loader waits for this thread. Then no thread may be made and waited for, as a
//! new one takes the loader's lock (`__cxa_thread_atexit_impl`, for destructors of thread-local data).
//!
//! In: the calls that this thread is in. Out: whether one of them is the loader's, as for a library's
//! constructor. Does not: notice a loader that waits for this thread from another one. Code that was compiled
//! without unwind tables, which the psABI asks for, hides the frames above it.

use std::ops::Range;
use std::sync::OnceLock;

use trapline_tracee::Process;

use super::system;

/// Most calls that are looked at.
const MOST: usize = 256;

/// Whether this thread is in a call of the loader's.
pub(super) fn is_above(process: &Process) -> bool {
    static LOADER: OnceLock<Range<u64>> = OnceLock::new();
    let loader = LOADER.get_or_init(|| text(process).unwrap_or_default());
    let (mut calls, mut found) = (0, false);
    system::walk(|frame| {
        calls += 1;
        found = loader.contains(&frame.at);
        !found && calls < MOST
    });
    found
}

/// Range of the loader's code; `None` in a program without one.
fn text(process: &Process) -> Option<Range<u64>> {
    let base = system::loader_base();
    let maps = process.maps().ok()?;
    let file = maps.iter().find(|one| one.start.0 <= base && base < one.end.0)?.file?;
    let code = maps.iter().find(|one| one.file == Some(file) && one.perms.exec)?;
    Some(code.start.0..code.end.0)
}
