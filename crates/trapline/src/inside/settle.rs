//! From what is registered to what is patched, wherever the files are mapped.
//!
//! In: sites whose needs have changed, or all of them when the mappings may have changed. Out: groups of
//! sites in place, or the first refusal. Does not: choose windows or write (see `place`).

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;
use trapline_patch::Why;
use trapline_record::{FileId, RemoteAddr};
use trapline_tracee::Mapping;

use super::arch::patch_sites::place;
use super::mapped_files::takes_breakpoints;
use super::notice::with_signals_held;
use super::site_request::{Load, SiteRequest, StubAction};
use super::state::State;
use super::{Error, signals};
use crate::modules::mapped;

impl State {
    /// Patches what these sites need wherever their files are mapped. If `strict`, a refusal of one is an
    /// error.
    pub(super) fn settle(&mut self, probed_sites: Vec<u32>, strict: bool) -> Result<usize, Error> {
        self.disturbed.clear();
        let settled = self.change(probed_sites, strict);
        self.harden().and(settled)
    }
    fn change(&mut self, probed_sites: Vec<u32>, strict: bool) -> Result<usize, Error> {
        signals::put();
        self.noticing.drain();
        let maps = self.maps()?;
        self.follow(&maps)?;
        let loads = self.loads(&maps)?;
        let mut found = self.revive(&probed_sites, &loads)?;
        let mut site_requests = Vec::with_capacity(probed_sites.len());
        let mut queue = probed_sites;
        queue.sort_unstable();
        let asked = queue.len();
        // Sites besides those requested.
        let mut seen: HashSet<u32> = HashSet::new();
        let mut here: (Option<FileId>, &[Load]) = (None, &[]);
        let mut next = 0;
        while let Some(&probed_site) = queue.get(next) {
            next += 1;
            let file = self.probed_sites[probed_site as usize].file.id;
            if here.0 != Some(file) {
                here = (Some(file), loads.get(&file).map_or(&[], Vec::as_slice));
            }
            for load in here.1 {
                let Some((part, in_the_way)) = self.missing(probed_site, *load) else { continue };
                if self.probed_sites[probed_site as usize].groups.is_empty() {
                    // Nothing was ever patched there, as in most of a large batch.
                    site_requests.push(self.site_requests(part, *load));
                    continue;
                }
                self.soften(&in_the_way)?;
                let others =
                    in_the_way.iter().flat_map(|&group| &self.groups[group].parts).map(|p| p.probed_site);
                let others: Vec<u32> =
                    others.filter(|&other| self.probed_sites[other as usize].is_wanted()).collect();
                let needs = others.iter().filter(|&&other| other != probed_site);
                let needs = needs.map(|&other| self.probed_sites[other as usize].need(other));
                let needs: SmallVec<[StubAction; 1]> = std::iter::once(part).chain(needs).collect();
                let again = self.put_back_instead(&needs, *load)?;
                if again > 0 {
                    found += again;
                    continue;
                }
                let is_asked = |other: &u32| queue[..asked].binary_search(other).is_ok();
                let new: Vec<u32> = others.into_iter().filter(|other| !is_asked(other)).collect();
                queue.extend(new.into_iter().filter(|&other| seen.insert(other)));
                site_requests.push(self.site_requests(part, *load));
            }
        }
        found += self.place(site_requests, strict, true)?;
        self.arm(&queue);
        self.count_semaphores(&maps)?;
        Ok(found)
    }
    /// Mappings of registered files in which the kernel would set probes.
    pub(super) fn loads(&mut self, maps: &[Mapping]) -> Result<HashMap<FileId, Vec<Load>>, Error> {
        let found = mapped(self.own()?.process(), maps);
        let found: Vec<_> = found.into_iter().filter(|one| self.of_file.contains(&one.id)).collect();
        let mut loads: HashMap<FileId, Vec<Load>> = HashMap::new();
        let mut seen = Vec::new();
        for one in found.into_iter().filter(|one| takes_breakpoints(&one.mapping)) {
            let Some(own) = &self.own else { continue };
            if let Ok(module) = one.open(own.process(), &mut self.files) {
                let load = Load { file: one.id, bias: module.bias.0 };
                seen.push((load, one.mapping.start));
                loads.entry(one.id).or_default().push(load);
            }
        }
        self.noticing.saw(&seen, &self.of_file);
        Ok(loads)
    }
    /// What a site lacks in a mapping, and the groups that are in the way of it.
    pub(super) fn missing(&self, probed_site: u32, load: Load) -> Option<(StubAction, Vec<usize>)> {
        let one = &self.probed_sites[probed_site as usize];
        if !one.is_wanted() {
            return None;
        }
        let need = one.need(probed_site);
        let is_here = |&group: &usize| self.groups[group].live && self.groups[group].load == load;
        let live: Vec<usize> = one.groups.iter().copied().filter(is_here).collect();
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
    pub(super) fn site_requests(&self, part: StubAction, load: Load) -> SiteRequest {
        let probed_site = &self.probed_sites[part.probed_site as usize];
        SiteRequest {
            load,
            part,
            file: probed_site.file.clone(),
            at: probed_site.at,
            function: probed_site.function,
            probe: probed_site.probe,
        }
    }
    /// Patches, and keeps the resulting groups. If another patch of this engine needs the same bytes, both
    /// are planned again, together.
    pub(super) fn place(
        &mut self,
        site_requests: Vec<SiteRequest>,
        strict: bool,
        again: bool,
    ) -> Result<usize, Error> {
        if site_requests.is_empty() {
            return Ok(0);
        }
        let setting = self.setting()?;
        let Self { own: Some(own), known, groups, probed_sites, .. } = self else {
            return Err(Error::NoEngine);
        };
        let first = groups.len();
        let refused = with_signals_held(|| place(own, &site_requests, setting, (known, &mut *groups)))?;
        let mut placed = 0;
        for (index, group) in groups.iter().enumerate().skip(first) {
            placed += group.sites.len();
            group.parts.iter().for_each(|part| probed_sites[part.probed_site as usize].groups.push(index));
        }
        let (instead, refused): (Vec<_>, Vec<_>) = refused.into_iter().partition(|(index, _)| {
            site_requests[*index].part.returns && self.arm_instead(site_requests[*index].part.probed_site)
        });
        let (held, refused): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(_, why)| again && matches!(why, Why::Held { .. }));
        if let Some((index, why)) = refused.first().filter(|_| strict) {
            return Err(self.probed_sites[site_requests[*index].part.probed_site as usize].refused(why));
        }
        if !held.is_empty() {
            let mut both: Vec<SiteRequest> = Vec::new();
            for (index, _) in held {
                let SiteRequest { load, part, .. } = site_requests[index];
                if self.missing(part.probed_site, load).is_none() {
                    continue;
                }
                let near = self.with_neighbours(&site_requests[index])?;
                let needs: Vec<StubAction> = near.iter().map(|one| one.part).collect();
                match self.put_back_instead(&needs, load)? {
                    0 => both.extend(near),
                    again => placed += again,
                }
            }
            let mut seen = HashSet::new();
            both.retain(|one| seen.insert((one.load, one.part.probed_site)));
            placed += self.place(both, strict, false)?;
        }
        for (index, why) in instead {
            let SiteRequest { load, part: StubAction { probed_site, .. }, .. } = site_requests[index];
            let both = self.with_neighbours(&site_requests[index])?;
            debug_assert!(both.iter().all(|one| one.load == load), "neighbours are of one mapping");
            if self.place(both, true, false).is_err() {
                self.disarm(&[probed_site]);
                // The error is about exits, since these were tried first.
                if strict {
                    return Err(self.probed_sites[probed_site as usize].refused(&why));
                }
            }
        }
        Ok(placed)
    }
    /// A site to be patched, with all that is patched close to it, which is taken out.
    pub(super) fn with_neighbours(&mut self, site_requests: &SiteRequest) -> Result<Vec<SiteRequest>, Error> {
        /// Windows and the instructions that they displace reach less far than this, in bytes.
        const NEAR: u64 = 64;
        let bias = trapline_record::addr::Bias(site_requests.load.bias);
        let function = site_requests.function.map(|f| site_requests.file.image.function(f));
        let (start, end) = function.map_or((site_requests.at, site_requests.at), |f| (f.start, f.end()));
        let (start, end) = (bias.live(start) - NEAR, bias.live(end) + NEAR);
        let near = |at: RemoteAddr| start <= at && at < end;
        let groups: Vec<usize> = (0..self.groups.len())
            .filter(|&g| {
                let group = &self.groups[g];
                group.live
                    && group.load == site_requests.load
                    && group.sites.iter().any(|s| near(s.entry.addr))
            })
            .collect();
        self.soften(&groups)?;
        let mut probed_sites: Vec<u32> =
            groups.iter().flat_map(|&group| self.groups[group].parts.iter().map(|p| p.probed_site)).collect();
        probed_sites.push(site_requests.part.probed_site);
        probed_sites.sort_unstable();
        probed_sites.dedup();
        probed_sites.retain(|&probed_site| self.probed_sites[probed_site as usize].is_wanted());
        Ok(probed_sites
            .into_iter()
            .map(|probed_site| {
                self.site_requests(
                    self.probed_sites[probed_site as usize].need(probed_site),
                    site_requests.load,
                )
            })
            .collect())
    }
}
