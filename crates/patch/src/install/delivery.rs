//! Faults of copies in a program that catches faults: whether its handlers will see original addresses.
//!
//! In: a process, a request, its plan. Out: the program's handlers; whether all that delivery needs is planned
//! (docs/design/faults.md). Invariants: DLV-3 in a program that catches faults, an instruction that may fault is
//! displaced only if the entry of each handler is patched, and the entry of each `sigaction`.
//! Does not: find the functions at which handlers begin, or patch them.

use trapline_plan::{Action, Hold, Patch, PatchRole};
use trapline_record::control::{at, fact};
use trapline_tracee::{Batch, BatchOptions, Process, RemoteOptions};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::caller::Caller;
use crate::install::prepared::Prepared;
use crate::request::{Options, Request};
use crate::signals::SERVED;

/// A window at a function's entry begins before so many bytes: behind its first instruction at most.
pub(crate) const FIRST: u64 = 16;
const SA_SIGINFO: u64 = 4;

/// The program's handlers of SIGSEGV and SIGBUS: the address of each, and whether the kernel always describes the
/// signal to it (SA_SIGINFO). One thread stops for it.
pub(crate) fn fault_handlers(
    batches: &Batches,
    process: &Process,
    options: &Options,
) -> Result<Vec<(u64, bool)>, PatchError> {
    let remote = RemoteOptions { patience: options.patience, ..RemoteOptions::default() };
    let mut handlers = Batch::run(process, BatchOptions { hold_children: false }, |batch| {
        let mut caller = batch.remote(&remote, &|addr| batches.resume(addr))?;
        let handlers = handlers_of(batches, &mut caller);
        caller.finish()?;
        handlers
    })??;
    // Of two uses of one handler, that without a description comes first.
    handlers.sort_unstable();
    handlers.dedup_by_key(|handler| handler.0);
    Ok(handlers)
}

/// The same by any caller. If ours is in front of the program's, the journal names the program's.
pub(crate) fn handlers_of(
    batches: &Batches,
    caller: &mut impl Caller,
) -> Result<Vec<(u64, bool)>, PatchError> {
    let ours = batches.installed.map(|installed| installed.entry);
    let mut handlers = Vec::new();
    for served in &SERVED[2..] {
        let present = caller.sigaction(served.signal, None)?;
        // Ours is described to, and passes that on.
        let journaled = || batches.segments.first().map_or(0, |segment| segment.view().get(served.old));
        let handler = if Some(present.handler) == ours { journaled() } else { present.handler };
        handlers.push((handler, present.flags & SA_SIGINFO != 0));
    }
    handlers.retain(|handler| handler.0 > 1);
    Ok(handlers)
}

/// Whether the entry of a handler is patched.
pub(crate) fn handles(batches: &Batches, handler: u64) -> bool {
    let at_entry = |patch: &Patch| patch.addr.0.wrapping_sub(handler) < FIRST;
    batches.held.all().iter().any(|patch| patch.role == PatchRole::Handler && at_entry(patch))
}

/// DLV-3: whether what was prepared has a site for each handler and each `sigaction`, if an earlier batch has
/// none.
pub(crate) fn is_sure(batches: &Batches, request: &Request<'_>, prepared: &Prepared) -> bool {
    let mut found = [batches.delivers, batches.delivers || batches.facts.hold_any()];
    for (module, of) in (0u32..).zip(request.modules) {
        for (index, one) in (0u32..).zip(of.requests) {
            let which = match one.action {
                Action::Deliver { .. } => 0,
                Action::Hold(Hold::Sigaction) => 1,
                _ => continue,
            };
            if !prepared.serves(module, index) {
                return false;
            }
            found[which] = true;
        }
    }
    found == [true, true]
}

/// Asks for what a held call would ask for: a handler's entry could not be patched after all.
pub(crate) fn give_up(batches: &Batches) {
    if let Some(segment) = batches.segments.last() {
        segment.view().set(at::ASKED, segment.view().get(at::ASKED) | fact::FAULTS);
    }
}
