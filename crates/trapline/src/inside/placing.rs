//! The half of placing a batch that is the same on every processor: what is announced before sites are
//! written, and the groups that the written ones make.
//!
//! In: the calls of stubs to which sites are about to lead, each with the site requests that it serves; then
//! the sites that were written. Out: each trap in the table before its byte is written (PATCH-4); groups of
//! sites that belong together; which requests are refused. Does not: plan, or write a site (`patch_sites` in
//! the twin folders).

use std::collections::HashMap;
use std::iter::Peekable;
use std::vec;

use trapline_patch::own::{Own, OwnSite};
use trapline_patch::{PatchError, Why};
use trapline_record::RemoteAddr;

use super::group::{Group, Sets, without_parts};
use super::mapped_files::MappedFiles;
use super::site_request::SiteRequest;
use super::trampolines;
use super::traps::{CalledSite, EngineTrap};

/// A batch that is being placed.
pub(super) struct Placing<'a> {
    site_requests: &'a [SiteRequest],
    known: &'a mut MappedFiles,
    shadow_stack: bool,
    /// What was announced, by head of the patch.
    traps: Vec<(u64, EngineTrap)>,
    calls: Vec<(u64, CalledSite)>,
}

/// An instruction before which a stub calls consumers.
pub(super) struct StubCall<I> {
    /// Where the patch begins that leads to the stub.
    pub(super) head: RemoteAddr,
    pub(super) at: RemoteAddr,
    /// Where the stub has a copy of the instruction; 0 if there is none.
    pub(super) copy: u64,
    pub(super) is_trap: bool,
    /// Index of a site request in the same mapping.
    pub(super) request: usize,
    /// Indices of the site requests that it serves, each with whether this is a return.
    pub(super) called: I,
}

impl<'a> Placing<'a> {
    pub(super) fn new(
        site_requests: &'a [SiteRequest],
        known: &'a mut MappedFiles,
        shadow_stack: bool,
    ) -> Self {
        Self { site_requests, known, shadow_stack, traps: Vec::new(), calls: Vec::new() }
    }
    /// Makes room for so many calls.
    pub(super) fn expect(&mut self, calls: usize) {
        self.calls.reserve(calls);
    }
    /// Called before the site is written that leads to this stub.
    pub(super) fn announce(&mut self, call: StubCall<impl Iterator<Item = (usize, bool)> + Clone>) {
        let StubCall { head, at, copy, is_trap, request, called } = call;
        let all = self.site_requests;
        called.clone().for_each(|(which, _)| trampolines::accepted(&all[which]));
        let new = CalledSite::new(at.0, copy, called.map(|(which, exit)| (all[which].probe, exit)));
        let SiteRequest { load, file, .. } = &all[request];
        if is_trap
            && let Some(trap) = EngineTrap::new(&new, *load, &file.image, self.known, self.shadow_stack)
        {
            trap.put(self.known);
            self.traps.push((head.0, trap));
        }
        self.calls.push((head.0, new));
    }
    /// Makes groups of the sites that were written. Each has the index of the request that it serves first, and
    /// they are in the order of their addresses. `sets`: requests that share a site. Each request is in place
    /// as a whole or not at all. New groups come after all others. Returns the requests that are refused.
    pub(super) fn group(
        self,
        (own, all): (&mut Own, &mut Vec<Group>),
        sites: impl Iterator<Item = (usize, OwnSite)>,
        mut sets: Sets,
        refused: HashMap<usize, Why>,
    ) -> Result<Vec<(usize, Why)>, PatchError> {
        let Self { site_requests, .. } = self;
        let (mut traps, mut calls) = (ByHead::new(self.traps), ByHead::new(self.calls));
        let first = all.len();
        all.reserve(site_requests.len());
        let mut group_of: Vec<Option<usize>> = vec![None; site_requests.len()];
        for (index, site) in sites {
            let group = *group_of[sets.find(index)].get_or_insert_with(|| {
                all.push(Group::new(site_requests[index].load));
                all.len() - 1
            });
            let group = &mut all[group];
            group.traps.extend(traps.at(site.entry.addr.0));
            group.calls.extend(calls.at(site.entry.addr.0));
            group.sites.push(site);
        }
        for (index, one) in site_requests.iter().enumerate().filter(|(index, _)| !refused.contains_key(index))
        {
            if let Some(group) = group_of[sets.find(index)] {
                all[group].parts.push(one.part);
            }
        }
        drop_lost((own, all), first)?;
        // Entered in the table, but not written.
        traps.left().for_each(|trap| trap.take_out());
        let mut refused: Vec<(usize, Why)> = refused.into_iter().collect();
        refused.sort_by_key(|one| one.0);
        Ok(refused)
    }
}

/// Takes out new groups, from index `first` on, that serve no site.
fn drop_lost((own, all): (&mut Own, &mut Vec<Group>), first: usize) -> Result<(), PatchError> {
    let lost = without_parts(all, first);
    let sites: Vec<OwnSite> = lost.iter().flat_map(|group| group.sites.iter().copied()).collect();
    if !sites.is_empty()
        && let Err(error) = own.take_out(&sites)
    {
        all.truncate(first);
        return Err(error);
    }
    // Entered in the table, but taken out again.
    lost.iter().flat_map(|group| &group.traps).for_each(EngineTrap::take_out);
    Ok(())
}

/// What belongs to heads of patches, taken in the order of their addresses.
struct ByHead<T> {
    rest: Peekable<vec::IntoIter<(u64, T)>>,
    left: Vec<T>,
}

impl<T> ByHead<T> {
    fn new(mut all: Vec<(u64, T)>) -> Self {
        all.sort_by_key(|one| one.0);
        Self { rest: all.into_iter().peekable(), left: Vec::new() }
    }
    /// All of one head; its address is higher than those requested before.
    fn at(&mut self, head: u64) -> impl Iterator<Item = T> {
        while let Some((_, one)) = self.rest.next_if(|one| one.0 < head) {
            self.left.push(one);
        }
        std::iter::from_fn(move || self.rest.next_if(|one| one.0 == head).map(|one| one.1))
    }
    /// What was never requested.
    fn left(self) -> impl Iterator<Item = T> {
        self.left.into_iter().chain(self.rest.map(|one| one.1))
    }
}
