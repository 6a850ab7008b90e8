//! Names of threads that hit something, kept after the threads have ended.
//!
//! In: thread numbers as the threads see them, which is how stubs count; a process, and children that count
//! into the same rows; the kernel's records about threads. Out: thread numbers as the tracer sees them,
//! names, and which threads were renamed. A thread that came and went between two looks has no name, unless
//! the kernel reported it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use trapline_tracee::{Changed, ThreadStatus};

use crate::everyone::Everyone;

/// Number of threads beyond which those not needed are forgotten.
const MANY: usize = 1 << 16;

/// A thread as the tracer sees it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Thread {
    /// Thread number in the tracer's PID namespace.
    pub(crate) tid: u32,
    /// Its process in that namespace, if it was read: the probed one, or a child that it forked.
    pub(crate) process: Option<u32>,
    /// Thread name when it was last read.
    pub(crate) comm: Option<String>,
}

impl Thread {
    const fn unknown(tid: u32) -> Self {
        Self { tid, process: None, comm: None }
    }
}

/// Threads by the number that they see themselves.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: HashMap<u32, Thread>,
    /// Some threads see another number than the tracer does.
    renumbered: bool,
    /// The process is in another PID namespace, so all threads may see other numbers.
    inner: bool,
    /// Threads renamed since [`Self::take_renamed`] was last called, with their former names; `None` if
    /// renamings are not tracked.
    renamed: Option<HashMap<u32, Option<String>>>,
    /// Threads that began since then.
    begun: HashSet<u32>,
    /// Number of threads at which forgetting pays again.
    most: usize,
    /// All threads of the machine, if they are watched together.
    everyone: Option<Everyone>,
}

impl Names {
    /// Looks up names of threads that are not known yet; with `again`, of all that are alive.
    pub(crate) fn look(&mut self, pid: u32, children: &HashSet<u32>, counted: &HashSet<u32>, again: bool) {
        if !again && counted.iter().all(|tid| self.known.contains_key(tid)) {
            return;
        }
        let new = |tid: &u32| again || !self.known.contains_key(tid);
        let new: HashSet<u32> = counted.iter().copied().filter(new).collect();
        let alive = self.read(pid, children, Some(&new));
        // A child that was forked a moment ago is not known as one yet.
        let unread = new.difference(&alive).copied().filter(|_| !are_renumbered(pid));
        for (tid, path) in unread.map(|tid| (tid, PathBuf::from(format!("/proc/{tid}")))) {
            if let Some(process) = process(&path).filter(|process| descends(*process, pid)) {
                self.note(tid, Thread { tid, process: Some(process), comm: comm(&path) });
            }
        }
        for &tid in counted {
            self.known.entry(tid).or_insert(Thread::unknown(tid));
        }
    }
    /// Reads the names of threads that are alive: of these, or of all. Returns the threads that are alive.
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
                let Some(seen) = (if inner { inner_number(&task) } else { Some(tid) }) else { continue };
                if of.is_none_or(|of| of.contains(&seen)) && alive.insert(seen) {
                    self.note(seen, Thread { tid, process: Some(process), comm: comm(&task) });
                }
            }
        }
        alive
    }
    /// Number that a thread sees itself, given the tracer's number for it, if known.
    pub(crate) fn seen(&self, tid: u32) -> Option<u32> {
        match self.known.get(&tid) {
            Some(thread) if thread.tid == tid => Some(tid),
            _ if !self.renumbered => None,
            _ => self.known.iter().find(|(_, thread)| thread.tid == tid).map(|(&seen, _)| seen),
        }
    }
    fn note(&mut self, seen: u32, thread: Thread) {
        self.renumbered |= seen != thread.tid;
        let is = thread.comm.clone();
        let was = self.known.insert(seen, thread).and_then(|before| before.comm);
        if let (Some(renamed), true) = (&mut self.renamed, was.is_some() && was != is)
            && !self.begun.contains(&seen)
        {
            renamed.entry(seen).or_insert(was);
        }
    }
    /// Tracks renamings from now on, in this process and in those that it forks.
    pub(crate) fn follow(&mut self, pid: u32) {
        self.inner = namespace(pid) != namespace(std::process::id());
        self.renamed.get_or_insert_default();
    }
    /// Takes names from those of all threads from now on, as far as these are known.
    pub(crate) fn ask(&mut self, pid: u32, everyone: Everyone) {
        self.inner = namespace(pid) != namespace(std::process::id());
        self.everyone = Some(everyone);
    }
    /// Threads renamed since the last call, with the names that they had then. A thread that began since then
    /// counts as never renamed.
    pub(crate) fn take_renamed(&mut self) -> HashMap<u32, Option<String>> {
        self.begun.clear();
        self.renamed.as_mut().map(std::mem::take).unwrap_or_default()
    }
    /// Takes a kernel record about a thread, which has the tracer's number. The name comes from /proc, or
    /// from the record if the thread is gone. Returns the number that the thread sees itself, if known.
    pub(crate) fn note_change(&mut self, tid: u32, changed: Changed) -> Option<u32> {
        let path = PathBuf::from(format!("/proc/{tid}"));
        let mut born_in = None;
        let name = match changed {
            Changed::Ended => return self.seen(tid),
            Changed::Name(name) => comm(&path).or(Some(name)),
            Changed::Begun { by, process } => {
                born_in = Some(process);
                let inherited = || self.seen(by).and_then(|by| self.get(by).comm);
                let name = comm(&path).or_else(inherited);
                let seen = self.sees(tid, &path)?;
                match (self.known.remove(&seen), &mut self.renamed) {
                    (Some(other), Some(renamed)) => _ = renamed.entry(seen).or_insert(other.comm),
                    _ => _ = self.begun.insert(seen),
                }
                name
            }
        };
        let seen = self.seen(tid).or_else(|| self.sees(tid, &path))?;
        if name.is_some() {
            let process = born_in.or_else(|| process(&path)).or_else(|| self.known.get(&seen)?.process);
            self.note(seen, Thread { tid, process, comm: name });
        }
        Some(seen)
    }
    /// The same for a thread that was not met yet.
    fn sees(&self, tid: u32, path: &Path) -> Option<u32> {
        inner_number(path).or((!self.inner).then_some(tid))
    }
    /// Whether so many threads are known that those not needed should be forgotten.
    pub(crate) fn are_many(&self) -> bool {
        self.known.len() >= self.most.max(MANY)
    }
    /// Forgets all but these.
    pub(crate) fn keep(&mut self, needed: &HashSet<u32>) {
        self.known.retain(|seen, _| needed.contains(seen));
        self.most = self.known.len() * 2;
    }
    /// Whether its name was read.
    pub(crate) fn is_known(&self, tid: u32) -> bool {
        self.known.get(&tid).is_some_and(|thread| thread.comm.is_some())
    }
    /// What was read of a thread, or reported, if anything was.
    pub(crate) fn met(&self, tid: u32) -> Option<Thread> {
        self.known.get(&tid).filter(|thread| thread.process.is_some()).cloned()
    }
    /// The name of a thread by the tracer's number, if all threads of the machine are watched.
    pub(crate) fn everyone_comm(&self, tid: u32) -> Option<String> {
        self.everyone.as_ref()?.look(tid)?.comm
    }
    /// What is known of a thread.
    pub(crate) fn get(&self, tid: u32) -> Thread {
        let known = self.known.get(&tid).cloned().unwrap_or(Thread::unknown(tid));
        // Elsewhere a number may be another thread's in our namespace.
        let everyone = self.everyone.as_ref().filter(|_| !self.inner || known.process.is_some());
        match everyone.and_then(|everyone| everyone.look(known.tid)) {
            Some(one) => Thread {
                comm: one.comm.or(known.comm),
                process: one.process.or(known.process),
                tid: known.tid,
            },
            None => known,
        }
    }
}

pub(crate) fn comm(task: &Path) -> Option<String> {
    let comm = std::fs::read(task.join("comm")).ok()?;
    Some(String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned())
}

/// The process of a thread.
pub(crate) fn process(task: &Path) -> Option<u32> {
    Some(ThreadStatus::parse(&std::fs::read(task.join("status")).ok()?).tgid)
}

/// The process that made a process, or that has it since.
pub(crate) fn parent(process: &Path) -> Option<u32> {
    Some(ThreadStatus::parse(&std::fs::read(process.join("status")).ok()?).ppid)
}

/// Whether a process is another one, or was forked by it, or by a child of it.
fn descends(mut process: u32, from: u32) -> bool {
    /// Generations that are looked at.
    const MOST: usize = 8;
    for _ in 0..MOST {
        if process == from {
            return true;
        }
        let Ok(status) = std::fs::read(format!("/proc/{process}/status")) else { return false };
        process = ThreadStatus::parse(&status).ppid;
    }
    false
}

/// Thread number from a path that ends in it.
pub(crate) fn number(task: &Path) -> Option<u32> {
    task.file_name()?.to_str()?.parse().ok()
}

/// Whether threads of a process see the numbers of themselves that the tracer sees: it is in the tracer's PID namespace.
#[must_use]
pub fn shares_numbers(pid: u32) -> bool {
    !are_renumbered(pid)
}

/// Whether threads of a process see other numbers of themselves than the tracer does.
pub(crate) fn are_renumbered(pid: u32) -> bool {
    namespace(pid) != namespace(std::process::id())
}

/// Number that a thread of the process sees itself, given the tracer's number; `None` if there is no such
/// thread.
pub(crate) fn own_number(pid: u32, tid: u32) -> Option<u32> {
    inner_number(&PathBuf::from(format!("/proc/{pid}/task/{tid}")))
}

pub(crate) fn namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Number that a thread sees itself, in the innermost namespace.
pub(crate) fn inner_number(task: &Path) -> Option<u32> {
    let status = std::fs::read(task.join("status")).ok()?;
    ThreadStatus::parse(&status).ns_pids.last().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use trapline_tracee::Changed;

    use super::{Names, Thread};

    /// Thread numbers that do not exist.
    const GONE: u32 = 1 << 30;

    fn name(name: &str) -> Changed {
        Changed::Name(name.to_owned())
    }

    /// All of these threads are gone before their names could be read.
    #[test]
    fn what_the_kernel_reported_is_known_of_threads_that_are_gone() {
        let mut names = Names::default();
        names.follow(std::process::id());
        let [first, second, third] = [GONE, GONE + 1, GONE + 2];
        let mut note_all = |note_change: &[(u32, Changed)]| {
            for (tid, changed) in note_change {
                assert!(names.note_change(*tid, changed.clone()).is_some());
            }
            let called = [first, second, third].map(|tid| names.get(tid).comm);
            (called.map(Option::unwrap_or_default), names.take_renamed())
        };
        let was = |thread, name: &str| HashMap::from([(thread, Some(name.to_owned()))]);
        let begun = |by| Changed::Begun { by, process: std::process::id() };
        // A thread that begins and takes a name in the same round has had no other name.
        let (called, renamed) = note_all(&[(first, name("a")), (second, begun(first)), (second, name("b"))]);
        assert_eq!((called, renamed), (["a", "b", ""].map(str::to_owned), HashMap::new()));
        let (called, renamed) = note_all(&[(third, begun(second)), (second, name("c")), (second, name("d"))]);
        assert_eq!((called, renamed), (["a", "d", "b"].map(str::to_owned), was(second, "b")));
        assert_eq!(note_all(&[(second, name("d"))]).1, HashMap::new());
        // The thread's number is reused.
        let (called, renamed) = note_all(&[(second, Changed::Ended), (second, begun(first))]);
        assert_eq!((called, renamed), (["a", "a", "b"].map(str::to_owned), was(second, "d")));
    }

    #[test]
    fn who_is_needed_is_remembered() {
        let mut names = Names::default();
        let last = GONE + super::MANY as u32 - 1;
        for tid in GONE..=last {
            assert!(!names.are_many());
            names.note(tid, Thread { tid, process: None, comm: Some("x".to_owned()) });
        }
        assert!(names.are_many());
        names.keep(&[GONE, last].into());
        assert!(
            names.is_known(GONE) && names.is_known(last) && !names.is_known(GONE + 1) && !names.are_many()
        );
    }
}
