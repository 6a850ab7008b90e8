//! Whether every thread of a process can take a trap.
//!
//! In: a process. Out: a thread that cannot, because it blocks the signal for good. Does not: stop a thread.

use std::time::{Duration, Instant};

use trapline_tracee::Process;

use crate::error::PatchError;
use crate::native::threads::{is_slow, runs_nothing};
use crate::signals::TRAPS;
use crate::why::NoTraps;

/// libc blocks all signals for microseconds when it creates threads. A thread has them blocked for good if it
/// sleeps for this long with them blocked. The same holds if it ran between a number of looks and had them
/// blocked at each. A thread that waits for a CPU proves nothing.
const TRANSIENT_SLEEP: Duration = Duration::from_millis(5);
const TRANSIENT_LOOKS: u32 = 24;
/// Upper bound of the time for which a thread is waited for.
const TRANSIENT_MOST: Duration = Duration::from_millis(500);
/// In an emulator a thread also sleeps, or runs, for the emulator's sake, and may take long.
const TRANSIENT_EMULATED: Duration = Duration::from_secs(2);

/// Why guard traps cannot be served, if they cannot.
pub(crate) fn no_traps(
    process: &Process,
    go: bool,
    idle: &mut dyn FnMut() -> Result<(), PatchError>,
) -> Result<Option<NoTraps>, PatchError> {
    if go {
        return Ok(Some(NoTraps::Owned));
    }
    let is_slow_system = is_slow();
    let most = if is_slow_system { TRANSIENT_EMULATED } else { TRANSIENT_MOST };
    let start = Instant::now();
    // (thread, run time at the last look, looks at which it had run and blocked the signal)
    let mut blocked: Vec<(u32, u64, u32)> = process.threads()?.into_iter().map(|tid| (tid, 0, 0)).collect();
    loop {
        let mut for_good = None;
        blocked.retain_mut(|(tid, last, looks)| {
            // A thread that is gone blocks nothing.
            let (Ok(status), Ok(ran)) = (process.thread_status(*tid), process.run_time(*tid)) else {
                return false;
            };
            if runs_nothing(process, &status) {
                return false;
            }
            let blocks = status.blocked & TRAPS != 0;
            *looks += u32::from(std::mem::replace(last, ran) != ran);
            let asleep = status.state == 'S' && start.elapsed() > TRANSIENT_SLEEP;
            let proven = !is_slow_system && (asleep || *looks > TRANSIENT_LOOKS);
            if blocks && (proven || start.elapsed() > most) {
                for_good = Some(*tid);
            }
            blocks
        });
        if let Some(tid) = for_good {
            return Ok(Some(NoTraps::Blocked { tid }));
        }
        if blocked.is_empty() {
            return Ok(None);
        }
        idle()?;
    }
}
