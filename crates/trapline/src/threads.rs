//! The names of threads that hit something, remembered after they ended.
//!
//! In: numbers as the threads see them, which is how stubs count; a process, and children that count into the same rows.
//! Out: numbers as we see them, and names. A thread that came and went between two looks has no name.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A thread as we know it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Thread {
    /// Its number in our PID namespace.
    pub(crate) tid: u32,
    /// Its name when it was looked at last.
    pub(crate) comm: Option<String>,
}

/// Threads by the number that they see themselves.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: HashMap<u32, Thread>,
    /// Some see another number than we do.
    renumbered: bool,
}

impl Names {
    /// Looks up names of threads that are not known yet; with `again`, of all that are alive.
    pub(crate) fn look(&mut self, pid: u32, children: &HashSet<u32>, counted: &HashSet<u32>, again: bool) {
        if !again && counted.iter().all(|tid| self.known.contains_key(tid)) {
            return;
        }
        let new = |tid: &u32| again || !self.known.contains_key(tid);
        let new: HashSet<u32> = counted.iter().copied().filter(new).collect();
        self.read(pid, children, Some(&new));
        for &tid in counted {
            self.known.entry(tid).or_insert(Thread { tid, comm: None });
        }
    }
    /// Reads the names of threads that are alive, of these or of all. Which those are.
    pub(crate) fn read(
        &mut self,
        pid: u32,
        children: &HashSet<u32>,
        of: Option<&HashSet<u32>>,
    ) -> HashSet<u32> {
        let mut alive = HashSet::new();
        for process in std::iter::once(pid).chain(children.iter().copied()) {
            let inner = namespace(process) != namespace(std::process::id());
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { continue };
            for task in tasks.flatten().map(|entry| entry.path()) {
                let Some(tid) = number(&task) else { continue };
                let seen = if inner { inner_number(&task).unwrap_or(tid) } else { tid };
                if of.is_none_or(|of| of.contains(&seen)) && alive.insert(seen) {
                    self.renumbered |= seen != tid;
                    self.known.insert(seen, Thread { tid, comm: comm(&task) });
                }
            }
        }
        alive
    }
    /// The number that a thread sees itself, by ours, if it is known.
    pub(crate) fn seen(&self, tid: u32) -> Option<u32> {
        match self.known.get(&tid) {
            Some(thread) if thread.tid == tid => Some(tid),
            _ if !self.renumbered => None,
            _ => self.known.iter().find(|(_, thread)| thread.tid == tid).map(|(&seen, _)| seen),
        }
    }
    /// A thread, by our number, may be called otherwise than before: as /proc says, or, if it is gone, as was told. The number that
    /// it sees itself, if it was known.
    pub(crate) fn changed(&mut self, tid: u32, told: Option<String>) -> Option<u32> {
        let seen = self.seen(tid)?;
        if let Some(name) = comm(Path::new(&format!("/proc/{tid}"))).or(told) {
            self.known.insert(seen, Thread { tid, comm: Some(name) });
        }
        Some(seen)
    }
    /// Whether its name was read.
    pub(crate) fn is_known(&self, tid: u32) -> bool {
        self.known.get(&tid).is_some_and(|thread| thread.comm.is_some())
    }
    /// What is known of a thread.
    pub(crate) fn get(&self, tid: u32) -> Thread {
        self.known.get(&tid).cloned().unwrap_or(Thread { tid, comm: None })
    }
}

fn comm(task: &Path) -> Option<String> {
    let comm = std::fs::read_to_string(task.join("comm")).ok()?;
    Some(comm.trim_end_matches('\n').to_owned())
}

/// Of a path that ends in a thread's number.
fn number(task: &Path) -> Option<u32> {
    task.file_name()?.to_str()?.parse().ok()
}

fn namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The number that a thread sees itself, where its namespace is not ours.
fn inner_number(task: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}
