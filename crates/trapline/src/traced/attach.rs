//! Patching the places that were chosen, and taking all patches out.
//!
//! In: places in modules. Out: tracked sites, each with where its hits are counted, and refusals. Places that no jump
//! reaches go to the kernel's probes. Does not: decide how a place is reached; `trapline_patch` does.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use trapline_patch::Options;
use trapline_plan::{KernelSite, Role};
use trapline_record::RemoteAddr;
use trapline_target::kernel::UprobeMulti;
use trapline_target::{Process, TargetError};

use super::{Source, Traced, Tracked, Wishes};
use crate::error::Error;
use crate::modules::Module;
use crate::question::{Question, kernel_cannot_time, refusals, tactics};
use crate::report::{Ended, Refused, Site, Tactic};
use crate::sites::Place;

impl Traced {
    /// Whether guard traps can be served: the program's runtime leaves them to us, and no thread blocks them now.
    pub(crate) fn is_guarded(&self, modules: &[Module]) -> bool {
        const SIGTRAP: u64 = 1 << 4;
        let is_go = modules.iter().any(|module| module.is_program && module.file.image.is_go());
        let blocks = |tid| self.process.thread_status(tid).is_ok_and(|status| status.blocked & SIGTRAP != 0);
        !is_go && self.process.threads().is_ok_and(|threads| !threads.into_iter().any(blocks))
    }
    pub(super) fn attach(
        &mut self,
        wishes: &Wishes,
        modules: &[Module],
        places: &[Place],
        refused: &mut Vec<Refused>,
    ) -> Result<(), Error> {
        self.steps = wishes.steps;
        let start = Instant::now();
        let question = Question::new(modules, places, self.is_guarded(modules));
        let report = self.attached.add(&self.process, &question.request(&question.asked(), wishes))?;
        self.costs.attach += start.elapsed();
        let tactics = tactics(&report);
        let segment = self.attached.segments().len().saturating_sub(1);
        for (probe, place) in (0u32..).zip(places) {
            if let Some(&tactic) = tactics.get(&probe) {
                let latency = (place.role == Role::Latency).then_some(probe);
                self.track(modules, place, tactic, Source::Counter { segment, index: probe, latency });
            }
        }
        refused.extend(refusals(&report, places).into_iter().map(|(_, refused)| refused));
        let start = Instant::now();
        self.attach_kernel(modules, places, &report.kernel, refused);
        self.costs.attach += start.elapsed();
        if report.placed.is_empty() && !report.kernel.is_empty() {
            for (module, semaphore) in question.semaphores() {
                self.raise(module.bias.live(semaphore));
            }
        }
        self.costs.add(&report.batch);
        Ok(())
    }
    /// Places that no jump reaches: one link for each file and kind.
    fn attach_kernel(
        &mut self,
        modules: &[Module],
        places: &[Place],
        sites: &[(u32, KernelSite)],
        refused: &mut Vec<Refused>,
    ) {
        let mut groups: HashMap<(usize, bool), Vec<&Place>> = HashMap::new();
        for place in sites.iter().filter_map(|(_, site)| places.get(site.probe as usize)) {
            match place.role {
                Role::Latency => refused.push(kernel_cannot_time(place)),
                role => groups.entry((place.module, role == Role::CountExits)).or_default().push(place),
            }
        }
        for ((module, returns), places) in groups {
            let path = format!("/proc/{}/root{}", self.process.pid(), modules[module].file.path);
            let offsets: Vec<u64> = places.iter().map(|place| place.offset.0).collect();
            match UprobeMulti::attach(Path::new(&path), &offsets, Some(self.process.pid()), returns) {
                Ok(link) => {
                    self.links.push(link);
                    let link = self.links.len() - 1;
                    for (nth, place) in places.into_iter().enumerate() {
                        self.track(modules, place, Tactic::Kernel, Source::Kernel { link, nth });
                    }
                }
                Err(error) => refused.extend(places.into_iter().map(|place| Refused {
                    probe: place.probe.clone(),
                    kind: "kernel-uprobe",
                    reason: format!("no jump fits, and {error}"),
                })),
            }
        }
    }
    fn raise(&mut self, at: RemoteAddr) {
        match add_to_word(&self.process, at, 1) {
            Ok(()) => self.raised.push(at),
            Err(error) => self.notices.push(format!("a marker's semaphore was not raised: {error}")),
        }
    }
    fn track(&mut self, modules: &[Module], place: &Place, tactic: Tactic, source: Source) {
        let file = &modules[place.module].file;
        let key = (file.id, place.offset, place.role == Role::CountExits);
        if let Some(&known) = self.keys.get(&key) {
            self.sites[known].sources.push(source);
            return;
        }
        let site = Site {
            probe: place.probe.clone(),
            aliases: place.aliases.clone(),
            file: file.path.clone(),
            offset: place.offset.0,
            label: place.label.clone(),
            tactic,
        };
        self.keys.insert(key, self.sites.len());
        self.sites.push(Tracked {
            site: Arc::new(site),
            sources: vec![source],
            last: 0,
            parts: HashMap::new(),
        });
    }
    /// Takes all patches out. Counts can still be read.
    pub(crate) fn detach(&mut self, options: &Options) {
        for at in self.raised.drain(..) {
            // If the process is gone, so is the semaphore.
            drop(add_to_word(&self.process, at, u16::MAX));
        }
        if std::mem::replace(&mut self.detached, true) || self.attached.segments().is_empty() {
            return;
        }
        let start = Instant::now();
        if self.ended == Some(Ended::Exec) {
            return;
        }
        let report = self.attached.detach(&self.process, options);
        if report.gone {
            self.end(Ended::Exited);
        }
        for restored in &report.restored {
            if restored.pid != self.process.pid() {
                self.children.insert(restored.pid);
            }
            self.costs.add(&restored.batch);
            self.costs.left_mapped += restored.stays_mapped;
            let foreign = restored.left.iter().filter(|left| left.found.is_some());
            self.costs.foreign_sites += foreign.count() as u64;
        }
        for untouched in &report.untouched {
            let (pid, why) = (untouched.pid, &untouched.why);
            self.notices
                .push(format!("could not detach from process {pid}: {why}; try: trapline detach -p {pid}"));
        }
        self.costs.detach = start.elapsed();
    }
}

/// Adds to a `u16` of a process, wrapping.
fn add_to_word(process: &Process, at: RemoteAddr, by: u16) -> Result<(), TargetError> {
    let mut bytes = [0; 2];
    process.read(at, &mut bytes)?;
    process.write_text(at, &u16::from_le_bytes(bytes).wrapping_add(by).to_le_bytes())
}
