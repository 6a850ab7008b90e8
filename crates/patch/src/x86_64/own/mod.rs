//! The second writer of code: for our own process. Steps and interleavings are argued in [`protocol`].
//!
//! In: the same request as an outside attach, with the functions to be called at hits. Out: sites in place,
//! each as a value by which it can be taken out and put back; and what the handler of traps needs
//! ([`Windows`], [`OwnCall`]), before anything traps. Planning, comparing, journaling and every write are
//! shared with the outside attach.
//! Does not: lock (the caller does), know consumers, wait for them.

mod choice;
mod code_regions;
mod guards;
mod hand_over;
mod live;
pub mod protocol;
mod site;
mod softened;
mod trampolines;

use trapline_plan::Tactic;
use trapline_record::RemoteAddr;
use trapline_record::control::{State, at};
use trapline_record::journal::Entry;
use trapline_runtime::x86_64::Windows;
use trapline_tracee::{FileId, OwnCaller, Process, comm};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::caller::impl_caller;
use crate::install::compare::refuse;
use crate::install::map::{map_by, unmap_by};
use crate::install::prepared::{Prepared, PreparedSite};
use crate::install::publish::{raise, settle, sites_in_journal};
use crate::install::survey::Survey;
use crate::install::work::Work;
use crate::memory::find::{check_free, find_segments};
use crate::memory::segment::Segment;
use crate::report::AttachReport;
use crate::request::Request;
use crate::space::SpaceError;
use crate::space::change::{Direction, Outcome};
use crate::space::soft::Masked;
use crate::space::write::change;
use crate::why::Why;
use choice::Planner;
use code_regions::{CodeRegions, RegionChoice};
use guards::{GuardTables, lead_inside};
pub use hand_over::OwnCall;
use hand_over::{calls, hand_over};
use live::Live;
pub use site::OwnSite;
use softened::Softened;

impl_caller!(
    OwnCaller,
    memfd: |caller: &mut OwnCaller, name| caller.memfd(name),
    close: |caller: &mut OwnCaller, fd| {
        caller.close(fd);
        Ok(())
    }
);

/// What a batch placed.
#[derive(Debug, Default)]
pub struct Added {
    /// What was refused, and what the batch cost.
    pub report: AttachReport,
    /// Sites in place.
    pub sites: Vec<OwnSite>,
    /// Triples (module, request, other request) of requests that share a site; the site is named after the
    /// first one.
    pub shares: Vec<(u32, u32, u32)>,
}

/// What was laid for a batch, before anything leads there.
struct Laid {
    /// Its segment, if it has one of its own.
    segment: Option<Segment>,
    guards: Vec<(u64, u64)>,
}

/// Our own process, and what is patched there.
#[derive(Debug)]
pub struct Own {
    process: Process,
    windows: &'static Windows,
    batches: Batches,
    code_regions: CodeRegions,
    tables: GuardTables,
    /// Number of sites in place.
    live: usize,
    /// This is the copy in a forked child; the fork may have happened between two writes.
    forked: bool,
    softened: Softened,
}

impl Own {
    /// Our process with nothing patched yet. The code that serves traps in this process uses `windows`.
    ///
    /// # Errors
    /// If /proc/self cannot be used, or a tracer holds us.
    pub fn open(windows: &'static Windows) -> Result<Self, PatchError> {
        let process = Process::open(std::process::id())?;
        let batches = Batches { serves_itself: true, ..Batches::default() };
        let (code_regions, tables) = (CodeRegions::default(), GuardTables::default());
        let softened = Softened::default();
        Ok(Self { process, windows, batches, code_regions, tables, live: 0, forked: false, softened })
    }
    /// The process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }
    /// Whether this is the copy in a forked child: its descriptors lead to the parent.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.process.pid() != std::process::id()
    }
    /// For a forked child: goes on with memory of its own. What was patched before the fork stays noted as
    /// occupied.
    ///
    /// # Errors
    /// As [`Own::open`].
    pub fn disinherit(&mut self) -> Result<(), PatchError> {
        let old = std::mem::take(&mut self.batches);
        let inherited: Vec<FileId> = old.memfds();
        let Batches { held, own_trampolines, .. } = old;
        self.batches =
            Batches { held, inherited, own_trampolines, serves_itself: true, ..Batches::default() };
        (self.code_regions, self.tables) = (CodeRegions::default(), GuardTables::default());
        self.forked = true;
        self.process = Process::open(std::process::id())?;
        Ok(())
    }
    /// Steps O1 to O5. Sites that are not in the result were not written; the report says why. `announce`
    /// gets each trap before its byte is written (PATCH-4).
    ///
    /// # Errors
    /// If it fails, nothing was changed, or what was changed was undone.
    pub fn add(
        &mut self,
        request: &Request<'_>,
        announce: &mut dyn FnMut(Vec<OwnCall>),
    ) -> Result<Added, PatchError> {
        let mut work = Work::look(&self.batches, &self.process, request, &mut || {
            std::thread::sleep(std::time::Duration::from_micros(200));
            Ok(())
        })?;
        work.survey.soft.clone_from(self.softened.traps());
        let planner = Planner { process: &self.process, batches: &self.batches, regions: &self.code_regions };
        let (mut prepared, choice) = planner.prepare(request, &mut work)?;
        refuse_guarded(&mut prepared, &mut work);
        let mut added = Added::default();
        if !prepared.sites.is_empty() {
            added.shares = std::mem::take(&mut prepared.shares);
            let Laid { segment, guards } = self.lay(&prepared, choice, &mut work, request.options.alone)?;
            self.tables.lead_all(&mut self.batches.segments, &guards);
            hand_over(self.windows, &mut prepared, &guards);
            announce(calls(&mut prepared));
            let index = self.link(segment, choice);
            self.code_regions.settled(choice, &prepared.plans, index);
            added.sites = self.publish(&prepared, index as u32, &mut work.report)?;
        }
        added.report = work.report;
        Ok(added)
    }
    /// Steps O2 to O4, up to the segment's state. `alone`: on this thread only.
    fn lay(
        &mut self,
        prepared: &Prepared,
        choice: RegionChoice,
        work: &mut Work,
        alone: bool,
    ) -> Result<Laid, PatchError> {
        let Work { survey, report, .. } = work;
        report.code = prepared.plans.iter().map(|plan| plan.bytes.len() as u64).sum();
        if let RegionChoice::Existing(region) = choice {
            self.come_back()?;
            let (entries, guards) = (prepared.entries(), prepared.guards());
            let nth = self.code_regions.segment(region);
            let segments = &mut self.batches.segments;
            self.tables.append(segments, nth, &prepared.plans, &entries, &guards)?;
            return Ok(Laid { segment: None, guards });
        }
        let segment = self.build(prepared, survey, alone)?;
        report.mapped = segment.mapped();
        let guards = segment.guards.clone();
        Ok(Laid { segment: Some(segment), guards })
    }
    /// Steps O2 to O4, in a segment of its own, up to its state.
    fn build(&mut self, prepared: &Prepared, survey: &Survey, alone: bool) -> Result<Segment, PatchError> {
        let mut caller = OwnCaller::default();
        let segment = map_by(&mut self.batches, &mut caller, self.process.pid(), prepared, survey)?;
        let own = segment.memfd();
        let ready = self.alone(&[own]).and_then(|()| segment.fill(&prepared.plans, alone));
        if let Err(error) = ready {
            unmap_by(&mut self.batches, &mut caller, &segment);
            return Err(error);
        }
        if let Some(last) = self.batches.segments.last() {
            last.view().set(at::NEXT_SEGMENT, segment.control.0);
        }
        Ok(segment)
    }
    /// Step O4's end. Returns the index of the batch's segment.
    fn link(&mut self, segment: Option<Segment>, choice: RegionChoice) -> usize {
        match (segment, choice) {
            (None, RegionChoice::Existing(region)) => self.code_regions.segment(region),
            (segment, _) => {
                segment.iter().for_each(|segment| segment.set_state(State::Armed));
                segment.into_iter().for_each(|segment| self.batches.push(segment));
                self.batches.segments.len() - 1
            }
        }
    }
    /// Step O5. `segment`: the index of the batch's segment.
    fn publish(
        &mut self,
        prepared: &Prepared,
        segment: u32,
        report: &mut AttachReport,
    ) -> Result<Vec<OwnSite>, PatchError> {
        let sites = &prepared.sites;
        let entries: Vec<Entry> = sites.iter().map(PreparedSite::entry).collect();
        let (outcomes, result) = self.write(&entries);
        self.softened.cover(&entries, &outcomes);
        self.batches.held.add(sites.iter().map(|site| site.patch));
        let placed = sites.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_in_place());
        let placed: Vec<OwnSite> = placed.map(|(site, _)| OwnSite::of(site, segment)).collect();
        self.live += placed.len();
        if let Err(error) = result {
            self.take_out(&placed)?;
            return Err(error.into_error());
        }
        let first = sites_in_journal(&self.batches);
        report.semaphores = raise(&self.batches, &self.process, &prepared.semaphores, first);
        settle(sites, &outcomes, report);
        Ok(placed)
    }
    /// Writes the patches of windows, in which traps of ours may stand.
    fn write(&self, entries: &[Entry]) -> (Vec<Outcome>, Result<(), SpaceError>) {
        let mut outcomes = Vec::new();
        let mut space = Masked { space: Live::new(&self.process), soft: self.softened.traps() };
        let result = change(&mut space, entries, Direction::Publish, &mut outcomes);
        (outcomes, result)
    }
    /// Steps Q1 and Q2. Sites that hold other bytes than ours are left alone; returns their number.
    ///
    /// # Errors
    /// If memory cannot be reached at all.
    pub fn take_out(&mut self, sites: &[OwnSite]) -> Result<usize, PatchError> {
        let way = if self.forked { Direction::Recover } else { Direction::Remove };
        let outcomes = self.write_back(&entries_of(sites), way)?;
        self.forget(sites);
        let left = |o: &&Outcome| matches!(o, Outcome::Differs { .. } | Outcome::Unreachable);
        Ok(outcomes.iter().filter(left).count())
    }
    /// Step S1: takes out sites to change them, and leaves a trap at each of `traps`, which are instructions
    /// in their windows that the trap handler knows. Sites that hold other bytes than ours are left alone.
    ///
    /// # Errors
    /// If memory cannot be reached at all.
    pub fn soften(&mut self, sites: &[OwnSite], traps: &[RemoteAddr]) -> Result<(), PatchError> {
        let mut entries = entries_of(sites);
        self.softened.leave(&self.process, &mut entries, traps)?;
        self.write_back(&entries, Direction::Remove)?;
        self.softened.uncover(&entries);
        self.live = self.live.saturating_sub(sites.len());
        Ok(())
    }
    /// Step S3: removes the traps that no window covers now, and for which `stay` is false.
    ///
    /// # Errors
    /// If memory cannot be reached at all.
    pub fn harden(&mut self, stay: impl Fn(u64) -> bool) -> Result<(), PatchError> {
        let entries = self.softened.take(stay);
        self.write_back(&entries, Direction::Remove)?;
        self.forget(&[]);
        Ok(())
    }
    /// Writes the file's bytes.
    fn write_back(&self, entries: &[Entry], way: Direction) -> Result<Vec<Outcome>, PatchError> {
        let mut outcomes = Vec::new();
        change(&mut Live::new(&self.process), entries, way, &mut outcomes).map_err(SpaceError::into_error)?;
        Ok(outcomes)
    }
    /// Puts back sites that were taken out: the same bytes, leading to the same stubs. Returns for each
    /// whether it is in place. A site is not put back if its bytes are not the file's any more. A punned jump
    /// is not put back either if another patch was put in its place, or where its displacement ends.
    ///
    /// # Errors
    /// If another writer came meanwhile, or memory cannot be reached. No site is in place then.
    pub fn put_back(&mut self, sites: &[OwnSite]) -> Result<Vec<bool>, PatchError> {
        self.come_back()?;
        // A punned jump leads to where the bytes behind it say; other sites may have been patched there
        // since.
        let held = &self.batches.held;
        let is_latest =
            |site: &OwnSite| held.at(site.entry.addr).is_some_and(|patch| patch.head == site.head);
        let stands = |site: &OwnSite| site.tactic != Tactic::Pun || is_latest(site);
        let stands: Vec<bool> = sites.iter().map(stands).collect();
        let sites: Vec<OwnSite> =
            sites.iter().zip(&stands).filter(|both| *both.1).map(|both| *both.0).collect();
        for site in &sites {
            if site.may_trap() {
                self.tables.lead(&mut self.batches.segments, site.entry.addr.0, site.head.0);
            }
            lead_inside(&self.batches.segments, self.windows, site);
        }
        let entries = entries_of(&sites);
        let (outcomes, result) = self.write(&entries);
        result.map_err(SpaceError::into_error)?;
        self.softened.cover(&entries, &outcomes);
        let mut outcomes = outcomes.into_iter();
        let mut is_back = || outcomes.next().is_some_and(Outcome::is_in_place);
        let back: Vec<bool> = stands.into_iter().map(|stands| stands && is_back()).collect();
        self.live += back.iter().filter(|back| **back).count();
        Ok(back)
    }
    /// Whether all of these hold our bytes now. A library that was unloaded, and loaded there again, holds
    /// the file's.
    #[must_use]
    pub fn holds(&self, sites: &[OwnSite]) -> bool {
        sites.iter().all(|site| {
            let len = usize::from(site.entry.len);
            let mut present = [0; 8];
            self.process.read(site.entry.addr, &mut present[..len]).is_ok()
                && present[..len] == site.entry.new[..len]
        })
    }
    /// Forgets sites that went away with their mapping.
    pub fn forget(&mut self, sites: &[OwnSite]) {
        self.live = self.live.saturating_sub(sites.len());
        if self.live == 0 {
            self.set_states(State::Removed);
        }
    }
    /// Called before something is written into existing segments. If all sites had been given up, no other
    /// tracer may have come since (O3).
    fn come_back(&self) -> Result<(), PatchError> {
        if self.live != 0 {
            return Ok(());
        }
        self.set_states(State::Armed);
        self.alone(&[]).inspect_err(|_| self.set_states(State::Removed))
    }
    fn set_states(&self, state: State) {
        self.batches.segments.iter().for_each(|segment| segment.set_state(state));
    }
    /// Step O3: checks that no other tool writes here. Our own segment is mapped already, in a state that
    /// keeps others off.
    fn alone(&self, fresh: &[FileId]) -> Result<(), PatchError> {
        let pid = self.process.pid();
        let tracer = self.process.status_of_caller()?.tracer;
        if tracer != 0 {
            return Err(PatchError::InUse { pid, tracer, comm: comm(tracer) });
        }
        let mut own = self.batches.memfds();
        own.extend_from_slice(fresh);
        check_free(pid, &find_segments(&self.process)?, &own, false)
    }
}

/// What the journal holds of these.
fn entries_of(sites: &[OwnSite]) -> Vec<Entry> {
    sites.iter().map(|site| site.entry).collect()
}

/// Refuses what cannot be done without traps, since no thread can be stopped here: windows in which a thread
/// may stand and, where eight-byte writes are not proven, all others.
fn refuse_guarded(prepared: &mut Prepared, work: &mut Work) {
    let Some(because) = work.survey.no_traps else { return };
    let guarded = |(index, site): (usize, &PreparedSite)| {
        let addr = site.patch.addr;
        let why = if site.patch.needs_guard() {
            Why::NeedsTraps { addr, because }
        } else {
            Why::Unproven { addr, because }
        };
        (site.patch.needs_guard() || site.may_trap()).then_some((index, why))
    };
    let bad = prepared.sites.iter().enumerate().filter_map(guarded).collect();
    refuse(&mut prepared.sites, bad, &mut work.report);
}
