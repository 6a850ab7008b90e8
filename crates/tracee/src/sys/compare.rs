//! Whether two processes share something.

use std::io;

use super::check;

/// Whether two processes share their memory.
pub(crate) fn same_memory(a: u32, b: u32) -> io::Result<bool> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) }).map(|order| order == 0)
}
