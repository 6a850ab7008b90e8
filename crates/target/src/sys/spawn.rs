//! Starting a program that stops at its exec for the thread that started it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts a command as a tracee of the calling thread: it stops with SIGTRAP when it executes its program.
pub(crate) fn traced(command: &mut Command) -> io::Result<Child> {
    // SAFETY: the request takes no pointers.
    start(command, || super::check(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) }).map(drop))
}

/// Starts a command that runs at once.
pub(crate) fn untraced(command: &mut Command) -> io::Result<Child> {
    start(command, || Ok(()))
}

/// Starts a command: the signal mask is as we found it, SIGPIPE as a shell leaves it. `first` is done by the child before its exec; it
/// allocates nothing and takes no lock.
fn start(command: &mut Command, first: fn() -> io::Result<()>) -> io::Result<Child> {
    let prepare = move || {
        super::signals::unblock();
        first()
    };
    // SAFETY: between fork and exec the closure makes system calls, allocates nothing and takes no lock; this module's own callers pass
    // `first`.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}
