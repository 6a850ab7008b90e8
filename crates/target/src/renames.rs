//! Threads of a process that get another name, begin or end, learnt from perf COMM, FORK and EXIT records.
//!
//! Input: a pid. Output: numbers of threads, as this process sees them, of which something changed; also of threads and children born later.
//! Invariant: what the kernel drops is told. Does not: read names (/proc has them), keep an order between CPUs.

use std::io;
use std::os::fd::OwnedFd;

use crate::error::TargetError;
use crate::sys::perf::{self, Ring};
use crate::watch::open;

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;

/// What changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed {
    /// It is called this now.
    Name(String),
    /// It began: the number was another thread's before, if anybody's.
    Begun,
    /// It ended: the number will be another's.
    Ended,
}

/// Watches one process, with threads and children born later.
#[derive(Debug)]
pub struct NameWatcher {
    rings: Vec<Ring>,
    _redirected: Vec<OwnedFd>,
}

impl NameWatcher {
    /// Starts to watch.
    ///
    /// # Errors
    /// When the kernel does not permit it; read /proc instead.
    pub fn new(pid: u32) -> Result<Self, TargetError> {
        let opened: io::Result<_> = open(pid, perf::COMM | perf::TASK);
        let failed = |error| TargetError::system(pid, "watch its threads' names by perf_event_open", error);
        let (rings, _redirected) = opened.map_err(failed)?;
        Ok(Self { rings, _redirected })
    }
    /// What changed since the last call, by thread; false when the kernel dropped some of it.
    pub fn poll(&mut self, mut each: impl FnMut(u32, Changed)) -> bool {
        let mut whole = true;
        for ring in &self.rings {
            let drained = ring.drain(|kind, _, body| match kind {
                RECORD_LOST => whole = false,
                kind => {
                    if let Some((tid, changed)) = parse(kind, body) {
                        each(tid, changed);
                    }
                }
            });
            whole &= drained.sound;
        }
        whole
    }
}

/// Of a record's body: pid, thread, and a name; or pid, parent's pid, thread, parent.
fn parse(kind: u32, body: &[u8]) -> Option<(u32, Changed)> {
    let half = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
    match kind {
        RECORD_COMM => {
            let name = body.get(8..)?;
            let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
            Some((half(4)?, Changed::Name(String::from_utf8_lossy(&name[..end]).into_owned())))
        }
        RECORD_FORK => Some((half(8)?, Changed::Begun)),
        RECORD_EXIT => Some((half(8)?, Changed::Ended)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Changed, NameWatcher, parse};

    #[test]
    fn records_are_read_to_their_end_and_no_further() {
        let mut comm = [7_u32, 9].iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
        comm.extend(b"worker\0\0");
        assert_eq!(parse(3, &comm), Some((9, Changed::Name("worker".to_owned()))));
        assert_eq!(parse(3, &comm[..8]), Some((9, Changed::Name(String::new()))));
        assert_eq!(parse(3, &comm[..7]), None);
        let task: Vec<u8> = [7_u32, 7, 11, 9].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(parse(7, &task), Some((11, Changed::Begun)));
        assert_eq!(parse(4, &task), Some((11, Changed::Ended)));
        assert_eq!((parse(7, &task[..11]), parse(1, &task)), (None, None));
    }

    /// Where the kernel permits it: a thread's birth, its new name and its end are all told.
    #[test]
    fn what_a_thread_does_is_told() {
        let Ok(mut watcher) = NameWatcher::new(std::process::id()) else { return };
        let thread = std::thread::Builder::new().name("renamed".to_owned());
        let number = || std::fs::read_link("/proc/thread-self").expect("its directory");
        let path = thread.spawn(number).expect("a thread").join().expect("it ends");
        let tid = path.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
        let mut seen = Vec::new();
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
        // A thread is joined a moment before the kernel has written its end.
        while !seen.contains(&Changed::Ended) {
            assert!(std::time::Instant::now() < patience, "{seen:?}");
            assert!(watcher.poll(|of, changed| if of == tid {
                seen.push(changed)
            }));
        }
        assert!(seen.contains(&Changed::Begun), "{seen:?}");
        assert!(seen.contains(&Changed::Name("renamed".to_owned())), "{seen:?}");
    }
    /// A thread is renamed until the ring is full, and then once more: only then does the kernel write that it dropped some.
    #[test]
    fn what_the_kernel_drops_is_told() {
        let Ok(mut watcher) = NameWatcher::new(std::process::id()) else { return };
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while watcher.poll(|_, _| {}) {
            assert!(std::time::Instant::now() < patience, "nothing was dropped");
            (0..10_000).for_each(|_| std::fs::write("/proc/thread-self/comm", "dropped").expect("a name"));
        }
        assert!(watcher.poll(|_, _| {}), "it is told once");
    }
}
