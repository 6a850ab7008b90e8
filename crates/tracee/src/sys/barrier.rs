//! membarrier(2) for our own process.

use std::io;

use super::check;

/// Issues MEMBARRIER_CMD_GLOBAL.
pub(crate) fn global() -> io::Result<()> {
    const GLOBAL: i32 = 1;
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) }).map(drop)
}
