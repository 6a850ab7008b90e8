//! How this process listens for mappings: the way in use, and the engine's own consumers on calls.
//!
//! In: the way that the user chose; how many consumers there are. Out: values. Invariants: LRN-5 the engine's
//! own consumers are registered only while the user's are, or are about to be. Does not: register them
//! (`state`), or look.

use super::{NoticeMode, Noticed};
use crate::inside::Error;
use crate::inside::registry::Key;

/// The way in use, and what belongs to it.
#[derive(Debug, Default)]
pub(in crate::inside) struct Listening {
    /// As the user chose it.
    mode: NoticeMode,
    /// In use; `None` before the first registration.
    way: Option<NoticeMode>,
    /// Records come from every thread.
    complete: bool,
    /// The loader's notice is probed.
    notice: bool,
    /// Libc's `sigaction` is probed.
    handlers: bool,
    /// The engine's own consumers, each with the function that it probes.
    own: Vec<(Key, &'static str)>,
    /// They are registered, as far as that is possible.
    listens: bool,
    /// Number of all other consumers.
    users: usize,
}

impl Listening {
    /// Sets the way, before anything is registered. `begun`: it is in use in this process.
    pub(in crate::inside) fn choose(&mut self, way: NoticeMode, begun: bool) -> Result<(), Error> {
        if begun && self.mode != way {
            return Err(Error::NoticesAlready);
        }
        self.mode = way;
        Ok(())
    }
    /// The way that the user chose.
    pub(in crate::inside) const fn mode(&self) -> NoticeMode {
        self.mode
    }
    /// Whether anything but the engine's own consumers is registered.
    pub(in crate::inside) const fn has_users(&self) -> bool {
        self.users > 0
    }
    pub(in crate::inside) const fn add_users(&mut self, count: usize) {
        self.users += count;
    }
    /// With the last user go the engine's own consumers, which it returns.
    pub(in crate::inside) fn remove_users(&mut self, count: usize) -> Vec<Key> {
        self.users = self.users.saturating_sub(count);
        if self.has_users() {
            return Vec::new();
        }
        self.listens = false;
        self.end()
    }
    /// Begins anew, in this process: nothing was probed yet.
    pub(in crate::inside) const fn begin(&mut self) {
        self.listens = false;
    }
    /// Sets whether records come from every thread.
    pub(in crate::inside) const fn set_complete(&mut self, complete: bool) {
        self.complete = complete;
    }
    /// Sets the way in use.
    pub(in crate::inside) const fn set_way(&mut self, way: NoticeMode) {
        self.way = Some(way);
    }
    /// Returns the engine's own consumers, which are to be unregistered.
    pub(in crate::inside) fn end(&mut self) -> Vec<Key> {
        (self.notice, self.handlers) = (false, false);
        self.own.drain(..).map(|(key, _)| key).collect()
    }
    /// Whether calls are to be probed now, which are not yet; they are from then on.
    pub(in crate::inside) fn begins_to_listen(&mut self) -> bool {
        let begins = self.way != Some(NoticeMode::Asked) && !self.listens;
        self.listens |= begins;
        begins
    }
    /// Whether a function is probed.
    pub(in crate::inside) fn has(&self, function: &str) -> bool {
        self.own.iter().any(|(_, of)| *of == function)
    }
    /// Keeps a consumer of the engine's own. It is on the loader's notice, on libc's `sigaction`, or neither.
    pub(in crate::inside) fn add(
        &mut self,
        keys: Vec<Key>,
        function: &'static str,
        (notice, handlers): (bool, bool),
    ) {
        self.notice |= notice;
        self.handlers |= handlers;
        self.own.extend(keys.into_iter().map(|key| (key, function)));
    }
    /// What was noticed, with what is known here of the way.
    pub(in crate::inside) const fn complete(&self, tally: Noticed) -> Noticed {
        let Self { way, complete, notice, handlers, .. } = *self;
        Noticed { way, complete, notice, handlers, ..tally }
    }
}
