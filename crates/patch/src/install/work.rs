//! A batch while it is being made: what was found about the process, and the report so far.
//!
//! In: a process, what earlier batches left there. Out: what a plan is made from (I1). Does not: stop a thread,
//! or change the process.

use std::time::Instant;

use trapline_plan::ThreadId;
use trapline_record::control::fact;
use trapline_tracee::{Process, RemoteOptions};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::delivery::is_sure;
use crate::install::prepare::prepare;
use crate::install::prepared::Prepared;
use crate::install::survey::Survey;
use crate::memory::find::{check_free, find_segments};
use crate::report::AttachReport;
use crate::request::Request;

/// State of a batch.
pub(crate) struct Work {
    pub(crate) survey: Survey,
    pub(crate) remote: RemoteOptions,
    pub(crate) report: AttachReport,
}

impl Work {
    /// Step I1, and what /proc shows. `idle` is called while threads are waited for.
    pub(crate) fn look(
        batches: &Batches,
        process: &Process,
        request: &Request<'_>,
        idle: &mut dyn FnMut() -> Result<(), PatchError>,
    ) -> Result<Self, PatchError> {
        let start = Instant::now();
        check_free(process.pid(), &find_segments(process)?, &batches.memfds(), false)?;
        let pid = process.pid();
        if let (true, Some((tid, _))) = (request.makes_calls(), process.restricted()?) {
            return Err(no_calls(request, pid, tid, FILTERS));
        }
        // What a thread is about to do counts as done.
        if request.makes_calls() && batches.facts.has_changed(fact::FILTER) {
            return Err(no_calls(request, pid, pid, RESTRICTS));
        }
        if request.is_timed() && batches.facts.has_changed(fact::CLOCK) {
            return Err(PatchError::NoClock { pid, tid: pid, why: "PR_SET_TSC or seccomp strict mode" });
        }
        let mut survey = Survey::new(process, request.go, &request.options, idle)?;
        survey.still |= batches.is_trap_the_programs(&process.status()?);
        if batches.facts.has_changed(fact::TRAPS) {
            survey.serve_no_traps();
        }
        if request.calls.is_none() {
            survey.ask_groups(pid);
        }
        let remote = RemoteOptions { patience: request.options.patience, ..RemoteOptions::default() };
        let mut report =
            AttachReport { no_traps: survey.no_traps, stopped_all: survey.still, ..AttachReport::default() };
        report.timings.look = start.elapsed();
        Ok(Self { survey, remote, report })
    }
    /// Notes what threads have shown (I2).
    ///
    /// # Errors
    /// Compact records are requested, and threads have not what these need.
    pub(crate) fn note_threads(
        &mut self,
        batches: &Batches,
        request: &Request<'_>,
        pid: u32,
    ) -> Result<(), PatchError> {
        self.note(batches, request);
        let traits = &self.survey.traits;
        let lack = match (traits.rseq, traits.thread_id) {
            (None, _) => "its threads have no areas for restartable sequences",
            (_, ThreadId::Call | ThreadId::Unknown) => "its C library keeps no number of a thread",
            (Some(_), ThreadId::At(_)) => return Ok(()),
        };
        if request.options.compact { Err(PatchError::Unrecordable { pid, lack }) } else { Ok(()) }
    }
    fn note(&mut self, batches: &Batches, request: &Request<'_>) {
        let (traits, threads) = (&mut self.survey.traits, &batches.threads);
        traits.rseq = threads.rseq.flatten();
        traits.thread_id = threads.id;
        traits.stacks.block = threads.stack_block;
        traits.stacks.go = request.durations.go_g;
        if threads.only_our_faults && !request.options.faults_delivered {
            traits.has_fault_handler = false;
        }
        let may_come = request.options.faults_may_be_caught && !request.options.faults_are_fatal;
        let has_changed = batches.facts.has_changed(fact::FAULTS);
        traits.has_fault_handler |= has_changed || may_come;
        traits.faults_delivered &= traits.has_fault_handler && !has_changed && !may_come;
        self.report.fault_handler = traits.has_fault_handler && !traits.faults_delivered;
    }
    /// Leaves instructions that may fault where they are.
    fn deliver_no_faults(&mut self) {
        self.survey.traits.faults_delivered = false;
        self.report.fault_handler = self.survey.traits.has_fault_handler;
    }
    /// Whether a plan moves instructions that may fault, and nothing would deliver the faults (DLV-3).
    pub(crate) fn is_unsure(
        &self,
        batches: &Batches,
        request: &Request<'_>,
        prepared: &Result<Prepared, PatchError>,
    ) -> bool {
        let is_sure = |prepared: &Prepared| is_sure(batches, request, prepared);
        self.survey.traits.faults_delivered && !prepared.as_ref().is_ok_and(is_sure)
    }
    /// Notes the same again for another plan, which moves no such instruction.
    pub(crate) fn note_undelivered(&mut self, batches: &Batches, request: &Request<'_>) {
        self.note(batches, request);
        self.deliver_no_faults();
    }
    /// Step I3.
    pub(crate) fn prepare(
        &mut self,
        batches: &Batches,
        process: &Process,
        request: &Request<'_>,
    ) -> Result<Prepared, PatchError> {
        prepare(process, request, &mut self.survey, batches.before(), &mut self.report)
    }
}

/// What threads do with their system calls, so that stubs may make none.
const FILTERS: &str = "filters its system calls (seccomp)";
const RESTRICTS: &str = "filters its system calls, or gets them back as signals, from now on";

/// The error of a request that needs system calls, in a process of which a thread does this with them.
pub(crate) fn no_calls(request: &Request<'_>, pid: u32, tid: u32, does: &'static str) -> PatchError {
    match request.has_texts() {
        true => PatchError::NoTexts { pid, tid, does },
        false => PatchError::NoWaits { pid, tid, does },
    }
}
