//! What a program calls: registering, unregistering, looking at its mappings.
//!
//! In: requests. Out: a [`Registration`] for each. Every function here takes the engine's lock, so none may be
//! called in a handler. Does not: decide anything (`state`).

use std::path::{Path, PathBuf};

use trapline_plan::Tactic;
use trapline_runtime::engine::Tally;

use super::lock::{enter, lock};
use super::probes::Probes;
use super::registry::Key;
use super::{Consumer, Error, NoticeMode, Noticed, Request, Returns};

/// A registered consumer. Dropping it unregisters the consumer and waits for running hits, some 15 µs each
/// time; for many registrations, [`unregister_all`] waits only once.
#[derive(Debug)]
#[must_use = "dropping it unregisters the consumer"]
pub struct Registration {
    key: Option<Key>,
}

/// Registers a consumer on (file, offset). A library's constructor may call this.
///
/// # Errors
/// Nothing is registered then.
pub fn register(file: impl AsRef<Path>, offset: u64, consumer: Consumer) -> Result<Registration, Error> {
    let mut all = register_all([Request::new(file, offset, consumer)])?;
    all.pop().ok_or(Error::Empty)
}

/// Registers all or none, in the order of the requests.
///
/// # Errors
/// Nothing is registered then.
pub fn register_all(requests: impl IntoIterator<Item = Request>) -> Result<Vec<Registration>, Error> {
    let keys = enter()?.register(requests.into_iter().collect())?;
    Ok(keys.into_iter().map(|key| Registration { key: Some(key) }).collect())
}

/// Unregisters all, and returns when no handler of any of them can still run.
///
/// # Errors
/// Called inside a handler: nothing was unregistered. Otherwise if code could not be written: the consumers
/// are out all the same.
pub fn unregister_all(registrations: impl IntoIterator<Item = Registration>) -> Result<(), Error> {
    let mut registrations: Vec<Registration> = registrations.into_iter().collect();
    let mut state = enter()?;
    state.unregister(registrations.iter_mut().filter_map(|one| one.key.take()).collect())
}

/// Probes what was mapped since the last look, and drops what was unmapped. Returns how many sites were
/// patched. Sites that cannot be patched where they are mapped now are left out, as by the kernel;
/// [`Registration::sites`] shows that.
///
/// # Errors
/// If the process as a whole cannot be patched.
pub fn rescan() -> Result<usize, Error> {
    enter()?.rescan()
}

/// Chooses how this process notices what it maps. Must come before anything is registered.
///
/// # Errors
/// If another way is in use already.
pub fn notice_by(way: NoticeMode) -> Result<(), Error> {
    lock().notice_by(way)
}

/// What was noticed of mappings, and how.
#[must_use]
pub fn noticed() -> Noticed {
    lock().noticed()
}

/// Finds a function. `file` is a path, a library's short name (`libc`) or the program's own name. `function`
/// is a name (`name@VERSION`, `name@@` for the version that the linker takes), `name+off`, or
/// `BASENAME+0xADDR`. It may also be a glob or a regular expression, of which the first match counts.
///
/// # Errors
/// If no such file is mapped, or it has no such function, or several functions have the name
/// ([`Error::Ambiguous`]).
pub fn find(file: &str, function: &str) -> Result<(PathBuf, u64), Error> {
    lock().find(file, function)
}

impl Registration {
    /// Unregisters, and returns when no handler of the consumer can still run.
    ///
    /// # Errors
    /// As [`unregister_all`].
    pub fn unregister(self) -> Result<(), Error> {
        unregister_all([self])
    }
    /// Hits of the site so far, by all its consumers, and hits that were missed.
    #[must_use]
    pub fn counts(&self) -> Tally {
        self.read(Probes::counts).unwrap_or_default()
    }
    /// How the site is reached in each mapping where it is patched now.
    #[must_use]
    pub fn sites(&self) -> Vec<Tactic> {
        self.read(Probes::tactics).unwrap_or_default()
    }
    /// How returns of the site's function are seen, if any consumer waits for them: [`Returns::Exits`] or
    /// [`Returns::Stack`].
    #[must_use]
    pub fn returns_by(&self) -> Option<Returns> {
        self.read(Probes::form).flatten()
    }
    fn read<T>(&self, read: impl FnOnce(&Probes, Key) -> T) -> Option<T> {
        Some(read(lock().probes(), self.key?))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let (Some(key), Ok(mut state)) = (self.key.take(), enter()) {
            // The consumer is out of the list, even if the bytes could not be changed back.
            drop(state.unregister(vec![key]));
        }
    }
}
