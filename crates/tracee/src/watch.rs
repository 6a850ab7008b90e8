//! New executable mappings of a process, from perf MMAP2 records; births and execs of its children, from FORK
//! and COMM records.
//!
//! Input: a pid. Output: mappings as they are made, including those of threads and children born later;
//! [`Family`]. Invariants: what the kernel drops is counted. Does not: report mappings that go away, for
//! which no record exists.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use trapline_order::Order as _;
use trapline_record::{FileOffset, RemoteAddr};

use crate::error::TargetError;
use crate::kernel::threads;
use crate::maps::FileId;
use crate::process::possible_cpus;
use crate::sys::perf::{self, Ring};

/// The most events that are opened for one process.
const MAX_EVENTS: usize = 512;
/// `wakeup` of a ring that is readable once anything was written.
const AT_ONCE: u32 = 1;
/// `wakeup` of a ring that never becomes readable.
pub(crate) const NEVER: u32 = 1 << 30;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_FORK: u32 = 7;
const RECORD_MMAP2: u32 = 10;
/// Flag of a COMM record: the name came with an exec.
const MISC_EXEC: u16 = 1 << 13;
const RECORDED: u64 = perf::MMAP | perf::MMAP2 | perf::TASK | perf::COMM | perf::COMM_EXEC;

/// An executable mapping that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMapping {
    /// The process that made it.
    pub pid: u32,
    /// Its first address.
    pub start: RemoteAddr,
    /// Its length in bytes.
    pub len: u64,
    /// Offset in the file.
    pub offset: FileOffset,
    /// The file.
    pub file: FileId,
    /// Its path, as the kernel shows it.
    pub path: String,
    /// When it was made, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
}

/// A birth or an exec among a process and its descendants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// A process was born.
    Born {
        /// The process.
        pid: u32,
        /// Its parent.
        parent: u32,
        /// When, in nanoseconds of CLOCK_MONOTONIC.
        time_ns: u64,
    },
    /// A process runs another program now.
    Exec {
        /// The process.
        pid: u32,
        /// When, in nanoseconds of CLOCK_MONOTONIC.
        time_ns: u64,
    },
}

impl Family {
    /// When it happened, in nanoseconds of CLOCK_MONOTONIC.
    #[must_use]
    pub const fn time_ns(self) -> u64 {
        match self {
            Self::Born { time_ns, .. } | Self::Exec { time_ns, .. } => time_ns,
        }
    }
}

/// Watches one process, with threads and children born later.
#[derive(Debug)]
pub struct MapWatcher {
    rings: Vec<Ring>,
    _redirected: Vec<OwnedFd>,
    lost: u64,
    family: Vec<Family>,
}

impl MapWatcher {
    /// Starts watching.
    ///
    /// # Errors
    /// When the kernel does not permit it; then poll the maps instead.
    pub fn new(pid: u32) -> Result<Self, TargetError> {
        let (rings, _redirected) = open(pid, RECORDED, AT_ONCE)
            .map_err(|e| TargetError::system(pid, "watch its mappings by perf_event_open", e))?;
        Ok(Self { rings, _redirected, lost: 0, family: Vec::new() })
    }
    /// The mappings that were made since the last call.
    pub fn poll(&mut self) -> Vec<NewMapping> {
        let mut found = Vec::new();
        let (lost, family) = (&mut self.lost, &mut self.family);
        for ring in &self.rings {
            ring.drain(|kind, misc, body| match kind {
                RECORD_MMAP2 => found.extend(parse(body)),
                RECORD_LOST => *lost += word(body, 8).unwrap_or(1),
                _ => family.extend(relative(kind, misc, body)),
            });
        }
        found
    }
    /// Births and execs that [`poll`](Self::poll) read, in the order in which they happened.
    pub fn take_family(&mut self) -> Vec<Family> {
        self.family.order_by_key(|one| one.time_ns());
        std::mem::take(&mut self.family)
    }
    /// Descriptors for `poll`; one is readable when something was mapped. They are plain numbers, since the
    /// rings cannot be borrowed out.
    #[must_use]
    pub fn descriptors(&self) -> Vec<i32> {
        self.rings.iter().map(|ring| ring.event().as_raw_fd()).collect()
    }
    /// Number of records that the kernel dropped because nothing polled in time. If it grows, read the maps
    /// once.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

/// Opens a dummy event for each thread and CPU, inherited by those born later, and one ring for each CPU.
/// `tell` is the set of records. Each record ends with its time, on CLOCK_MONOTONIC. A ring is readable when
/// it holds `wakeup` bytes.
pub(crate) fn open(pid: u32, tell: u64, wakeup: u32) -> io::Result<(Vec<Ring>, Vec<OwnedFd>)> {
    let attr = attr(tell, wakeup);
    let tids = threads(pid);
    let cpus = possible_cpus() as i32;
    if tids.len() * cpus as usize > MAX_EVENTS {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    let (mut rings, mut redirected) = (Vec::new(), Vec::new());
    for cpu in 0..cpus {
        let mut ring: Option<Ring> = None;
        for &tid in &tids {
            match (perf::open(attr, tid, cpu), &ring) {
                (Ok(event), None) => ring = Some(Ring::new(event)?),
                (Ok(event), Some(ring)) => {
                    perf::redirect(event.as_fd(), ring.event())?;
                    redirected.push(event);
                }
                // A thread that has ended, or a CPU that is offline.
                (Err(e), _) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) => {}
                (Err(e), _) => return Err(e),
            }
        }
        rings.extend(ring);
    }
    if rings.is_empty() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok((rings, redirected)) }
}

/// The same for all processes: one ring for each CPU that is online.
pub(crate) fn open_for_all(tell: u64, wakeup: u32) -> io::Result<Vec<Ring>> {
    const ALL: i32 = -1;
    let attr = perf::Attr { flags: attr(tell, wakeup).flags & !perf::INHERIT, ..attr(tell, wakeup) };
    let mut rings = Vec::new();
    for cpu in 0..possible_cpus() as i32 {
        match perf::open(attr, ALL, cpu) {
            Ok(event) => rings.push(Ring::new(event)?),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(rings)
}

/// A dummy event of which `tell` is the set of records.
fn attr(tell: u64, wakeup: u32) -> perf::Attr {
    const SOFTWARE: u32 = 1;
    const DUMMY: u64 = 9;
    perf::Attr {
        kind: SOFTWARE,
        config: DUMMY,
        sample_type: perf::TIME,
        flags: perf::INHERIT
            | perf::EXCLUDE_KERNEL
            | perf::WATERMARK
            | perf::SAMPLE_ID_ALL
            | perf::USE_CLOCKID
            | tell,
        wakeup,
        clockid: libc::CLOCK_MONOTONIC,
        ..perf::Attr::default()
    }
}

fn word(body: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?))
}

/// The event of a FORK record of a process (not a thread), or of a COMM record of an exec.
fn relative(kind: u32, misc: u16, body: &[u8]) -> Option<Family> {
    let (body, time) = body.split_last_chunk()?;
    let time_ns = u64::from_le_bytes(*time);
    let half = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
    match kind {
        RECORD_FORK => {
            let (pid, parent) = (half(0)?, half(4)?);
            (pid != parent).then_some(Family::Born { pid, parent, time_ns })
        }
        RECORD_COMM if misc & MISC_EXEC != 0 => Some(Family::Exec { pid: half(0)?, time_ns }),
        _ => None,
    }
}

fn parse(body: &[u8]) -> Option<NewMapping> {
    let half = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let (body, time) = body.split_last_chunk()?;
    let name = body.get(64..)?;
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    Some(NewMapping {
        pid: half(0)?,
        start: RemoteAddr(word(body, 8)?),
        len: word(body, 16)?,
        offset: FileOffset(word(body, 24)?),
        file: FileId { dev: libc::makedev(half(32)?, half(36)?), inode: word(body, 40)? },
        path: String::from_utf8_lossy(&name[..end]).into_owned(),
        time_ns: u64::from_le_bytes(*time),
    })
}

#[cfg(test)]
mod tests {
    use super::{Family, MISC_EXEC, RECORD_COMM, RECORD_FORK, relative};

    #[test]
    fn births_of_processes_and_execs_are_read() {
        let body = |words: &[u32]| {
            let words = words.iter().flat_map(|n| n.to_le_bytes());
            words.chain(5u64.to_le_bytes()).collect::<Vec<_>>()
        };
        let fork = body(&[7, 3, 7, 3]);
        let born = Family::Born { pid: 7, parent: 3, time_ns: 5 };
        assert_eq!(relative(RECORD_FORK, 0, &fork), Some(born));
        assert_eq!(relative(RECORD_FORK, 0, &body(&[3, 3, 8, 3])), None, "a thread");
        let comm = body(&[7, 7, 0, 0]);
        assert_eq!(relative(RECORD_COMM, 0, &comm), None, "a mere renaming");
        assert_eq!(relative(RECORD_COMM, MISC_EXEC, &comm), Some(Family::Exec { pid: 7, time_ns: 5 }));
        assert_eq!(relative(RECORD_FORK, 0, &fork[..12]), None);
    }
}
