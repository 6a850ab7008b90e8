//! Names of all threads of the machine, also of those that have ended.
//!
//! In: the kernel's records about all threads. Out: the name and the process of a thread, by the number that the tracer
//! sees. One ring for each CPU serves all processes, so many can be probed. Invariant: a thread that begins after the
//! start is known before it can hit anything, unless the kernel dropped a record; then all names are read again.
//! Does not: know which threads are probed.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use trapline_tracee::{Changed, NameWatcher, TargetError};

use crate::threads::{comm, number, parent, process};

/// Threads that have ended are kept until there are so many of them.
const MOST_ENDED: usize = 1 << 16;

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Someone {
    pub(crate) comm: Option<String>,
    pub(crate) process: Option<u32>,
    /// The process that made its process, if it is that one's first thread.
    parent: Option<u32>,
    /// It has ended. Its number may begin to mean another thread.
    ended: bool,
}

/// All threads. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Everyone(Arc<Mutex<Watched>>);

#[derive(Debug)]
struct Watched {
    watcher: NameWatcher,
    all: All,
}

#[derive(Debug, Default)]
struct All {
    threads: HashMap<u32, Someone>,
    /// Those that have ended, the oldest first.
    ended: VecDeque<u32>,
}

impl Everyone {
    /// Begins to listen, then reads who is there.
    ///
    /// # Errors
    /// When the kernel does not permit it.
    pub(crate) fn start() -> Result<Self, TargetError> {
        let (watcher, mut all) = (NameWatcher::of_all()?, All::default());
        all.read();
        Ok(Self(Arc::new(Mutex::new(Watched { watcher, all }))))
    }
    /// Takes the kernel's records.
    pub(crate) fn poll(&self) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Watched { watcher, all } = &mut *watched;
        if !watcher.poll(|tid, changed| all.note(tid, changed)) {
            all.read();
        }
    }
    /// The name of a process, or of the one that made it, also if it has ended: that of its first thread.
    #[must_use]
    pub fn name_of_process(&self, pid: u32, parent: bool) -> Option<String> {
        let pid = if parent { self.look(pid)?.parent? } else { pid };
        self.look(pid)?.comm
    }
    /// A thread, as far as records tell that were taken.
    pub(crate) fn get(&self, tid: u32) -> Option<Someone> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all.threads.get(&tid).cloned()
    }
    /// A thread, with records that came meanwhile, if it is not known.
    pub(crate) fn look(&self, tid: u32) -> Option<Someone> {
        self.get(tid).or_else(|| {
            self.poll();
            self.get(tid)
        })
    }
}

impl All {
    /// Reads the names of all threads that are alive.
    fn read(&mut self) {
        let folders = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        for folder in folders(Path::new("/proc")).map(|entry| entry.path()) {
            let Some(pid) = number(&folder) else { continue };
            let made_by = parent(&folder);
            for task in folders(&folder.join("task")).map(|entry| entry.path()) {
                if let (Some(tid), Some(comm)) = (number(&task), comm(&task)) {
                    let parent = made_by.filter(|_| tid == pid);
                    let one = Someone { comm: Some(comm), process: Some(pid), parent, ended: false };
                    self.threads.insert(tid, one);
                }
            }
        }
    }
    fn note(&mut self, tid: u32, changed: Changed) {
        match changed {
            Changed::Begun { by, process } => {
                let maker = self.threads.get(&by).cloned().unwrap_or_default();
                let parent = maker.process.filter(|_| tid == process);
                let one = Someone { comm: maker.comm, process: Some(process), parent, ended: false };
                self.threads.insert(tid, one);
            }
            Changed::Name(name) => {
                let one = self.threads.entry(tid).or_default();
                one.process = one.process.or_else(|| process(Path::new(&format!("/proc/{tid}"))));
                (one.comm, one.ended) = (Some(name), false);
            }
            Changed::Ended => {
                let Some(one) = self.threads.get_mut(&tid) else { return };
                one.ended = true;
                self.ended.push_back(tid);
                if self.ended.len() > MOST_ENDED
                    && let Some(oldest) = self.ended.pop_front()
                    && self.threads.get(&oldest).is_some_and(|one| one.ended)
                {
                    self.threads.remove(&oldest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trapline_tracee::Changed;

    use super::{All, MOST_ENDED};

    #[test]
    fn names_are_inherited_kept_after_the_end_and_forgotten_when_many_have_ended() {
        let mut all = All::default();
        let comm = |all: &All, tid| all.threads.get(&tid).and_then(|one| one.comm.clone());
        all.note(1, Changed::Name("first".to_owned()));
        all.note(2, Changed::Begun { by: 1, process: 2 });
        all.note(2, Changed::Ended);
        assert_eq!(comm(&all, 2).as_deref(), Some("first"));
        assert_eq!(all.threads[&2].parent, all.threads[&1].process);
        assert_eq!(all.threads[&2].process, Some(2));
        // The number is given to another thread, which lives.
        all.note(3, Changed::Begun { by: 1, process: 1 });
        all.note(3, Changed::Ended);
        all.note(3, Changed::Begun { by: 1, process: 1 });
        all.note(3, Changed::Name("again".to_owned()));
        for tid in 10..10 + MOST_ENDED as u32 {
            all.note(tid, Changed::Begun { by: 1, process: 1 });
            all.note(tid, Changed::Ended);
        }
        assert_eq!((comm(&all, 2), comm(&all, 3).as_deref()), (None, Some("again")));
        assert!(all.threads.len() <= MOST_ENDED + 4 && all.ended.len() <= MOST_ENDED);
    }
}
