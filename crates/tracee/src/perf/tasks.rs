//! Births, ends, names and execs of threads, as the kernel records them.
//!
//! In: threads to follow. Out: the kernel's records as bytes. A thread's dummy event on each CPU records what
//! the thread does. All threads and processes that it creates inherit the event, and it survives exec. Every
//! record ends with the task that caused it, the time, and the event (`sample_id_all`). These rings are
//! separate from those of samples, so a full one never costs a birth. They wake a waiting thread at once.
//! Does not: parse records.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::cpus::{NotArmed, online_cpus};
use crate::sys::perf::{self, Attr, Ring};

const TYPE_SOFTWARE: u32 = 1;
const SW_DUMMY: u64 = 9;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_IDENTIFIER: u64 = 1 << 16;
/// Pages of a ring. 128 KiB hold some 2000 births, and they are read at once.
const PAGES: u64 = 32;
/// Pages of a ring where locked memory is short.
const FEW_PAGES: u64 = 2;

/// One ring for each CPU.
#[derive(Debug)]
pub struct TaskRings {
    rings: Vec<(u32, Ring)>,
}

/// A followed thread, with all that it creates.
#[derive(Debug)]
pub struct Followed {
    events: Vec<OwnedFd>,
    ids: Vec<u64>,
}

fn attr(flags: u64) -> Attr {
    Attr {
        kind: TYPE_SOFTWARE,
        config: SW_DUMMY,
        sample_type: SAMPLE_TID | SAMPLE_TIME | SAMPLE_IDENTIFIER,
        flags: flags | perf::EXCLUDE_KERNEL | perf::WATERMARK | perf::USE_CLOCKID | perf::SAMPLE_ID_ALL,
        wakeup: 1,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attr::default()
    }
}

impl TaskRings {
    /// Makes one ring for each CPU that is online.
    ///
    /// # Errors
    /// When the kernel does not permit perf events at all, or has no memory to lock.
    pub fn open() -> io::Result<Self> {
        let mut rings = Vec::new();
        for cpu in online_cpus() {
            match perf::open(attr(0), 0, cpu as i32) {
                Ok(event) => {
                    let few = event.try_clone()?;
                    let ring =
                        Ring::with_pages(event, PAGES).or_else(|_| Ring::with_pages(few, FEW_PAGES))?;
                    rings.push((cpu, ring));
                }
                // That CPU went offline since the list was read.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { rings })
    }
    /// Follows a thread and what it creates from now on.
    ///
    /// # Errors
    /// [`NotArmed`]; the thread is then not followed.
    pub fn follow(&self, tid: u32) -> Result<Followed, NotArmed> {
        let mut followed = Followed { events: Vec::new(), ids: Vec::new() };
        for (cpu, ring) in &self.rings {
            let failed = |source| NotArmed { tid, cpu: *cpu, source };
            let flags = perf::INHERIT | perf::TASK | perf::COMM | perf::COMM_EXEC;
            let event = perf::open(attr(flags), tid as i32, *cpu as i32).map_err(failed)?;
            perf::redirect(event.as_fd(), ring.event()).map_err(failed)?;
            followed.ids.push(perf::id(event.as_fd()).map_err(failed)?);
            followed.events.push(event);
        }
        Ok(followed)
    }
    /// Takes all records, and calls `each` with type, bits of the header and body. Returns false if the rest
    /// of some ring was skipped.
    pub fn drain(&self, mut each: impl FnMut(u32, u16, &[u8])) -> bool {
        self.rings.iter().fold(true, |sound, (_, ring)| sound & ring.drain(&mut each).sound)
    }
    pub(super) fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|(_, ring)| ring.event())
    }
}

impl Followed {
    /// The number of descriptors that it takes.
    #[must_use]
    pub const fn descriptors(&self) -> usize {
        self.events.len()
    }
    /// The identifiers at the end of its records, including records of what the thread created.
    #[must_use]
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }
}
