//! Our own resource limits: the number of descriptors, and the length of files.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::own::{Limited, limit, set_limit};

/// Raises the limit so that `more` descriptors can be opened beyond a few of our own; returns the limit that
/// now holds. Only root may go beyond the hard limit. For others the limit becomes what it may be, and
/// opening then fails with the reason.
pub(crate) fn raise(more: u64) -> io::Result<u64> {
    const OWN: u64 = 256;
    let now = limit(Limited::Descriptors)?;
    let wanted = more.saturating_add(OWN);
    if now.rlim_cur >= wanted {
        return Ok(now.rlim_cur);
    }
    let set = |cur, max| set_limit(Limited::Descriptors, libc::rlimit { rlim_cur: cur, rlim_max: max });
    if now.rlim_max < wanted && set(wanted, wanted).is_ok() {
        return Ok(wanted);
    }
    let most = wanted.min(now.rlim_max);
    set(most, now.rlim_max).map(|()| most)
}

/// The limit of file sizes, if it is too low for the request and may not be raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLow(pub(crate) u64);

/// Calls `grow` with a limit of file sizes that allows `len` bytes, and puts the old limit back. Only root
/// may go beyond the hard limit. A process that is started meanwhile would inherit the raised limit. That
/// cannot be a target: targets are launched before there is memory to share with them.
pub(crate) fn with_file_size<T>(len: u64, grow: impl FnOnce() -> T) -> Result<T, TooLow> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // If the limit cannot be read, the kernel decides.
    let Ok(old) = limit(Limited::FileSizes) else { return Ok(grow()) };
    if old.rlim_cur >= len {
        return Ok(grow());
    }
    let raised = libc::rlimit { rlim_cur: len, rlim_max: old.rlim_max.max(len) };
    set_limit(Limited::FileSizes, raised).map_err(|_| TooLow(old.rlim_max))?;
    let grown = grow();
    // The old limit was allowed before, and every process may lower a limit.
    drop(set_limit(Limited::FileSizes, old));
    Ok(grown)
}
