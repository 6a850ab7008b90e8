//! What is patched: groups of sites, which are put in place, taken out, and put back as they were.
//!
//! In: sites with needs that have changed. Out: bytes that are the file's again, or that lead to the stubs of
//! a group. Invariants: INS-6 a live group was written as a whole, and its traps are in the table. Does not:
//! choose what is patched (`probes`), choose windows or write (`patch_sites` in the twin folders).

use std::collections::{HashMap, HashSet};

use trapline_patch::Why;
use trapline_patch::own::{Own, OwnSite};
use trapline_plan::{PatchRole, Tactic};
use trapline_record::addr::Bias;
use trapline_record::{FileId, RemoteAddr};
use trapline_tracee::Mapping;

use super::arch::patch_sites::place;
use super::arch::setting::Setting;
use super::group::Group;
use super::mapped_files::MappedFiles;
use super::own_process::OwnProcess;
use super::probed_site::ProbedSite;
use super::registry::Registry;
use super::site_request::{Load, SiteRequest, StubAction};
use super::system::with_signals_held;
use super::traps::EngineTrap;
use super::{Error, trampolines};

/// All groups that were ever made.
#[derive(Debug, Default)]
pub(super) struct Patcher {
    process: OwnProcess,
    groups: Vec<Group>,
    /// Traps that are in place while patches change.
    soft: Vec<EngineTrap>,
    /// Sites with patches that the last change took out.
    disturbed: Vec<u32>,
    /// A look is going on for which a thread in the loader may wait.
    looking: bool,
}

impl Patcher {
    /// The own process.
    pub(super) const fn process(&mut self) -> &mut OwnProcess {
        &mut self.process
    }
    /// The own process, opened.
    pub(super) fn own(&mut self) -> Result<&mut Own, Error> {
        self.process.open()
    }
    /// The same, if it was opened before.
    pub(super) const fn opened(&self) -> Option<&Own> {
        self.process.opened()
    }
    /// All mappings, as the system states them now.
    pub(super) fn maps(&mut self) -> Result<Vec<Mapping>, Error> {
        self.process.maps()
    }
    /// All groups, by index.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }
    /// Groups that are in place.
    pub(super) fn live(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| group.live)
    }
    /// Whether a look is going on for which a thread in the loader may wait.
    pub(super) const fn set_looking(&mut self, looking: bool) {
        self.looking = looking;
    }
    /// Begins a change. [`harden`](Self::harden) ends it.
    pub(super) fn begin(&mut self) {
        self.disturbed.clear();
    }
    /// Sites with patches that the last change took out.
    pub(super) fn take_disturbed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.disturbed)
    }
    /// How a site is reached in each mapping where it is in place.
    pub(super) fn tactics(&self, probed_site: u32, groups: &[usize]) -> Vec<Tactic> {
        let groups = groups.iter().map(|&group| &self.groups[group]);
        let entry =
            |group: &Group| group.parts.iter().any(|part| part.probed_site == probed_site && part.entry);
        let worst = |group: &Group| {
            group.sites.iter().filter(|site| site.role == PatchRole::Entry).map(|site| site.tactic).max()
        };
        groups.filter(|group| group.live && entry(group)).filter_map(worst).collect()
    }
    /// Patches, and keeps the resulting groups. Returns the number of sites, and which requests were refused:
    /// index, and why.
    pub(super) fn add(
        &mut self,
        registry: &mut Registry,
        known: &mut MappedFiles,
        site_requests: &[SiteRequest],
    ) -> Result<(usize, Vec<(usize, Why)>), Error> {
        let setting = Setting::new(&mut self.process, self.looking)?;
        let (own, groups) = (self.process.open()?, &mut self.groups);
        let first = groups.len();
        let refused = with_signals_held(|| place(own, site_requests, setting, (known, &mut *groups)))?;
        let mut placed = 0;
        for (index, group) in groups.iter().enumerate().skip(first) {
            placed += group.sites.len();
            group.parts.iter().for_each(|part| registry.is_part_of(part.probed_site, index));
        }
        Ok((placed, refused))
    }
    /// Takes out the groups of sites that no consumer needs.
    pub(super) fn release(&mut self, registry: &Registry, probed_sites: &[u32]) -> Result<(), Error> {
        let of_sites = probed_sites.iter().flat_map(|&probed_site| registry[probed_site].groups()).copied();
        let mut groups: Vec<usize> = of_sites.filter(|&group| self.groups[group].live).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.retain(|&group| self.groups[group].parts.iter().all(|p| !registry[p.probed_site].is_wanted()));
        self.take_out(&groups)
    }
    fn take_out(&mut self, groups: &[usize]) -> Result<(), Error> {
        if groups.is_empty() {
            return Ok(());
        }
        let sites = self.sites(groups);
        groups.iter().for_each(|&group| self.groups[group].live = false);
        self.own()?.take_out(&sites)?;
        groups.iter().flat_map(|&group| &self.groups[group].traps).for_each(EngineTrap::take_out);
        Ok(())
    }
    /// Takes groups out that are planned anew. It leaves a trap at each instruction at which a consumer waits
    /// for hits, so none is lost (S1).
    pub(super) fn soften(
        &mut self,
        registry: &Registry,
        known: &mut MappedFiles,
        groups: &[usize],
    ) -> Result<(), Error> {
        if groups.is_empty() {
            return Ok(());
        }
        let shadow_stack = Setting::new(&mut self.process, self.looking)?.shadow_stack;
        let (mut sites, mut traps) = (Vec::new(), Vec::new());
        for &index in groups {
            let group = &mut self.groups[index];
            group.live = false;
            sites.extend_from_slice(&group.sites);
            let Some(probed_site) = group.parts.first().map(|part| &registry[part.probed_site]) else {
                continue;
            };
            self.disturbed.extend(group.parts.iter().map(|part| part.probed_site));
            for here in &group.calls {
                let trap = EngineTrap::new(here, group.load, &probed_site.file().image, known, shadow_stack);
                let Some(trap) = trap else { continue };
                trap.put(known);
                traps.push(RemoteAddr(trap.at));
                self.soft.push(trap);
            }
        }
        self.own()?.soften(&sites, &traps)?;
        Ok(())
    }
    /// Ends what [`soften`](Self::soften) began: takes out traps that are not needed any more (S3).
    pub(super) fn harden(&mut self) -> Result<(), Error> {
        if self.soft.is_empty() {
            return Ok(());
        }
        let stays: HashSet<u64> = self.live().flat_map(|group| &group.traps).map(|trap| trap.at).collect();
        self.own()?.harden(|at| stays.contains(&at))?;
        self.soft.drain(..).filter(|trap| !stays.contains(&trap.at)).for_each(|trap| trap.take_out());
        Ok(())
    }
    /// Puts back groups that were taken out and do what is needed now. Returns the number of sites.
    pub(super) fn revive(
        &mut self,
        registry: &Registry,
        known: &MappedFiles,
        probed_sites: &[u32],
        loads: &HashMap<FileId, Vec<Load>>,
    ) -> Result<usize, Error> {
        let mut groups: Vec<usize> = Vec::new();
        for &probed_site in probed_sites {
            let one = &registry[probed_site];
            if !one.groups().is_empty() && one.is_wanted() {
                let here = loads.get(&one.file().id).into_iter().flatten();
                groups.extend(here.filter_map(|load| self.earlier(one, one.need(probed_site), *load)));
            }
        }
        groups.sort_unstable();
        groups.dedup();
        self.put_back(registry, known, groups)
    }
    /// A group of a site that does what is needed in a mapping in which the site has none in place.
    fn earlier(&self, one: &ProbedSite, need: StubAction, load: Load) -> Option<usize> {
        let here = one.groups().iter().copied().filter(|&group| self.groups[group].load == load);
        if here.clone().any(|group| self.groups[group].live) {
            return None;
        }
        let serves = |p: &StubAction| p.returns == need.returns && p.serves_entry(&need);
        // The last one first: other groups may have taken the places of earlier ones.
        here.rev().find(|&group| self.groups[group].parts.iter().any(serves))
    }
    /// Puts back an earlier group that does all that is needed now, in place of those that were just taken
    /// out. The same needs come again as consumers come and go, so each is planned only once. (A punned jump
    /// ends in bytes that others may have changed since.) Returns the number of sites.
    pub(super) fn put_back_instead(
        &mut self,
        registry: &Registry,
        known: &MappedFiles,
        (needs, load): (&[StubAction], Load),
    ) -> Result<usize, Error> {
        let serves = |have: &StubAction, need: &StubAction| {
            let same =
                (have.probed_site, have.entry, have.returns) == (need.probed_site, need.entry, need.returns);
            same && (have.armed || !need.armed)
                && (have.entry_traps || !need.entry_traps)
                && (have.exits_trap || !need.exits_trap)
        };
        let fits = |group: &Group| {
            let is_for = |have: &StubAction| {
                needs.iter().any(|need| need.probed_site == have.probed_site)
                    || !registry[have.probed_site].is_wanted()
            };
            !group.live
                && group.load == load
                && group.sites.iter().all(|site| site.tactic != Tactic::Pun)
                && needs.iter().all(|need| group.parts.iter().any(|have| serves(have, need)))
                && group.parts.iter().all(is_for)
        };
        let groups = needs.first().map_or(&[][..], |need| registry[need.probed_site].groups());
        let found = groups.iter().copied().rev().find(|&group| fits(&self.groups[group]));
        self.put_back(registry, known, found.into_iter().collect())
    }
    fn put_back(
        &mut self,
        registry: &Registry,
        known: &MappedFiles,
        groups: Vec<usize>,
    ) -> Result<usize, Error> {
        if groups.is_empty() {
            return Ok(0);
        }
        let sites = self.sites(&groups);
        let probed_sites: Vec<u32> =
            groups.iter().flat_map(|&g| self.groups[g].parts.iter().map(|part| part.probed_site)).collect();
        self.arm(registry, &probed_sites);
        let traps = groups.iter().flat_map(|&group| &self.groups[group].traps);
        traps.for_each(|trap| trap.put(known));
        let back = self.own()?.put_back(&sites)?;
        let (mut at, mut partly, mut not_back) = (0, Vec::new(), Vec::new());
        for group in groups {
            let count = self.groups[group].sites.len();
            let of_group = at..at + count;
            at += count;
            if back[of_group.clone()].iter().all(|back| *back) {
                self.groups[group].live = true;
            } else {
                not_back.push(group);
                partly.extend(of_group.filter(|&n| back[n]).map(|n| sites[n]));
            }
        }
        if !partly.is_empty() {
            self.own()?.take_out(&partly)?;
        }
        not_back.iter().flat_map(|&group| &self.groups[group].traps).for_each(EngineTrap::take_out);
        Ok(back.into_iter().filter(|back| *back).count() - partly.len())
    }
    fn sites(&self, groups: &[usize]) -> Vec<OwnSite> {
        groups.iter().flat_map(|&group| self.groups[group].sites.iter().copied()).collect()
    }
    /// Lets sites arm calls if their patch was planned for that.
    pub(super) fn arm(&self, registry: &Registry, probed_sites: &[u32]) {
        for &probed_site in probed_sites {
            let one = &registry[probed_site];
            let mut parts = one.groups().iter().flat_map(|&group| &self.groups[group].parts);
            if one.is_armed() && parts.any(|part| part.probed_site == probed_site && part.armed) {
                trampolines::arm(one.probe());
            }
        }
    }
    /// What a site lacks in a mapping, and the groups that are in the way of it.
    pub(super) fn missing(
        &self,
        registry: &Registry,
        probed_site: u32,
        load: Load,
    ) -> Option<(StubAction, Vec<usize>)> {
        let one = &registry[probed_site];
        if !one.is_wanted() {
            return None;
        }
        let need = one.need(probed_site);
        let is_here = |&group: &usize| self.groups[group].live && self.groups[group].load == load;
        let live: Vec<usize> = one.groups().iter().copied().filter(is_here).collect();
        let has = |serves: fn(&StubAction, &StubAction) -> bool| {
            live.iter().flat_map(|&group| &self.groups[group].parts).any(|part| serves(part, &need))
        };
        let (entry, returns) =
            (has(StubAction::serves_entry), !need.returns || has(StubAction::serves_returns));
        match (entry, returns) {
            (true, true) => None,
            (true, false) => Some((StubAction { entry: false, ..need }, Vec::new())),
            (false, _) => Some((need, live)),
        }
    }
    /// Sites that groups serve and that a consumer needs, as often as groups have a part of them.
    pub(super) fn wanted(&self, registry: &Registry, groups: &[usize]) -> Vec<u32> {
        let parts = groups.iter().flat_map(|&group| &self.groups[group].parts);
        parts.map(|part| part.probed_site).filter(|&one| registry[one].is_wanted()).collect()
    }
    /// A site to be patched, with all that is patched close to it, which is taken out.
    pub(super) fn with_neighbours(
        &mut self,
        registry: &Registry,
        known: &mut MappedFiles,
        site_request: &SiteRequest,
    ) -> Result<Vec<SiteRequest>, Error> {
        /// Windows and the instructions that they displace reach less far than this, in bytes.
        const NEAR: u64 = 64;
        let SiteRequest { load, part, file, at, function, .. } = site_request;
        let bias = Bias(load.bias);
        let (start, end) =
            function.map(|f| file.image.function(f)).map_or((*at, *at), |f| (f.start, f.end()));
        let (start, end) = (bias.live(start) - NEAR, bias.live(end) + NEAR);
        let near = |group: &Group| group.sites.iter().any(|s| (start..end).contains(&s.entry.addr));
        let is_near = |&g: &usize| {
            let group = &self.groups[g];
            group.live && group.load == *load && near(group)
        };
        let groups: Vec<usize> = (0..self.groups.len()).filter(is_near).collect();
        self.soften(registry, known, &groups)?;
        let parts = groups.iter().flat_map(|&group| &self.groups[group].parts);
        let mut probed_sites: Vec<u32> = parts.map(|part| part.probed_site).collect();
        probed_sites.push(part.probed_site);
        probed_sites.sort_unstable();
        probed_sites.dedup();
        probed_sites.retain(|&probed_site| registry[probed_site].is_wanted());
        let request = |number: u32| registry[number].request(registry[number].need(number), *load);
        Ok(probed_sites.into_iter().map(request).collect())
    }
    /// Drops groups that have a site where the mapping may have changed, if their code is not there any more.
    /// Returns their indices.
    pub(super) fn let_go(
        &mut self,
        may_have_changed: impl Fn(RemoteAddr) -> bool,
    ) -> Result<Vec<usize>, Error> {
        let own = self.process.open()?;
        let mut gone = Vec::new();
        for (index, group) in self.groups.iter_mut().enumerate().filter(|(_, group)| group.live) {
            let is_touched = group.sites.iter().any(|site| may_have_changed(site.entry.addr));
            if is_touched && !own.holds(&group.sites) {
                own.forget(&group.sites);
                group.traps.iter().for_each(EngineTrap::take_out);
                group.live = false;
                gone.push(index);
            }
        }
        Ok(gone)
    }
}
