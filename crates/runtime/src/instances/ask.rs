//! Questions to the kernel about calls that may have been left.
//!
//! In: addresses, a thread's number. Out: whether they exist.
//! Does not: rely on an answer that it did not get.

use crate::native::syscall::{call, nr};

/// Whether every page from one address to another can be read.
#[must_use]
pub(super) fn are_readable(from: u64, to: u64) -> bool {
    const PAGE: u64 = 4096;
    const AT_ONCE: usize = 32;
    let (mut page, last) = (from / PAGE * PAGE, to / PAGE * PAGE);
    while page <= last {
        let count = AT_ONCE.min(((last - page) / PAGE + 1) as usize);
        let mut bytes = [0_u8; AT_ONCE];
        let local = [(&raw mut bytes) as u64, count as u64];
        let mut remote = [[0_u64, 1]; AT_ONCE];
        remote.iter_mut().zip((page..).step_by(PAGE as usize)).for_each(|(one, at)| one[0] = at);
        // SAFETY: process_vm_readv of ourselves writes at most `count` bytes to `bytes`; getpid has no
        // arguments.
        let read = unsafe {
            let pid = call(nr::GETPID, [0; 6]);
            let remote = remote.as_ptr() as u64;
            call(nr::PROCESS_VM_READV, [pid as u64, local.as_ptr() as u64, 1, remote, count as u64, 0])
        };
        if read != count as i64 {
            return false;
        }
        page += count as u64 * PAGE;
    }
    true
}

/// Whether this process has a thread of that number, according to the kernel.
#[must_use]
pub(super) fn is_thread(tid: u32) -> bool {
    const ESRCH: i64 = -3;
    // SAFETY: no pointers; signal 0 is none.
    let answer = unsafe {
        let pid = call(nr::GETPID, [0; 6]);
        call(nr::TGKILL, [pid as u64, tid.into(), 0, 0, 0, 0])
    };
    answer != ESRCH
}
