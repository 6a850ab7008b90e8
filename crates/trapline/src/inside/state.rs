//! What is registered, and what is patched for it: the engine's slow side, behind one lock that no hit takes.
//!
//! In: registrations and their end; looks at what is mapped. Out: consumers in the probes' lists, patches in place. Invariants:
//! INS-1 a batch is registered whole or not at all; INS-2 a consumer is dropped after its grace only; INS-3 a probe stays for good, as
//! code that names it does.
//! Does not: plan or write (see `place`), wait by itself (see `grace`).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use trapline_image::FunctionIndex;
use trapline_patch::Why;
use trapline_patch::own::{Own, OwnSite};
use trapline_plan::{ExtendedState, PatchRole, Tactic};
use trapline_record::{FileId, FileOffset, RemoteAddr, Svma};
use trapline_runtime::consumer::{ConsumerId, Installed};
use trapline_runtime::engine::{Engine, Tally};
use trapline_runtime::epoch::{ThreadPointer, Writer};
use trapline_runtime::probe::Probe;
use trapline_target::{Mapping, Process};

use super::memory::{PROBES, engine, writer};
use super::place::{Group, Load, Part, Placed, Setting, Wanted, place};
use super::{Consumer, Error, Request, faults, fork, grace};
use crate::files::{Files, ModuleFile};
use crate::modules::mapped;
use crate::question::kind_of;

/// Names a consumer: its site, and its number there.
pub(super) type Key = (u32, ConsumerId);

/// A site, with who is called there.
#[derive(Debug)]
struct Spot {
    path: PathBuf,
    file: Arc<ModuleFile>,
    offset: FileOffset,
    at: Svma,
    function: Option<FunctionIndex>,
    by_trap: bool,
    probe: &'static Probe,
    consumers: Vec<(ConsumerId, Box<Consumer>)>,
    /// Indices of groups with a part of it.
    groups: Vec<usize>,
    /// Every consumer wanted it out.
    removed: bool,
}

impl Spot {
    fn is_wanted(&self) -> bool {
        !self.consumers.is_empty() && !self.removed
    }
    fn need(&self, spot: u32) -> Part {
        let any = |which: fn(&Consumer) -> bool| self.consumers.iter().any(|(_, consumer)| which(consumer));
        Part { spot, entry: true, returns: any(Consumer::has_return), saves: any(Consumer::saves_state) }
    }
    fn refused(&self, why: &Why) -> Error {
        Error::Refused {
            path: self.path.clone(),
            offset: self.offset.0,
            kind: kind_of(why),
            why: why.to_string(),
        }
    }
}

/// The engine's slow side.
#[derive(Debug, Default)]
pub(super) struct State {
    own: Option<Own>,
    files: Files,
    spots: Vec<Spot>,
    of_site: HashMap<(FileId, FileOffset), u32>,
    of_file: HashSet<FileId>,
    groups: Vec<Group>,
    last: u64,
    writer: Option<Writer>,
    faults_are_fatal: Option<bool>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    fork::prepare();
    Mutex::default()
});

/// The lock.
pub(super) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock, for one who may wait for handlers: not from inside one.
pub(super) fn enter() -> Result<MutexGuard<'static, State>, Error> {
    let engine = engine().ok_or(Error::NoEngine)?;
    if engine.lines().inside(ThreadPointer::own()) {
        return Err(Error::InsideHandler);
    }
    Ok(lock())
}

impl State {
    /// Registers all or none.
    pub(super) fn register(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        let engine = engine().ok_or(Error::NoEngine)?;
        if requests.is_empty() {
            return Err(Error::Empty);
        }
        if self.spots.len() + requests.len() > PROBES {
            let (asked, have) = (requests.len(), self.spots.len());
            return Err(Error::TooMany { asked, have, most: PROBES });
        }
        let mut spots = Vec::with_capacity(requests.len());
        // A batch is often about one file.
        let mut last: Option<(&PathBuf, Arc<ModuleFile>)> = None;
        for request in &requests {
            let file = match last.take().filter(|(path, _)| **path == request.file) {
                Some((_, file)) => file,
                None => self.file(&request.file)?,
            };
            spots.push(self.spot(engine, request, &file)?);
            last = Some((&request.file, file));
        }
        let mut keys = Vec::with_capacity(requests.len());
        for (&spot, request) in spots.iter().zip(requests) {
            keys.push(self.add(engine, spot, request));
        }
        spots.sort_unstable();
        spots.dedup();
        if let Err(error) = self.settle(spots, true) {
            // What is in the way of one is the answer; what else may fail in undoing is not.
            drop(self.unregister(keys));
            return Err(error);
        }
        Ok(keys)
    }
    fn file(&mut self, path: &Path) -> Result<Arc<ModuleFile>, Error> {
        self.files.of_path(path).map_err(|why| Error::File { path: path.to_owned(), why })
    }
    /// The site of a request, known or new.
    fn spot(
        &mut self,
        engine: &'static Engine,
        request: &Request,
        file: &Arc<ModuleFile>,
    ) -> Result<u32, Error> {
        let Request { file: path, offset, consumer, by_trap } = request;
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
        let function = file.image.function_at(at);
        if consumer.has_return() && function.is_none_or(|f| file.image.function(f).start != at) {
            return Err(Error::NotAnEntry { path: path.clone(), offset: offset.0 });
        }
        let key = (file.id, offset);
        if let Some(&known) = self.of_site.get(&key) {
            let spot = &mut self.spots[known as usize];
            spot.by_trap |= *by_trap && spot.groups.is_empty();
            return Ok(known);
        }
        let number = self.spots.len() as u32;
        // INS-3: for good.
        let probe: &'static Probe = Box::leak(Box::new(Probe::new(engine, number, file.id, offset)));
        self.spots.push(Spot {
            path: path.clone(),
            file: file.clone(),
            offset,
            at,
            function,
            by_trap: *by_trap,
            probe,
            consumers: Vec::new(),
            groups: Vec::new(),
            removed: false,
        });
        self.of_site.insert(key, number);
        self.of_file.insert(file.id);
        Ok(number)
    }
    fn add(&mut self, engine: &'static Engine, spot: u32, request: Request) -> Key {
        self.last += 1;
        let id = ConsumerId(self.last);
        let consumer = Box::new(request.consumer);
        let one = &mut self.spots[spot as usize];
        let writer = self.writer.get_or_insert_with(|| writer(engine));
        one.probe.consumers().add(writer, Installed { id, consumer: consumer.as_engine() });
        one.consumers.push((id, consumer));
        one.removed = false;
        (spot, id)
    }
    /// Takes consumers out, and what is patched for nobody any more; returns when no handler of them can still run.
    pub(super) fn unregister(&mut self, keys: Vec<Key>) -> Result<(), Error> {
        let engine = engine().ok_or(Error::NoEngine)?;
        let writer = self.writer.get_or_insert_with(|| writer(engine));
        let mut gone = Vec::with_capacity(keys.len());
        let mut touched = Vec::with_capacity(keys.len());
        for (spot, id) in keys {
            let one = &mut self.spots[spot as usize];
            one.probe.consumers().remove(writer, id);
            if let Some(at) = one.consumers.iter().position(|(known, _)| *known == id) {
                gone.push(one.consumers.remove(at));
            }
            if !one.is_wanted() {
                touched.push(spot);
            }
        }
        let result = self.own().map(drop).and_then(|()| self.release(&touched));
        if let (Some(own), Some(writer)) = (&self.own, &mut self.writer) {
            grace::wait(writer, own.process());
            // INS-2: only now.
            drop(gone);
            writer.sweep();
        } else {
            // INS-2, with nobody to tell when.
            gone.leak();
        }
        result
    }
    /// Takes out the groups of spots that nobody wants.
    fn release(&mut self, spots: &[u32]) -> Result<(), Error> {
        let of_spots = spots.iter().flat_map(|&spot| &self.spots[spot as usize].groups).copied();
        let mut groups: Vec<usize> = of_spots.filter(|&group| self.groups[group].live).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.retain(|&group| {
            self.groups[group].parts.iter().all(|p| !self.spots[p.spot as usize].is_wanted())
        });
        self.take_out(&groups)
    }
    fn take_out(&mut self, groups: &[usize]) -> Result<(), Error> {
        if groups.is_empty() {
            return Ok(());
        }
        let sites: Vec<OwnSite> = groups.iter().flat_map(|&g| self.groups[g].sites.iter().copied()).collect();
        groups.iter().for_each(|&group| self.groups[group].live = false);
        self.own()?.take_out(&sites)?;
        Ok(())
    }
    /// Our own process; in a forked child, opened anew.
    fn own(&mut self) -> Result<&mut Own, Error> {
        if self.own.is_none() {
            self.own = Some(Own::open()?);
        }
        // Just put there.
        let own = self.own.as_mut().ok_or(Error::NoEngine)?;
        if own.is_inherited() {
            own.disinherit()?;
        }
        Ok(own)
    }
    /// Patches what these spots need wherever their files are mapped. `strict`: a refusal of one is an error.
    fn settle(&mut self, spots: Vec<u32>, strict: bool) -> Result<usize, Error> {
        let maps = self.own()?.process().maps().map_err(trapline_patch::PatchError::from)?;
        let loads = self.loads(&maps)?;
        let mut found = self.revive(&spots, &loads)?;
        let mut wanted = Vec::new();
        let mut queue = spots;
        let mut seen: HashSet<u32> = queue.iter().copied().collect();
        while let Some(spot) = queue.pop() {
            let file = self.spots[spot as usize].file.id;
            for load in loads.get(&file).into_iter().flatten() {
                let Some((part, in_the_way)) = self.missing(spot, *load) else { continue };
                self.take_out(&in_the_way)?;
                let others = in_the_way.iter().flat_map(|&group| &self.groups[group].parts).map(|p| p.spot);
                queue.extend(others.filter(|&other| seen.insert(other)));
                wanted.push(self.wanted(part, *load));
            }
        }
        found += self.place(&maps, wanted, strict, true)?;
        Ok(found)
    }
    /// Puts back groups that were taken out and do what is needed now. How many sites.
    fn revive(&mut self, spots: &[u32], loads: &HashMap<FileId, Vec<Load>>) -> Result<usize, Error> {
        let mut groups: Vec<usize> = Vec::new();
        for &spot in spots {
            let one = &self.spots[spot as usize];
            let is_idle = |load: &Load| {
                !one.groups.iter().any(|&g| self.groups[g].live && self.groups[g].load == *load)
            };
            let fits = |load: &&Load| {
                let need = one.need(spot);
                let serves = |p: &Part| p.spot == spot && p.entry && p.returns == need.returns;
                let group = one.groups.iter().copied();
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
        if groups.is_empty() {
            return Ok(0);
        }
        let sites: Vec<OwnSite> = groups.iter().flat_map(|&g| self.groups[g].sites.iter().copied()).collect();
        let back = self.own()?.put_back(&sites)?;
        let (mut at, mut partly) = (0, Vec::new());
        for group in groups {
            let count = self.groups[group].sites.len();
            let of_group = at..at + count;
            at += count;
            if back[of_group.clone()].iter().all(|back| *back) {
                self.groups[group].live = true;
            } else {
                partly.extend(of_group.filter(|&n| back[n]).map(|n| sites[n]));
            }
        }
        if !partly.is_empty() {
            self.own()?.take_out(&partly)?;
        }
        Ok(back.into_iter().filter(|back| *back).count() - partly.len())
    }
    /// Lends our process and its files.
    pub(super) fn looking<T>(
        &mut self,
        look: impl FnOnce(&Process, &mut Files) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.own()?;
        let Some(own) = &self.own else { return Err(Error::NoEngine) };
        look(own.process(), &mut self.files)
    }
    /// Where our files are mapped as the kernel would probe them.
    fn loads(&mut self, maps: &[Mapping]) -> Result<HashMap<FileId, Vec<Load>>, Error> {
        let found = mapped(self.own()?.process(), maps);
        let found: Vec<_> = found.into_iter().filter(|one| self.of_file.contains(&one.id)).collect();
        let mut loads: HashMap<FileId, Vec<Load>> = HashMap::new();
        for one in found.into_iter().filter(|one| !one.mapping.perms.write && !one.mapping.perms.shared) {
            let Some(own) = &self.own else { continue };
            if let Ok(module) = one.open(own.process(), &mut self.files) {
                loads.entry(one.id).or_default().push(Load { file: one.id, bias: module.bias.0 });
            }
        }
        Ok(loads)
    }
    /// What a spot lacks at a load, and the groups that stand in the way of it.
    fn missing(&self, spot: u32, load: Load) -> Option<(Part, Vec<usize>)> {
        let one = &self.spots[spot as usize];
        if !one.is_wanted() {
            return None;
        }
        let need = one.need(spot);
        let is_here = |&group: &usize| self.groups[group].live && self.groups[group].load == load;
        let live: Vec<usize> = one.groups.iter().copied().filter(is_here).collect();
        let has = |which: fn(&Part) -> bool| {
            let mut parts = live.iter().flat_map(|&group| &self.groups[group].parts);
            parts.any(|part| part.spot == spot && which(part))
        };
        let (entry, returns) = (has(|part| part.entry), !need.returns || has(|part| part.returns));
        match (entry, returns) {
            (true, true) => None,
            (true, false) => Some((Part { entry: false, ..need }, Vec::new())),
            (false, _) => Some((need, live)),
        }
    }
    fn wanted(&self, part: Part, load: Load) -> Wanted {
        let spot = &self.spots[part.spot as usize];
        Wanted {
            load,
            part,
            file: spot.file.clone(),
            at: spot.at,
            function: spot.function,
            probe: spot.probe.address(),
            by_trap: spot.by_trap,
        }
    }
    /// Patches, and keeps what came of it. Where another patch of ours needs the same bytes, both are planned again, together.
    fn place(
        &mut self,
        maps: &[Mapping],
        wanted: Vec<Wanted>,
        strict: bool,
        again: bool,
    ) -> Result<usize, Error> {
        if wanted.is_empty() {
            return Ok(0);
        }
        let setting = self.setting(maps)?;
        let Placed { groups, refused } = place(self.own()?, &wanted, setting)?;
        let mut placed = groups.iter().map(|group| group.sites.len()).sum();
        for group in groups {
            let index = self.groups.len();
            for part in &group.parts {
                self.spots[part.spot as usize].groups.push(index);
            }
            self.groups.push(group);
        }
        let (held, refused): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(_, why)| again && matches!(why, Why::Held { .. }));
        if let Some((index, why)) = refused.first().filter(|_| strict) {
            return Err(self.spots[wanted[*index].part.spot as usize].refused(why));
        }
        if !held.is_empty() {
            let mut both: Vec<Wanted> = Vec::new();
            for (index, _) in held {
                both.extend(self.with_neighbours(&wanted[index])?);
            }
            let mut seen = HashSet::new();
            both.retain(|one| seen.insert((one.load, one.part.spot)));
            placed += self.place(maps, both, strict, false)?;
        }
        Ok(placed)
    }
    /// A wanted place with all that is patched close to it, which is taken out.
    fn with_neighbours(&mut self, wanted: &Wanted) -> Result<Vec<Wanted>, Error> {
        /// Windows and what displaces for them reach less far.
        const NEAR: u64 = 64;
        let bias = trapline_record::addr::Bias(wanted.load.bias);
        let function = wanted.function.map(|f| wanted.file.image.function(f));
        let (start, end) = function.map_or((wanted.at, wanted.at), |f| (f.start, f.end()));
        let (start, end) = (bias.live(start) - NEAR, bias.live(end) + NEAR);
        let near = |at: RemoteAddr| start <= at && at < end;
        let groups: Vec<usize> = (0..self.groups.len())
            .filter(|&g| {
                let group = &self.groups[g];
                group.live && group.load == wanted.load && group.sites.iter().any(|s| near(s.entry.addr))
            })
            .collect();
        self.take_out(&groups)?;
        let mut spots: Vec<u32> =
            groups.iter().flat_map(|&group| self.groups[group].parts.iter().map(|p| p.spot)).collect();
        spots.push(wanted.part.spot);
        spots.sort_unstable();
        spots.dedup();
        spots.retain(|&spot| self.spots[spot as usize].is_wanted());
        Ok(spots
            .into_iter()
            .map(|spot| self.wanted(self.spots[spot as usize].need(spot), wanted.load))
            .collect())
    }
    fn setting(&mut self, maps: &[Mapping]) -> Result<Setting, Error> {
        self.own()?;
        let Some(own) = &self.own else { return Err(Error::NoEngine) };
        let files = &mut self.files;
        let fatal =
            *self.faults_are_fatal.get_or_insert_with(|| faults::are_fatal(own.process(), maps, files));
        let state = trapline_target::ExtendedState::here().ok_or(Error::NoExtendedState)?;
        let state = ExtendedState { mask: state.mask, len: state.len };
        // The whole map of a file is made once, and serves any later site.
        Ok(Setting { state, faults_are_fatal: fatal, guarded: false })
    }
    /// Looks at what is mapped now.
    pub(super) fn rescan(&mut self) -> Result<usize, Error> {
        for spot in &mut self.spots {
            spot.removed |= spot.probe.take_removal() && !spot.consumers.is_empty();
        }
        let all: Vec<u32> = (0..self.spots.len() as u32).collect();
        let unwanted: Vec<u32> =
            all.iter().copied().filter(|&spot| !self.spots[spot as usize].is_wanted()).collect();
        self.release(&unwanted)?;
        self.own()?;
        if let Some(own) = &mut self.own {
            for group in self.groups.iter_mut().filter(|group| group.live) {
                if !own.holds(&group.sites) {
                    own.forget(&group.sites);
                    group.live = false;
                }
            }
        }
        self.settle(all, false)
    }
    pub(super) fn counts(&self, (spot, _): Key) -> Tally {
        self.spots[spot as usize].probe.counts()
    }
    pub(super) fn tactics(&self, (spot, _): Key) -> Vec<Tactic> {
        let groups = self.spots[spot as usize].groups.iter().map(|&group| &self.groups[group]);
        let entry = |group: &Group| group.parts.iter().any(|part| part.spot == spot && part.entry);
        let worst = |group: &Group| {
            group.sites.iter().filter(|site| site.role == PatchRole::Entry).map(|site| site.tactic).max()
        };
        groups.filter(|group| group.live && entry(group)).filter_map(worst).collect()
    }
}
