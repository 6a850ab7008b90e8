//! From what is registered to what is patched, wherever the files are mapped.
//!
//! In: registrations and their end; looks at what is mapped. Out: consumers that are called, or the first
//! refusal. Invariants: INS-1 a batch is registered whole or not at all. Each part keeps its own: [`Registry`],
//! [`RegisteredFiles`], [`MappedFiles`], [`Notices`], [`Patcher`], [`Semaphores`], [`Unwinders`]. Does not:
//! decide when to look (`notice`), choose windows or write (`patcher`), wait by itself (`grace`).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use smallvec::SmallVec;
use trapline_patch::Why;
use trapline_plan::Tactic;
use trapline_record::{FileId, RemoteAddr};
use trapline_runtime::engine::{Engine, Tally};
use trapline_tracee::Mapping;

use super::arch::code_map::know_code;
use super::arch::signals;
use super::change::Change;
use super::find::find_in;
use super::mapped_files::MappedFiles;
use super::memory::{engine, keep_blocks, make_room};
use super::notice::{NO_FILE, Noticed, Notices};
use super::patcher::Patcher;
use super::registered_files::RegisteredFiles;
use super::registry::{Key, Registry};
use super::semaphores::Semaphores;
use super::site_request::{Load, SiteRequest, StubAction};
use super::speculate::{SpeculativePlan, SpeculativeTask};
use super::trampolines::Unwinders;
use super::{Error, Request, Returns, arch, traps};
use crate::files::ModuleFile;

/// What is registered, and what is patched for it.
#[derive(Debug, Default)]
pub(super) struct Probes {
    registry: Registry,
    files: RegisteredFiles,
    known: MappedFiles,
    notices: Notices,
    patcher: Patcher,
    semaphores: Semaphores,
    unwinders: Unwinders,
}

/// Registering, and its end.
impl Probes {
    /// Registers all or none.
    pub(super) fn register(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        let engine = engine().ok_or(Error::NoEngine)?;
        let (asked, have, most) = (requests.len(), self.registry.len(), arch::room().probes);
        if requests.is_empty() {
            return Err(Error::Empty);
        }
        if have + asked > most {
            return Err(Error::TooMany { asked, have, most });
        }
        keep_blocks(asked);
        let room = |plan: &mut SpeculativePlan| make_room(asked, have, || plan.is_here());
        let _fence = self.files.speculative().and_then(room);
        self.registry.reserve(asked);
        let mut probed_sites = self.sites_of(engine, &requests)?;
        let mut pairs = probed_sites.iter().zip(&requests);
        pairs.try_for_each(|(&probed_site, request)| self.registry[probed_site].agrees(request))?;
        let armed = self.registry.armed_by(&probed_sites, &requests, || {
            self.unwinders.lend(self.patcher.process(), self.files.all())
        })?;
        let mut keys = Vec::with_capacity(asked);
        for (&probed_site, request) in probed_sites.iter().zip(requests) {
            keys.push(self.registry.add(engine, probed_site, request));
        }
        probed_sites.sort_unstable();
        probed_sites.dedup();
        let patched = self.patcher.live().map(|group| group.load.file);
        let settled = self.registry.files_of_only(&probed_sites, patched);
        if let Err(error) = self.settle(probed_sites, true) {
            // The first refusal is the answer; what else may fail while undoing is not reported.
            let disturbed = self.patcher.take_disturbed();
            self.registry.disarm(&armed);
            drop(self.unregister(&keys));
            drop(self.settle(disturbed, false));
            return Err(error);
        }
        self.notices.knows(&settled);
        Ok(keys)
    }
    /// Site of each request, known or new.
    fn sites_of(&mut self, engine: &'static Engine, requests: &[Request]) -> Result<Vec<u32>, Error> {
        let mut probed_sites = Vec::with_capacity(requests.len());
        // A batch often concerns a single file.
        let mut last: Option<(Arc<Path>, Arc<ModuleFile>)> = None;
        for request in requests {
            let (path, file) =
                match last.take().filter(|(path, _)| path.as_os_str() == request.file.as_os_str()) {
                    Some(same) => same,
                    None => (request.file.as_path().into(), self.files.file(&request.file)?),
                };
            let before = probed_sites.last().copied();
            let (probed_site, has_semaphore) =
                self.registry.probed_site(engine, request, (&path, &file), before)?;
            if has_semaphore {
                self.semaphores.add(probed_site);
            }
            self.registry.provide_instances(engine, probed_site, request)?;
            probed_sites.push(probed_site);
            last = Some((path, file));
        }
        Ok(probed_sites)
    }
    /// Takes consumers out, and also patches that no consumer needs any more. Returns when no handler of the
    /// consumers can still run.
    pub(super) fn unregister(&mut self, keys: &[Key]) -> Result<(), Error> {
        let engine = engine().ok_or(Error::NoEngine)?;
        let (gone, touched) = self.registry.remove(engine, keys);
        let result = self
            .patcher
            .own()
            .map(drop)
            .and_then(|()| self.patcher.release(&self.registry, &touched))
            .and_then(|()| self.lower_semaphores());
        self.registry.retire(gone, self.patcher.opened().map(|own| own.process()));
        result
    }
    /// A failed batch must not leave its choices on sites for the next one.
    pub(super) fn forget_requests(&mut self) {
        self.registry.forget_requests();
    }
    /// What a second thread can do for these requests.
    pub(super) fn speculative_task(&mut self, requests: &[Request]) -> Option<SpeculativeTask> {
        SpeculativeTask::of(requests, self.files.all(), self.patcher.process())
    }
    /// What a second thread parses; `None` ends that.
    pub(super) fn expect(&mut self, speculative: Option<SpeculativePlan>) {
        self.files.expect(speculative);
    }
    /// Finds out now what a look must know of these sites' files, if they are not mapped yet.
    pub(super) fn know_code(&self, keys: &[Key]) {
        know_code(self.patcher.opened(), keys.iter().map(|key| &self.registry[key.0]));
    }
    /// Finds a function among what is mapped.
    pub(super) fn find(&mut self, file: &str, function: &str) -> Result<(PathBuf, u64), Error> {
        find_in(self.patcher.own()?.process(), self.files.all(), file, function)
    }
    pub(super) fn counts(&self, (probed_site, _): Key) -> Tally {
        self.registry[probed_site].probe().counts()
    }
    pub(super) fn tactics(&self, (probed_site, _): Key) -> Vec<Tactic> {
        self.patcher.tactics(probed_site, self.registry[probed_site].groups())
    }
    pub(super) fn form(&self, (probed_site, _): Key) -> Option<Returns> {
        self.registry[probed_site].form()
    }
}

/// Settling: patches as the registered sites need them.
impl Probes {
    /// Patches what these sites need wherever their files are mapped. If `strict`, a refusal of one is an
    /// error.
    fn settle(&mut self, probed_sites: Vec<u32>, strict: bool) -> Result<usize, Error> {
        self.patcher.begin();
        let settled = self.change(probed_sites, strict);
        self.patcher.harden().and(settled)
    }
    fn change(&mut self, probed_sites: Vec<u32>, strict: bool) -> Result<usize, Error> {
        signals::put();
        self.notices.drain();
        let maps = self.patcher.maps()?;
        self.follow(&maps)?;
        let loads = self.loads(&maps)?;
        let found = self.patcher.revive(&self.registry, &self.known, &probed_sites, &loads)?;
        let mut change = Change::new(probed_sites, found);
        let mut here: (Option<FileId>, &[Load]) = (None, &[]);
        while let Some(probed_site) = change.next() {
            let file = self.registry[probed_site].file().id;
            if here.0 != Some(file) {
                here = (Some(file), loads.get(&file).map_or(&[], Vec::as_slice));
            }
            for load in here.1 {
                self.prepare(&mut change, probed_site, *load)?;
            }
        }
        let site_requests = std::mem::take(&mut change.site_requests);
        change.found += self.place(site_requests, strict, true)?;
        self.patcher.arm(&self.registry, change.queue());
        self.count_semaphores(&maps)?;
        Ok(change.found)
    }
    /// Mappings of registered files in which the kernel would set probes.
    fn loads(&mut self, maps: &[Mapping]) -> Result<HashMap<FileId, Vec<Load>>, Error> {
        let process = self.patcher.own()?.process();
        let seen = self.files.loads(process, self.registry.files(), maps);
        self.notices.saw(&seen, self.registry.files());
        let mut loads: HashMap<FileId, Vec<Load>> = HashMap::new();
        seen.into_iter().for_each(|(load, _)| loads.entry(load.file).or_default().push(load));
        Ok(loads)
    }
    /// Prepares what a site lacks in a mapping.
    fn prepare(&mut self, change: &mut Change, probed_site: u32, load: Load) -> Result<(), Error> {
        let Some((part, in_the_way)) = self.patcher.missing(&self.registry, probed_site, load) else {
            return Ok(());
        };
        let one = &self.registry[probed_site];
        if one.groups().is_empty() {
            // Nothing was ever patched there, as in most of a large batch.
            change.site_requests.push(one.request(part, load));
            return Ok(());
        }
        self.patcher.soften(&self.registry, &mut self.known, &in_the_way)?;
        let others = self.patcher.wanted(&self.registry, &in_the_way);
        let needs = others.iter().filter(|&&other| other != probed_site);
        let needs = needs.map(|&other| self.registry[other].need(other));
        let needs: SmallVec<[StubAction; 1]> = std::iter::once(part).chain(needs).collect();
        let again = self.patcher.put_back_instead(&self.registry, &self.known, (&needs, load))?;
        if again > 0 {
            change.found += again;
            return Ok(());
        }
        change.also(others);
        change.site_requests.push(self.registry[probed_site].request(part, load));
        Ok(())
    }
    /// Patches. `again`: if another patch of this engine needs the same bytes, both are planned again,
    /// together. Returns the number of sites.
    fn place(&mut self, site_requests: Vec<SiteRequest>, strict: bool, again: bool) -> Result<usize, Error> {
        if site_requests.is_empty() {
            return Ok(0);
        }
        let (mut placed, refused) = self.patcher.add(&mut self.registry, &mut self.known, &site_requests)?;
        let (instead, refused): (Vec<_>, Vec<_>) = refused.into_iter().partition(|(index, _)| {
            let part = site_requests[*index].part;
            part.returns
                && self.registry.arm_instead(part.probed_site, || {
                    self.unwinders.lend(self.patcher.process(), self.files.all())
                })
        });
        let (held, refused): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(_, why)| again && matches!(why, Why::Held { .. }));
        if let Some((index, why)) = refused.first().filter(|_| strict) {
            return Err(self.registry[site_requests[*index].part.probed_site].refused(why));
        }
        if !held.is_empty() {
            placed += self.place_held(held.iter().map(|(index, _)| &site_requests[*index]), strict)?;
        }
        for (index, why) in instead {
            self.place_armed(&site_requests[index], &why, strict)?;
        }
        Ok(placed)
    }
    /// Plans sites together with the patches that hold their bytes.
    fn place_held<'a>(
        &mut self,
        held: impl Iterator<Item = &'a SiteRequest>,
        strict: bool,
    ) -> Result<usize, Error> {
        let mut placed = 0;
        let mut both: Vec<SiteRequest> = Vec::new();
        for one in held {
            if self.patcher.missing(&self.registry, one.part.probed_site, one.load).is_none() {
                continue;
            }
            let near = self.patcher.with_neighbours(&self.registry, &mut self.known, one)?;
            let needs: Vec<StubAction> = near.iter().map(|one| one.part).collect();
            match self.patcher.put_back_instead(&self.registry, &self.known, (&needs, one.load))? {
                0 => both.extend(near),
                again => placed += again,
            }
        }
        let mut seen = HashSet::new();
        both.retain(|one| seen.insert((one.load, one.part.probed_site)));
        Ok(placed + self.place(both, strict, false)?)
    }
    /// Plans a site anew that uses return trampolines from now on, since its exits cannot be patched.
    fn place_armed(&mut self, site_request: &SiteRequest, why: &Why, strict: bool) -> Result<(), Error> {
        let SiteRequest { load, part: StubAction { probed_site, .. }, .. } = *site_request;
        let both = self.patcher.with_neighbours(&self.registry, &mut self.known, site_request)?;
        debug_assert!(both.iter().all(|one| one.load == load), "neighbours are of one mapping");
        if self.place(both, true, false).is_err() {
            self.registry.disarm(&[probed_site]);
            // The error is about exits, since these were tried first.
            if strict {
                return Err(self.registry[probed_site].refused(why));
            }
        }
        Ok(())
    }
    /// Raises and lowers what these maps require.
    fn count_semaphores(&mut self, maps: &[Mapping]) -> Result<(), Error> {
        if self.semaphores.is_empty() {
            return Ok(());
        }
        self.semaphores.count(&self.registry, &mut self.patcher, maps)?;
        if self.notices.read_data(self.semaphores.are_delayed()) {
            let maps = self.patcher.maps()?;
            self.semaphores.count(&self.registry, &mut self.patcher, &maps)?;
        }
        Ok(())
    }
    /// Lowers the semaphores of sites that were taken out.
    fn lower_semaphores(&mut self) -> Result<(), Error> {
        if self.semaphores.is_empty() {
            return Ok(());
        }
        let maps = self.patcher.maps()?;
        self.count_semaphores(&maps)
    }
}

/// Looks: what changed since the last one, and the sites in it patched. T4 and T5 of the protocol in
/// [`notice`](super::notice).
impl Probes {
    /// What the kernel reported, and what looks found.
    pub(super) const fn notices(&mut self) -> &mut Notices {
        &mut self.notices
    }
    /// Whether an unwinder is mapped that cannot be informed yet.
    pub(super) const fn is_unwinder_loading(&self) -> bool {
        self.unwinders.is_loading()
    }
    /// What looks found.
    pub(super) const fn tally(&self) -> Noticed {
        let tally = self.notices.tally();
        Noticed { failed: tally.failed + self.known.missed, ..tally }
    }
    /// T4 and T5. Returns whether there was anything to be found.
    pub(super) fn look(&mut self, asked: bool, missed: bool) -> bool {
        self.notices.drain();
        if self.unwinders.is_loading() {
            // If an unwinder cannot be informed yet, return trampolines stay closed.
            drop(self.inform_unwinders());
        }
        // Anonymous code, which compilers at run time make all the time, matters only where a file's code
        // was.
        self.notices.retain(|one| one.file != NO_FILE || self.known.overlaps(one.start, one.end));
        if self.notices.are_none() && !asked && !missed {
            self.notices.drop_records();
            return false;
        }
        self.patcher.set_looking(true);
        self.notices.begin_look(asked);
        let found = self.look_at_changes();
        self.patcher.set_looking(false);
        self.notices.end_look(found.is_err());
        found.unwrap_or(true)
    }
    /// Returns whether anything had changed.
    fn look_at_changes(&mut self) -> Result<bool, Error> {
        // A look at everything takes note of it.
        if self.notices.are_lost() {
            return self.look_at_all().map(|_| true);
        }
        let maps = self.patcher.maps()?;
        self.follow(&maps)?;
        let changed = self.notices.take();
        self.let_go(|at| changed.iter().any(|one| one.start <= at && at < one.end))?;
        let files: HashSet<FileId> = changed.iter().map(|one| one.file).collect();
        let is_touched = |&probed_site: &u32| files.contains(&self.registry[probed_site].file().id);
        let probed_sites: Vec<u32> = self.registry.all().filter(is_touched).collect();
        if probed_sites.is_empty() {
            // The loader may have mapped data since its code was looked at.
            self.count_semaphores(&maps)?;
        } else {
            self.settle(probed_sites, false)?;
        }
        Ok(!changed.is_empty())
    }
    /// Looks at everything, because the user asked for it. Returns the number of sites that were patched.
    pub(super) fn rescan(&mut self) -> Result<usize, Error> {
        let found = self.look_at_all()?;
        self.notices.looked();
        Ok(found)
    }
    /// Looks at all that is mapped now.
    fn look_at_all(&mut self) -> Result<usize, Error> {
        self.notices.begin_look_at_all();
        self.registry.take_removals();
        let all: Vec<u32> = self.registry.all().collect();
        let unwanted: Vec<u32> = all.iter().copied().filter(|&one| !self.registry[one].is_wanted()).collect();
        self.patcher.release(&self.registry, &unwanted)?;
        self.let_go(|_| true)?;
        self.settle(all, false)
    }
    /// Makes these maps visible to readers of regions; what changed waits for the next look at it.
    fn follow(&mut self, maps: &[Mapping]) -> Result<(), Error> {
        let engine = engine().ok_or(Error::NoEngine)?;
        let changed = self.known.follow(self.registry.writer(engine), maps);
        if !changed.is_empty() || self.unwinders.is_loading() {
            // If an unwinder cannot be informed, return trampolines are closed.
            drop(self.inform_unwinders());
        }
        if !changed.is_empty()
            && let (Some(sites), Some(map)) = (traps::sites(), self.known.map())
        {
            sites.refresh(map);
        }
        self.notices.add(changed);
        Ok(())
    }
    fn inform_unwinders(&mut self) -> Result<(), String> {
        self.unwinders.inform(self.patcher.process(), self.files.all())
    }
    /// Drops groups that have a site where the mapping may have changed, if their code is not there any more.
    fn let_go(&mut self, may_have_changed: impl Fn(RemoteAddr) -> bool) -> Result<(), Error> {
        for index in self.patcher.let_go(may_have_changed)? {
            let group = &self.patcher.groups()[index];
            self.notices.is_another(&group.load);
            self.semaphores.forget(&self.registry, group);
        }
        Ok(())
    }
}
