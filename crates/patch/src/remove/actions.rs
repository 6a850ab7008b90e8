//! The program's signal actions, put back: R2a and R5 of `protocol`.
//!
//! In: segments that are taken out; their journals hold the old actions. Out: old actions set where ours
//! still were. Does not: touch what the program has set meanwhile.

use trapline_record::control::at;
use trapline_tracee::{Batch, RemoteCaller, TargetError};

use crate::error::PatchError;
use crate::remove::removal::Removal;
use crate::report::Restored;
use crate::signals::SERVED;
use crate::space::remote::Seizure;

/// Step R2a: if a trap is hit while its signal is blocked, the kernel resets the action; the batch puts back
/// the action that is set now.
pub(crate) fn keep_actions(
    batch: &mut Batch<'_>,
    removals: &[Removal<'_>],
    seizure: Seizure<'_>,
) -> Result<(), PatchError> {
    let handles = removals.iter().fold(0, |all, r| all | r.handles());
    let mut caller = batch.remote(seizure.remote, seizure.guard)?;
    let mut present = [None; 2];
    let traps = SERVED.iter().zip(&mut present).filter(|(served, _)| handles & served.bit != 0);
    let asked = traps.map(|(served, present)| {
        *present = Some(caller.sigaction(served.signal, None)?);
        Ok(())
    });
    let asked: Result<(), TargetError> = asked.collect();
    caller.finish()?;
    asked?;
    let [trap, illegal] = present;
    batch.set_trap_handler(trap);
    batch.set_illegal_handler(illegal);
    Ok(())
}

/// Step R5: puts actions back where the handler is still ours.
pub(crate) fn put_back_actions(
    batch: &mut Batch<'_>,
    removals: &[Removal<'_>],
    seizure: Seizure<'_>,
    restored: &mut Restored,
) -> Result<(), PatchError> {
    let with_handler: Vec<&Removal<'_>> = removals.iter().filter(|r| r.handles() != 0).collect();
    if with_handler.is_empty() {
        return Ok(());
    }
    batch.set_trap_handler(None);
    batch.set_illegal_handler(None);
    let mut caller = batch.remote(seizure.remote, seizure.guard)?;
    let mut result = Ok(());
    for removal in with_handler {
        result = result.and_then(|()| put_back(&mut caller, removal, restored));
    }
    caller.finish()?;
    Ok(result?)
}

fn put_back(
    caller: &mut RemoteCaller<'_, '_>,
    removal: &Removal<'_>,
    restored: &mut Restored,
) -> Result<(), TargetError> {
    let block = &removal.found.block;
    for served in SERVED.iter().filter(|s| removal.handles() & s.bit != 0) {
        let present = caller.sigaction(served.signal, None)?;
        if present.handler == block.get(at::HANDLER) {
            caller.sigaction(served.signal, Some(&block.action(served.old)))?;
            restored.actions += 1;
        } else if present != block.action(served.old) {
            restored.foreign_actions += 1;
        }
    }
    Ok(())
}
