//! What only a stopped thread shows: step I2 of `protocol`.
//!
//! In: a seized process, a request. Out: what stubs may rely on in every thread; an error if a thread may not
//! read the clock. Done once in a session, and again if we catch faults.
//! Does not: change the process.

use std::time::Duration;

use trapline_plan::{RseqTraits, ThreadId};
use trapline_record::RemoteAddr;
use trapline_tracee::{Batch, Process, RemoteCaller, RemoteOptions, Seccomp};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::work::no_calls;
use crate::native::number;
use crate::request::Request;
use crate::threads::library::LibraryThreads;
use crate::threads::stack;

const DISPATCHES: &str = "gets its system calls back as signals (PR_SET_SYSCALL_USER_DISPATCH)";

/// Whether a thread has to be stopped for it.
pub(crate) fn must_ask(batches: &Batches, request: &Request<'_>) -> bool {
    batches.threads.rseq.is_none()
        || (request.is_timed() && !batches.threads.clock_allowed)
        || batches.take_faults()
}

/// Stops one thread and notes what it shows.
pub(crate) fn ask(
    batches: &mut Batches,
    batch: &mut Batch<'_>,
    request: &Request<'_>,
    remote: &RemoteOptions,
) -> Result<(), PatchError> {
    let process = batch.process();
    let timed = request.is_timed();
    let restricted = process.restricted()?;
    if timed && !batches.threads.clock_allowed {
        check_clock(batches, batch, restricted, remote)?;
    }
    let mut caller = batch.remote(remote, &|addr| batches.resume(addr))?;
    let area = caller.rseq()?;
    let thread = caller.regs()?.thread_pointer();
    let kept = if request.threads.own_pointers { None } else { kept(&caller, thread, process)? };
    // Go's own threads have no control block. What lies there instead holds pairs of addresses that might
    // pass for one.
    let has_block = !request.go || kept.is_some();
    let stack_block =
        if request.reads_stacks() && has_block { stack::block(&mut caller, process)? } else { None };
    let only_our_faults = batches.take_faults() && are_only_our_faults(batches, &mut caller)?;
    caller.finish()?;
    // All threads are stopped for that, so it is asked only where it matters.
    let asks = names_threads(request) && (kept.is_none() || request.threads.lent_blocks);
    let dispatched = match asks || request.makes_calls() {
        true => batch.dispatched(&|addr| batches.resume(addr))?,
        false => None,
    };
    if let (true, Some(tid)) = (request.makes_calls(), dispatched) {
        return Err(no_calls(request, process.pid(), tid, DISPATCHES));
    }
    let mut library = kept.and_then(|kept| LibraryThreads::of(process, thread, kept));
    let all_are_its = match &mut library {
        Some(library) => library.strangers(process, &mut || pause(batches, batch))?.is_empty(),
        None => false,
    };
    let kept = kept.filter(|_| all_are_its);
    // The rseq area lies where the library says, in threads that the library made itbatches.
    let area = area.filter(|area| kept.is_some() && request.threads.rseq == Some(area.offset));
    let threads = &mut batches.threads;
    threads.rseq = Some(area.map(|r| RseqTraits { offset: r.offset, signature: r.signature }));
    let call = if restricted.is_some() || dispatched.is_some() {
        Call::Punished
    } else if process.features()?.sve {
        Call::LosesVectors
    } else {
        Call::Harmless
    };
    threads.id = thread_id(kept, process, request, call)?;
    threads.library = library.filter(|_| all_are_its);
    threads.stack_block = stack_block.filter(|_| all_are_its).or(threads.stack_block);
    threads.only_our_faults = only_our_faults;
    threads.clock_allowed |= timed;
    Ok(())
}

/// Whether only we catch faults: our handler is installed, and the program had none.
fn are_only_our_faults(batches: &Batches, caller: &mut RemoteCaller<'_, '_>) -> Result<bool, PatchError> {
    match (batches.installed, batches.segments.first()) {
        (Some(installed), Some(first)) => Ok(installed.catches_faults_alone(caller, first.view())?),
        _ => Ok(false),
    }
}

/// Makes sure that every thread may read the clock.
fn check_clock(
    batches: &Batches,
    batch: &mut Batch<'_>,
    restricted: Option<(u32, Seccomp)>,
    remote: &RemoteOptions,
) -> Result<(), PatchError> {
    let pid = batch.process().pid();
    if let Some((tid, Seccomp::Strict)) = restricted {
        return Err(PatchError::NoClock { pid, tid, why: "seccomp strict mode" });
    }
    let denied = batch.clock_denied_to(remote, &|addr| batches.resume(addr))?;
    denied.map_or(Ok(()), |tid| Err(PatchError::NoClock { pid, tid, why: "PR_SET_TSC" }))
}

/// Waits between two looks at threads that are being born, which stop and wait for us.
fn pause(batches: &Batches, batch: &mut Batch<'_>) -> Result<(), PatchError> {
    batch.serve(&|addr| batches.resume(addr))?;
    std::thread::sleep(Duration::from_millis(1));
    Ok(())
}

/// Where the C library keeps the number of a stopped thread. Its control block is recognized by its pointers
/// and by that number.
fn kept(caller: &RemoteCaller<'_, '_>, thread: u64, process: &Process) -> Result<Option<i32>, PatchError> {
    let status = process.thread_status(caller.tid())?;
    let word = |at: u64| process.read_u64(RemoteAddr(at)).ok();
    Ok(status.ns_pids.last().and_then(|&tid| number::kept(thread, tid, word)))
}

/// What a system call in a stub does to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Harmless,
    /// A seccomp filter may punish it, or the program gets it as a signal.
    Punished,
    /// It clears what SVE's vectors have beyond 128 bits (arm64).
    LosesVectors,
}

/// Whether stubs read the numbers of threads.
fn names_threads(request: &Request<'_>) -> bool {
    request.options.by_thread || request.is_recorded() || request.asks_for_thread()
}

/// How generated code is to read a thread's number: from the control block that the C library gave to each;
/// otherwise by a system call, unless a seccomp filter might punish that. Whether vectors are lost by it is
/// decided site by site (`plan`).
fn thread_id(
    kept: Option<i32>,
    process: &Process,
    request: &Request<'_>,
    call: Call,
) -> Result<ThreadId, PatchError> {
    if !names_threads(request) {
        return Ok(ThreadId::Call);
    }
    // The kernel's answer is the child's own. If the call must not be made, the parent's number is better
    // than none.
    // Compact records have no time for it.
    let is_asked = call == Call::Harmless && !request.options.compact;
    let kept = kept.filter(|_| !is_asked || !request.threads.lent_blocks);
    match (kept, call) {
        (Some(at), _) => Ok(ThreadId::At(at)),
        (None, Call::Harmless | Call::LosesVectors) => Ok(ThreadId::Call),
        // Then records do not name a thread.
        (None, _) if !request.options.by_thread => Ok(ThreadId::Unknown),
        (None, _) => Err(PatchError::NoThreadNumber { pid: process.pid() }),
    }
}
