//! What is registered, and what is patched for it: the engine's slow side, behind one lock that no hit takes.
//!
//! In: registrations and their end; looks at what is mapped. Out: consumers in the probes' lists, patches in
//! place. Invariants: INS-1 a batch is registered whole or not at all. INS-2 a consumer is dropped only after
//! its grace period. INS-3 a probe stays for good, as does the code that refers to it. Does not: decide what
//! is patched (see `settle`), plan or write (see `place`), wait by itself (see `grace`).

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};

use smallvec::SmallVec;
use trapline_patch::own::Own;
use trapline_plan::{PatchRole, Tactic};
use trapline_record::{FileId, FileOffset};
use trapline_runtime::consumer::{ConsumerId, Installed};
use trapline_runtime::engine::{Engine, Tally};
use trapline_runtime::epoch::Writer;
use trapline_tracee::{Process, perf};

use super::check::Stamps;
use super::mapped_files::MappedFiles;
use super::memory::{engine, keep_blocks, make_probe, make_room, writer};
use super::notice::Noticing;
use super::own_stack;
use super::probed_site::ProbedSite;
use super::semaphores::{Semaphore, Semaphores};
use super::site_request::Group;
use super::speculate::SpeculativePlan;
use super::trampolines::Unwinders;
use super::traps::{EngineTrap, sites};
use super::{Error, Request, arch, fork, grace};
use crate::files::{Files, ModuleFile};
use crate::quick::Quick;

/// Identifies a consumer: its site, and its number there.
pub(super) type Key = (u32, ConsumerId);

/// State of the engine's slow side.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) own: Option<Own>,
    pub(super) files: Files,
    pub(super) early: Option<SpeculativePlan>,
    pub(super) probed_sites: Vec<ProbedSite>,
    of_site: Quick<(FileId, FileOffset), u32>,
    pub(super) of_file: HashSet<FileId>,
    pub(super) groups: Vec<Group>,
    last: u64,
    pub(super) writer: Option<Writer>,
    pub(super) known: MappedFiles,
    pub(super) noticing: Noticing,
    pub(super) semaphores: Semaphores,
    pub(super) stamps: Stamps,
    /// Traps that are in place while patches change.
    pub(super) soft: Vec<EngineTrap>,
    pub(super) unwinders: Unwinders,
    /// Sites whose patches the last change took out.
    pub(super) disturbed: Vec<u32>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    fork::prepare();
    Mutex::default()
});

/// Takes the lock.
pub(super) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock, if no thread holds it.
pub(super) fn try_lock() -> Option<MutexGuard<'static, State>> {
    match STATE.try_lock() {
        Ok(state) => Some(state),
        Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes the lock, for a caller that may wait for handlers, so not from inside one.
pub(super) fn enter() -> Result<MutexGuard<'static, State>, Error> {
    if own_stack::is_inside_handler() {
        return Err(Error::InsideHandler);
    }
    let state = lock();
    engine().ok_or(Error::NoEngine)?;
    Ok(state)
}

impl State {
    /// Registers all or none.
    pub(super) fn register(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        let engine = engine().ok_or(Error::NoEngine)?;
        if requests.is_empty() {
            return Err(Error::Empty);
        }
        let most = arch::room().probes;
        if self.probed_sites.len() + requests.len() > most {
            let (asked, have) = (requests.len(), self.probed_sites.len());
            return Err(Error::TooMany { asked, have, most });
        }
        keep_blocks(requests.len());
        let first = self.probed_sites.len();
        let room = |early: &mut SpeculativePlan| make_room(requests.len(), first, || early.is_here());
        let _fence = self.early.as_mut().and_then(room);
        self.probed_sites.reserve(requests.len());
        self.of_site.reserve(requests.len());
        let mut probed_sites = Vec::with_capacity(requests.len());
        // A batch often concerns a single file.
        let mut last: Option<(Arc<Path>, Arc<ModuleFile>)> = None;
        for request in &requests {
            let (path, file) =
                match last.take().filter(|(path, _)| path.as_os_str() == request.file.as_os_str()) {
                    Some(same) => same,
                    None => (request.file.as_path().into(), self.file(&request.file)?),
                };
            let probed_site =
                self.probed_site(engine, request, &path, &file, probed_sites.last().copied())?;
            self.instances(engine, probed_site, request)?;
            probed_sites.push(probed_site);
            last = Some((path, file));
        }
        let mut pairs =
            probed_sites.iter().map(|&probed_site| &self.probed_sites[probed_site as usize]).zip(&requests);
        pairs.try_for_each(|(probed_site, request)| probed_site.agrees(request))?;
        let armed = self.armed_by(&probed_sites, &requests)?;
        let mut keys = Vec::with_capacity(requests.len());
        for (&probed_site, request) in probed_sites.iter().zip(requests) {
            keys.push(self.add(engine, probed_site, request));
        }
        probed_sites.sort_unstable();
        probed_sites.dedup();
        let settled = self.files_of_only(&probed_sites);
        if let Err(error) = self.settle(probed_sites, true) {
            // The first refusal is the answer; what else may fail while undoing is not reported.
            let disturbed = std::mem::take(&mut self.disturbed);
            self.disarm(&armed);
            drop(self.unregister(keys));
            drop(self.settle(disturbed, false));
            return Err(error);
        }
        self.noticing.knows(&settled);
        Ok(keys)
    }
    /// A failed batch must not leave its choices on sites for the next one.
    pub(super) fn forget_requests(&mut self) {
        let idle = self
            .probed_sites
            .iter_mut()
            .filter(|probed_site| probed_site.consumers.is_empty() && probed_site.groups.is_empty());
        idle.for_each(|probed_site| probed_site.by_trap = false);
    }
    /// Files of which nothing is patched, and in which only these sites (sorted) are requested.
    fn files_of_only(&self, probed_sites: &[u32]) -> HashSet<FileId> {
        let mut files: HashSet<FileId> = HashSet::new();
        let mut last = None;
        for id in probed_sites.iter().map(|&probed_site| self.probed_sites[probed_site as usize].file.id) {
            if last.replace(id) != Some(id) {
                files.insert(id);
            }
        }
        last = None;
        for id in self.groups.iter().filter(|group| group.live).map(|group| group.load.file) {
            if last.replace(id) != Some(id) {
                files.remove(&id);
            }
        }
        let mut batch = probed_sites.iter().copied().peekable();
        for (number, probed_site) in (0..).zip(&self.probed_sites) {
            if batch.next_if_eq(&number).is_none() && probed_site.is_wanted() {
                files.remove(&probed_site.file.id);
            }
        }
        files
    }
    /// Site of a request, known or new. `last`: site of the request before.
    fn probed_site(
        &mut self,
        engine: &'static Engine,
        request: &Request,
        known_as: &Arc<Path>,
        file: &Arc<ModuleFile>,
        last: Option<u32>,
    ) -> Result<u32, Error> {
        let Request { file: path, offset, consumer, by_trap, .. } = request;
        if !consumer.has_handler() {
            return Err(Error::NoHandler);
        }
        let offset = FileOffset(*offset);
        let len = file.image.bytes().len() as u64;
        if offset.0 >= len {
            return Err(Error::BehindEnd { path: path.clone(), offset: offset.0, len });
        }
        let at = file.image.svma_of(offset).filter(|&at| file.image.text(at, 1).is_some());
        let at = at.ok_or_else(|| Error::NotCode { path: path.clone(), offset: offset.0 })?;
        // Requests are often in the order of their file.
        let last = last.map(|last| &self.probed_sites[last as usize]).filter(|last| last.file.id == file.id);
        let function = file.image.function_near(at, last.and_then(|last| last.function));
        if consumer.has_return() && function.is_none_or(|f| file.image.function(f).start != at) {
            return Err(Error::NotAnEntry { path: path.clone(), offset: offset.0 });
        }
        arch::check::instruction(path, file, (offset, at), function)?;
        let semaphore = Semaphore::of(request, file)?;
        let number = self.probed_sites.len() as u32;
        match self.of_site.entry((file.id, offset)) {
            Entry::Vacant(new) => {
                new.insert(number);
            }
            Entry::Occupied(known) => {
                let known = *known.get();
                let probed_site = &mut self.probed_sites[known as usize];
                if probed_site.consumers.is_empty() && probed_site.semaphore != semaphore {
                    probed_site.semaphore = semaphore;
                    self.semaphores.add(known);
                }
                probed_site.by_trap |= *by_trap && probed_site.groups.is_empty();
                return Ok(known);
            }
        }
        // INS-3: the probe stays for good.
        let probe = make_probe(engine, number, file.id, offset);
        if self.probed_sites.last().is_none_or(|last| last.file.id != file.id) {
            self.of_file.insert(file.id);
        }
        self.probed_sites.push(ProbedSite {
            path: known_as.clone(),
            file: file.clone(),
            offset,
            at,
            function,
            by_trap: *by_trap,
            semaphore,
            probe,
            consumers: SmallVec::new(),
            groups: SmallVec::new(),
            removed: false,
            armed: false,
        });
        if semaphore.is_some() {
            self.semaphores.add(number);
        }
        Ok(number)
    }
    /// Provides objects for calls in flight. They stay, even if the request fails.
    fn instances(
        &mut self,
        engine: &'static Engine,
        probed_site: u32,
        request: &Request,
    ) -> Result<(), Error> {
        let Request { file: path, offset, consumer, .. } = request;
        if !consumer.has_return() {
            return Ok(());
        }
        let writer = self.writer.get_or_insert_with(|| writer(engine));
        let instances = self.probed_sites[probed_site as usize].probe.instances();
        instances
            .provide(writer, consumer.instances(), perf::possible_cpus(), engine.rseq().is_some())
            .map_err(|why| Error::Instances { path: path.clone(), offset: *offset, why })
    }
    fn add(&mut self, engine: &'static Engine, probed_site: u32, request: Request) -> Key {
        self.last += 1;
        let id = ConsumerId(self.last);
        let consumer = Box::new(request.consumer);
        let one = &mut self.probed_sites[probed_site as usize];
        let writer = self.writer.get_or_insert_with(|| writer(engine));
        one.probe.consumers().add(writer, Installed { id, consumer: consumer.as_engine() });
        one.consumers.push((id, consumer));
        one.removed = false;
        (probed_site, id)
    }
    /// Takes consumers out, and also patches that no consumer needs any more. Returns when no handler of the
    /// consumers can still run.
    pub(super) fn unregister(&mut self, keys: Vec<Key>) -> Result<(), Error> {
        let engine = engine().ok_or(Error::NoEngine)?;
        let writer = self.writer.get_or_insert_with(|| writer(engine));
        let mut gone = Vec::with_capacity(keys.len());
        let mut touched = Vec::with_capacity(keys.len());
        let probed_sites: Vec<u32> = keys.iter().map(|key| key.0).collect();
        for (probed_site, id) in keys {
            let one = &mut self.probed_sites[probed_site as usize];
            one.probe.consumers().remove(writer, id);
            if let Some(at) = one.consumers.iter().position(|(known, _)| *known == id) {
                gone.push(one.consumers.remove(at));
            }
            if !one.is_wanted() {
                touched.push(probed_site);
            }
        }
        self.disarm_idle(probed_sites.into_iter());
        let result =
            self.own().map(drop).and_then(|()| self.release(&touched)).and_then(|()| self.lower_semaphores());
        if let (Some(own), Some(writer)) = (&self.own, &mut self.writer) {
            grace::wait(writer, own.process());
            // INS-2: not before the wait.
            drop(gone);
            writer.sweep();
        } else {
            // INS-2: without a process there is no way to know when, so they are leaked.
            gone.leak();
        }
        result
    }
    /// The own process; in a forked child it is opened anew.
    pub(super) fn own(&mut self) -> Result<&mut Own, Error> {
        if self.own.is_none() {
            self.own = Some(Own::open(sites().ok_or(Error::NoEngine)?.windows())?);
        }
        // It was set just above.
        let own = self.own.as_mut().ok_or(Error::NoEngine)?;
        if own.is_inherited() {
            own.disinherit()?;
        }
        Ok(own)
    }
    /// Calls `look` with the own process and its files.
    pub(super) fn looking<T>(
        &mut self,
        look: impl FnOnce(&Process, &mut Files) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.own()?;
        let Some(own) = &self.own else { return Err(Error::NoEngine) };
        look(own.process(), &mut self.files)
    }
    /// Looks at all that is mapped now.
    pub(super) fn rescan(&mut self) -> Result<usize, Error> {
        self.noticing.look_begins();
        for probed_site in &mut self.probed_sites {
            probed_site.removed |= probed_site.probe.take_removal() && !probed_site.consumers.is_empty();
        }
        let all: Vec<u32> = (0..self.probed_sites.len() as u32).collect();
        let unwanted: Vec<u32> = all
            .iter()
            .copied()
            .filter(|&probed_site| !self.probed_sites[probed_site as usize].is_wanted())
            .collect();
        self.release(&unwanted)?;
        self.let_go(|_| true)?;
        self.settle(all, false)
    }
    pub(super) fn counts(&self, (probed_site, _): Key) -> Tally {
        self.probed_sites[probed_site as usize].probe.counts()
    }
    pub(super) fn tactics(&self, (probed_site, _): Key) -> Vec<Tactic> {
        let groups = self.probed_sites[probed_site as usize].groups.iter().map(|&group| &self.groups[group]);
        let entry =
            |group: &Group| group.parts.iter().any(|part| part.probed_site == probed_site && part.entry);
        let worst = |group: &Group| {
            group.sites.iter().filter(|site| site.role == PatchRole::Entry).map(|site| site.tactic).max()
        };
        groups.filter(|group| group.live && entry(group)).filter_map(worst).collect()
    }
}
