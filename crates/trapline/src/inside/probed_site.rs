//! A site with its consumers, and what its stubs must do for them.
//!
//! In: consumers. Out: what is needed at the site ([`StubAction`]). Does not: register, or patch.

use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;
use trapline_image::FunctionIndex;
use trapline_patch::Why;
use trapline_record::{FileOffset, Svma};
use trapline_runtime::consumer::ConsumerId;
use trapline_runtime::probe::Probe;

use super::semaphores::Semaphore;
use super::site_request::StubAction;
use super::{Consumer, Error, Request};
use crate::files::ModuleFile;
use crate::why::kind_of;

/// A site, with the consumers that are called there.
#[derive(Debug)]
pub(super) struct ProbedSite {
    pub(super) path: Arc<Path>,
    pub(super) file: Arc<ModuleFile>,
    pub(super) offset: FileOffset,
    pub(super) at: Svma,
    pub(super) function: Option<FunctionIndex>,
    pub(super) by_trap: bool,
    pub(super) semaphore: Option<Semaphore>,
    pub(super) probe: &'static Probe,
    pub(super) consumers: SmallVec<[(ConsumerId, Box<Consumer>); 1]>,
    /// Indices of groups that have a part of this site.
    pub(super) groups: SmallVec<[usize; 2]>,
    /// Every consumer has asked for removal.
    pub(super) removed: bool,
    /// Returns are seen by return trampolines.
    pub(super) armed: bool,
}

impl ProbedSite {
    pub(super) fn is_wanted(&self) -> bool {
        !self.consumers.is_empty() && !self.removed
    }
    pub(super) fn need(&self, probed_site: u32) -> StubAction {
        let any = |which: fn(&Consumer) -> bool| self.consumers.iter().any(|(_, consumer)| which(consumer));
        StubAction {
            probed_site,
            entry: true,
            returns: any(Consumer::has_return) && !self.armed,
            armed: self.armed,
            saves: any(Consumer::saves_state),
            only_returns: !any(Consumer::has_entry),
            entry_traps: self.by_trap || !self.is_entry() && any(Consumer::moves),
            exits_trap: self.by_trap || any(|one| one.has_return() && one.moves()),
        }
    }
    /// Whether the site is the start of a function.
    fn is_entry(&self) -> bool {
        self.function.is_some_and(|function| self.file.image.function(function).start == self.at)
    }
    /// Checks that a request names the same semaphore as the site's other consumers.
    pub(super) fn agrees(&self, request: &Request) -> Result<(), Error> {
        let (have, asked) = (self.semaphore.map(|one| one.offset.0), request.semaphore);
        if have == asked {
            return Ok(());
        }
        Err(Error::OtherSemaphore { path: self.path.to_path_buf(), offset: self.offset.0, have, asked })
    }
    pub(super) fn refused(&self, why: &Why) -> Error {
        let (path, offset, text) = (self.path.to_path_buf(), self.offset.0, why.to_string());
        match why {
            Why::Differs { .. } => Error::Differs { path, offset, why: text },
            _ => Error::Refused { path, offset, kind: kind_of(why), why: text },
        }
    }
}
