//! Mappings of our own process, as the kernel records them while they are made.
//!
//! In: nothing. Out: MMAP2 records of all our threads, one ring for each CPU, with their times. A dummy event
//! on every CPU sees what any thread maps or makes executable, by any call: libc's, the loader's own, a raw
//! one. Threads born later inherit it. A ring with inheritance must be bound to a CPU, hence one event for
//! each thread and CPU. Forked children inherit the events too, and their records are left out. Invariants:
//! PRF-1; what the kernel drops is counted. Does not: report mappings that go away or are moved (no record
//! exists), or mappings made on CPUs that come online later.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use trapline_record::{FileId, FileOffset, RemoteAddr};

use super::cpus::{online_cpus, ring};
use crate::kernel::threads;
use crate::sys::perf::{self, Attr, Ring};

const TYPE_SOFTWARE: u32 = 1;
const SW_DUMMY: u64 = 9;
const SAMPLE_TIME: u64 = 1 << 2;
const RECORD_LOST: u32 = 2;
const RECORD_MMAP2: u32 = 10;
/// Pages of a ring. 64 KiB hold some 500 records, and they are read at once.
const PAGES: u64 = 16;
/// Limit for the number of events, of which there is one for each thread and CPU. A process that needs more
/// is better off without.
const MAX_EVENTS: usize = 2048;
/// How often to look for threads that were born while the others' events were opened.
const ROUNDS: u32 = 16;

/// A mapping that was made, or was given other rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappingRecord {
    /// First address.
    pub start: RemoteAddr,
    /// First address after it.
    pub end: RemoteAddr,
    /// Offset in the file.
    pub offset: FileOffset,
    /// The file, if it is of one.
    pub file: Option<FileId>,
    /// Whether it is executable.
    pub exec: bool,
    /// Whether it is writable.
    pub write: bool,
    /// When it was made, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
}

/// The rings, and the events of all threads of this process.
#[derive(Debug)]
pub struct MappingRings {
    pid: u32,
    rings: Vec<(u32, Ring)>,
    events: Vec<OwnedFd>,
    complete: bool,
}

fn attr(flags: u64) -> Attr {
    Attr {
        kind: TYPE_SOFTWARE,
        config: SW_DUMMY,
        sample_type: SAMPLE_TIME,
        flags: flags | perf::EXCLUDE_KERNEL | perf::WATERMARK | perf::USE_CLOCKID | perf::SAMPLE_ID_ALL,
        wakeup: 1,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attr::default()
    }
}

/// Opens an event that records mappings. Only threads inherit it where the kernel can restrict that (5.13).
fn follow(data: bool, tid: i32, cpu: u32) -> io::Result<OwnedFd> {
    let flags = perf::INHERIT | perf::MMAP | perf::MMAP2 | if data { perf::MMAP_DATA } else { 0 };
    let open = |flags| perf::open(attr(flags), tid, cpu as i32);
    match open(flags | perf::INHERIT_THREAD) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(flags),
        other => other,
    }
}

impl MappingRings {
    /// Follows all threads; it does so before it returns. With `data` it also reports mappings that are not
    /// executable.
    ///
    /// # Errors
    /// When the kernel does not permit it, there are too many threads, or no descriptors are left.
    pub fn open(data: bool) -> io::Result<Self> {
        let mut new =
            Self { pid: std::process::id(), rings: Vec::new(), events: Vec::new(), complete: false };
        for cpu in online_cpus() {
            match perf::open(attr(0), 0, cpu as i32) {
                Ok(event) => new.rings.push((cpu, ring(event, PAGES)?)),
                // That CPU went offline since the list was read.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        let mut known = HashSet::new();
        for _ in 0..ROUNDS {
            let fresh: Vec<i32> = threads(new.pid).into_iter().filter(|&tid| known.insert(tid)).collect();
            if fresh.is_empty() {
                // A thread that is not in this list was born from one that was followed by then.
                new.complete = true;
                break;
            }
            for tid in fresh {
                new.follow(data, tid)?;
            }
        }
        Ok(new)
    }
    fn follow(&mut self, data: bool, tid: i32) -> io::Result<()> {
        if self.events.len() + self.rings.len() > MAX_EVENTS {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        for (cpu, ring) in &self.rings {
            match follow(data, tid, *cpu) {
                Ok(event) => {
                    perf::redirect(event.as_fd(), ring.event())?;
                    self.events.push(event);
                }
                // The thread has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
    /// Whether every thread is followed. If threads created threads all the time while this was opened, some
    /// may not be.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }
    /// Takes all records. Returns how many the kernel dropped since the last call.
    pub fn drain(&self, mut each: impl FnMut(MappingRecord)) -> u64 {
        let mut lost = 0;
        for (_, ring) in &self.rings {
            let drained = ring.drain(|kind, _, body| match kind {
                RECORD_MMAP2 => {
                    parse(body).filter(|one| one.0 == self.pid).into_iter().for_each(|one| each(one.1))
                }
                RECORD_LOST => lost += word(body, 8).unwrap_or(1),
                _ => {}
            });
            lost += u64::from(!drained.sound);
        }
        lost
    }
    /// Descriptors for [`Bell::wait`](crate::Bell::wait) to wait for: a record makes one of them readable.
    /// They are plain numbers, so a waiting thread does not keep the rings alive. If they are closed
    /// meanwhile, the wait returns at once, or without a reason.
    #[must_use]
    pub fn descriptors(&self) -> Vec<i32> {
        self.rings.iter().map(|(_, ring)| ring.event().as_raw_fd()).collect()
    }
    /// For a forked child: closes the descriptors. The kernel does not copy a ring's mapping to the child,
    /// and another mapping may be in its place.
    pub fn leave(self) {
        self.rings.into_iter().for_each(|(_, ring)| ring.leave());
    }
}

fn word(body: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?))
}

/// The process that made the mapping, and the mapping. The record ends with its time.
fn parse(body: &[u8]) -> Option<(u32, MappingRecord)> {
    /// Bytes before the name, plus those of the time behind it.
    const FIXED: usize = 64 + 8;
    const PROT: usize = 56;
    let body = (body.len() >= FIXED).then_some(body)?;
    let half = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let prot = half(PROT)?.cast_signed();
    let start = RemoteAddr(word(body, 8)?);
    let inode = word(body, 40)?;
    let record = MappingRecord {
        start,
        end: RemoteAddr(start.0.saturating_add(word(body, 16)?)),
        offset: FileOffset(word(body, 24)?),
        file: (inode != 0).then_some(FileId { dev: libc::makedev(half(32)?, half(36)?), inode }),
        exec: prot & libc::PROT_EXEC != 0,
        write: prot & libc::PROT_WRITE != 0,
        time_ns: word(body, body.len().checked_sub(8)?)?,
    };
    Some((half(0)?, record))
}

#[cfg(test)]
mod tests {
    use super::{FileId, FileOffset, MappingRecord, MappingRings, parse};
    use crate::bell::Bell;
    use std::time::Duration;

    #[test]
    fn a_record_is_read() {
        let mut body = Vec::new();
        body.extend([7u32, 8].map(u32::to_le_bytes).concat());
        body.extend([0x1000u64, 0x2000, 0x3000].map(u64::to_le_bytes).concat());
        body.extend([8u32, 1].map(u32::to_le_bytes).concat());
        body.extend([42u64, 5].map(u64::to_le_bytes).concat());
        body.extend([5u32, 2].map(u32::to_le_bytes).concat());
        body.extend(b"/lib/x\0\0");
        body.extend(99u64.to_le_bytes());
        let (pid, record) = parse(&body).expect("a record");
        assert_eq!(
            (pid, record.start.0, record.end.0, record.offset),
            (7, 0x1000, 0x3000, FileOffset(0x3000))
        );
        assert_eq!(record.file, Some(FileId { dev: libc::makedev(8, 1), inode: 42 }));
        assert!(record.exec && !record.write);
        assert_eq!(record.time_ns, 99);
        assert_eq!(parse(&body[..71]), None);
    }

    /// This test's own file is mapped by another thread and by a thread born later, and only after that made
    /// executable.
    #[test]
    fn all_threads_are_followed_and_a_change_of_rights_is_reported() {
        let rings = match MappingRings::open(false) {
            Ok(rings) => rings,
            Err(why) => return eprintln!("SKIPPED records of our own mappings: {why}"),
        };
        assert!(rings.is_complete());
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let (bell, mut seen): (_, Vec<MappingRecord>) = (Bell::new().expect("a bell"), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| crate::sys::map::Map::executable(&file, 4096).expect("mapped"));
                });
            });
        });
        bell.wait(&rings.descriptors(), Some(Duration::from_secs(10)));
        assert_eq!(rings.drain(|one| seen.push(one)), 0);
        let ours = seen.iter().filter(|one| one.exec && one.file.is_some() && one.end - one.start == 4096);
        assert_eq!(ours.count(), 1, "{seen:?}");
        // The bell wakes, too.
        bell.ring();
        bell.wait(&rings.descriptors(), Some(Duration::from_secs(10)));
        assert!(bell.clear());
        assert!(!bell.clear());
    }
}
