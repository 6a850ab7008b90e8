//! Calls that change this very process' code, as arm64 has them. Made past libc, whose functions may be probed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

/// `PROT_BTI` (asm/mman.h).
const PROT_BTI: i32 = 0x10;
/// `HWCAP2_BTI` (asm/hwcap.h).
const HWCAP2_BTI: u64 = 1 << 17;

/// Bytes of a page here: 4096, 16384 or 65536.
pub(crate) fn page_size() -> u64 {
    // SAFETY: a number.
    unsafe { libc::getauxval(libc::AT_PAGESZ) }
}

/// Whether pages can be guarded (FEAT_BTI, and a kernel that knows it).
pub(crate) fn may_guard() -> bool {
    // SAFETY: a number.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_BTI != 0 }
}

/// A part of a file as private code, readable and executable from birth, wherever there is room.
pub(crate) fn map_code(file: BorrowedFd<'_>, off: u64, len: u64, guarded: bool) -> io::Result<u64> {
    let prot = libc::PROT_READ | libc::PROT_EXEC | if guarded { PROT_BTI } else { 0 };
    let (flags, fd) = (libc::MAP_PRIVATE, file.as_raw_fd());
    // SAFETY: a new mapping, wherever nothing is.
    check(unsafe {
        libc::syscall(libc::SYS_mmap, 0, len, i64::from(prot), i64::from(flags), i64::from(fd), off)
    })
    .map(|at| at as u64)
}

/// Moves pages over others, which are gone behind it: whoever comes there meanwhile waits, and finds one or the other.
///
/// # Safety
/// The pages at `to` may be replaced by those at `from`, which nobody uses.
pub(crate) unsafe fn move_over(from: u64, to: u64, len: u64) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's.
    check(unsafe { libc::syscall(libc::SYS_mremap, from, len, len, i64::from(flags), to) }).map(drop)
}
