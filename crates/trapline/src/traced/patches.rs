//! The patches of one process: puts them in, keeps them working, and takes all of them out.
//!
//! In: places in modules. Out: for each place that is probed, where its hits are counted; refusals; notices.
//! Places that no jump reaches go to `kernel`. Invariant: SES-1: after `detach`, no patch of this session is
//! left that could be taken out. Does not: decide how a place is reached; `trapline_patch` does.

use std::time::Instant;

use trapline_patch::{
    AttachReport, Attached, DetachReport, Durations, Options, PatchError, Request, Segment, Threads, Tickets,
    Why,
};
use trapline_plan::Refusal;
use trapline_tracee::{Process, TargetError};

use super::costs::Costs;
use super::kernel::KernelLinks;
use super::left_alone;
use super::site_table::Source;
use super::target_process::TargetProcess;
use crate::error::Error;
use crate::files::Files;
use crate::form::Returns;
use crate::histogram::LinearBuckets;
use crate::library;
use crate::modules::Module;
use crate::report::{Refused, Tactic};
use crate::requests::{
    Requests, is_guarded, no_goroutine, no_unwinder, other_maps, refusals, tactics, tails_notice,
};
use crate::session_request::SessionRequest;
use crate::sites::NamedSite;
use crate::times::stamps_resident;
use crate::unwinders::{Unwinding, unwinding, unwinding_now};

/// Notice for a program without an unwinder in which return addresses are replaced.
const NOT_REGISTERED: &str = "the process has loaded no unwinder (libgcc_s); one that it loads while probed (for pthread_exit, \
                           pthread_cancel or backtrace) is informed of replaced return addresses a moment later, and until \
                           then sees no further than a probed call";

/// Places that are to be patched together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch<'a> {
    pub(super) modules: &'a [Module],
    pub(super) places: &'a [NamedSite],
    /// The program may change its handlers of faults before that is seen.
    pub(super) is_blind: bool,
    /// The program catches faults, and its handlers' entries are among the places, or patched.
    pub(super) delivers: bool,
}

/// What became of the places of a batch, by index.
#[derive(Debug, Default)]
pub(super) struct BatchOutcome {
    pub(super) probed: Vec<(usize, Tactic, Source)>,
    pub(super) refused: Vec<(usize, Refused)>,
}

impl BatchOutcome {
    /// All places refused.
    pub(super) fn refuse_all(batch: &Batch<'_>, why: impl Fn(&NamedSite) -> Refused) -> Self {
        Self { refused: batch.places.iter().map(why).enumerate().collect(), ..Self::default() }
    }
}

/// All patches of a process.
#[derive(Debug)]
pub(super) struct Patches {
    pub(super) attached: Attached,
    pub(super) links: KernelLinks,
    /// What the process' files show of its threads, such as where their rseq areas are.
    threads: Threads,
    /// An unwinder was loaded, with which return trampolines must still be registered.
    unregistered: bool,
    /// Earliest time of the next search for return trampolines to give back.
    reclaim_after: Instant,
    /// Equal steps in which stubs count durations, if they do.
    pub(super) steps: Option<LinearBuckets>,
    pub(super) costs: Costs,
    pub(super) detached: bool,
}

impl Patches {
    /// None yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            attached: Attached::default(),
            links: KernelLinks::default(),
            threads: Threads::default(),
            unregistered: false,
            reclaim_after: now,
            steps: None,
            costs: Costs::default(),
            detached: false,
        }
    }
    pub(super) fn segments(&self) -> &[Segment] {
        self.attached.segments()
    }
    /// Whether threads may wait for an answer.
    pub(super) fn hold(&self) -> bool {
        let holds = self.attached.holds() && self.attached.relied_on() != 0;
        !self.detached && (holds || self.attached.holds_loads())
    }
    /// Threads that have loaded libraries, and wait until these were looked at.
    pub(super) fn tickets(&self) -> Tickets {
        if self.detached { Tickets::default() } else { self.attached.tickets() }
    }
    /// Patches one batch.
    pub(super) fn attach(
        &mut self,
        target: &TargetProcess,
        files: &mut Files,
        requested: &SessionRequest,
        batch: &Batch<'_>,
        notices: &mut Vec<String>,
    ) -> Result<BatchOutcome, Error> {
        self.threads = library::threads(&target.process, files);
        let calls = |place: &NamedSite| place.filter.as_ref().is_some_and(|filter| filter.tallies_calls());
        if !target.returns_decide() && batch.places.iter().any(calls) {
            return Ok(BatchOutcome::refuse_all(batch, no_goroutine));
        }
        let assigns = |place: &NamedSite| place.filter.as_ref().is_some_and(|filter| filter.assigns());
        if !self.segments().is_empty() && batch.places.iter().any(assigns) {
            return Ok(BatchOutcome::refuse_all(batch, other_maps));
        }
        match requested.form() {
            Returns::Stack => self.attach_trampolines(target, files, requested, batch, notices),
            Returns::Auto => self.attach_by_need(target, files, requested, batch, notices),
            Returns::Exits => {
                self.attach_as_asked(target, &Unwinding::default(), requested, batch, None, notices)
            }
        }
    }
    /// Patches exits where that is possible. Replaces return addresses where it is not, and where a call
    /// may end as another function, if that can be registered with all unwinders. One plan decides both,
    /// because most of its cost is finding exits.
    fn attach_by_need(
        &mut self,
        target: &TargetProcess,
        files: &mut Files,
        requested: &SessionRequest,
        batch: &Batch<'_>,
        notices: &mut Vec<String>,
    ) -> Result<BatchOutcome, Error> {
        let start = Instant::now();
        let found = Unwinding::of_auto(&target.process, files);
        self.costs.attach += start.elapsed();
        let left_alone = match found {
            Ok(unwinding) => {
                let options = Options { or_trampolines: true, ..requested.options };
                let requested = SessionRequest { options, ..requested.clone() };
                match self.attach_as_asked(target, &unwinding, &requested, batch, None, notices) {
                    Err(Error::Patch(PatchError::Target(TargetError::NoCaller { why, .. }))) => why,
                    other => return other,
                }
            }
            Err(why) => why,
        };
        self.attach_as_asked(target, &Unwinding::default(), requested, batch, Some(&left_alone), notices)
    }
    /// Replaces return addresses, if they can be registered with all unwinders.
    fn attach_trampolines(
        &mut self,
        target: &TargetProcess,
        files: &mut Files,
        requested: &SessionRequest,
        batch: &Batch<'_>,
        notices: &mut Vec<String>,
    ) -> Result<BatchOutcome, Error> {
        let refuse = |why: &str| BatchOutcome::refuse_all(batch, |place| no_unwinder(place, why));
        let unwinding = match unwinding_now(&target.process, files) {
            // With an unwinder that is loaded later they are registered then (`register_unwinders`): a moment
            // late, which the user accepted by `--ret=stack`.
            Ok(unwinding) if unwinding.unwinders.is_empty() && !unwinding.is_static => {
                notices.push(NOT_REGISTERED.to_owned());
                unwinding
            }
            Ok(unwinding) => unwinding,
            Err(why) => return Ok(refuse(&why)),
        };
        let options = Options { by_trampolines: true, ..requested.options };
        let requested = SessionRequest { options, ..requested.clone() };
        match self.attach_as_asked(target, &unwinding, &requested, batch, None, notices) {
            Err(Error::Patch(PatchError::Target(TargetError::NoCaller { why, .. }))) => Ok(refuse(&why)),
            other => other,
        }
    }
    /// Patches one batch by one plan. `left_alone`: why no return address is replaced.
    fn attach_as_asked(
        &mut self,
        target: &TargetProcess,
        unwinding: &Unwinding,
        requested: &SessionRequest,
        batch: &Batch<'_>,
        left_alone: Option<&str>,
        notices: &mut Vec<String>,
    ) -> Result<BatchOutcome, Error> {
        let &Batch { modules, places, is_blind, delivers } = batch;
        self.steps = requested.steps;
        let start = Instant::now();
        let tick = requested.tick.filter(|_| target.returns_decide());
        let requests = Requests::new(modules, places, is_guarded(&target.process, modules), tick);
        let asked = requests.asked();
        let request = Request {
            options: Options {
                faults_may_be_caught: is_blind,
                faults_delivered: delivers && !is_blind,
                ..requested.options
            },
            unwinders: &unwinding.unwinders,
            own_code: &unwinding.own_code,
            go: target.is_go,
            threads: self.threads,
            durations: Durations { go_g: target.go_g, ..requested.durations },
            ..requests.request(&asked, requests.filters(), requested)
        };
        let report = self.attached.add(&target.process, &request)?;
        self.costs.attach += start.elapsed();
        let mut out = self.outcome(&report, places);
        let start = Instant::now();
        let linked = self.links.attach(target, modules, places, &report.kernel);
        out.probed.extend(linked.probed.into_iter().map(|(index, source)| (index, Tactic::Kernel, source)));
        out.refused.extend(linked.refused);
        notices.extend(linked.notices);
        notices.extend(kernel_notice(target.pid(), &report, is_blind));
        notices.extend(report.small_rings.map(small_rings_notice));
        notices.extend(tails_notice(&report, places, left_alone));
        self.costs.attach += start.elapsed();
        self.costs.add_attach(&report);
        Ok(out)
    }
    /// What a report of the batch that was added last means for its places.
    fn outcome(&self, report: &AttachReport, places: &[NamedSite]) -> BatchOutcome {
        let tactics = tactics(report);
        let segment = self.segments().len().saturating_sub(1);
        let probed = (0u32..).zip(places).filter(|(_, place)| !place.is_for_us());
        let probed = probed.filter_map(|(index, place)| {
            let latency = place.action.is_timed().then_some(index);
            let source = Source::Counter { segment, index, latency };
            Some((index as usize, *tactics.get(&index)?, source))
        });
        BatchOutcome { probed: probed.collect(), refused: refusals(report, places) }
    }
    /// Registers return trampolines with unwinders that were loaded since they were made. That waits until
    /// the loader is done with them and some thread can make the call. `fresh`: there are modules that
    /// were not looked at yet.
    pub(super) fn register_unwinders(
        &mut self,
        process: &Process,
        files: &mut Files,
        fresh: bool,
        notices: &mut Vec<String>,
    ) {
        if self.attached.trampolines().is_none() || !(fresh || self.unregistered) {
            return;
        }
        self.unregistered = false;
        let registered = match unwinding(process, files) {
            Ok(Unwinding { loading: Some(_), .. }) => {
                self.unregistered = true;
                return;
            }
            Ok(found) => match self.attached.unregistered(&found.unwinders) {
                new if new.is_empty() => Ok(()),
                new => self
                    .attached
                    .register_unwinders(process, &new, &found.own_code)
                    .map_err(|e| e.to_string()),
            },
            Err(why) => Err(why),
        };
        if let Err(why) = registered {
            // It is tried again, since some thread may be able to make the call later.
            self.unregistered = true;
            let notice = format!("an unwinder that was loaded sees no further than a probed call: {why}");
            if !notices.contains(&notice) {
                notices.push(notice);
            }
        }
    }
    /// Gives back return trampolines of calls that were left without a return, once half of all are in use.
    /// All threads stop for it, so it takes at most a hundredth of the time.
    pub(super) fn reclaim(&mut self, process: &Process) {
        let lent = self.attached.lent(process).ok().flatten();
        if self.detached
            || self.reclaim_after > Instant::now()
            || lent.is_none_or(|(all, lent)| lent < all / 2)
        {
            return;
        }
        if let Ok(done) = self.attached.reclaim(process) {
            self.reclaim_after = Instant::now() + done.stopped * 100;
            self.costs.longest_stop = self.costs.longest_stop.max(done.stopped);
        }
    }
    /// Takes all patches out. Counts can still be read afterwards. `runs_on` is false if the process runs
    /// another program, which has none.
    pub(super) fn detach(
        &mut self,
        process: &Process,
        runs_on: bool,
        options: &Options,
    ) -> Option<DetachReport> {
        let start = Instant::now();
        self.links.detach();
        if self.segments().is_empty() || !runs_on {
            return None;
        }
        let report = self.attached.detach(process, options);
        self.costs.detach = start.elapsed();
        Some(report)
    }
    /// Adds up what a detach did and left behind.
    pub(super) fn note_detached(
        &mut self,
        target: &mut TargetProcess,
        report: &DetachReport,
        notices: &mut Vec<String>,
    ) {
        for restored in &report.restored {
            let pid = restored.pid;
            if pid != target.pid() {
                target.children.insert(pid);
            }
            self.costs.add(&restored.batch);
            self.costs.left_mapped += restored.stays_mapped;
            let process = Process::open(pid);
            let changed = process.map(|process| left_alone::changed(&process, restored.left.iter()));
            self.costs.foreign_sites += changed.unwrap_or(0);
            if let Some(why) = &restored.barred {
                self.costs.undone += 1;
                notices.push(format!(
                    "process {pid} may make no more calls for us: {why}; its code is as it was, but our signal handler and memory stay \
                     until it ends"
                ));
            }
        }
        for untouched in &report.untouched {
            let (pid, why) = (untouched.pid, &untouched.why);
            self.costs.undone += 1;
            notices
                .push(format!("could not detach from process {pid}: {why}; try: trapline detach -p {pid}"));
        }
    }
    /// Called after the last report. Gives back counters, latency areas, and code that no thread can be in.
    /// Returns the bytes of memory that stay behind.
    pub(super) fn forget(&mut self, process: &Process, options: &Options, notices: &mut Vec<String>) -> u64 {
        let mut resident = 0;
        for segment in self.attached.segments() {
            if let Err(error) = segment.forget() {
                notices.push(format!("memory was not given back: {error}"));
            }
            resident += segment.resident() + stamps_resident(process, segment);
        }
        // What is in use, or cannot be proven unused now, stays as it is. The next tracer that comes tries
        // again.
        if let Ok(freed) = self.attached.free(process, options) {
            self.costs.left_mapped = freed.stays;
            resident = if freed.stays == 0 { 0 } else { resident };
        }
        resident
    }
    /// Threads that were inside a window and were sent on.
    pub(super) fn guard_hits(&self) -> u64 {
        self.costs.guards + self.segments().iter().map(Segment::guard_hits).sum::<u64>()
    }
}

/// How many sites kernel uprobes count, or would count, what that costs, and what the user can do about it.
fn kernel_notice(pid: u32, report: &AttachReport, is_blind: bool) -> Option<String> {
    let would =
        |refused: &&trapline_patch::Refused| matches!(refused.why, Why::Plan(Refusal::KernelOnly { .. }));
    let (set, left_out) = (report.kernel.len(), report.refused.iter().filter(would).count());
    let what = match (set, left_out) {
        (0, 0) => return None,
        (0, n) => {
            let sites = if n == 1 { "site" } else { "sites" };
            format!(
                "no jump fits at {n} {sites} of process {pid}; --kernel-uprobes counts there, too, at microseconds a hit"
            )
        }
        (n, _) => format!("kernel uprobes count at {n} sites of process {pid}, at microseconds a hit"),
    };
    let catches = match is_blind {
        true => "may come to catch unseen (a static program without symbols)",
        false => "catches",
    };
    let why = format!(
        "; the process {catches} SIGSEGV or SIGBUS, so that instructions that may fault stay where they are; if its \
         handler only reports and ends it, try --faults-are-fatal"
    );
    Some(if report.fault_handler { what + &why } else { what })
}

fn small_rings_notice((have, wanted): (u64, u64)) -> String {
    format!(
        "rings of records have {} KiB instead of {} for each CPU: no more than an eighth of the memory that limits leave is taken; \
         records that find theirs full are dropped, and counted",
        have >> 10,
        wanted >> 10
    )
}
