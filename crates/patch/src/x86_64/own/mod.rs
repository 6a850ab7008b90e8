//! The second writer of code: for our own process. Steps and interleavings are argued in [`protocol`].
//!
//! In: the same request as an outside attach, with the functions to be called at hits. Out: sites in place,
//! each as a value by which it can be taken out and put back; and what the handler of traps needs
//! ([`Windows`], [`OwnCall`]), before anything traps. Planning, comparing, journaling and every write are
//! shared with the outside attach.
//! Does not: lock (the caller does), know consumers, wait for them.

mod caller;
mod code_region;
pub mod protocol;
mod trampolines;

mod space;

use trapline_plan::{Call, PatchRole, Tactic};
use trapline_record::RemoteAddr;
use trapline_record::control::{State, at};
use trapline_record::journal::{Entry, Kind};
use trapline_tracee::{FileId, OwnCaller, Process, comm};

use crate::attached::Attached;
use crate::error::PatchError;
use crate::install::attach::Work;
use crate::install::map::{map_by, unmap_by};
use crate::install::prepare::{Prepared, PreparedSite, refuse};
use crate::install::publish::{raise, settle, sites_in_journal};
use crate::install::survey::Survey;
use crate::memory::find::{check_free, find_segments};
use crate::memory::segment::Segment;
use crate::request::{AttachReport, Request, Why};
use crate::space::SpaceError;
use crate::space::cpu::proven;
use crate::space::soft::{Masked, Soft};
use crate::space::staged::{INT3, is_staged};
use crate::space::write::{Direction, Outcome, change};
use code_region::{CodeRegions, RegionChoice};
use space::Live;
use trapline_runtime::x86_64::{Brought, Windows};

/// An instruction before which consumers are called, before anything is written there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnCall {
    /// Index of its module in the request.
    pub module: u32,
    /// Its address, the copy of what is there, and the probes that are called.
    pub call: Call,
}

/// A site of our own process, as it was planned: enough to take it out and to put it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnSite {
    /// Index of its module in the request.
    pub module: u32,
    /// Index in its module of the first request that it serves.
    pub request: u32,
    /// What the patch is for.
    pub role: PatchRole,
    /// How the site leads to its stub.
    pub tactic: Tactic,
    /// Where its stub begins.
    pub head: RemoteAddr,
    /// Address and bytes.
    pub entry: Entry,
    /// Index of its segment.
    segment: u32,
}

impl OwnSite {
    /// Whether an int3 may stand at its head.
    fn may_trap(&self) -> bool {
        self.tactic == Tactic::Trap || is_staged(&self.entry, proven().words)
    }
}

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

/// Our own process, and what is patched there.
#[derive(Debug)]
pub struct Own {
    process: Process,
    windows: &'static Windows,
    attached: Attached,
    code_regions: CodeRegions,
    /// Number of sites in place.
    live: usize,
    /// This is the copy in a forked child; the fork may have happened between two writes.
    forked: bool,
    /// Traps that stand while patches change, and the windows that were written since then.
    soft: Soft,
    fresh: Vec<Entry>,
}

impl Own {
    /// Our process with nothing patched yet. The code that serves traps in this process uses `windows`.
    ///
    /// # Errors
    /// If /proc/self cannot be used, or a tracer holds us.
    pub fn open(windows: &'static Windows) -> Result<Self, PatchError> {
        let process = Process::open(std::process::id())?;
        let attached = Attached { serves_itself: true, ..Attached::default() };
        let (code_regions, soft, fresh) = (CodeRegions::default(), Soft::new(), Vec::new());
        Ok(Self { process, windows, attached, code_regions, live: 0, forked: false, soft, fresh })
    }
    /// The process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }
    /// Segments made so far.
    #[must_use]
    pub const fn attached(&self) -> &Attached {
        &self.attached
    }
    /// Whether this is the copy in a forked child, whose descriptors lead to the parent.
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
        let old = std::mem::take(&mut self.attached);
        let inherited: Vec<FileId> = old.memfds();
        let Attached { held, own_trampolines, .. } = old;
        self.attached =
            Attached { held, inherited, own_trampolines, serves_itself: true, ..Attached::default() };
        self.code_regions = CodeRegions::default();
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
        let mut work = self.attached.look(&self.process, request, &mut || {
            std::thread::sleep(std::time::Duration::from_micros(200));
            Ok(())
        })?;
        work.survey.soft.clone_from(&self.soft);
        let (mut prepared, choice) = self.prepare(request, &mut work)?;
        refuse_guarded(&mut prepared, &mut work);
        let mut added = Added::default();
        if !prepared.sites.is_empty() {
            added.shares = std::mem::take(&mut prepared.shares);
            added.sites = self.install(prepared, choice, &mut work, (request.options.alone, announce))?;
        }
        added.report = work.report;
        Ok(added)
    }
    /// Steps O2 to O5. `alone`: on this thread only.
    fn install(
        &mut self,
        mut prepared: Prepared,
        choice: RegionChoice,
        work: &mut Work,
        (alone, announce): (bool, &mut dyn FnMut(Vec<OwnCall>)),
    ) -> Result<Vec<OwnSite>, PatchError> {
        let Work { survey, report, .. } = work;
        report.code = prepared.plans.iter().map(|p| p.bytes.len() as u64).sum();
        let (fresh, guards) = match choice {
            RegionChoice::Existing(region) => {
                self.come_back()?;
                let (entries, guards) = (prepared.entries(), prepared.guards());
                self.attached.segments[self.code_regions.segment(region)].append(
                    &prepared.plans,
                    &entries,
                    &guards,
                )?;
                (None, guards)
            }
            RegionChoice::New(..) | RegionChoice::OwnSpace(_) => {
                let segment = self.build(&prepared, survey, alone)?;
                report.mapped = segment.mapped();
                let guards = segment.guards.clone();
                (Some(segment), guards)
            }
        };
        self.lead_all(&guards);
        self.hand_over(&mut prepared, &guards);
        announce(calls(&mut prepared));
        let index = match (fresh, choice) {
            (None, RegionChoice::Existing(region)) => self.code_regions.segment(region),
            (segment, _) => {
                segment.iter().for_each(|segment| segment.set_state(State::Armed));
                segment.into_iter().for_each(|segment| self.attached.push(segment));
                self.attached.segments.len() - 1
            }
        };
        self.code_regions.settled(choice, &prepared.plans, index);
        let index = index as u32;

        let sites = prepared.sites;
        let entries: Vec<Entry> = sites.iter().map(PreparedSite::entry).collect();
        let mut outcomes = Vec::new();
        let mut space = Masked { space: Live::new(&self.process), soft: &self.soft };
        let result = change(&mut space, &entries, Direction::Publish, &mut outcomes);
        if !self.soft.is_empty() {
            self.fresh.extend(placed_of(&entries, &outcomes));
        }
        self.attached.hold(sites.iter().map(|s| s.patch));
        let placed: Vec<OwnSite> = sites
            .iter()
            .zip(&entries)
            .zip(&outcomes)
            .filter(|(_, outcome)| is_in_place(**outcome))
            .map(|((site, &entry), _)| OwnSite {
                module: site.module,
                request: site.patch.request,
                role: site.patch.role,
                tactic: site.patch.tactic,
                head: site.patch.head,
                entry,
                segment: index,
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
    /// Steps O2 to O4, in a segment of its own, up to its state.
    fn build(&mut self, prepared: &Prepared, survey: &Survey, alone: bool) -> Result<Segment, PatchError> {
        let mut caller = OwnCaller::default();
        let segment = map_by(&mut self.attached, &mut caller, self.process.pid(), prepared, survey)?;
        let own = segment.memfd();
        let ready = self.alone(&[own]).and_then(|()| segment.fill(&prepared.plans, alone));
        if let Err(error) = ready {
            unmap_by(&mut self.attached, &mut caller, &segment);
            return Err(error);
        }
        if let Some(last) = self.attached.segments.last() {
            last.view().set(at::NEXT_SEGMENT, segment.control.0);
        }
        Ok(segment)
    }
    /// Steps Q1 and Q2. Sites that hold other bytes than ours are left alone; returns their number.
    ///
    /// # Errors
    /// If memory cannot be reached at all.
    pub fn take_out(&mut self, sites: &[OwnSite]) -> Result<usize, PatchError> {
        let entries: Vec<Entry> = sites.iter().map(|site| site.entry).collect();
        let mut outcomes = Vec::new();
        let way = if self.forked { Direction::Recover } else { Direction::Remove };
        change(&mut Live::new(&self.process), &entries, way, &mut outcomes)
            .map_err(SpaceError::into_error)?;
        self.live = self.live.saturating_sub(sites.len());
        if self.live == 0 {
            self.set_states(State::Removed);
        }
        let left = |o: &&Outcome| matches!(o, Outcome::Differs { .. } | Outcome::Unreachable);
        Ok(outcomes.iter().filter(left).count())
    }
    /// Step S1: takes out sites to change them, and leaves a trap at each of `traps`, which are instructions
    /// in their windows that the trap handler knows. Sites that hold other bytes than ours are left alone.
    ///
    /// # Errors
    /// If memory cannot be reached at all.
    pub fn soften(&mut self, sites: &[OwnSite], traps: &[RemoteAddr]) -> Result<(), PatchError> {
        let mut entries: Vec<Entry> = sites.iter().map(|site| site.entry).collect();
        for &at in traps {
            let mut byte = [0];
            let window = entries.iter_mut().find(|e| at.0.wrapping_sub(e.addr.0) < u64::from(e.len));
            if let Some(entry) = window {
                let n = (at - entry.addr) as usize;
                byte[0] = std::mem::replace(&mut entry.old[n], INT3);
            } else {
                // It is displaced, but lies behind the bytes that changed.
                self.process.read(at, &mut byte)?;
                crate::space::soft::unmask(&self.soft, at, &mut byte);
                let [old] = byte;
                entries.push(single(at, INT3, old));
            }
            self.soft.insert(at.0, byte[0]);
        }
        let mut outcomes = Vec::new();
        change(&mut Live::new(&self.process), &entries, Direction::Remove, &mut outcomes)
            .map_err(SpaceError::into_error)?;
        self.fresh.retain(|fresh| !entries.iter().any(|entry| entry.addr == fresh.addr));
        self.live = self.live.saturating_sub(sites.len());
        Ok(())
    }
    /// Step S3: removes the traps that no window covers now, and for which `stay` is false.
    ///
    /// # Errors
    /// If memory cannot be reached at all.
    pub fn harden(&mut self, stay: impl Fn(u64) -> bool) -> Result<(), PatchError> {
        let (soft, fresh) = (std::mem::take(&mut self.soft), std::mem::take(&mut self.fresh));
        let covered = |at: u64| fresh.iter().any(|e| at.wrapping_sub(e.addr.0) < u64::from(e.len));
        let left = soft.iter().filter(|(at, _)| !covered(**at) && !stay(**at));
        let entries: Vec<Entry> = left.map(|(&at, &byte)| single(RemoteAddr(at), byte, INT3)).collect();
        let mut outcomes = Vec::new();
        change(&mut Live::new(&self.process), &entries, Direction::Remove, &mut outcomes)
            .map_err(SpaceError::into_error)?;
        if self.live == 0 {
            self.set_states(State::Removed);
        }
        Ok(())
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
        let stands =
            |site: &OwnSite| site.tactic != Tactic::Pun || self.attached.is_held(site.entry.addr, site.head);
        let stands: Vec<bool> = sites.iter().map(stands).collect();
        let sites: Vec<OwnSite> =
            sites.iter().zip(&stands).filter(|both| *both.1).map(|both| *both.0).collect();
        for site in &sites {
            if site.may_trap() {
                self.lead(site.entry.addr.0, site.head.0);
            }
            self.lead_inside(site);
        }
        let entries: Vec<Entry> = sites.iter().map(|site| site.entry).collect();
        let mut outcomes = Vec::new();
        let mut space = Masked { space: Live::new(&self.process), soft: &self.soft };
        change(&mut space, &entries, Direction::Publish, &mut outcomes).map_err(SpaceError::into_error)?;
        if !self.soft.is_empty() {
            self.fresh.extend(placed_of(&entries, &outcomes));
        }
        let mut outcomes = outcomes.into_iter();
        let back: Vec<bool> =
            stands.into_iter().map(|stands| stands && outcomes.next().is_some_and(is_in_place)).collect();
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
    /// Gives the trap handler what it must know about a batch.
    fn hand_over(&self, prepared: &mut Prepared, guards: &[(u64, u64)]) {
        let any_traps = prepared.sites.iter().any(|site| site.patch.tactic == Tactic::Trap);
        let is_trap = |addr| {
            if !any_traps {
                return false;
            }
            let at = prepared.sites.partition_point(|s| s.patch.addr.0 < addr);
            prepared.sites.get(at).is_some_and(|s| s.patch.addr.0 == addr && s.patch.tactic == Tactic::Trap)
        };
        let mut guards: Vec<(u64, u64)> = guards.iter().copied().filter(|guard| !is_trap(guard.0)).collect();
        for plan in &mut prepared.plans {
            let originals =
                std::mem::take(&mut plan.originals).into_iter().map(|o| (o.copy.0, o.of.0)).collect();
            let region = plan.code.addr.0..plan.code.end().0;
            self.windows.add(Brought { region, originals, guards: std::mem::take(&mut guards) });
            for region in &plan.pun_regions {
                let region = region.addr.0..region.end().0;
                self.windows.add(Brought { region, ..Brought::default() });
            }
        }
    }
    /// Sets the guards of a window that is put back: others may have been patched there meanwhile.
    fn lead_inside(&self, site: &OwnSite) {
        let guards = self.attached.segments.get(site.segment as usize).map_or(&[][..], |s| &s.guards);
        let (start, end) = (site.entry.addr.0, site.entry.addr.0 + u64::from(site.entry.len));
        let inside = guards.iter().skip(guards.partition_point(|g| g.0 < start)).take_while(|g| g.0 < end);
        let is_own_trap = |addr| site.tactic == Tactic::Trap && addr == start;
        inside.filter(|g| !is_own_trap(g.0)).for_each(|&(addr, resume)| self.windows.lead(addr, resume));
    }
    /// The same for a batch's guards, which are sorted. Most batches lie where none was before.
    fn lead_all(&mut self, guards: &[(u64, u64)]) {
        let (Some(first), Some(last)) = (guards.first(), guards.last()) else { return };
        let meets = |segment: &Segment| {
            let at = segment.guards.partition_point(|guard| guard.0 < first.0);
            segment.guards.get(at).is_some_and(|guard| guard.0 <= last.0)
        };
        if self.attached.segments.iter().any(meets) {
            guards.iter().for_each(|&(addr, resume)| self.lead(addr, resume));
        }
    }
    /// Makes all guards for an address lead to the same place: where the present patch leads, not an earlier
    /// one.
    fn lead(&mut self, addr: u64, resume: u64) {
        for segment in &mut self.attached.segments {
            let Ok(index) = segment.guards.binary_search_by_key(&addr, |guard| guard.0) else { continue };
            segment.guards[index].1 = resume;
            segment.stale = segment.stale.min(index);
            let table = segment.view().get(at::GUARD_OFF);
            segment.view().set(table + index as u64 * 16 + 8, resume);
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
        self.attached.segments.iter().for_each(|segment| segment.set_state(state));
    }
    /// Step O3: checks that no other tool writes here. Our own segment is mapped already, in a state that
    /// keeps others off.
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

/// The calls of sites that are to be written.
fn calls(prepared: &mut Prepared) -> Vec<OwnCall> {
    let Prepared { plans, sites, .. } = prepared;
    // They are mostly in the order of the sites.
    let mut next = sites.iter().peekable();
    let mut module = |at| {
        while next.next_if(|s| s.patch.addr < at).is_some() {}
        let found = next.peek().copied().filter(|s| s.patch.addr == at);
        let search = || sites.binary_search_by_key(&at, |s| s.patch.addr).ok().map(|n| &sites[n]);
        found.or_else(search).map(|s| s.module)
    };
    let all = plans.iter_mut().flat_map(|plan| std::mem::take(&mut plan.calls));
    all.filter_map(|call| Some(OwnCall { module: module(call.head)?, call })).collect()
}

/// A change of one byte: `old` is the file's (or a trap in its place), `new` is ours.
const fn single(addr: RemoteAddr, old: u8, new: u8) -> Entry {
    Entry {
        addr,
        len: 1,
        kind: Kind::Entry,
        starts: 0,
        old: [old, 0, 0, 0, 0, 0, 0, 0],
        new: [new, 0, 0, 0, 0, 0, 0, 0],
    }
}

/// The entries that were written.
fn placed_of<'a>(entries: &'a [Entry], outcomes: &'a [Outcome]) -> impl Iterator<Item = Entry> + 'a {
    entries.iter().zip(outcomes).filter(|(_, outcome)| is_in_place(**outcome)).map(|(entry, _)| *entry)
}

const fn is_in_place(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Done | Outcome::Already | Outcome::KeptBreakpoint)
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
        site.takes_traps().then_some((index, why))
    };
    let bad = prepared.sites.iter().enumerate().filter_map(guarded).collect();
    refuse(&mut prepared.sites, bad, &mut work.report);
}
