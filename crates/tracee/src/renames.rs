//! Threads of a process that get another name, begin or end, from perf COMM, FORK and EXIT records.
//!
//! Input: a pid. Output: numbers of threads, as this process sees them, and what changed; threads and
//! children born later are included. Invariants: a loss in the kernel is reported; the changes of one call
//! come in the order in which they happened, whatever the CPUs. Does not: read names (/proc has them).

use std::io;
use std::os::fd::OwnedFd;

use trapline_order::Order as _;

use crate::error::TargetError;
use crate::sys::perf::{self, Ring};
use crate::watch::{NEVER, open, open_for_all};

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;

/// What changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed {
    /// Its name is this now.
    Name(String),
    /// It began as a copy of the thread `by`, with that one's name. If the number was in use before, it was
    /// another thread's.
    Begun {
        /// The thread, or the forking process' thread, that created it.
        by: u32,
        /// Its process: that one, or a child that was forked.
        process: u32,
    },
    /// It ended, and its number may be given to another thread.
    Ended,
}

/// Watches one process, with threads and children born later.
#[derive(Debug)]
pub struct NameWatcher {
    rings: Vec<Ring>,
    _redirected: Vec<OwnedFd>,
}

impl NameWatcher {
    /// Starts watching.
    ///
    /// # Errors
    /// When the kernel does not permit it; then read /proc instead.
    pub fn new(pid: u32) -> Result<Self, TargetError> {
        let opened: io::Result<_> = open(pid, perf::COMM | perf::TASK, NEVER);
        let failed = |error| TargetError::system(pid, "watch its threads' names by perf_event_open", error);
        let (rings, _redirected) = opened.map_err(failed)?;
        Ok(Self { rings, _redirected })
    }
    /// Watches all processes of the machine, with one ring for each CPU.
    ///
    /// # Errors
    /// When the kernel does not permit it.
    pub fn of_all() -> Result<Self, TargetError> {
        let opened = open_for_all(perf::COMM | perf::TASK, NEVER);
        let rings = opened.map_err(|error| {
            TargetError::system(0, "watch the names of all threads by perf_event_open", error)
        })?;
        Ok(Self { rings, _redirected: Vec::new() })
    }
    /// Calls `each` for what changed since the last call, by thread. Returns false when the kernel dropped
    /// some of it.
    pub fn poll(&mut self, mut each: impl FnMut(u32, Changed)) -> bool {
        let (mut whole, mut records) = (true, Vec::new());
        for ring in &self.rings {
            let drained = ring.drain(|kind, _, body| match kind {
                RECORD_LOST => whole = false,
                kind => records.extend(parse(kind, body)),
            });
            whole &= drained.sound;
        }
        records.order_by_key(|one| one.0);
        records.into_iter().for_each(|(_, tid, changed)| each(tid, changed));
        whole
    }
}

/// Parses a record's body: pid, thread and name; or pid, parent's pid, thread and parent. Its last word is
/// the time at which it was written.
fn parse(kind: u32, body: &[u8]) -> Option<(u64, u32, Changed)> {
    let (body, time) = body.split_last_chunk()?;
    let half = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let (tid, changed) = match kind {
        RECORD_COMM => {
            let name = body.get(8..)?;
            let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
            (half(4)?, Changed::Name(String::from_utf8_lossy(&name[..end]).into_owned()))
        }
        RECORD_FORK => (half(8)?, Changed::Begun { by: half(12)?, process: half(0)? }),
        RECORD_EXIT => (half(8)?, Changed::Ended),
        _ => return None,
    };
    Some((u64::from_le_bytes(*time), tid, changed))
}

#[cfg(test)]
mod tests {
    use super::{Changed, NameWatcher, parse};

    #[test]
    fn records_are_read_to_their_end_and_no_further() {
        let bytes = |words: &[u32]| words.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
        let at = |time: u64, body: &[u8]| [body, &time.to_le_bytes()].concat();
        let mut comm = bytes(&[7, 9]);
        comm.extend(b"worker\0\0");
        assert_eq!(parse(3, &at(5, &comm)), Some((5, 9, Changed::Name("worker".to_owned()))));
        assert_eq!(parse(3, &at(5, &comm[..8])), Some((5, 9, Changed::Name(String::new()))));
        assert_eq!((parse(3, &at(5, &comm[..7])), parse(3, &comm[..7])), (None, None));
        let task = bytes(&[7, 7, 11, 9]);
        assert_eq!(parse(7, &at(6, &task)), Some((6, 11, Changed::Begun { by: 9, process: 7 })));
        assert_eq!(parse(4, &at(6, &task)), Some((6, 11, Changed::Ended)));
        assert_eq!((parse(7, &at(6, &task[..11])), parse(1, &at(6, &task))), (None, None));
    }

    /// Where the kernel permits it, a thread's birth, its new name and its end are all reported.
    #[test]
    fn what_a_thread_does_is_reported() {
        let Ok(mut watcher) = NameWatcher::new(std::process::id()) else { return };
        let thread = std::thread::Builder::new().name("renamed".to_owned());
        let number = || {
            let path = std::fs::read_link("/proc/thread-self").expect("its directory");
            path.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number")
        };
        let (own, tid): (u32, u32) =
            (number(), thread.spawn(number).expect("a thread").join().expect("it ends"));
        let mut seen = Vec::new();
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
        // A thread is joined a moment before the kernel has written its end.
        while !seen.contains(&Changed::Ended) {
            assert!(std::time::Instant::now() < patience, "{seen:?}");
            assert!(watcher.poll(|of, changed| if of == tid {
                seen.push(changed)
            }));
        }
        let by = Changed::Begun { by: own, process: std::process::id() };
        assert_eq!(seen, [by, Changed::Name("renamed".to_owned()), Changed::Ended]);
    }
    /// A thread is renamed until the ring is full, and then once more: only then does the kernel write that
    /// it dropped some.
    #[test]
    fn what_the_kernel_drops_is_reported() {
        let Ok(mut watcher) = NameWatcher::new(std::process::id()) else { return };
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while watcher.poll(|_, _| {}) {
            assert!(std::time::Instant::now() < patience, "nothing was dropped");
            (0..10_000).for_each(|_| std::fs::write("/proc/thread-self/comm", "dropped").expect("a name"));
        }
        assert!(watcher.poll(|_, _| {}), "it is reported once");
    }
}
