//! Informs unwinders of the process about its return trampolines, and takes that back.
//!
//! In: where `__register_frame` and its opposite lie. Out: each was called once, in a thread that holds none
//! of the locks that they take (`trapline_tracee`'s `function`). Invariants: UNW-1 what may have been
//! registered with an unwinder stays mapped; UNW-2 a registration is never taken back twice, to which libgcc
//! responds with `abort`.
//!
//! | step | what | if the tracer dies right after |
//! |---|---|---|
//! | T1 | the address of `__deregister_frame`, | nothing is taken back, the memory stays |
//! | | then the first bit of `UNWIND_REGISTERED` | |
//! | T2 | `__register_frame` runs in the target | the same |
//! | T3 | the second bit | a later detach takes it back |
//! | T4 (detach) | the second bit is cleared | the same: the unwinder keeps the registration, which stays mapped and true |
//! | T5 | `__deregister_frame` runs; if no thread is fit for that, | the same |
//! | | the second bit is set again | as after T3 |
//! | T6 | the first bit is cleared | no unwinder refers to it any more |
//!
//! An unwinder that is loaded while trampolines are taken is informed by the same steps
//! ([`register_late`]), a moment later. Until T2 it sees no further than a call with a replaced return
//! address, as for any code without unwind information. One at the same address as an earlier one is taken
//! for that one: libgcc_s is never unloaded. If a detach leaves calls that return through their trampolines
//! (`trampolines`), T4 to T6 are left out: what is registered with unwinders stays mapped and true. A later session takes
//! them, when no trampoline is taken any more, and if the unwinder is libgcc_s, which is still there then (`free`). A forked
//! child shares the words, and has an unwinder of its own, which was informed before the fork and keeps the
//! registration.
//! Does not: find unwinders, which takes files.

use std::ops::Range;
use std::time::Duration;

use trapline_record::RemoteAddr;
use trapline_record::control::{MAX_UNWINDERS, at};
use trapline_tracee::{Batch, BatchOptions, Process, TargetError};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::memory::segment::Segment;
use crate::memory::words::{Block, SegmentWords};
use crate::request::Unwinder;

/// How long a thread is waited for that may call an allocating function. A detach waits less: a later session may try
/// again.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_AT_END: Duration = Duration::from_millis(100);

const fn perhaps(n: u64) -> u64 {
    1 << (2 * n)
}
const fn surely(n: u64) -> u64 {
    2 << (2 * n)
}

/// Steps T1 to T3, before any trampoline is taken.
pub(crate) fn register(
    batch: &mut Batch<'_>,
    segment: &Segment,
    unwinders: &[Unwinder],
    own: &[Range<u64>],
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<(), TargetError> {
    let (view, Some(made)) = (segment.view(), segment.trampolines) else { return Ok(()) };
    for unwinder in unwinders {
        let registered = view.get(at::UNWIND_REGISTERED);
        let is_free = |n: &u64| registered & (perhaps(*n) | surely(*n)) == 0;
        // `unwinding` counts those that are mapped; those that went may have used the places.
        let Some(n) = (0..MAX_UNWINDERS).find(is_free) else { return Err(no_place(batch)) };
        view.set(at::UNWIND_TAKE_BACK + n * 8, unwinder.take_back.0);
        view.set(at::UNWIND_REGISTERED, view.get(at::UNWIND_REGISTERED) | perhaps(n));
        let registered = batch.call_function(unwinder.register, made.unwind, own, PATIENCE, guard);
        if matches!(registered, Err(TargetError::NoCaller { .. })) {
            view.set(at::UNWIND_REGISTERED, view.get(at::UNWIND_REGISTERED) & !perhaps(n));
        }
        registered?;
        view.set(at::UNWIND_REGISTERED, view.get(at::UNWIND_REGISTERED) | surely(n));
    }
    Ok(())
}

fn no_place(batch: &Batch<'_>) -> TargetError {
    let why = format!("{MAX_UNWINDERS} unwinders were informed before, which is as many as are remembered");
    TargetError::NoCaller { pid: batch.process().pid(), why }
}

/// Those of these unwinders that were not informed about the segment's trampolines yet.
pub(crate) fn unregistered(segment: &Segment, unwinders: &[Unwinder]) -> Vec<Unwinder> {
    let view = segment.view();
    let registered = view.get(at::UNWIND_REGISTERED);
    let knows = |n: u64, one: &Unwinder| {
        registered & (perhaps(n) | surely(n)) != 0
            && view.get(at::UNWIND_TAKE_BACK + n * 8) == one.take_back.0
    };
    unwinders.iter().copied().filter(|one| !(0..MAX_UNWINDERS).any(|n| knows(n, one))).collect()
}

/// The same steps for unwinders that were loaded later.
pub(crate) fn register_late(
    batches: &Batches,
    process: &Process,
    unwinders: &[Unwinder],
    own: &[Range<u64>],
) -> Result<(), PatchError> {
    let Some(segment) = batches.with_trampolines() else { return Ok(()) };
    let guard = |addr| batches.resume(addr);
    Ok(Batch::run(process, BatchOptions { hold_children: false }, |batch| {
        register(batch, segment, unwinders, own, &guard)
    })??)
}

/// Steps T4 to T6. Without a fit thread the unwinders keep the registration, which stays true, and may be taken back later.
pub(crate) fn take_back(
    batch: &mut Batch<'_>,
    block: &Block,
    words: &SegmentWords<'_>,
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<(), TargetError> {
    let mut registered = block.get(at::UNWIND_REGISTERED);
    for n in 0..MAX_UNWINDERS {
        if registered & surely(n) == 0 {
            continue;
        }
        registered &= !surely(n);
        words.set(at::UNWIND_REGISTERED, registered)?;
        let function = RemoteAddr(block.get(at::UNWIND_TAKE_BACK + n * 8));
        match batch.call_function(function, block.get(at::UNWIND), &[], PATIENCE_AT_END, guard) {
            Ok(()) => {
                registered &= !perhaps(n);
                words.set(at::UNWIND_REGISTERED, registered)?;
            }
            Err(error) if error.is_gone() => return Err(error),
            // It was not called.
            Err(TargetError::NoCaller { .. }) => {
                registered |= surely(n);
                words.set(at::UNWIND_REGISTERED, registered)?;
            }
            // The function is gone, or has not come back.
            Err(_) => {}
        }
    }
    Ok(())
}
