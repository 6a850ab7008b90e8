//! Takes groups of sites out, and puts them back as they were.
//!
//! In: sites whose needs have changed. Out: bytes that are the file's again, or lead to the same stubs again.
//! Does not: plan anything (see `settle`).

use std::collections::{HashMap, HashSet};

use trapline_patch::own::OwnSite;
use trapline_plan::Tactic;
use trapline_record::{FileId, RemoteAddr};

use super::Error;
use super::site_request::{Group, Load, StubAction};
use super::state::State;
use super::traps::EngineTrap;

impl State {
    /// Takes out the groups of sites that no consumer needs.
    pub(super) fn release(&mut self, probed_sites: &[u32]) -> Result<(), Error> {
        let of_spots = probed_sites
            .iter()
            .flat_map(|&probed_site| &self.probed_sites[probed_site as usize].groups)
            .copied();
        let mut groups: Vec<usize> = of_spots.filter(|&group| self.groups[group].live).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.retain(|&group| {
            self.groups[group].parts.iter().all(|p| !self.probed_sites[p.probed_site as usize].is_wanted())
        });
        self.take_out(&groups)
    }
    pub(super) fn take_out(&mut self, groups: &[usize]) -> Result<(), Error> {
        if groups.is_empty() {
            return Ok(());
        }
        let sites: Vec<OwnSite> = groups.iter().flat_map(|&g| self.groups[g].sites.iter().copied()).collect();
        groups.iter().for_each(|&group| self.groups[group].live = false);
        self.own()?.take_out(&sites)?;
        groups.iter().flat_map(|&group| &self.groups[group].traps).for_each(EngineTrap::take_out);
        Ok(())
    }
    /// Takes groups out that are planned anew. It leaves a trap at each instruction whose hits a consumer
    /// waits for, so none is lost (S1).
    pub(super) fn soften(&mut self, groups: &[usize]) -> Result<(), Error> {
        if groups.is_empty() {
            return Ok(());
        }
        let shadow_stack = self.setting()?.shadow_stack;
        let (mut sites, mut traps) = (Vec::new(), Vec::new());
        for &index in groups {
            let group = &mut self.groups[index];
            group.live = false;
            sites.extend_from_slice(&group.sites);
            let Some(probed_site) =
                group.parts.first().map(|part| &self.probed_sites[part.probed_site as usize])
            else {
                continue;
            };
            self.disturbed.extend(group.parts.iter().map(|part| part.probed_site));
            for here in &group.calls {
                let trap =
                    EngineTrap::new(here, group.load, &probed_site.file.image, &mut self.known, shadow_stack);
                let Some(trap) = trap else { continue };
                trap.put(&self.known);
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
        let live = self.groups.iter().filter(|group| group.live);
        let stays: HashSet<u64> = live.flat_map(|group| &group.traps).map(|trap| trap.at).collect();
        self.own()?.harden(|at| stays.contains(&at))?;
        self.soft.drain(..).filter(|trap| !stays.contains(&trap.at)).for_each(|trap| trap.take_out());
        Ok(())
    }
    /// Puts back groups that were taken out and do what is needed now. Returns the number of sites.
    pub(super) fn revive(
        &mut self,
        probed_sites: &[u32],
        loads: &HashMap<FileId, Vec<Load>>,
    ) -> Result<usize, Error> {
        let mut groups: Vec<usize> = Vec::new();
        for &probed_site in probed_sites {
            let one = &self.probed_sites[probed_site as usize];
            if one.groups.is_empty() {
                continue;
            }
            let is_idle = |load: &Load| {
                !one.groups.iter().any(|&g| self.groups[g].live && self.groups[g].load == *load)
            };
            let fits = |load: &&Load| {
                let need = one.need(probed_site);
                let serves = |p: &StubAction| p.returns == need.returns && p.serves_entry(&need);
                // The last one first: other groups may have taken the places of earlier ones.
                let group = one.groups.iter().rev().copied();
                group
                    .filter(|&g| self.groups[g].load == **load)
                    .find(|&g| self.groups[g].parts.iter().any(serves))
            };
            let here = loads.get(&one.file.id).into_iter().flatten();
            if one.is_wanted() {
                groups.extend(here.filter(|load| is_idle(load)).filter_map(|load| fits(&load)));
            }
        }
        groups.sort_unstable();
        groups.dedup();
        self.put_back(groups)
    }
    /// Puts back an earlier group that does all that is needed now, in place of those that were just taken
    /// out. The same needs come again as consumers come and go, so each is planned only once. (A punned jump
    /// ends in bytes that others may have changed since.) Returns the number of sites.
    pub(super) fn put_back_instead(&mut self, needs: &[StubAction], load: Load) -> Result<usize, Error> {
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
                    || !self.probed_sites[have.probed_site as usize].is_wanted()
            };
            !group.live
                && group.load == load
                && group.sites.iter().all(|site| site.tactic != Tactic::Pun)
                && needs.iter().all(|need| group.parts.iter().any(|have| serves(have, need)))
                && group.parts.iter().all(is_for)
        };
        let known =
            needs.first().map_or(&[][..], |need| &self.probed_sites[need.probed_site as usize].groups);
        let found = known.iter().copied().rev().find(|&group| fits(&self.groups[group]));
        self.put_back(found.into_iter().collect())
    }
    fn put_back(&mut self, groups: Vec<usize>) -> Result<usize, Error> {
        if groups.is_empty() {
            return Ok(0);
        }
        let sites: Vec<OwnSite> = groups.iter().flat_map(|&g| self.groups[g].sites.iter().copied()).collect();
        let probed_sites: Vec<u32> =
            groups.iter().flat_map(|&g| self.groups[g].parts.iter().map(|part| part.probed_site)).collect();
        self.arm(&probed_sites);
        let traps = groups.iter().flat_map(|&group| &self.groups[group].traps);
        traps.for_each(|trap| trap.put(&self.known));
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
}
