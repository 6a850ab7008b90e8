//! USDT semaphores: words of the program's own data that are not 0 while a USDT probe is in use.
//!
//! In: sites with a semaphore, the groups that are in place, the maps. Out: each word incremented once for
//! each site and mapping where the site is active, and decremented again. Invariants: SEM-1 a word is raised
//! at most once for a site and mapping, and lowered only if it was raised. SEM-2 a word is written only where
//! the maps show the file's private writable mapping of that very offset. Does not: place probes.
//!
//! # Delayed until the data is mapped
//!
//! A loader maps code and data one after the other, so a site may be active before its word is there. Then
//! the word is *delayed* until a look finds the data mapped (as with the kernel's uprobes,
//! `delayed_uprobe_list`). Records of data mappings cost a wake-up for each `mmap` of any kind, so the kernel
//! is asked for them only while something is delayed.
//!
//! | between | what could go wrong | what happens |
//! |---|---|---|
//! | code placed, data not mapped yet | raised in what the loader has there for now | the maps show no |
//! | | | writable mapping of that offset: delayed |
//! | the maps read, the word written | the data is unmapped: no word | the write fails, and is delayed. |
//! | | | Mapped anew: the word is 0 again |
//! | two looks | the library was unloaded and loaded | a word that is 0 though it was raised is raised again; |
//! | | at the same place: the word is fresh | groups that were let go of are not lowered |
//! | the records taken, the maps read | the same, and no record has shown it yet: | only a group with the patch |
//! | | the maps look as before, | in its sites is counted; the fresh mapping |
//! | | and the group seems to be in place | is counted when a record shows it, once |
//! | data records asked for, after the maps were read | the mapping came between | the maps are read once more |

use std::collections::{BTreeMap, BTreeSet};

use trapline_patch::PatchError;
use trapline_record::RemoteAddr;
use trapline_tracee::Mapping;

use super::Error;
use super::group::Group;
use super::patcher::Patcher;
use super::registry::Registry;

/// All semaphores in use.
#[derive(Debug, Default)]
pub(super) struct Semaphores {
    /// Sites that have one.
    probed_sites: BTreeSet<u32>,
    /// Raised words, by site and address.
    raised: BTreeSet<(u32, RemoteAddr)>,
    delayed: usize,
}

impl Semaphores {
    pub(super) fn add(&mut self, probed_site: u32) {
        self.probed_sites.insert(probed_site);
    }
    pub(super) fn is_empty(&self) -> bool {
        self.probed_sites.is_empty()
    }
    /// Whether any word is delayed.
    pub(super) const fn are_delayed(&self) -> bool {
        self.delayed > 0
    }
    /// Raises and lowers what these maps require.
    pub(super) fn count(
        &mut self,
        registry: &Registry,
        patcher: &mut Patcher,
        maps: &[Mapping],
    ) -> Result<(), Error> {
        let wanted = self.wanted(registry, patcher.groups());
        patcher.own()?;
        let (Some(own), groups) = (patcher.opened(), patcher.groups()) else { return Ok(()) };
        let mapped = |one: &(u32, RemoteAddr)| is_mapped(registry, maps, *one);
        let over = self.raised.iter().filter(|one| !wanted.contains_key(one));
        for one in over.copied().collect::<Vec<_>>() {
            self.raised.remove(&one);
            if mapped(&one) {
                own.lower(one.1).map_err(PatchError::from)?;
            }
        }
        let mut delayed = 0;
        for (one, by) in wanted {
            let is_raised = self.raised.contains(&one);
            let is_due = || !is_raised || own.semaphore(one.1).is_ok_and(|word| word == 0);
            let is_there = || by.iter().any(|&group| own.holds(&groups[group].sites));
            if !mapped(&one) {
                delayed += 1;
            } else if is_due() && is_there() {
                match own.raise(one.1) {
                    Ok(_) => drop(self.raised.insert(one)),
                    Err(_) => delayed += 1,
                }
            }
        }
        self.delayed = delayed;
        Ok(())
    }
    /// For each site in each mapping where it is active, the groups that make it so.
    fn wanted(&self, registry: &Registry, groups: &[Group]) -> BTreeMap<(u32, RemoteAddr), Vec<usize>> {
        let mut wanted: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for &number in &self.probed_sites {
            let probed_site = &registry[number];
            let Some(semaphore) = probed_site.semaphore().filter(|_| probed_site.is_wanted()) else {
                continue;
            };
            for &index in probed_site.groups() {
                let group = &groups[index];
                if group.live && group.parts.iter().any(|part| part.probed_site == number && part.entry) {
                    wanted.entry((number, semaphore.live(group.load))).or_default().push(index);
                }
            }
        }
        wanted
    }
    /// Forgets the words of a group after its mapping is gone.
    pub(super) fn forget(&mut self, registry: &Registry, group: &Group) {
        for part in &group.parts {
            if let Some(semaphore) = registry[part.probed_site].semaphore() {
                self.raised.remove(&(part.probed_site, semaphore.live(group.load)));
            }
        }
    }
}

/// SEM-2: whether the word of a site's semaphore is at this address, in the file's private writable mapping.
fn is_mapped(registry: &Registry, maps: &[Mapping], (probed_site, at): (u32, RemoteAddr)) -> bool {
    let probed_site = &registry[probed_site];
    let offset = |m: &Mapping| m.offset + (at - m.start);
    maps.iter().any(|m| {
        let is_data = m.perms.write && !m.perms.shared && m.file == Some(probed_site.file().id);
        is_data && m.contains(at) && probed_site.semaphore().is_some_and(|one| one.offset == offset(m))
    })
}
