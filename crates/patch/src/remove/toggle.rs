//! Takes out sites and puts them back, over and over, with everything else left as it is: R3 and I8 of
//! `protocol` by themselves, for tests of endurance. Memory is mapped once, so that a million toggles fit
//! into a process.
//!
//! In: a process with patches in place. Out: how many writes were not made, and what the batch served.
//! Does not: keep the state word or the journal (the journal names every site throughout, so that `recover`
//! works at any moment).

use trapline_record::journal::Entry;
use trapline_tracee::{Batch, BatchOptions, BatchReport, Process, RemoteOptions};

use crate::attached::Attached;
use crate::error::PatchError;
use crate::space::SpaceError;
use crate::space::change::{Direction, Outcome};
use crate::space::remote::{Running, Seizure};
use crate::space::write::change;

/// Takes out all sites of the newest segment and puts them back, `times` times, in one seizure.
///
/// # Errors
/// If the process is gone, or a write fails.
pub fn toggle(attached: &Attached, process: &Process, times: u64) -> Result<(u64, BatchReport), PatchError> {
    let entries: &[Entry] = attached.batches.segments.last().map_or(&[], |segment| &segment.entries);
    Batch::run(process, BatchOptions::default(), |batch| {
        let installed = attached.batches.installed;
        batch.set_trap_handler(installed.and_then(|i| i.trap()));
        batch.set_illegal_handler(installed.and_then(|i| i.illegal()));
        let (guard, remote) = (|addr| attached.resume(addr), RemoteOptions::default());
        let (mut outcomes, mut undone) = (Vec::new(), 0);
        for _ in 0..times {
            for way in [Direction::Remove, Direction::Publish] {
                let mut space = Running { batch, seizure: Seizure { guard: &guard, remote: &remote } };
                change(&mut space, entries, way, &mut outcomes).map_err(SpaceError::into_error)?;
                undone += outcomes.iter().filter(|outcome| **outcome != Outcome::Done).count() as u64;
            }
        }
        Ok((undone, batch.report()))
    })?
}
