//! perf_event_open, counters and rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::check;
use super::fd::owned;
use super::map::Map;

/// PERF_TYPE_BREAKPOINT.
pub(crate) const BREAKPOINT: u32 = 5;
/// Flag bits of `perf_event_attr`.
pub(crate) const DISABLED: u64 = 1;
pub(crate) const INHERIT: u64 = 1 << 1;
pub(crate) const EXCLUDE_KERNEL: u64 = 1 << 5;
pub(crate) const EXCLUDE_HV: u64 = 1 << 6;
pub(crate) const MMAP: u64 = 1 << 8;
pub(crate) const COMM: u64 = 1 << 9;
pub(crate) const TASK: u64 = 1 << 13;
pub(crate) const WATERMARK: u64 = 1 << 14;
pub(crate) const MMAP_DATA: u64 = 1 << 17;
pub(crate) const SAMPLE_ID_ALL: u64 = 1 << 18;
pub(crate) const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
pub(crate) const MMAP2: u64 = 1 << 23;
pub(crate) const COMM_EXEC: u64 = 1 << 24;
pub(crate) const USE_CLOCKID: u64 = 1 << 25;
pub(crate) const INHERIT_THREAD: u64 = 1 << 35;
pub(crate) const REMOVE_ON_EXEC: u64 = 1 << 36;
/// Each overflow sends SIGTRAP to the thread.
pub(crate) const SIGTRAP: u64 = 1 << 37;
/// Type of a breakpoint at an instruction.
pub(crate) const EXECUTE: u32 = 4;

/// Bit of `sample_type`: the time of the sample.
pub(crate) const TIME: u64 = 1 << 2;

/// The first 112 bytes of `perf_event_attr`, which is the part that we use.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attr {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup: u32,
    pub(crate) bp_type: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
    pub(crate) branch_sample_type: u64,
    pub(crate) sample_regs_user: u64,
    pub(crate) sample_stack_user: u32,
    pub(crate) clockid: i32,
    pub(crate) rest: [u64; 2],
}

/// Opens an event; −1 stands for all processes or all CPUs, as in the system call.
pub(crate) fn open(mut attr: Attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    const FD_CLOEXEC: u64 = 8;
    attr.size = size_of::<Attr>() as u32;
    if attr.kind == BREAKPOINT {
        super::fault::refuse_breakpoint(attr.flags)?;
    }
    // SAFETY: `attr` is live and as long as its `size` states; a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, -1, FD_CLOEXEC)) }
}

/// Sends an event's records into another event's ring.
pub(crate) fn redirect(event: BorrowedFd<'_>, into: BorrowedFd<'_>) -> io::Result<()> {
    const SET_OUTPUT: libc::Ioctl = 0x2405;
    // SAFETY: plain numbers; both are open while borrowed.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT, into.as_raw_fd()) })).map(drop)
}

/// Starts an event.
pub(crate) fn enable(event: BorrowedFd<'_>) -> io::Result<()> {
    const ENABLE: libc::Ioctl = 0x2400;
    // SAFETY: plain numbers; the descriptor is open while borrowed.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), ENABLE, 0) })).map(drop)
}

/// Stops an event.
pub(crate) fn disable(event: BorrowedFd<'_>) -> io::Result<()> {
    const DISABLE: libc::Ioctl = 0x2401;
    // SAFETY: plain numbers; the descriptor is open while borrowed.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), DISABLE, 0) })).map(drop)
}

/// The words that reading an event gives.
pub(crate) fn read<const WORDS: usize>(event: BorrowedFd<'_>) -> io::Result<[u64; WORDS]> {
    let mut words = [0u64; WORDS];
    // SAFETY: `words` is live and as long as stated; the descriptor is open while borrowed.
    let read = unsafe { libc::read(event.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words)) };
    match check(read as i64)? as usize == size_of_val(&words) {
        true => Ok(words),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The number that an event's records carry.
pub(crate) fn id(event: BorrowedFd<'_>) -> io::Result<u64> {
    const ID: libc::Ioctl = 0x8008_2407u32 as libc::Ioctl;
    let mut id = 0u64;
    // SAFETY: `id` is live and of the size that the request writes.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), ID, &raw mut id) })).map(|_| id)
}

/// Runs a BPF program at each overflow of an event.
pub(crate) fn set_program(event: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    const SET_BPF: libc::Ioctl = 0x4004_2408;
    // SAFETY: plain numbers; both are open while borrowed.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), SET_BPF, program.as_raw_fd()) })).map(drop)
}

/// Moves a breakpoint, for this event and those inherited from it. `attr` differs from the event's own only
/// in `bp_*`.
pub(crate) fn modify(event: BorrowedFd<'_>, mut attr: Attr) -> io::Result<()> {
    const MODIFY_ATTRIBUTES: libc::Ioctl = 0x4008_240b;
    attr.size = size_of::<Attr>() as u32;
    // SAFETY: `attr` is live and as long as its `size` states.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), MODIFY_ATTRIBUTES, &raw const attr) })).map(drop)
}

/// Waits until one of the descriptors is readable, at most `at_most`.
pub(crate) fn wait(events: &[BorrowedFd<'_>], at_most: Duration) {
    wait_for(&events.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(), Some(at_most));
}

/// Waits likewise for descriptors given as numbers, without limit if `at_most` is `None`. A closed descriptor
/// ends the wait.
pub(crate) fn wait_for(events: &[i32], at_most: Option<Duration>) {
    let one = |&fd: &i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = events.iter().map(one).collect();
    let ms = at_most.map_or(-1, |at_most| i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: the array is live and as long as stated. An interrupted wait is a short one.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
}

const PAGE: u64 = 4096;
/// Pages of a ring if the caller does not choose a size.
const PAGES: u64 = 16;
const DATA_HEAD: usize = 1024 / 8;
const DATA_TAIL: usize = 1032 / 8;

/// The result of one round of reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Drained {
    /// False when a header made no sense, and the rest of the records was skipped.
    pub(crate) sound: bool,
    /// Bytes of the ring that were free when the round began: a longer record found no space.
    pub(crate) room: u64,
}

/// An event with a ring of records.
#[derive(Debug)]
pub(crate) struct Ring {
    event: OwnedFd,
    map: Map,
    len: u64,
}

impl Ring {
    pub(crate) fn new(event: OwnedFd) -> io::Result<Self> {
        Self::with_pages(event, PAGES)
    }
    /// Maps a ring of `pages` pages, a power of two.
    pub(crate) fn with_pages(event: OwnedFd, pages: u64) -> io::Result<Self> {
        let map = Map::new(event.as_fd(), (PAGE + pages * PAGE) as usize)?;
        Ok(Self { event, map, len: pages * PAGE })
    }
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
    /// Takes all records, and calls `each` with type, bits of the header (`misc`) and body. The other side
    /// writes the ring, so its contents are not trusted: a header that does not fit the rest ends the round.
    pub(crate) fn drain(&self, mut each: impl FnMut(u32, u16, &[u8])) -> Drained {
        let words = self.map.words();
        let head = words[DATA_HEAD].load(Ordering::Acquire);
        let mut tail = words[DATA_TAIL].load(Ordering::Relaxed);
        let mut body = Vec::new();
        let mut drained = Drained { sound: true, room: self.len.saturating_sub(head.wrapping_sub(tail)) };
        while tail < head {
            let mut header = [0; 8];
            self.copy(tail, &mut header);
            let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
            let misc = u16::from_le_bytes([header[4], header[5]]);
            let size = u64::from(u16::from_le_bytes([header[6], header[7]]));
            if size < 8 || size > head - tail {
                tail = head;
                drained.sound = false;
                break;
            }
            body.resize(size as usize - 8, 0);
            self.copy(tail + 8, &mut body);
            each(kind, misc, &body);
            tail += size;
        }
        words[DATA_TAIL].store(tail, Ordering::Release);
        drained
    }
    /// Closes the event but not the mapping; for a forked child, which does not have the mapping.
    pub(crate) fn leave(self) {
        self.map.leave();
    }
    fn copy(&self, at: u64, bytes: &mut [u8]) {
        let first = (bytes.len() as u64).min(self.len - at % self.len) as usize;
        let (left, right) = bytes.split_at_mut(first);
        let whole = self.map.read(PAGE + at % self.len, left) && self.map.read(PAGE, right);
        debug_assert!(whole, "a record lies inside the ring");
    }
}
