//! Calls that returned EINTR because their thread was stopped, and whether they can be made again (TGT-3).
//!
//! Input: a stopped thread's registers and signals. Output: registers that make the call again, and whether a
//! timeout begins anew. Calls that the kernel restarts by itself need none of this. Does not: stop a thread, or
//! let it run.

use std::os::fd::AsFd;

use trapline_record::RemoteAddr;

use crate::calls::{Interruption, Repair, classify};
use crate::process::Process;
use crate::regs::{Regs, SYSCALL};
use crate::sys::fd;

/// What an interruption does to a call. The timeouts of a socket are read through a copy of the descriptor.
pub(crate) fn interruption(process: &Process, nr: i64, args: &[u64; 6]) -> Interruption {
    classify(nr, args, &|number, sending| {
        let copy = process.descriptor(number).ok()?;
        Some(fd::has_socket_timeout(copy.as_fd(), sending).unwrap_or(false))
    })
}

/// Whether an EINTR may be undone: the instruction before the pc makes a system call, and no signal waits
/// that could be delivered.
pub(crate) fn may_redo_eintr(process: &Process, tid: u32, regs: &Regs, mask: u64) -> bool {
    let mut before = [0u8; SYSCALL.len()];
    let at = regs.pc().wrapping_sub(SYSCALL.len() as u64);
    let at_syscall = process.read(RemoteAddr(at), &mut before).is_ok() && before == SYSCALL;
    at_syscall
        && process
            .thread_status(tid)
            .is_ok_and(|status| (status.pending | status.shared_pending) & !mask == 0)
}

/// The call from which a thread comes back with EINTR.
pub(crate) const fn broken_off(regs: &Regs) -> Option<(i64, [u64; 6])> {
    if regs.shows_eintr() { regs.call() } else { None }
}

/// Lets a thread make a call again that was broken off; returns what the interruption did to the call. `None`
/// if the call cannot be made again.
pub(crate) fn make_again(
    process: &Process,
    tid: u32,
    regs: &Regs,
    (nr, args): (i64, [u64; 6]),
    mask: u64,
) -> Option<Interruption> {
    match regs.repaired(may_redo_eintr(process, tid, regs, mask)) {
        (again, Repair::Again) if again.write(tid).is_ok() => Some(interruption(process, nr, &args)),
        _ => None,
    }
}
