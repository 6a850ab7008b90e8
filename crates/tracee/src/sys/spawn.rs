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

/// Starts a command. Its signal mask is as we found ours, and SIGPIPE as a shell leaves it. The child calls
/// `first` before its exec; `first` must not allocate or take a lock.
fn start(command: &mut Command, first: fn() -> io::Result<()>) -> io::Result<Child> {
    let prepare = move || {
        super::signals::unblock();
        first()
    };
    // SAFETY: between fork and exec the closure makes system calls, allocates nothing and takes no lock.
    // `first` comes from this module's own callers, which keep to that.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}
