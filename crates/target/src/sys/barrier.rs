//! membarrier(2) of our own.

use std::io;

use super::check;

/// MEMBARRIER_CMD_GLOBAL.
pub(crate) fn global() -> io::Result<()> {
    const GLOBAL: i32 = 1;
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) }).map(drop)
}
