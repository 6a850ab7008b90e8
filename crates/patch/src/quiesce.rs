//! Waiting until no thread is between a guard's trap and its stop: step R4 of `protocol`.
//!
//! In: a seized process whose sites hold the file's bytes again. Out: the proof, thread by thread, that none will take a
//! trap of ours any more. A thread proves it by being blocked (the way from a trap to its stop never blocks), or by having run
//! long enough; one that does neither in time is stopped, which is a proof too.
//! Does not: stop anybody who can prove it otherwise.

use std::time::Duration;

use trapline_target::{Batch, InCall};

use crate::error::PatchError;

/// A thread needs a few microseconds from a trap to its stop; after so much run time it has made it.
const ENOUGH_NS: u64 = 200_000;
/// How long threads get to prove it. Most have done so within one slice of the scheduler; being stopped would cost those
/// that sleep in a call with a timeout a part of it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns when no thread can take a guard's trap any more.
pub(crate) fn quiesce(batch: &mut Batch<'_>, guard: &dyn Fn(u64) -> Option<u64>) -> Result<(), PatchError> {
    let process = batch.process();
    // Who lies in a stop has not been answered yet, and its trap may be the very one that we wait for.
    let unanswered = |tid| process.thread_status(tid).is_ok_and(|status| status.state == 't');
    // Who blocks has proven it, who is gone too.
    let proven = |tid| !matches!(process.in_call(tid), Ok(InCall::Running)) && !unanswered(tid);
    // (thread, run time when the last site was restored)
    let mut open: Vec<(u32, u64)> = process
        .threads()?
        .into_iter()
        .filter(|&tid| !proven(tid))
        .filter_map(|tid| Some((tid, process.run_time(tid).ok()?)))
        .collect();
    let done = batch.serve_until(guard, PATIENCE, &mut |_| {
        open.retain(|&(tid, since)| {
            let short = process.run_time(tid).is_ok_and(|now| now < since + ENOUGH_NS);
            !proven(tid) && (short || unanswered(tid))
        });
        open.is_empty()
    })?;
    if !done {
        // Threads that are ready to run and never get a CPU: their stop is the proof.
        batch.stop_all(guard)?.resume()?;
    }
    Ok(())
}
