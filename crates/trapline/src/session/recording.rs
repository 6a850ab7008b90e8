//! Saving of a session's records, round by round.
//!
//! In: processes with records in their rings. Out: a file's bytes, by `crate::saved`'s order of writing.
//! Invariant: each process keeps one number in the file. Does not: open or write files.

use trapline_tracee::TickClock;

use crate::decode::Clock;
use crate::report::Thinned;
use crate::saved::tables::Round;
use crate::traced::Traced;

/// State of saving.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// Number that the next process gets in the file; `None` until saving has begun.
    next: Option<u32>,
    /// Threads that find a ring full may wait.
    waits: bool,
    /// Functions that were taken out, and why others were not.
    pub(super) thinned: Vec<Thinned>,
    pub(super) notices: Vec<String>,
    /// Records were saved that no round's block has closed yet; the next round is written even if it is
    /// empty.
    pending: bool,
}

impl Recording {
    pub(super) fn begin(&mut self, waits: bool) {
        self.next.get_or_insert(0);
        self.waits = waits;
    }
    pub(super) const fn is_begun(&self) -> bool {
        self.next.is_some()
    }
    /// Takes functions out of processes whose recording costs more than its budget, and writes which.
    pub(super) fn thin<E>(
        &mut self,
        traced: &mut [Traced],
        (budget, clock): (f64, &TickClock),
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for traced in traced {
            if let Some((block, thinned)) = traced.thin(budget, numbers(clock), &mut self.notices) {
                self.thinned.extend(thinned);
                write(&block)?;
            }
        }
        Ok(())
    }
    /// Writes what was recorded since the last round. `past` is the number of processes that have been let
    /// go. Returns the number of records.
    pub(super) fn round<E>(
        &mut self,
        traced: &mut [Traced],
        past: usize,
        clock: &TickClock,
        until: Option<u64>,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let (mut next, mut taken, waits) = (self.next.unwrap_or(0), 0, self.waits);
        let done = traced.iter_mut().try_for_each(|traced| {
            taken += traced.save(&mut next, (until.is_none(), waits), write)?;
            Ok::<(), E>(())
        });
        self.next = Some(next);
        done?;
        if taken > 0 || self.pending || until.is_none() {
            self.pending = taken > 0;
            let processes = u32::try_from(traced.len() + past).unwrap_or(u32::MAX);
            write(&Round { clock: numbers(clock), processes, until }.put())?;
        }
        Ok(taken)
    }
}

/// The clock as decoding uses it, as exactly as it is known by now.
pub(super) fn numbers(clock: &TickClock) -> Clock {
    (clock.started(), clock.ns_per_tick())
}
