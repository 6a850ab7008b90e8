//! perf_event_open, counters and rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use super::check;
use super::map::Map;

/// Flag bits of `perf_event_attr`.
pub(crate) const DISABLED: u64 = 1 << 0;
pub(crate) const INHERIT: u64 = 1 << 1;
pub(crate) const EXCLUDE_KERNEL: u64 = 1 << 5;
pub(crate) const EXCLUDE_HV: u64 = 1 << 6;
pub(crate) const MMAP: u64 = 1 << 8;
pub(crate) const WATERMARK: u64 = 1 << 14;
pub(crate) const MMAP2: u64 = 1 << 23;

/// The part of `perf_event_attr` that we use; its first 112 bytes.
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
    pub(crate) rest: [u64; 5],
}

/// Opens an event; −1 stands for all, as in the system call.
pub(crate) fn open(mut attr: Attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    const FD_CLOEXEC: u64 = 8;
    attr.size = size_of::<Attr>() as u32;
    // SAFETY: `attr` is live and as long as it says; its config1 may hold the address of a string, which the caller of
    // this function keeps alive.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, -1, FD_CLOEXEC)
    })?;
    // SAFETY: the call succeeded and returned a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends an event's records into another event's ring.
pub(crate) fn redirect(event: BorrowedFd<'_>, into: BorrowedFd<'_>) -> io::Result<()> {
    const SET_OUTPUT: libc::c_ulong = 0x2405;
    // SAFETY: plain numbers; both are open while borrowed.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT, into.as_raw_fd()) })).map(drop)
}

/// Lets an event count, or not.
pub(crate) fn set_enabled(event: BorrowedFd<'_>, enabled: bool) -> io::Result<()> {
    const ENABLE: libc::c_ulong = 0x2400;
    const DISABLE: libc::c_ulong = 0x2401;
    let request = if enabled { ENABLE } else { DISABLE };
    // SAFETY: plain numbers; the event is open while borrowed.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), request, 0) })).map(drop)
}

/// Gives a breakpoint another address, length or type; the other fields must be as they were.
pub(crate) fn modify(event: BorrowedFd<'_>, mut attr: Attr) -> io::Result<()> {
    const MODIFY_ATTRIBUTES: libc::c_ulong = 0x4008_240b;
    attr.size = size_of::<Attr>() as u32;
    // SAFETY: `attr` is live and as long as it says; the event is open while borrowed.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), MODIFY_ATTRIBUTES, &raw const attr) })).map(drop)
}

const PAGE: u64 = 4096;
const RING: u64 = 16 * PAGE;
const DATA_HEAD: usize = 1024 / 8;
const DATA_TAIL: usize = 1032 / 8;

/// An event with a ring of records.
#[derive(Debug)]
pub(crate) struct Ring {
    event: OwnedFd,
    map: Map,
}

impl Ring {
    pub(crate) fn new(event: OwnedFd) -> io::Result<Self> {
        let map = Map::new(event.as_fd(), (PAGE + RING) as usize)?;
        Ok(Self { event, map })
    }
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
    /// Takes all records: type and body each.
    pub(crate) fn drain(&self, mut each: impl FnMut(u32, &[u8])) {
        let words = self.map.words();
        let head = words[DATA_HEAD].load(Ordering::Acquire);
        let mut tail = words[DATA_TAIL].load(Ordering::Relaxed);
        while tail < head {
            let header = self.copy(tail, 8);
            let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
            let size = u64::from(u16::from_le_bytes([header[6], header[7]]));
            if size < 8 {
                tail = head;
                break;
            }
            each(kind, &self.copy(tail + 8, size - 8));
            tail += size;
        }
        words[DATA_TAIL].store(tail, Ordering::Release);
    }
    fn copy(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let first = len.min(RING - at % RING) as usize;
        let (left, right) = bytes.split_at_mut(first);
        let whole = self.map.read(PAGE + at % RING, left) && self.map.read(PAGE, right);
        debug_assert!(whole, "a record lies inside the ring");
        bytes
    }
}
