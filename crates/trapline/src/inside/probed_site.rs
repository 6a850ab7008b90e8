//! A site with its consumers, and what its stubs must do for them.
//!
//! In: consumers. Out: what is needed at the site ([`StubAction`]). Does not: register, or patch.

use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;
use trapline_patch::Why;
use trapline_runtime::consumer::ConsumerId;
use trapline_runtime::probe::Probe;

use super::check::CheckedSite;
use super::semaphore::Semaphore;
use super::site_request::{Load, SiteRequest, StubAction};
use super::{Consumer, Error, Request, Returns};
use crate::files::ModuleFile;
use crate::why::kind_of;

/// A site, with the consumers that are called there.
#[derive(Debug)]
pub(super) struct ProbedSite {
    path: Arc<Path>,
    file: Arc<ModuleFile>,
    site: CheckedSite,
    by_trap: bool,
    semaphore: Option<Semaphore>,
    probe: &'static Probe,
    consumers: SmallVec<[(ConsumerId, Box<Consumer>); 1]>,
    /// Indices of groups that have a part of this site.
    groups: SmallVec<[usize; 2]>,
    /// Every consumer has asked for removal.
    removed: bool,
    /// Returns are seen by return trampolines.
    armed: bool,
}

impl ProbedSite {
    /// A site without consumers.
    pub(super) fn new(
        (path, file): (&Arc<Path>, &Arc<ModuleFile>),
        site: CheckedSite,
        (by_trap, semaphore): (bool, Option<Semaphore>),
        probe: &'static Probe,
    ) -> Self {
        let (path, file) = (path.clone(), file.clone());
        let (consumers, groups, removed, armed) = (SmallVec::new(), SmallVec::new(), false, false);
        Self { path, file, site, by_trap, semaphore, probe, consumers, groups, removed, armed }
    }
    pub(super) const fn file(&self) -> &Arc<ModuleFile> {
        &self.file
    }
    /// Where it is in the file.
    pub(super) const fn site(&self) -> CheckedSite {
        self.site
    }
    pub(super) const fn probe(&self) -> &'static Probe {
        self.probe
    }
    pub(super) const fn semaphore(&self) -> Option<Semaphore> {
        self.semaphore
    }
    /// Indices of groups that have a part of this site, the latest last.
    pub(super) fn groups(&self) -> &[usize] {
        &self.groups
    }
    pub(super) const fn is_armed(&self) -> bool {
        self.armed
    }
    pub(super) fn is_wanted(&self) -> bool {
        !self.consumers.is_empty() && !self.removed
    }
    /// Takes what another request for the site asks of it. Returns whether its semaphore is another one now.
    pub(super) fn requested_again(&mut self, by_trap: bool, semaphore: Option<Semaphore>) -> bool {
        let is_another = self.consumers.is_empty() && self.semaphore != semaphore;
        if is_another {
            self.semaphore = semaphore;
        }
        self.by_trap |= by_trap && self.groups.is_empty();
        is_another
    }
    /// Forgets what requests asked of a site at which nothing was registered after all.
    pub(super) fn forget_requests(&mut self) {
        if self.consumers.is_empty() && self.groups.is_empty() {
            self.by_trap = false;
        }
    }
    pub(super) fn add(&mut self, id: ConsumerId, consumer: Box<Consumer>) {
        self.consumers.push((id, consumer));
        self.removed = false;
    }
    pub(super) fn remove(&mut self, id: ConsumerId) -> Option<(ConsumerId, Box<Consumer>)> {
        let at = self.consumers.iter().position(|(known, _)| *known == id)?;
        Some(self.consumers.remove(at))
    }
    /// Notes whether every consumer has asked for removal since.
    pub(super) fn take_removal(&mut self) {
        self.removed |= self.probe.take_removal() && !self.consumers.is_empty();
    }
    /// A group has a part of this site.
    pub(super) fn is_part_of(&mut self, group: usize) {
        self.groups.push(group);
    }
    /// Sets whether returns are to be seen by return trampolines.
    pub(super) const fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
    }
    /// Whether any consumer waits for returns.
    pub(super) fn waits(&self) -> bool {
        self.any(Consumer::has_return)
    }
    /// Whether a consumer leaves it to the engine how returns are seen.
    pub(super) fn leaves_form(&self) -> bool {
        self.any(|consumer| consumer.form() == Some(Returns::Auto))
    }
    /// How returns are seen.
    pub(super) fn form(&self) -> Option<Returns> {
        self.waits().then_some(if self.armed { Returns::Stack } else { Returns::Exits })
    }
    fn any(&self, which: impl Fn(&Consumer) -> bool) -> bool {
        self.consumers.iter().any(|(_, consumer)| which(consumer))
    }
    /// What its stubs must do. `probed_site`: its own number.
    pub(super) fn need(&self, probed_site: u32) -> StubAction {
        StubAction {
            probed_site,
            entry: true,
            returns: self.waits() && !self.armed,
            armed: self.armed,
            saves: self.any(Consumer::saves_state),
            only_returns: !self.any(Consumer::has_entry),
            entry_traps: self.by_trap || !self.is_entry() && self.any(Consumer::moves),
            exits_trap: self.by_trap || self.any(|one| one.has_return() && one.moves()),
        }
    }
    /// A request to patch it in one mapping.
    pub(super) fn request(&self, part: StubAction, load: Load) -> SiteRequest {
        let CheckedSite { at, function, .. } = self.site;
        SiteRequest { load, part, file: self.file.clone(), at, function, probe: self.probe }
    }
    /// Whether the site is the start of a function.
    fn is_entry(&self) -> bool {
        self.site.function.is_some_and(|function| self.file.image.function(function).start == self.site.at)
    }
    /// Checks that a request names the same semaphore as the site's other consumers.
    pub(super) fn agrees(&self, request: &Request) -> Result<(), Error> {
        let (have, asked) = (self.semaphore.map(|one| one.offset.0), request.semaphore);
        if have == asked {
            return Ok(());
        }
        Err(Error::OtherSemaphore { path: self.path.to_path_buf(), offset: self.site.offset.0, have, asked })
    }
    pub(super) fn refused(&self, why: &Why) -> Error {
        let (path, offset, text) = (self.path.to_path_buf(), self.site.offset.0, why.to_string());
        match why {
            Why::Differs { .. } => Error::Differs { path, offset, why: text },
            _ => Error::Refused { path, offset, kind: kind_of(why), why: text },
        }
    }
}
