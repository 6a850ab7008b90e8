//! Which processes share a segment, and what numbers their threads have for the tracer.
//!
//! In: a probed process, its segments; words of keys (`record::sharers`). Out: the thread that a word means, as the tracer
//! sees it. Invariant: SHR-2 a word that may mean two threads, or one whose number for the tracer is not known, means none.
//!
//! The tracer reads the own page of each process that it finds: the probed one, and its forked children. Threads of the
//! tracer's PID namespace have the same number there. Those of another one are found by `NSpid` in /proc.
//!
//! A process that ended before it was found is one of the tracer's namespace, as long as no other namespace was seen among
//! those that share the segment, or among those that they would make. Else it is not known.
//!
//! Does not: read maps.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use trapline_patch::Segment;
use trapline_record::control::{MAGIC, at};
use trapline_record::sharers::split;
use trapline_tracee::Process;

use crate::procfs;
use crate::threads::{Names, Thread, comm, inner_number, namespace, number};

/// Processes that are looked at in one round at most.
const MOST: usize = 4096;

/// The processes that share the segments of one.
#[derive(Debug, Default)]
pub(crate) struct Sharers {
    /// By segment and number.
    known: HashMap<(usize, u32), Sharer>,
    /// The first process that was found in another PID namespace than the probed one's, and whether it was told.
    other: Option<(u32, bool)>,
    /// The probed process.
    home: Option<u32>,
    /// Some process, or children that it would make, is in another namespace than the tracer's.
    mixed: bool,
}

/// One process.
#[derive(Debug)]
struct Sharer {
    pid: u32,
    /// Its threads, by the numbers that they see, if these are not the tracer's.
    threads: Option<HashMap<u32, u32>>,
}

impl Sharers {
    /// Reads the own pages of the process and of its children.
    pub(crate) fn look(&mut self, root: &Process, segments: &[Segment]) {
        let with_page: Vec<(usize, &Segment)> =
            segments.iter().enumerate().filter(|(_, segment)| segment.own_page().is_some()).collect();
        if with_page.is_empty() {
            return;
        }
        let (mut next, mut seen, of_tracer) =
            (vec![root.pid()], HashSet::new(), namespace(std::process::id()));
        let home = namespace(root.pid());
        self.home = Some(root.pid());
        while let Some(pid) = next.pop().filter(|_| seen.len() < MOST) {
            let is_in = namespace(pid);
            let is_elsewhere = is_in != of_tracer;
            if is_in.is_none() || !seen.insert(pid) || !self.look_at((pid, is_elsewhere), root, &with_page) {
                continue;
            }
            let makes = std::fs::read_link(format!("/proc/{pid}/ns/pid_for_children")).ok();
            self.mixed |= is_elsewhere || makes.is_some() && makes != of_tracer;
            if is_in != home && self.other.is_none() {
                self.other = Some((pid, false));
            }
            next.extend(procfs::children(pid));
        }
    }
    /// Reads one process. Returns whether it shares the segments.
    fn look_at(
        &mut self,
        (pid, is_elsewhere): (u32, bool),
        root: &Process,
        segments: &[(usize, &Segment)],
    ) -> bool {
        let is_root = pid == root.pid();
        let opened = if is_root { None } else { Process::look_into(pid).ok() };
        let process = if is_root { Some(root) } else { opened.as_ref() };
        let Some(process) = process else { return false };
        let mut shares = is_root;
        for (nth, segment) in segments {
            let Some(word) = page(process, segment) else { continue };
            shares = true;
            // It has hit nothing yet.
            if word == 0 {
                continue;
            }
            let sharer = self.known.entry((*nth, split(word).0)).or_insert(Sharer { pid, threads: None });
            if sharer.pid == pid && is_elsewhere {
                let threads = sharer.threads.get_or_insert_default();
                threads.extend(numbers(pid));
            }
        }
        shares
    }
    /// The first process in another PID namespace than the probed one's, once.
    pub(crate) fn take_new(&mut self) -> Option<u32> {
        let (pid, told) = self.other.as_mut()?;
        (!std::mem::replace(told, true)).then_some(*pid)
    }
    /// Whether the tracer sees a thread of this number in one of the processes.
    fn is_member(&self, tid: u32) -> bool {
        let has = |pid: &u32| Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
        self.home == Some(tid) || self.home.iter().any(has) || self.known.values().any(|one| has(&one.pid))
    }
    /// The thread that a segment's word means.
    pub(crate) fn thread(&self, names: &Names, (segment, word): (usize, u64)) -> Option<Thread> {
        let (process, tid) = split(word);
        match self.known.get(&(segment, process)) {
            Some(Sharer { pid, threads: None }) => {
                let known = names.get(tid);
                // A thread of another namespace may see the same number.
                let comm = if known.tid == tid { known.comm } else { comm_of(names, tid) };
                Some(Thread { process: Some(*pid), tid, comm })
            }
            Some(Sharer { pid, threads: Some(threads) }) => {
                let met = names.met(tid).filter(|met| met.process == Some(*pid));
                // The C library's number is the one of the thread that made the process by a bare clone.
                let only = threads.values().next().filter(|outer| threads.len() == 1 && *outer == pid);
                let stale = || only.filter(|_| names.met(tid).is_some() || self.is_member(tid));
                let found = threads.get(&tid).or_else(stale).map(|outer| {
                    let comm = comm_of(names, *outer).or_else(|| met.as_ref()?.comm.clone());
                    Thread { tid: *outer, process: Some(*pid), comm }
                });
                found.or(met)
            }
            None if self.mixed => None,
            None => Some(names.get(tid)),
        }
    }
}

/// The name of a thread that lives, or that all threads of the machine are watched for.
fn comm_of(names: &Names, tid: u32) -> Option<String> {
    names.everyone_comm(tid).or_else(|| comm(Path::new(&format!("/proc/{tid}"))))
}

/// The word of a process' own page, if it shares the segment; 0 if it has no number.
fn page(process: &Process, segment: &Segment) -> Option<u64> {
    let own = segment.own_page()?;
    let block = |word: u64| process.read_u64(segment.address() + word).ok();
    let is_ours = |word: u64| block(word) == Some(segment.view().get(word));
    let is_segment = block(at::MAGIC) == Some(MAGIC) && is_ours(at::OWNER_PID) && is_ours(at::OWN_PAGE);
    is_segment.then(|| process.read_u64(own).ok()).flatten()
}

/// The threads of a process: what they see of themselves, and the tracer's numbers.
fn numbers(pid: u32) -> Vec<(u32, u32)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| Some((inner_number(&task.path())?, number(&task.path())?))).collect()
}
