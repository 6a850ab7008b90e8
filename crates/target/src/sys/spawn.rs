//! Starting a program that stops at its exec for the thread that started it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts a command as a tracee of the calling thread: it stops with SIGTRAP when it executes its program. The signal
/// mask is as we found it, SIGPIPE as a shell leaves it.
pub(crate) fn traced(command: &mut Command) -> io::Result<Child> {
    let trace_me = || {
        super::signals::unblock();
        // SAFETY: the request takes no pointers.
        let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
        super::check(result).map(drop)
    };
    // SAFETY: between fork and exec the closure makes two system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(trace_me) };
    command.spawn()
}
