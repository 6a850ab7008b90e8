//! Test hooks that simulate failures.
//!
//! `TRAPLINE_FAULT=before:N` or `after:N` in the environment makes the tracer kill itself at the Nth request
//! that changes a target (ptrace requests and writes to /proc/PID/mem). Tests show with it that a target
//! survives the tracer's death.
//!
//! `TRAPLINE_PERF_FAULT=ERRNO` makes every hardware breakpoint fail to open with that error; `ERRNO:BIT` does
//! so for those with that flag bit of `perf_event_attr`. It stands for a machine without debug registers, a
//! user without the right, or a kernel that lacks the flag.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::signals::die;

struct Fault {
    before: bool,
    number: u64,
}

fn fault() -> Option<&'static Fault> {
    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
    FAULT
        .get_or_init(|| {
            let text = std::env::var("TRAPLINE_FAULT").ok()?;
            let (side, number) = text.split_once(':')?;
            Some(Fault { before: side == "before", number: number.parse().ok()? })
        })
        .as_ref()
}

/// Runs one request, with a fault point before and after it.
pub(crate) fn point<T>(request: impl FnOnce() -> T) -> T {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(fault) = fault() else { return request() };
    let hit = COUNT.fetch_add(1, Ordering::Relaxed) + 1 == fault.number;
    if hit && fault.before {
        die();
    }
    let result = request();
    if hit {
        die();
    }
    result
}

/// Returns the error that a breakpoint with these flags must meet in a test.
pub(crate) fn refuse_breakpoint(flags: u64) -> io::Result<()> {
    static REFUSED: OnceLock<Option<(i32, u64)>> = OnceLock::new();
    let refused = REFUSED.get_or_init(|| {
        let text = std::env::var("TRAPLINE_PERF_FAULT").ok()?;
        let (errno, bit) = text.split_once(':').unwrap_or((&text, ""));
        let flags = if bit.is_empty() { 0 } else { 1u64.checked_shl(bit.parse().ok()?)? };
        Some((errno.parse().ok()?, flags))
    });
    match refused {
        Some((errno, needs)) if flags & needs == *needs => Err(io::Error::from_raw_os_error(*errno)),
        _ => Ok(()),
    }
}
