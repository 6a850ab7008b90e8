//! What is registered: sites by number, each with its probe and its consumers.
//!
//! In: requests, and the end of registrations. Out: consumers in the probes' lists, and what the sites need.
//! Invariants: INS-2 a consumer is dropped only after its grace period. INS-3 a probe stays for good, as does
//! the code that refers to it. Does not: patch (`patcher`), or wait by itself (`grace`).

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::ops::Index;
use std::path::Path;
use std::sync::Arc;

use trapline_record::{FileId, FileOffset};
use trapline_runtime::consumer::{ConsumerId, Installed};
use trapline_runtime::engine::Engine;
use trapline_runtime::epoch::Writer;
use trapline_tracee::{Process, perf};

use super::memory::{make_probe, writer};
use super::probed_site::ProbedSite;
use super::semaphore::Semaphore;
use super::{Consumer, Error, Request, Returns, check, grace, trampolines};
use crate::files::ModuleFile;
use crate::quick::Quick;

/// Identifies a consumer: its site, and its number there.
pub(super) type Key = (u32, ConsumerId);

/// All sites that were ever registered.
#[derive(Debug, Default)]
pub(super) struct Registry {
    probed_sites: Vec<ProbedSite>,
    of_site: Quick<(FileId, FileOffset), u32>,
    files: HashSet<FileId>,
    last: u64,
    writer: Option<Writer>,
}

/// Consumers that were taken out; threads may still run them.
#[must_use = "they are dropped only after their grace period (`Registry::retire`)"]
pub(super) struct Removed(Vec<(ConsumerId, Box<Consumer>)>);

impl Index<u32> for Registry {
    type Output = ProbedSite;
    fn index(&self, probed_site: u32) -> &ProbedSite {
        &self.probed_sites[probed_site as usize]
    }
}

impl Registry {
    pub(super) fn len(&self) -> usize {
        self.probed_sites.len()
    }
    /// Numbers of all sites.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.probed_sites.len() as u32
    }
    /// Files that were ever registered.
    pub(super) const fn files(&self) -> &HashSet<FileId> {
        &self.files
    }
    /// Makes room for so many more sites.
    pub(super) fn reserve(&mut self, sites: usize) {
        self.probed_sites.reserve(sites);
        self.of_site.reserve(sites);
    }
    /// The engine's only writer.
    pub(super) fn writer(&mut self, engine: &'static Engine) -> &mut Writer {
        self.writer.get_or_insert_with(|| writer(engine))
    }
    /// Site of a request, known or new, and whether it has a semaphore that it had not before. `last`: site of
    /// the request before.
    pub(super) fn probed_site(
        &mut self,
        engine: &'static Engine,
        request: &Request,
        (known_as, file): (&Arc<Path>, &Arc<ModuleFile>),
        last: Option<u32>,
    ) -> Result<(u32, bool), Error> {
        // Requests are often in the order of their file.
        let last = last.map(|last| &self[last]).filter(|last| last.file().id == file.id);
        let site = check::site(request, file, last.and_then(|last| last.site().function))?;
        let semaphore = Semaphore::of(request, file)?;
        let number = self.probed_sites.len() as u32;
        match self.of_site.entry((file.id, site.offset)) {
            Entry::Vacant(new) => {
                new.insert(number);
            }
            Entry::Occupied(known) => {
                let known = *known.get();
                let one = &mut self.probed_sites[known as usize];
                return Ok((known, one.requested_again(request.by_trap, semaphore)));
            }
        }
        // INS-3: the probe stays for good.
        let probe = make_probe(engine, number, file.id, site.offset);
        if self.probed_sites.last().is_none_or(|last| last.file().id != file.id) {
            self.files.insert(file.id);
        }
        let asked = (request.by_trap, semaphore);
        self.probed_sites.push(ProbedSite::new((known_as, file), site, asked, probe));
        Ok((number, semaphore.is_some()))
    }
    /// Provides objects for calls in flight. They stay, even if the request fails.
    pub(super) fn provide_instances(
        &mut self,
        engine: &'static Engine,
        probed_site: u32,
        request: &Request,
    ) -> Result<(), Error> {
        let Request { file: path, offset, consumer, .. } = request;
        if !consumer.has_return() {
            return Ok(());
        }
        let instances = self[probed_site].probe().instances();
        instances
            .provide(
                self.writer(engine),
                consumer.instances(),
                perf::possible_cpus(),
                engine.rseq().is_some(),
            )
            .map_err(|why| Error::Instances { path: path.clone(), offset: *offset, why })
    }
    /// Adds a consumer: from now on, hits of its site call it.
    pub(super) fn add(&mut self, engine: &'static Engine, probed_site: u32, request: Request) -> Key {
        self.last += 1;
        let id = ConsumerId(self.last);
        let consumer = Box::new(request.consumer);
        let probe = self[probed_site].probe();
        probe.consumers().add(self.writer(engine), Installed { id, consumer: consumer.as_engine() });
        self.probed_sites[probed_site as usize].add(id, consumer);
        (probed_site, id)
    }
    /// Takes consumers out. Returns them, and the sites that no consumer needs any more.
    pub(super) fn remove(&mut self, engine: &'static Engine, keys: &[Key]) -> (Removed, Vec<u32>) {
        let writer = self.writer.get_or_insert_with(|| writer(engine));
        let mut gone = Vec::with_capacity(keys.len());
        let mut touched = Vec::with_capacity(keys.len());
        for &(probed_site, id) in keys {
            let one = &mut self.probed_sites[probed_site as usize];
            one.probe().consumers().remove(writer, id);
            gone.extend(one.remove(id));
            if !one.is_wanted() {
                touched.push(probed_site);
            }
        }
        let idle: Vec<u32> = keys.iter().map(|key| key.0).filter(|&one| !self[one].waits()).collect();
        self.disarm(&idle);
        (Removed(gone), touched)
    }
    /// Waits until no handler of these consumers can still run, and drops them. `process`: the own process, if
    /// it is open.
    pub(super) fn retire(&mut self, gone: Removed, process: Option<&Process>) {
        if let (Some(process), Some(writer)) = (process, &mut self.writer) {
            grace::wait(writer, process);
            // INS-2: not before the wait.
            drop(gone);
            writer.sweep();
        } else {
            // INS-2: without a process there is no way to know when, so they are leaked.
            gone.0.leak();
        }
    }
    /// A failed batch must not leave its choices on sites for the next one.
    pub(super) fn forget_requests(&mut self) {
        self.probed_sites.iter_mut().for_each(ProbedSite::forget_requests);
    }
    /// Notes at which sites every consumer has asked for removal since.
    pub(super) fn take_removals(&mut self) {
        self.probed_sites.iter_mut().for_each(ProbedSite::take_removal);
    }
    /// A group has a part of a site.
    pub(super) fn is_part_of(&mut self, probed_site: u32, group: usize) {
        self.probed_sites[probed_site as usize].is_part_of(group);
    }
    /// Files of which nothing is patched, and in which only these sites (sorted) are requested. `patched`: file
    /// of each live group.
    pub(super) fn files_of_only(
        &self,
        probed_sites: &[u32],
        patched: impl Iterator<Item = FileId>,
    ) -> HashSet<FileId> {
        let mut files: HashSet<FileId> = HashSet::new();
        let mut last = None;
        for id in probed_sites.iter().map(|&probed_site| self[probed_site].file().id) {
            if last.replace(id) != Some(id) {
                files.insert(id);
            }
        }
        last = None;
        for id in patched {
            if last.replace(id) != Some(id) {
                files.remove(&id);
            }
        }
        let mut batch = probed_sites.iter().copied().peekable();
        for (number, probed_site) in (0..).zip(&self.probed_sites) {
            if batch.next_if_eq(&number).is_none() && probed_site.is_wanted() {
                files.remove(&probed_site.file().id);
            }
        }
        files
    }
    /// Prepares return trampolines for sites with consumers that request them; `lend` provides them. Returns
    /// the sites that use them from now on.
    pub(super) fn armed_by(
        &mut self,
        probed_sites: &[u32],
        requests: &[Request],
        mut lend: impl FnMut() -> Result<(), String>,
    ) -> Result<Vec<u32>, Error> {
        let mut armed = Vec::new();
        for (&probed_site, request) in probed_sites.iter().zip(requests) {
            let wanted = request.consumer.form() == Some(Returns::Stack);
            if !wanted || self[probed_site].is_armed() {
                continue;
            }
            lend().map_err(|why| Error::NoTrampolines {
                path: request.file.clone(),
                offset: request.offset,
                why,
            })?;
            armed.push(probed_site);
        }
        armed.iter().for_each(|&probed_site| self.probed_sites[probed_site as usize].set_armed(true));
        Ok(armed)
    }
    /// Uses return trampolines at a site with exits that cannot be patched, if one of its consumers leaves
    /// the choice to the engine, and `lend` provides them.
    pub(super) fn arm_instead(
        &mut self,
        probed_site: u32,
        lend: impl FnOnce() -> Result<(), String>,
    ) -> bool {
        let one = &mut self.probed_sites[probed_site as usize];
        let armed = !one.is_armed() && one.leaves_form() && lend().is_ok();
        one.set_armed(one.is_armed() | armed);
        armed
    }
    /// Sets sites back to exits.
    pub(super) fn disarm(&mut self, probed_sites: &[u32]) {
        for &probed_site in probed_sites {
            let one = &mut self.probed_sites[probed_site as usize];
            one.set_armed(false);
            trampolines::disarm(one.probe());
        }
    }
}
