//! Patches in place in one process, as the caller holds them: what this crate can do with a process.
//!
//! In: a process, requests. Out: patches put in and taken out, each by the steps of `install` and `remove`; the
//! memory to read counts from, which can be read after the process has ended.
//! Does not: do any of these steps itself.

use std::collections::HashSet;

use trapline_record::control::{INFORMED, at};
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{Batch, Process, TargetError};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::foreign::{Changed, inspect};
use crate::install::attach;
use crate::install::delivery::{fault_handlers, handles};
use crate::loading::{Tickets, answer, answer_next, tickets};
use crate::memory::segment::Segment;
use crate::remove::detach::detach;
use crate::remove::free::{Freed, free_removed};
use crate::remove::hold::{Askers, Closed, asked, close, let_pass, make_way, show_alive};
use crate::remove::part::take_out_probes;
use crate::report::{AttachReport, DetachReport};
use crate::request::{Options, Request, Unwinder};
use crate::returns::armed::lent;
use crate::returns::trampolines::{Reclaimed, reclaim};
use crate::returns::unwinder::{register_late, unregistered};
use crate::signals::{SIGILL, SIGTRAP, bit};

/// Patches in place in one process.
#[derive(Debug, Default)]
pub struct Attached {
    pub(crate) batches: Batches,
}

/// Puts patches into a process in which this session has none yet.
///
/// # Errors
/// If it fails, nothing was changed, or what was changed was undone, unless the process is gone.
pub fn attach(process: &Process, request: &Request<'_>) -> Result<(Attached, AttachReport), PatchError> {
    let mut attached = Attached::default();
    let report = attached.add(process, request)?;
    Ok((attached, report))
}

/// Putting patches in and taking them out.
impl Attached {
    /// Puts more patches into the same process, in a further segment. The process is not seized while the
    /// plan is made.
    ///
    /// # Errors
    /// As [`attach()`]; what was there before stays.
    pub fn add(&mut self, process: &Process, request: &Request<'_>) -> Result<AttachReport, PatchError> {
        attach::add(&mut self.batches, process, request).map_err(|error| error.or_gone(process))
    }
    /// The same inside an existing seizure, which may hold forked children.
    ///
    /// # Errors
    /// As [`attach()`].
    pub fn add_in(
        &mut self,
        batch: &mut Batch<'_>,
        request: &Request<'_>,
    ) -> Result<AttachReport, PatchError> {
        attach::add_in(&mut self.batches, batch, request)
    }
    /// Takes out all patches, of the process and of its children that still map the segments. Counts can be
    /// read until the segments are dropped.
    pub fn detach(&mut self, process: &Process, options: &Options) -> DetachReport {
        detach(&mut self.batches, process, options)
    }
    /// Unmaps what this session and earlier ones left in the process, as far as it is proven that no thread
    /// can be in it. Call it after a detach, and after the last look at what lies in the process. It works on
    /// this process alone: its children's memory goes with them.
    ///
    /// # Errors
    /// If the process is gone, or another tracer holds it. What is mapped stays.
    pub fn free(&self, process: &Process, options: &Options) -> Result<Freed, PatchError> {
        free_removed(process, options)
    }
    /// Patches that other tools have changed, sorted by address. With `repair`, bytes that a kernel uprobe
    /// put back are written again.
    #[must_use]
    pub fn inspect(&self, process: &Process, repair: bool) -> Vec<Changed> {
        inspect(self.batches.held.all(), process, repair)
    }
}

/// What is in place.
impl Attached {
    /// Its segments, oldest first. Each batch that placed a patch has one.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.batches.segments
    }
    /// Whether the counts are final: no process maps the segments any more, neither this one nor one that was
    /// forked from it. From then on nothing can be written there. For a process that has ended, or runs
    /// another program.
    ///
    /// # Errors
    /// If the kernel refuses to answer.
    pub fn settle(&mut self) -> Result<bool, TargetError> {
        self.batches.segments.iter_mut().try_fold(true, |all, segment| Ok(segment.map.settle()? && all))
    }
    /// Where a thread that trapped at `addr` goes on, if that is one of our guards.
    #[must_use]
    pub fn resume(&self, addr: u64) -> Option<u64> {
        self.batches.resume(addr)
    }
    /// Number of bytes of its segments that were charged to the process, plus `besides`. `None` if that is no
    /// more than the share of what its control group had left, or if there is no limit.
    #[must_use]
    pub fn overgrown(&self, besides: impl FnOnce() -> u64) -> Option<u64> {
        let most = self.batches.may_grow?;
        let charged = |segment: &Segment| segment.resident().saturating_sub(segment.paid);
        let grown = self.segments().iter().map(charged).sum::<u64>() + besides();
        (grown > most).then_some(grown)
    }
    /// Number of bytes of address space that are taken in the process.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.segments().iter().map(Segment::mapped).sum()
    }
    /// Whether counter lines belong to CPUs, since threads have rseq areas. Otherwise any CPU may have used
    /// any line.
    #[must_use]
    pub fn counts_by_cpu(&self) -> bool {
        self.batches.threads.count_by_cpu()
    }
    /// Whether counting by thread takes a system call at each hit.
    #[must_use]
    pub fn asks_for_thread(&self) -> bool {
        self.batches.threads.ask_by_call()
    }
    /// Threads that the C library did not make, if stubs treat all threads as the library's. Their hits may
    /// be lost, or may have harmed the process. Takes some milliseconds if there are any.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn strangers(&mut self, process: &Process) -> Result<Vec<u32>, TargetError> {
        self.batches.threads.strangers(process)
    }
}

/// What threads wait for.
impl Attached {
    /// Threads that have loaded libraries, and wait until these were looked at.
    #[must_use]
    pub fn tickets(&self) -> Tickets {
        tickets(&self.batches)
    }
    /// Lets the next one pass, for which all was looked at already.
    pub fn answer_next(&self) {
        answer_next(&self.batches);
    }
    /// Whether threads wait there at all.
    #[must_use]
    pub const fn holds_loads(&self) -> bool {
        self.batches.holds_loads
    }
    /// Lets them go on. Returns whether all of them have waited until now.
    #[must_use]
    pub fn answer(&self, tickets: &Tickets) -> bool {
        answer(&self.batches, tickets)
    }
    /// Shows threads that wait for an answer that this tracer lives, and will come to them.
    pub fn show_alive(&self) {
        self.segments().iter().map(Segment::view).for_each(show_alive);
    }
    /// The last ticket in each segment of threads that ask. To be read before what they ask for.
    #[must_use]
    pub fn askers(&self) -> Askers {
        Askers(self.segments().iter().map(|segment| segment.view().get(at::ASKERS)).collect())
    }
    /// Facts that threads ask to change, and that patches rely on.
    #[must_use]
    pub fn asked(&self) -> u64 {
        asked(&self.batches)
    }
    /// Facts that patches rely on.
    #[must_use]
    pub const fn relied_on(&self) -> u64 {
        self.batches.facts.relied_on()
    }
    /// Whether threads wait before they change one of these facts.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.batches.facts.hold_any()
    }
    /// Whether a thread has waited in vain for one of these facts, and has gone on.
    #[must_use]
    pub fn went_on(&self, facts: u64) -> bool {
        self.segments().iter().any(|segment| segment.closed() & facts != 0)
    }
    /// The program's handlers of SIGSEGV and SIGBUS: the address of each, and whether the kernel describes the
    /// signal to it. One thread stops for it.
    ///
    /// # Errors
    /// If the process is gone, or no thread can be asked.
    pub fn fault_handlers(
        &self,
        process: &Process,
        options: &Options,
    ) -> Result<Vec<(u64, bool)>, PatchError> {
        fault_handlers(&self.batches, process, options)
    }
    /// The handlers that threads ask to set, as far as they are known, as in [`Self::fault_handlers`].
    #[must_use]
    pub fn asked_handlers(&self) -> Vec<(u64, bool)> {
        let words = self.segments().iter().map(|segment| segment.view().get(at::ASKED_HANDLER));
        words.filter(|word| *word != 0).map(|word| (word & !INFORMED, word & INFORMED != 0)).collect()
    }
    /// Whether the entry of a handler is patched.
    #[must_use]
    pub fn handles(&self, handler: u64) -> bool {
        handles(&self.batches, handler)
    }
    /// Step D11: takes out copies that may fault, and what is in place at the entries of these handlers.
    ///
    /// # Errors
    /// As [`Self::close`].
    pub fn make_way(&mut self, process: &Process, handlers: &[u64]) -> Result<Closed, PatchError> {
        make_way(&mut self.batches, process, handlers)
    }
    /// Step D13: lets those threads go on that asked, and set handlers. Whether all have, and all handlers' entries are patched.
    ///
    /// # Errors
    /// If the process is gone, or no thread can be asked.
    pub fn let_pass(
        &mut self,
        process: &Process,
        askers: &Askers,
        options: &Options,
    ) -> Result<bool, PatchError> {
        let_pass(&self.batches, process, askers, options)
    }
    /// Whether the program's handlers see the original addresses of faults in copies.
    #[must_use]
    pub const fn delivers_faults(&self) -> bool {
        self.batches.delivers
    }
    /// Whether ours may be the only handler of faults.
    #[must_use]
    pub fn serves_faults(&self) -> bool {
        self.batches.take_faults()
    }
    /// Whether a signal of traps that our handler serves is not among those that the process catches: the program
    /// ignores it, or has set the default.
    #[must_use]
    pub fn lost_traps(&self, caught: u64) -> bool {
        let Some(installed) = self.batches.installed else { return false };
        let ours = [(installed.trap(), SIGTRAP), (installed.illegal(), SIGILL)];
        ours.iter().any(|(action, signal)| action.is_some() && caught & bit(*signal) == 0)
    }
    /// Step H3, and H4 for what is taken out: from now on these facts count as changed.
    ///
    /// # Errors
    /// If the process is gone, or could not be stopped. What relies on the facts may still be in place.
    pub fn close(&mut self, process: &Process, facts: u64) -> Result<Closed, PatchError> {
        close(&mut self.batches, process, facts).map_err(|error| error.or_gone(process))
    }
    /// Takes out the patches of some probes: the index of the segment, and the probe's number in it (PATCH-16).
    ///
    /// # Errors
    /// If the process is gone, or could not be stopped. Patches may still be in place.
    pub fn take_out(
        &mut self,
        process: &Process,
        probes: &HashSet<(usize, u32)>,
    ) -> Result<Closed, PatchError> {
        take_out_probes(&mut self.batches, process, probes).map_err(|error| error.or_gone(process))
    }
    /// Step H5: threads wait no longer for the facts that have changed.
    pub fn let_go(&mut self) {
        self.batches.facts.answer();
        self.batches.say_closed();
    }
}

/// Return trampolines.
impl Attached {
    /// The return trampolines of the process, if some calls use them.
    #[must_use]
    pub const fn trampolines(&self) -> Option<Trampolines> {
        self.batches.trampolines
    }
    /// Number of trampolines of the process, and number of taken ones; `None` without trampolines.
    ///
    /// # Errors
    /// If its memory cannot be read.
    pub fn lent(&self, process: &Process) -> Result<Option<(u32, u32)>, PatchError> {
        let Some(trampolines) = self.trampolines() else { return Ok(None) };
        Ok(Some((trampolines.count, lent(process, &trampolines)?.len() as u32)))
    }
    /// Gives back the trampolines of calls that were left without a return. Each is counted as unreturned.
    ///
    /// # Errors
    /// If the process is gone or cannot be stopped.
    pub fn reclaim(&mut self, process: &Process) -> Result<Reclaimed, PatchError> {
        reclaim(&self.batches, process)
    }
    /// Those of these unwinders that were not informed about the trampolines yet.
    #[must_use]
    pub fn unregistered(&self, unwinders: &[Unwinder]) -> Vec<Unwinder> {
        self.batches.with_trampolines().map_or_else(Vec::new, |segment| unregistered(segment, unwinders))
    }
    /// Informs unwinders that were loaded later about the existing trampolines.
    ///
    /// # Errors
    /// [`TargetError::NoCaller`] if no thread is fit for it now, or too many were informed before; others as
    /// of any batch.
    pub fn register_unwinders(
        &self,
        process: &Process,
        unwinders: &[Unwinder],
        own: &[std::ops::Range<u64>],
    ) -> Result<(), PatchError> {
        register_late(&self.batches, process, unwinders, own)
    }
}
