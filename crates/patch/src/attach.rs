//! One batch of patches into one process: steps I1 to I11 of `protocol`.
//!
//! In: a process and a request. Out: a segment whose patches are in place, and a report. An error before the first site is
//! written leaves nothing mapped and no action changed.
//! Does not: choose tactics, read counters.

use std::time::Instant;

use trapline_plan::{RseqTraits, Role};
use trapline_record::control::{State, at};
use trapline_target::{Batch, BatchOptions, Process, RemoteOptions};

use crate::attached::Attached;
use crate::error::PatchError;
use crate::find::{check_free, find_segments};
use crate::map::{map, unmap};
use crate::prepare::{Prepared, prepare};
use crate::publish::publish;
use crate::request::{AttachReport, Request};
use crate::survey::Survey;

/// Puts patches into a process that has none of ours.
///
/// # Errors
/// Nothing was changed, or what was changed was undone; unless the process is gone.
pub fn attach(process: &Process, request: &Request<'_>) -> Result<(Attached, AttachReport), PatchError> {
    let mut attached = Attached::default();
    let report = attached.add(process, request)?;
    Ok((attached, report))
}

impl Attached {
    /// Puts more patches into the same process, as a further segment.
    ///
    /// # Errors
    /// As [`attach`]; what was there before stays.
    pub fn add(&mut self, process: &Process, request: &Request<'_>) -> Result<AttachReport, PatchError> {
        let start = Instant::now();
        let options = BatchOptions { hold_children: true };
        let mut report = Batch::run(process, options, |batch| {
            let seize = start.elapsed();
            self.add_in(batch, request).map(|report| (report, seize))
        })?
        .map(|(mut report, seize)| {
            report.timings.seize = seize;
            report
        })?;
        report.timings.total = start.elapsed();
        Ok(report)
    }
    /// The same inside a seizure that exists already, and that holds forked children.
    ///
    /// # Errors
    /// As [`attach`].
    pub fn add_in(&mut self, batch: &mut Batch<'_>, request: &Request<'_>) -> Result<AttachReport, PatchError> {
        let start = Instant::now();
        let process = batch.process();
        check_free(process.pid(), &find_segments(process)?, &self.memfds(), false)?;
        let mut survey = Survey::new(process, request.go, &request.options)?;
        let remote = RemoteOptions { patience: request.options.patience, ..RemoteOptions::default() };
        let mut report =
            AttachReport { no_traps: survey.no_traps, stopped_all: survey.still, ..AttachReport::default() };
        report.timings.look = start.elapsed();
        let clock = Instant::now();
        survey.traits.rseq = self.ask(batch, request, &remote)?;
        report.timings.first_stop = clock.elapsed();
        let prepared = prepare(process, request, &mut survey, &mut report)?;
        if !prepared.sites.is_empty() {
            self.install(batch, prepared, &survey, &remote, &mut report)?;
        }
        report.batch = batch.report();
        report.timings.total = start.elapsed();
        Ok(report)
    }
    /// I3: what only a stopped thread tells, once in a session.
    fn ask(
        &mut self,
        batch: &mut Batch<'_>,
        request: &Request<'_>,
        remote: &RemoteOptions,
    ) -> Result<Option<RseqTraits>, PatchError> {
        let timed = request.modules.iter().flat_map(|m| m.wants).any(|w| w.role == Role::Latency);
        let clock = timed && !self.clock_allowed;
        if self.rseq.is_none() || clock {
            let pid = batch.process().pid();
            let mut caller = batch.remote(remote)?;
            let rseq = caller.rseq()?.map(|r| RseqTraits { offset: r.offset, signature: r.signature });
            let allowed = !clock || caller.tsc_allowed()?;
            caller.finish()?;
            if !allowed {
                return Err(PatchError::NoClock { pid });
            }
            self.rseq = Some(rseq);
            self.clock_allowed |= clock;
        }
        Ok(self.rseq.flatten())
    }
    /// I5 to I10.
    fn install(
        &mut self,
        batch: &mut Batch<'_>,
        prepared: Prepared,
        survey: &Survey,
        remote: &RemoteOptions,
        report: &mut AttachReport,
    ) -> Result<(), PatchError> {
        let clock = Instant::now();
        let segment = map(self, batch, &prepared, survey, remote)?;
        report.timings.second_stop = clock.elapsed();
        report.mapped = segment.mapped();
        report.code = prepared.plans.iter().map(|p| p.bytes.len() as u64).sum();

        let clock = Instant::now();
        if let Err(error) = segment.fill(&prepared.plans) {
            unmap(self, batch, remote, &segment);
            return Err(error);
        }
        // The handler learns of the new guards before any of them can be hit.
        if let Some(last) = self.segments.last() {
            last.view().set(at::NEXT_SEGMENT, segment.control.0);
        }
        segment.set_state(State::Armed);
        self.push(segment);
        report.timings.fill = clock.elapsed();

        let clock = Instant::now();
        publish(self, batch, prepared, survey, remote, report)?;
        report.timings.publish = clock.elapsed();
        Ok(())
    }
}
