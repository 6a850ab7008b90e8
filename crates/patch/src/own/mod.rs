//! The second writer of code: for our own process. Steps and interleavings are argued in [`protocol`].
//!
//! In: the same request as an outside attach, with what is to be called at hits. Out: sites in place, each as a value that takes it
//! out again and puts it back. Planning, comparing, journaling and every write are shared with the outside attach.
//! Does not: lock (the caller does), know consumers, wait for them.

pub mod protocol;
mod space;

use trapline_plan::{CallInput, Callee, PatchRole, Tactic};
use trapline_record::RemoteAddr;
use trapline_record::control::{State, at};
use trapline_record::journal::Entry;
use trapline_target::{FileId, OwnCaller, Process};

use crate::attach::Work;
use crate::attached::Attached;
use crate::error::PatchError;
use crate::find::{check_free, comm, find_segments};
use crate::map::{map_by, unmap_by};
use crate::prepare::{Prepared, Site, prepare, refuse};
use crate::publish::{raise, settle, sites_in_journal};
use crate::request::{AttachReport, Request, Why};
use crate::space::{LINE, SpaceError};
use crate::write::{Outcome, Way, change};
use space::Live;

/// A site of our own, as it was planned: enough to take it out and to put it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnSite {
    /// Index of its module in the request.
    pub module: u32,
    /// Index of the (first) want in its module.
    pub want: u32,
    /// What the patch is for.
    pub role: PatchRole,
    /// How it is reached.
    pub tactic: Tactic,
    /// Where its stub begins.
    pub head: RemoteAddr,
    /// Address and bytes.
    pub entry: Entry,
}

impl OwnSite {
    /// Whether an int3 may stand at its head.
    fn may_trap(&self) -> bool {
        let last = self.entry.addr.0 + u64::from(self.entry.len) - 1;
        self.tactic == Tactic::Trap || self.entry.addr.0 / LINE != last / LINE
    }
}

/// What a batch placed.
#[derive(Debug, Default)]
pub struct Added {
    /// What was refused, and what it cost.
    pub report: AttachReport,
    /// Sites in place.
    pub sites: Vec<OwnSite>,
    /// (module, want, other want) that share a site, which is named after the first.
    pub shares: Vec<(u32, u32, u32)>,
}

/// Our own process, and what is patched there.
#[derive(Debug)]
pub struct Own {
    process: Process,
    attached: Attached,
    /// Sites in place.
    live: usize,
}

impl Own {
    /// Nothing patched yet.
    ///
    /// # Errors
    /// When /proc/self cannot be used, or a tracer holds us.
    pub fn open() -> Result<Self, PatchError> {
        let process = Process::open(std::process::id())?;
        Ok(Self { process, attached: Attached::default(), live: 0 })
    }
    /// Our process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }
    /// Segments made so far.
    #[must_use]
    pub const fn attached(&self) -> &Attached {
        &self.attached
    }
    /// Whether this is a copy that a fork made: its descriptors lead to the parent.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.process.pid() != std::process::id()
    }
    /// In a forked child: goes on with memory of its own. What was patched before the fork stays known as taken.
    ///
    /// # Errors
    /// As [`Own::open`].
    pub fn disinherit(&mut self) -> Result<(), PatchError> {
        let old = std::mem::take(&mut self.attached);
        let inherited: Vec<FileId> = old.memfds();
        self.attached = Attached { held: old.held, inherited, ..Attached::default() };
        self.process = Process::open(std::process::id())?;
        Ok(())
    }
    /// O1 to O5. Sites that are not in the answer were not written; why is in the report.
    ///
    /// # Errors
    /// Nothing was changed, or what was changed was undone.
    pub fn add(&mut self, request: &Request<'_>) -> Result<Added, PatchError> {
        let careful: Vec<Callee>;
        let mut request = *request;
        if let Some(calls) = request.calls.filter(|_| !crate::cpu::proven().words) {
            // A byte is written whole on every CPU; that eight are was not proven for this one.
            careful = calls.callees.iter().map(|callee| Callee { by_trap: true, ..*callee }).collect();
            request.calls = Some(CallInput { callees: &careful, ..calls });
        }
        let mut work = self.attached.look(&self.process, &request, &mut || {
            std::thread::sleep(std::time::Duration::from_micros(200));
            Ok(())
        })?;
        let mut prepared =
            prepare(&self.process, &request, &mut work.survey, &self.attached.held, &mut work.report)?;
        refuse_guarded(&mut prepared, &mut work);
        let mut added = Added::default();
        if !prepared.sites.is_empty() {
            added.shares = std::mem::take(&mut prepared.shares);
            added.sites = self.install(prepared, &mut work)?;
        }
        added.report = work.report;
        Ok(added)
    }
    /// O2 to O5.
    fn install(&mut self, prepared: Prepared, work: &mut Work) -> Result<Vec<OwnSite>, PatchError> {
        let Work { survey, report, .. } = work;
        let mut caller = OwnCaller::default();
        let pid = self.process.pid();
        let segment = map_by(&mut self.attached, &mut caller, pid, &prepared, survey)?;
        let own = segment.memfd();
        let ready = self.alone(&[own]).and_then(|()| segment.fill(&prepared.plans));
        if let Err(error) = ready {
            unmap_by(&mut self.attached, &mut caller, &segment);
            return Err(error);
        }
        report.mapped = segment.mapped();
        report.code = prepared.plans.iter().map(|p| p.bytes.len() as u64).sum();
        if let Some(last) = self.attached.segments.last() {
            last.view().set(at::NEXT_SEGMENT, segment.control.0);
        }
        for &(addr, resume) in &segment.guards {
            self.lead(addr, resume);
        }
        segment.set_state(State::Armed);
        self.attached.push(segment);

        let sites = prepared.sites;
        let entries: Vec<Entry> = sites.iter().map(Site::entry).collect();
        let mut outcomes = Vec::new();
        let result = change(&mut Live::new(&self.process), &entries, Way::Publish, &mut outcomes);
        self.attached.hold(sites.iter().map(|s| s.patch));
        let placed: Vec<OwnSite> = sites
            .iter()
            .zip(&entries)
            .zip(&outcomes)
            .filter(|(_, outcome)| is_in_place(**outcome))
            .map(|((site, &entry), _)| OwnSite {
                module: site.module,
                want: site.patch.want,
                role: site.patch.role,
                tactic: site.patch.tactic,
                head: site.patch.head,
                entry,
            })
            .collect();
        self.live += placed.len();
        if let Err(error) = result {
            self.take_out(&placed)?;
            return Err(error.into_error());
        }
        let first = sites_in_journal(&self.attached);
        report.semaphores = raise(&self.attached, &self.process, &prepared.semaphores, first);
        settle(&sites, &outcomes, report);
        Ok(placed)
    }
    /// Q1 and Q2. Sites that hold anything but our bytes are left alone; how many that were is the answer.
    ///
    /// # Errors
    /// When memory cannot be reached at all.
    pub fn take_out(&mut self, sites: &[OwnSite]) -> Result<usize, PatchError> {
        let outcomes = self.change(sites, Way::Remove)?;
        self.live = self.live.saturating_sub(sites.len());
        if self.live == 0 {
            self.set_states(State::Removed);
        }
        let left = |o: &&Outcome| matches!(o, Outcome::Differs { .. } | Outcome::Unreachable);
        Ok(outcomes.iter().filter(left).count())
    }
    /// Puts sites back that were taken out: the same bytes, to the same stubs. For each, whether it is in place; one whose bytes are
    /// not the file's any more is not.
    ///
    /// # Errors
    /// When another writer came meanwhile, or memory cannot be reached. No site is in place then.
    pub fn put_back(&mut self, sites: &[OwnSite]) -> Result<Vec<bool>, PatchError> {
        if self.live == 0 {
            self.set_states(State::Armed);
            let alone = self.alone(&[]);
            if alone.is_err() {
                self.set_states(State::Removed);
                alone?;
            }
        }
        for site in sites.iter().filter(|site| site.may_trap()) {
            self.lead(site.entry.addr.0, site.head.0);
        }
        let outcomes = self.change(sites, Way::Publish)?;
        let back: Vec<bool> = outcomes.into_iter().map(is_in_place).collect();
        self.live += back.iter().filter(|back| **back).count();
        Ok(back)
    }
    /// Whether all of these hold our bytes now. A library that was unloaded, and loaded there again, holds the file's.
    #[must_use]
    pub fn holds(&self, sites: &[OwnSite]) -> bool {
        sites.iter().all(|site| {
            let len = usize::from(site.entry.len);
            let mut present = [0; 8];
            self.process.read(site.entry.addr, &mut present[..len]).is_ok()
                && present[..len] == site.entry.new[..len]
        })
    }
    /// Sites that went away with their mapping.
    pub fn forget(&mut self, sites: &[OwnSite]) {
        self.live = self.live.saturating_sub(sites.len());
        if self.live == 0 {
            self.set_states(State::Removed);
        }
    }
    /// Makes all guards for an address lead to one place: what is patched there now, not what was before it.
    fn lead(&mut self, addr: u64, resume: u64) {
        for segment in &mut self.attached.segments {
            let Ok(index) = segment.guards.binary_search_by_key(&addr, |guard| guard.0) else { continue };
            segment.guards[index].1 = resume;
            segment.view().set(segment.layout.guard_off + index as u64 * 16 + 8, resume);
        }
    }
    fn change(&self, sites: &[OwnSite], way: Way) -> Result<Vec<Outcome>, PatchError> {
        let entries: Vec<Entry> = sites.iter().map(|site| site.entry).collect();
        let mut outcomes = Vec::new();
        change(&mut Live::new(&self.process), &entries, way, &mut outcomes)
            .map_err(SpaceError::into_error)?;
        Ok(outcomes)
    }
    fn set_states(&self, state: State) {
        self.attached.segments.iter().for_each(|segment| segment.set_state(state));
    }
    /// O3: nobody else writes here. Our own segment is mapped already, in a state that keeps others off.
    fn alone(&self, fresh: &[FileId]) -> Result<(), PatchError> {
        let pid = self.process.pid();
        let tracer = self.process.status_of_caller()?.tracer;
        if tracer != 0 {
            return Err(PatchError::InUse { pid, tracer, comm: comm(tracer) });
        }
        let mut own = self.attached.memfds();
        own.extend_from_slice(fresh);
        check_free(pid, &find_segments(&self.process)?, &own, false)
    }
}

const fn is_in_place(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Done | Outcome::Already | Outcome::KeptBreakpoint)
}

/// Nobody can be stopped here, so a window that somebody may stand in takes a trap.
fn refuse_guarded(prepared: &mut Prepared, work: &mut Work) {
    let Some(because) = work.survey.no_traps else { return };
    let guarded = |(index, site): (usize, &Site)| {
        let addr = site.patch.addr;
        site.patch.needs_guard.then_some((index, Why::NeedsTraps { addr, because }))
    };
    let bad = prepared.sites.iter().enumerate().filter_map(guarded).collect();
    refuse(&mut prepared.sites, bad, &mut work.report);
}
