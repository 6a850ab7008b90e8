//! One batch of patches into one process: steps I1 to I11 of `protocol`.
//!
//! In: a process and a request. Out: a segment whose patches are in place, and a report. An error before the
//! first site is written leaves nothing mapped and no action changed.
//! Does not: choose tactics, read counters.

use std::time::{Duration, Instant};

use trapline_plan::filter::TargetFilter;
use trapline_plan::{Action, PlanError, RseqTraits, ThreadId};
use trapline_record::RemoteAddr;
use trapline_record::control::{State, at, fact};
use trapline_tracee::{
    Batch, BatchOptions, BatchReport, Process, RemoteCaller, RemoteOptions, Seccomp, ThreadStatus,
};

use crate::attached::Attached;
use crate::error::PatchError;
use crate::install::map::{SERVED, map, unmap};
use crate::install::prepare::{Prepared, PreparedSite, prepare};
use crate::install::publish::publish;
use crate::install::survey::{SIGTRAP, Survey};
use crate::memory::find::{check_free, find_segments, left_behind};
use crate::native::number;
use crate::remove::free::free;
use crate::request::{AttachReport, Memory, Placed, Refused, Request, Why};
use crate::returns::trampolines::write_hints;
use crate::returns::unwinder::register;
use crate::threads::library::LibraryThreads;
use crate::threads::stack;

/// Puts patches into a process in which this session has none yet.
///
/// # Errors
/// If it fails, nothing was changed, or what was changed was undone, unless the process is gone.
pub fn attach(process: &Process, request: &Request<'_>) -> Result<(Attached, AttachReport), PatchError> {
    let mut attached = Attached::default();
    let report = attached.add(process, request)?;
    Ok((attached, report))
}

impl Attached {
    /// Puts more patches into the same process, in a further segment. The process is not seized while the
    /// plan is made.
    ///
    /// # Errors
    /// As [`attach`]; what was there before stays.
    pub fn add(&mut self, process: &Process, request: &Request<'_>) -> Result<AttachReport, PatchError> {
        let start = Instant::now();
        let idle = &mut || {
            // Between two looks at which threads block signals.
            std::thread::sleep(Duration::from_micros(200));
            Ok(())
        };
        let mut work = self.look(process, request, idle)?;
        if self.must_ask(request) {
            let clock = Instant::now();
            Batch::run(process, OPTIONS, |batch| {
                let result = self.ask(batch, request, &work.remote);
                work.report.batch = batch.report();
                result
            })??;
            work.report.timings.first_stop = clock.elapsed();
        }
        self.register(&mut work, request);
        let mut first = prepare(process, request, &mut work.survey, self.before(), &mut work.report);
        if is_full(&first, &work.report)
            && Batch::run(process, OPTIONS, |batch| self.make_room(batch, &work.remote))??
        {
            work = self.look(process, request, idle)?;
            self.register(&mut work, request);
            first = prepare(process, request, &mut work.survey, self.before(), &mut work.report);
        }
        let prepared = first?;
        if !prepared.sites.is_empty() {
            let clock = Instant::now();
            Batch::run(process, OPTIONS, |batch| {
                work.report.timings.seize = clock.elapsed();
                // Only one tracer can hold the process: another one that came between the look and now is
                // found here.
                check_free(process.pid(), &find_segments(process)?, &self.memfds(), false)?;
                let result = self.install(batch, prepared, request, &mut work);
                work.report.batch = sum(&work.report.batch, &batch.report());
                result
            })??;
        }
        work.report.timings.total = start.elapsed();
        Ok(work.report)
    }
    /// The same inside an existing seizure, which may hold forked children.
    ///
    /// # Errors
    /// As [`attach`].
    pub fn add_in(
        &mut self,
        batch: &mut Batch<'_>,
        request: &Request<'_>,
    ) -> Result<AttachReport, PatchError> {
        let start = Instant::now();
        let process = batch.process();
        let mut work = self.look_in(batch, request)?;
        if self.must_ask(request) {
            self.ask(batch, request, &work.remote)?;
            work.report.timings.first_stop = start.elapsed();
        }
        self.register(&mut work, request);
        let mut first = prepare(process, request, &mut work.survey, self.before(), &mut work.report);
        if is_full(&first, &work.report) && self.make_room(batch, &work.remote)? {
            work = self.look_in(batch, request)?;
            self.register(&mut work, request);
            first = prepare(process, request, &mut work.survey, self.before(), &mut work.report);
        }
        let prepared = first?;
        if !prepared.sites.is_empty() {
            self.install(batch, prepared, request, &mut work)?;
        }
        work.report.batch = batch.report();
        work.report.timings.total = start.elapsed();
        Ok(work.report)
    }
    /// [`look`](Self::look) in a seizure.
    fn look_in(&self, batch: &mut Batch<'_>, request: &Request<'_>) -> Result<Work, PatchError> {
        self.look(batch.process(), request, &mut || {
            batch.serve(&|addr| self.resume(addr))?;
            Ok(())
        })
    }
    /// Step I1, and what /proc shows.
    pub(crate) fn look(
        &self,
        process: &Process,
        request: &Request<'_>,
        idle: &mut dyn FnMut() -> Result<(), PatchError>,
    ) -> Result<Work, PatchError> {
        let start = Instant::now();
        check_free(process.pid(), &find_segments(process)?, &self.memfds(), false)?;
        let pid = process.pid();
        if let (true, Some((tid, _))) = (has_texts(request), process.restricted()?) {
            return Err(PatchError::NoTexts { pid, tid });
        }
        // What a thread is about to do counts as done.
        if has_texts(request) && self.has_changed(fact::FILTER) {
            return Err(PatchError::NoTexts { pid, tid: pid });
        }
        if is_timed(request) && self.has_changed(fact::CLOCK) {
            return Err(PatchError::NoClock { pid, tid: pid, why: "PR_SET_TSC or seccomp strict mode" });
        }
        let mut survey = Survey::new(process, request.go, &request.options, idle)?;
        survey.still |= self.is_trap_the_programs(&process.status()?);
        if request.calls.is_none() {
            survey.ask_groups(pid);
        }
        let remote = RemoteOptions { patience: request.options.patience, ..RemoteOptions::default() };
        let mut report =
            AttachReport { no_traps: survey.no_traps, stopped_all: survey.still, ..AttachReport::default() };
        report.timings.look = start.elapsed();
        Ok(Work { survey, remote, report })
    }
    /// Whether the program had a handler of its own for SIGTRAP when we came (PATCH-15).
    fn is_trap_the_programs(&self, status: &ThreadStatus) -> bool {
        match (&self.installed, self.segments.first()) {
            (Some(installed), Some(first)) if installed.trap().is_some() => {
                first.view().get(at::OLD_SIGTRAP) > 1
            }
            _ => ThreadStatus::has(status.caught, SIGTRAP),
        }
    }
    fn register(&self, work: &mut Work, request: &Request<'_>) {
        work.survey.traits.rseq = self.rseq.flatten();
        work.survey.traits.thread_id = self.thread_id;
        work.survey.traits.stacks.block = self.stack_block;
        work.survey.traits.stacks.go = request.durations.go_g;
        if self.only_our_faults {
            work.survey.traits.has_fault_handler = false;
        }
        let may_come = request.options.faults_may_be_caught && !request.options.faults_are_fatal;
        work.survey.traits.has_fault_handler |= self.has_changed(fact::FAULTS) || may_come;
        work.report.fault_handler = work.survey.traits.has_fault_handler;
    }
    fn must_ask(&self, request: &Request<'_>) -> bool {
        self.rseq.is_none() || (is_timed(request) && !self.clock_allowed) || self.takes_faults()
    }
    pub(crate) fn takes_faults(&self) -> bool {
        self.installed.is_some_and(|installed| installed.faults().iter().any(Option::is_some))
    }
    /// Whether only we catch faults: our handler is installed, and the program had none.
    fn are_only_our_faults(&self, caller: &mut RemoteCaller<'_, '_>) -> Result<bool, PatchError> {
        let (Some(installed), Some(first)) = (self.installed, self.segments.first()) else {
            return Ok(false);
        };
        for (served, ours) in SERVED.iter().zip(installed.actions).skip(2) {
            let present = caller.sigaction(served.signal, None)?.handler;
            let old = first.view().get(served.old);
            if present > 1 && (ours.is_none() || present != installed.entry || old > 1) {
                return Ok(false);
            }
        }
        Ok(true)
    }
    /// Step I2: what only a stopped thread shows. Done once in a session, and again if we catch faults.
    fn ask(
        &mut self,
        batch: &mut Batch<'_>,
        request: &Request<'_>,
        remote: &RemoteOptions,
    ) -> Result<(), PatchError> {
        let process = batch.process();
        let timed = is_timed(request);
        let restricted = process.restricted()?;
        if timed && !self.clock_allowed {
            self.check_clock(batch, restricted, remote)?;
        }
        let mut caller = batch.remote(remote, &|addr| self.resume(addr))?;
        let area = caller.rseq()?;
        let thread = caller.regs()?.thread_pointer();
        let kept = if request.threads.own_pointers { None } else { kept(&caller, thread, process)? };
        // Go's own threads have no control block. What lies there instead holds pairs of addresses that might
        // pass for one.
        let has_block = !request.go || kept.is_some();
        let stack_block =
            if is_recorded(request) && has_block { stack::block(&mut caller, process)? } else { None };
        let only_our_faults = self.takes_faults() && self.are_only_our_faults(&mut caller)?;
        caller.finish()?;
        let mut library = kept.and_then(|kept| LibraryThreads::of(process, thread, kept));
        let all_are_its = match &mut library {
            Some(library) => library.strangers(process, &mut || self.pause(batch))?.is_empty(),
            None => false,
        };
        let kept = kept.filter(|_| all_are_its);
        // The rseq area lies where the library says, in threads that the library made itself.
        let area = area.filter(|area| kept.is_some() && request.threads.rseq == Some(area.offset));
        self.rseq = Some(area.map(|r| RseqTraits { offset: r.offset, signature: r.signature }));
        self.thread_id = thread_id(kept, process, request, restricted.is_some())?;
        self.library_threads = library.filter(|_| all_are_its);
        self.stack_block = stack_block.filter(|_| all_are_its).or(self.stack_block);
        self.only_our_faults = only_our_faults;
        self.clock_allowed |= timed;
        Ok(())
    }
    /// Makes sure that every thread may read the clock.
    fn check_clock(
        &self,
        batch: &mut Batch<'_>,
        restricted: Option<(u32, Seccomp)>,
        remote: &RemoteOptions,
    ) -> Result<(), PatchError> {
        let pid = batch.process().pid();
        if let Some((tid, Seccomp::Strict)) = restricted {
            return Err(PatchError::NoClock { pid, tid, why: "seccomp strict mode" });
        }
        let denied = batch.clock_denied_to(remote, &|addr| self.resume(addr))?;
        denied.map_or(Ok(()), |tid| Err(PatchError::NoClock { pid, tid, why: "PR_SET_TSC" }))
    }
    /// Waits between two looks at threads that are being born, which stop and wait for us.
    fn pause(&self, batch: &mut Batch<'_>) -> Result<(), PatchError> {
        batch.serve(&|addr| self.resume(addr))?;
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
    /// Unmaps what earlier sessions had to leave behind, if it is proven to be unused. Returns whether that
    /// freed anything.
    fn make_room(&self, batch: &mut Batch<'_>, remote: &RemoteOptions) -> Result<bool, PatchError> {
        let found = left_behind(batch.process(), &self.memfds())?;
        Ok(!found.is_empty() && free(batch, &found, &|addr| self.resume(addr), remote)?.unmapped > 0)
    }
    /// Step H0 of `hold`.
    fn note_reliance(&mut self, prepared: &Prepared, request: &Request<'_>, survey: &Survey) {
        let holds = |site: &PreparedSite| {
            let module = request.modules.get(site.module as usize);
            let request = module.and_then(|module| module.requests.get(site.patch.request as usize));
            request.is_some_and(|request| matches!(request.action, Action::Hold(_)))
        };
        self.holds.extend(prepared.sites.iter().filter(|site| holds(site)).map(|site| site.patch.addr.0));
        let faults = !survey.traits.has_fault_handler && !request.options.faults_are_fatal;
        let faults = faults && prepared.sites.iter().any(|site| site.patch.faults && !holds(site));
        let by_call = request.options.by_thread || is_recorded(request) || asks_for_thread(request);
        let calls = has_texts(request) || by_call && self.asks_by_call();
        self.rely(is_timed(request), calls, faults);
        self.say_closed();
    }
    /// Steps I5 to I10.
    fn install(
        &mut self,
        batch: &mut Batch<'_>,
        prepared: Prepared,
        request: &Request<'_>,
        work: &mut Work,
    ) -> Result<(), PatchError> {
        let Work { survey, remote, report } = work;
        let clock = Instant::now();
        let mut segment = map(self, batch, &prepared, survey, remote)?;
        report.timings.second_stop = clock.elapsed();
        report.mapped = segment.mapped();
        report.code = prepared.plans.iter().map(|p| p.bytes.len() as u64).sum();
        report.memory = Memory { sites: report.code + segment.tables(), per_cpu: segment.per_cpu() };

        let clock = Instant::now();
        let filled = segment.fill(&prepared.plans, request.options.alone);
        let ready = filled.and_then(|()| segment.pay(&prepared.paid)).and_then(|()| {
            let Some((made, code)) = &prepared.trampolines else { return Ok(()) };
            segment.write_code(RemoteAddr(made.trampolines.code), code)?;
            write_hints(batch.process(), &made.trampolines)?;
            Ok(register(batch, &segment, request.unwinders, request.own_code, &|addr| self.resume(addr))?)
        });
        if let Err(error) = ready {
            unmap(self, batch, remote, &segment);
            return Err(error);
        }
        // The handler must know the new guards before any of them can be hit.
        if let Some(last) = self.segments.last() {
            last.view().set(at::NEXT_SEGMENT, segment.control.0);
        }
        segment.set_state(State::Armed);
        segment.paid = segment.resident();
        self.may_grow = self.may_grow.into_iter().chain(prepared.may_grow).min();
        self.push(segment);
        self.note_reliance(&prepared, request, survey);
        report.timings.fill = clock.elapsed();

        let clock = Instant::now();
        let shares = prepared.shares.clone();
        publish(self, batch, prepared, survey, remote, report)?;
        settle_shares(request, &shares, report);
        report.timings.publish = clock.elapsed();
        Ok(())
    }
}

/// State of a batch.
pub(crate) struct Work {
    pub(crate) survey: Survey,
    pub(crate) remote: RemoteOptions,
    pub(crate) report: AttachReport,
}

const OPTIONS: BatchOptions = BatchOptions { hold_children: true };

/// There is no room, or not enough for all.
fn is_full(prepared: &Result<Prepared, PatchError>, report: &AttachReport) -> bool {
    let no_room = |refused: &Refused| matches!(&refused.why, Why::Plan(why) if why.kind() == "no-room");
    matches!(prepared, Err(PatchError::Plan { source: PlanError::NoSpace { .. }, .. }))
        || report.refused.iter().any(no_room)
}

/// A request that shares a site gets the result of the request that the site is named after.
fn settle_shares(request: &Request<'_>, shares: &[(u32, u32, u32)], report: &mut AttachReport) {
    for &(module, owner, asked) in shares {
        let other = request.modules.get(module as usize).and_then(|m| m.requests.get(asked as usize));
        let Some(probe) = other.map(|other| other.probe) else { continue };
        if report.placed.iter().any(|placed| placed.probe == probe) {
            continue;
        }
        let mine = |(of, index)| of == module && index == owner;
        if let Some(placed) = report.placed.iter().find(|p| mine((p.module, p.request))).copied() {
            report.placed.push(Placed { probe, request: asked, ..placed });
        } else if let Some(refused) = report.refused.iter().find(|r| mine((r.module, r.request))).cloned() {
            report.refused.push(Refused { probe, request: asked, ..refused });
        }
    }
}

/// Where the C library keeps the number of a stopped thread. Its control block is recognized by its pointers
/// and by that number.
fn kept(caller: &RemoteCaller<'_, '_>, thread: u64, process: &Process) -> Result<Option<i32>, PatchError> {
    let status = process.thread_status(caller.tid())?;
    let word = |at: u64| process.read_u64(RemoteAddr(at)).ok();
    Ok(status.ns_pids.last().and_then(|&tid| number::kept(thread, tid, word)))
}

/// How generated code is to read a thread's number: from the control block that the C library gave to each;
/// otherwise by a system call, unless a seccomp filter might punish that.
fn thread_id(
    kept: Option<i32>,
    process: &Process,
    request: &Request<'_>,
    restricted: bool,
) -> Result<ThreadId, PatchError> {
    if !request.options.by_thread && !is_recorded(request) && !asks_for_thread(request) {
        return Ok(ThreadId::Call);
    }
    // The kernel's answer is the child's own. If the call must not be made, the parent's number is better
    // than none.
    let kept = kept.filter(|_| restricted || !request.threads.lent_blocks);
    match (kept, restricted) {
        (Some(at), _) => Ok(ThreadId::At(at)),
        (None, false) => Ok(ThreadId::Call),
        // Then records do not name a thread.
        (None, _) if !request.options.by_thread => Ok(ThreadId::Unknown),
        (None, _) => Err(PatchError::NoThreadNumber { pid: process.pid() }),
    }
}

/// Whether a filter depends on the thread's number, or an aggregation is grouped by it.
fn asks_for_thread(request: &Request<'_>) -> bool {
    let asks = |filter: &TargetFilter| filter.tally.is_some() || filter.asks_for_thread();
    request.filters.iter().flatten().any(asks)
}

/// Whether the stubs read the clock.
fn is_timed(request: &Request<'_>) -> bool {
    let late = request.filters.iter().flatten().any(|filter| filter.late.is_some());
    request.modules.iter().flat_map(|m| m.requests).any(|w| w.action.is_timed())
        || is_recorded(request)
        || late
}

/// Whether stubs make system calls to read what arguments point to.
fn has_texts(request: &Request<'_>) -> bool {
    let texts = |role| match role {
        Action::Record { texts, fields, .. } => texts != 0 || fields != 0,
        Action::RecordMark(_, fields) => fields != 0,
        _ => false,
    };
    let tallied = |filter: &TargetFilter| {
        filter.tally.as_ref().is_some_and(|tally| tally.texts() != 0 || !filter.reads.is_empty())
    };
    request.modules.iter().flat_map(|m| m.requests).any(|w| texts(w.action))
        || request.filters.iter().flatten().any(tallied)
}

fn is_recorded(request: &Request<'_>) -> bool {
    let recorded =
        |role| matches!(role, Action::Record { .. } | Action::RecordAt(..) | Action::RecordMark(..));
    request.modules.iter().flat_map(|m| m.requests).any(|w| recorded(w.action))
}

/// The reports of two seizures, added up.
fn sum(a: &BatchReport, b: &BatchReport) -> BatchReport {
    BatchReport {
        guards: a.guards + b.guards,
        dispositions_restored: a.dispositions_restored + b.dispositions_restored,
        signals: a.signals + b.signals,
        threads: a.threads.max(b.threads),
        interrupted_syscalls: a.interrupted_syscalls + b.interrupted_syscalls,
        restarted_timeouts: a.restarted_timeouts + b.restarted_timeouts,
        longest_stop: a.longest_stop.max(b.longest_stop),
        remote_stop: a.remote_stop + b.remote_stop,
    }
}
