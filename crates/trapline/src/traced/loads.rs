//! Libraries that the process maps while it is traced: how long they ran before they were probed.
//!
//! In: mappings as the kernel reports them, with their times (`MapWatcher`); the maps as looks find them.
//! Out: which modules are newly mapped; for each file with probed places, how late they were probed
//! ([`Late`]). Does not: probe, or hold anything up.
//!
//! # Steps
//!
//! | step | by | what |
//! |---|---|---|
//! | K | the kernel | makes the mapping, and writes its record, with the time, before `mmap` returns |
//! | M | [`reads`](Loads::reads), `look` | notes the time, and reads the maps |
//! | H | [`read_records`](Loads::read_records) | takes all records out of the rings |
//! | A | `look` | notes the time, and probes what is new there |
//! | N | [`looked`](Loads::looked) | the time since K is how long calls were not seen |
//! | R | [`came_to_rendezvous`](Loads::came_to_rendezvous) | the thread that loads waited for A: none was missed |
//!
//! Interleavings:
//!
//! - *K before M*: the maps show the mapping and H takes its record, so N is exact.
//! - *K between M's time and the reading of the maps*: the same. Its record is younger than M's time. N drops
//!   it, since its module was looked at and A began later.
//! - *K after the maps were read, before A, at a new place*: no look has seen the mapping, and the record
//!   stays for the next one.
//! - *K after the maps were read, before A, in the place of a module that M saw and A probes* (unmapped and
//!   mapped anew): A patches what is there now, which is the new module. The old one counts as passed.
//! - *The same in the place of a module that was probed before this look*: A does not touch it. The record
//!   stays, and the next look takes the module for a new one. So it is in a look that has no A. Our own
//!   mappings cause such looks, directly after each A.
//! - *K after A began*: the record stays, and the next look takes the module for a new one.
//! - *Unmapped before M*: no look finds the module. Its record is older than M's time, or a record of the
//!   same place follows it, so it is reported as one that passed.
//! - *Mapped by other code than the loader*: no thread comes to the rendezvous, so it counts as late after
//!   [`HELD`]. If another thread loads a library meanwhile, it does not. Stated, not solved.
//! - *The kernel drops records, or gives none*: N reports "at most" the time since the look before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use trapline_tracee::perf::monotonic_ns;
use trapline_tracee::{Family, FileId, MapWatcher, Mapping};

use crate::choose::Matched;
use crate::modules::{Mapped, Module, is_short_name};
use crate::report::Late;
use crate::session_request::SessionRequest;
use crate::sites::NamedSite;

/// Time after which a file counts as late whose loader did not come to its rendezvous.
const HELD: Duration = Duration::from_secs(1);

/// One mapping of a file: the file, and its start address.
type Load = (FileId, u64);

/// Mappings of a process.
#[derive(Debug, Default)]
pub(super) struct Loads {
    watcher: Option<MapWatcher>,
    /// What was looked at.
    looked_at: LookedAt,
    /// Reported and not looked at yet: time in nanoseconds, and path.
    reported: HashMap<Load, (u64, String)>,
    /// Paths of modules that another mapping replaced in their place before any look.
    replaced: Vec<String>,
    /// Times of the last reading of the maps, and of the one before: the older one first.
    read_ns: [u64; 2],
    /// What the last A probed.
    last: LastProbed,
    /// The process runs another program. The kernel reports the exec before it maps the new program, so H
    /// knows when the maps belong to that.
    executed: bool,
    /// Time at which A ended first. A process that was forked before that has none of the patches.
    patched: Option<u64>,
    /// Number of processes forked since then; of these, those that have not run another program.
    forked: u64,
    kin: HashSet<u32>,
    late: BTreeMap<String, Late>,
    /// The session is over.
    ended: bool,
    /// When threads began to wait at the loader's rendezvous, if they do.
    held: Option<u64>,
    /// Files that were probed since a thread stood there.
    recent: Vec<Recent>,
}

/// A file that was probed, perhaps before its first call.
#[derive(Debug)]
struct Recent {
    path: String,
    /// From the mapping until it was probed.
    since: Duration,
    is_exact: bool,
    probed: Instant,
}

impl Recent {
    fn note(&self, late: &mut BTreeMap<String, Late>) {
        let late = entry(late, &self.path);
        late.loads += 1;
        late.exact &= self.is_exact;
        late.longest = late.longest.max(self.since);
    }
}

/// The last look that probed something.
#[derive(Debug, Default)]
struct LastProbed {
    /// Time at which A began, in nanoseconds.
    began: u64,
    /// Loads that were new to it. It probed what stood in these places after `began`.
    loads: HashSet<Load>,
}

impl LastProbed {
    /// Whether A probed the mapping that was made at `time_ns`.
    fn has(&self, load: &Load, time_ns: u64) -> bool {
        time_ns < self.began && self.loads.contains(load)
    }
}

/// What looks have found so far.
#[derive(Debug, Default)]
pub(super) struct LookedAt {
    /// Loads of modules that were looked at.
    loads: HashSet<Load>,
    /// Those of them that were new to the last look.
    fresh: HashSet<Load>,
    /// Specifications that found something.
    matched: Matched,
}

impl Loads {
    /// Without the right to watch mappings, the maps are polled, and a library that is reloaded between two
    /// looks is missed.
    pub(super) fn new(pid: u32) -> Self {
        Self { watcher: MapWatcher::new(pid).ok(), ..Self::default() }
    }
    /// Descriptors that become readable when something was mapped.
    pub(super) fn descriptors(&self) -> Vec<i32> {
        self.watcher.as_ref().map(MapWatcher::descriptors).unwrap_or_default()
    }
    /// H: takes the kernel's records. Returns whether the process itself has mapped a file that was not
    /// looked at.
    pub(super) fn read_records(&mut self, pid: u32) -> bool {
        if let Some(watcher) = &mut self.watcher {
            // Programs that compile at run time map anonymous memory all the time.
            let own = watcher.poll().into_iter().filter(|new| new.pid == pid && new.file.inode != 0);
            for new in own {
                if self.last.has(&(new.file, new.start.0), new.time_ns) {
                    // A patched this one; the module that the look saw was unmapped by then.
                    self.replaced.push(new.path);
                    continue;
                }
                let before = self.reported.insert((new.file, new.start.0), (new.time_ns, new.path));
                self.replaced.extend(before.map(|(_, path)| path));
            }
        }
        self.read_family(pid);
        !self.reported.is_empty()
    }
    fn read_family(&mut self, own: u32) {
        let family = self.watcher.as_mut().map(MapWatcher::take_family).unwrap_or_default();
        self.executed |= family.iter().any(|one| matches!(one, Family::Exec { pid, .. } if *pid == own));
        let Some(patched) = self.patched else { return };
        for one in family.into_iter().filter(|one| one.time_ns() > patched) {
            match one {
                Family::Born { pid, parent, .. } if parent == own || self.kin.contains(&parent) => {
                    self.forked += 1;
                    self.kin.insert(pid);
                }
                Family::Born { .. } => {}
                Family::Exec { pid, .. } => drop(self.kin.remove(&pid)),
            }
        }
    }
    /// Whether the process runs another program than when this was made.
    pub(super) const fn executed(&self) -> bool {
        self.executed
    }
    /// Notes that there are patches now, which children inherit; and whether threads wait at the loader's rendezvous.
    pub(super) fn patched(&mut self, holds_loads: bool) {
        self.patched.get_or_insert_with(monotonic_ns);
        if holds_loads {
            self.held.get_or_insert_with(monotonic_ns);
        }
    }
    /// Number of processes that this one and its descendants forked since there are patches; `None` when the
    /// kernel does not report forks.
    pub(super) fn forked(&self) -> Option<u64> {
        self.watcher.as_ref().map(|_| self.forked)
    }
    /// M: the maps are about to be read.
    pub(super) fn reads(&mut self) {
        self.read_ns = [self.read_ns[1], monotonic_ns()];
    }
    /// Forgets loads that the maps no longer show as they were looked at: unmapped, or mapped anew. Of loads
    /// that were reported and are unmapped, those of files that a probe names count as passed.
    pub(super) fn forget_unmapped(&mut self, maps: &[Mapping], requested: &SessionRequest) {
        let there: HashSet<Load> = maps.iter().filter_map(|m| Some((m.file?, m.start.0))).collect();
        let reported = &self.reported;
        self.looked_at.loads.retain(|load| there.contains(load) && !reported.contains_key(load));
        let read_ns = self.read_ns[1];
        self.note_replaced(requested);
        let late = &mut self.late;
        self.reported.retain(|load, (time_ns, path)| {
            if there.contains(load) || *time_ns > read_ns {
                return true;
            }
            if named(requested, path) {
                entry(late, path).passed += 1;
            }
            false
        });
    }
    /// N: the file of a load is probed, or was unmapped before that. Only for loads after the first look;
    /// what was there then is not late.
    fn probed(&mut self, path: &str, load: Load, gone: bool) {
        let reported = self.reported.get(&load).map(|reported| reported.0);
        let since = monotonic_ns().saturating_sub(reported.unwrap_or(self.read_ns[0]));
        if gone {
            entry(&mut self.late, path).passed += 1;
            return;
        }
        let (path, since) = (path.to_owned(), Duration::from_nanos(since));
        let one = Recent { path, since, is_exact: reported.is_some(), probed: Instant::now() };
        let mapped = reported.unwrap_or(self.read_ns[0]);
        if self.held.is_some_and(|held| held < mapped) {
            self.recent.push(one);
        } else {
            one.note(&mut self.late);
        }
    }
    /// R: a thread that has loaded libraries stood at its loader's rendezvous when the last look began.
    pub(super) fn came_to_rendezvous(&mut self, in_time: bool) {
        let recent = std::mem::take(&mut self.recent);
        if !in_time {
            recent.iter().for_each(|one| one.note(&mut self.late));
        }
    }
    /// N: forgets records that are dealt with. `began`: when A began; `None` if nothing was to be probed.
    pub(super) fn looked(&mut self, began: Option<u64>) {
        let read_ns = self.read_ns[1];
        let fresh = std::mem::take(&mut self.looked_at.fresh);
        if let Some(began) = began {
            self.last = LastProbed { began, loads: fresh };
        }
        let last = &self.last;
        self.reported.retain(|load, (time_ns, _)| *time_ns > read_ns && !last.has(load, *time_ns));
    }
    /// Whether no look has found a module yet.
    pub(super) fn is_first_look(&self) -> bool {
        self.looked_at.loads.is_empty()
    }
    /// Those of the modules that were not looked at; from now on they were.
    pub(super) fn take_fresh(&mut self, mapped: Vec<Mapped>) -> Vec<Mapped> {
        let load = |one: &Mapped| (one.id, one.mapping.start.0);
        let fresh: Vec<Mapped> =
            mapped.into_iter().filter(|one| self.looked_at.loads.insert(load(one))).collect();
        self.looked_at.fresh = fresh.iter().map(load).collect();
        fresh
    }
    /// Specifications that found something.
    pub(super) const fn matched(&mut self) -> &mut Matched {
        &mut self.looked_at.matched
    }
    /// Forgets what was looked at, so that the next look finds all of it again.
    pub(super) fn forget_looks(&mut self) -> LookedAt {
        std::mem::take(&mut self.looked_at)
    }
    /// Adds what was looked at before.
    pub(super) fn restore_looks(&mut self, before: LookedAt) {
        self.looked_at.loads.extend(before.loads);
        self.looked_at.matched.extend(before.matched);
    }
    /// N: notes how late the files of these places were probed. `gone` holds the modules, by index, of which
    /// places are unmapped.
    pub(super) fn note_late(
        &mut self,
        modules: &[Module],
        places: &[NamedSite],
        fresh: &[Mapped],
        gone: &HashSet<usize>,
    ) {
        let probed = places.iter().filter(|place| !place.is_for_us());
        let found: HashSet<usize> = probed.map(|place| place.module).collect();
        for index in found {
            let module = &modules[index];
            let place = |one: &&Mapped| one.id == module.file.id && module.is_at(&one.mapping);
            let load = fresh.iter().find(place).map(|one| (one.id, one.mapping.start.0));
            load.into_iter().for_each(|load| self.probed(&module.called, load, gone.contains(&index)));
        }
    }
    /// The session's end: what was reported since the last look is never probed.
    pub(super) fn end(&mut self, requested: &SessionRequest) {
        self.ended = true;
        self.replaced.extend(self.reported.drain().map(|(_, (_, path))| path));
        self.note_replaced(requested);
    }
    fn note_replaced(&mut self, requested: &SessionRequest) {
        for path in self.replaced.drain(..).filter(|path| named(requested, path)) {
            entry(&mut self.late, &path).passed += 1;
        }
    }
    /// Files that were probed late. One that was probed a moment ago may still be held at the rendezvous.
    pub(super) fn late(&self) -> Vec<Late> {
        let mut late = self.late.clone();
        let passed = self.recent.iter().filter(|one| self.ended || one.probed.elapsed() > HELD);
        passed.for_each(|one| one.note(&mut late));
        late.into_values().collect()
    }
}

fn entry<'a>(late: &'a mut BTreeMap<String, Late>, path: &str) -> &'a mut Late {
    let new = || Late { file: path.to_owned(), loads: 0, longest: Duration::ZERO, exact: true, passed: 0 };
    late.entry(path.to_owned()).or_insert_with(new)
}

/// Whether a probe names the file. A probe that names no file does not count, since it may mean any.
fn named(requested: &SessionRequest, path: &str) -> bool {
    let means = |file: &str| if file.contains('/') { path == file } else { is_short_name(path, file) };
    requested.specs.iter().filter_map(|spec| spec.file.as_deref()).any(means)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads() -> (Loads, Load) {
        let load = (FileId { dev: 1, inode: 2 }, 0x1000);
        let mut loads = Loads { read_ns: [100, 200], held: Some(50), ..Loads::default() };
        loads.reported.insert(load, (150, "/lib/libp.so".to_owned()));
        (loads, load)
    }

    #[test]
    fn what_was_reported_is_exact_and_else_the_time_since_the_look_before() {
        let (mut known, load) = loads();
        known.probed("/lib/libp.so", load, false);
        known.looked_at.fresh = HashSet::from([load]);
        known.looked(Some(250));
        assert!(known.late().is_empty(), "its loader may still hold it");
        known.came_to_rendezvous(false);
        assert!(known.late()[0].exact && known.reported.is_empty());
        let (mut unregistered, _) = loads();
        unregistered.reported.clear();
        unregistered.probed("/lib/libp.so", load, false);
        unregistered.ended = true;
        let late = &unregistered.late()[0];
        assert!(!late.exact && late.longest > Duration::from_nanos(100), "{late:?}");
        assert!(late.lines(7)[0].contains(" was mapped at most "), "{late:?}");
    }

    #[test]
    fn what_is_mapped_behind_the_maps_waits_for_the_next_look_unless_it_is_patched_already() {
        let (mut known, load) = loads();
        for (reported, fresh, waits) in
            [(201, false, true), (201, true, false), (251, true, true), (199, false, false)]
        {
            known.reported.insert(load, (reported, "/lib/libp.so".to_owned()));
            known.looked_at.loads = HashSet::from([load]);
            known.looked_at.fresh = fresh.then_some(load).into_iter().collect();
            known.looked(Some(250));
            assert_eq!(known.reported.contains_key(&load), waits, "{reported} {fresh}");
        }
    }

    /// The module is mapped anew while a look goes on that does not probe it: it was probed before, or the look
    /// found nothing to probe in it.
    #[test]
    fn a_look_that_does_not_probe_a_module_leaves_its_record() {
        for (began, fresh) in [(Some(250), false), (None, false), (None, true)] {
            let (mut known, load) = loads();
            known.reported.insert(load, (240, "/lib/libp.so".to_owned()));
            known.looked_at.loads = HashSet::from([load]);
            known.looked_at.fresh = fresh.then_some(load).into_iter().collect();
            known.looked(began);
            assert!(!known.last.has(&load, 240) && known.reported.contains_key(&load), "{began:?} {fresh}");
        }
    }
}
