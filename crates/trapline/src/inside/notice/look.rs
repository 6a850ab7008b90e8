//! A look: what changed since the last one, and the sites in it patched. T4 and T5 of the protocol in
//! [`notice`](super).
//!
//! In: records, and the maps. Out: groups dropped and placed. Does not: decide when.

use std::collections::HashSet;

use trapline_record::{FileId, RemoteAddr};
use trapline_tracee::Mapping;

use super::super::Error;
use super::super::mapped_files::Changed;
use super::super::memory;
use super::super::state::State;
use super::super::traps;
use super::NO_FILE;

impl State {
    /// T4 and T5. Returns whether there was anything to be found.
    pub(super) fn update(&mut self, asked: bool, missed: bool) -> bool {
        self.noticing.drain();
        if self.unwinders.loading {
            // If an unwinder cannot be told yet, return trampolines stay closed.
            drop(self.register_trampolines());
        }
        // Anonymous code, which compilers at run time make all the time, matters only where a file's code
        // was.
        let known = &self.known;
        self.noticing.pending.retain(|one| one.file != NO_FILE || known.overlaps(one.start, one.end));
        if self.noticing.pending.is_empty() && !self.noticing.lost && !asked && !missed {
            self.noticing.records.clear();
            return false;
        }
        (self.noticing.looking, self.noticing.asked) = (true, asked);
        let found = self.look();
        self.noticing.tally.failed += u64::from(found.is_err());
        (self.noticing.looking, self.noticing.asked) = (false, false);
        self.noticing.looked();
        found.unwrap_or(true)
    }
    /// Returns whether anything had changed.
    fn look(&mut self) -> Result<bool, Error> {
        // A look at everything takes note of it.
        if self.noticing.lost {
            return self.rescan().map(|_| true);
        }
        let maps = self.maps()?;
        self.follow(&maps)?;
        let changed = std::mem::take(&mut self.noticing.pending);
        self.let_go(|at| changed.iter().any(|one| one.start <= at && at < one.end))?;
        let files: HashSet<FileId> = changed.iter().map(|one| one.file).collect();
        let is_touched =
            |probed_site: &u32| files.contains(&self.probed_sites[*probed_site as usize].file.id);
        let probed_sites: Vec<u32> = (0..self.probed_sites.len() as u32).filter(is_touched).collect();
        if probed_sites.is_empty() {
            // The loader may have mapped data since its code was looked at.
            self.count_semaphores(&maps)?;
        } else {
            self.settle(probed_sites, false)?;
        }
        Ok(!changed.is_empty())
    }
    pub(in crate::inside) fn maps(&mut self) -> Result<Vec<Mapping>, Error> {
        Ok(self.own()?.process().maps().map_err(trapline_patch::PatchError::from)?)
    }
    /// Makes these maps visible to readers of regions; what changed waits for the next look at it.
    pub(in crate::inside) fn follow(&mut self, maps: &[Mapping]) -> Result<(), Error> {
        let engine = memory::engine().ok_or(Error::NoEngine)?;
        let writer = self.writer.get_or_insert_with(|| memory::writer(engine));
        let changed: Vec<Changed> = self.known.follow(writer, maps);
        if !changed.is_empty() || self.unwinders.loading {
            // If an unwinder cannot be told, return trampolines are closed.
            drop(self.register_trampolines());
        }
        if !changed.is_empty()
            && let (Some(sites), Some(map)) = (traps::sites(), self.known.map())
        {
            sites.refresh(map);
        }
        self.noticing.pending.extend(changed);
        Ok(())
    }
    /// Drops groups that have a site where the mapping may have changed, if their code is not there any more.
    pub(in crate::inside) fn let_go(
        &mut self,
        may_have_changed: impl Fn(RemoteAddr) -> bool,
    ) -> Result<(), Error> {
        self.own()?;
        let Some(own) = &mut self.own else { return Ok(()) };
        let mut gone = Vec::new();
        for (index, group) in self.groups.iter_mut().enumerate().filter(|(_, group)| group.live) {
            let is_touched = group.sites.iter().any(|site| may_have_changed(site.entry.addr));
            if is_touched && !own.holds(&group.sites) {
                own.forget(&group.sites);
                group.traps.iter().for_each(traps::EngineTrap::take_out);
                group.live = false;
                self.noticing.is_another(&group.load);
                gone.push(index);
            }
        }
        gone.into_iter().for_each(|group| self.forget_semaphores(group));
        Ok(())
    }
}
