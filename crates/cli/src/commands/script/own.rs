//! Our own child, and what tests are told.
//!
//! In: the words of a command. Out: a process. Does not: trace it.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};
use trapline::Finished;

use super::system::reason;

/// Starts a command that is not probed.
pub(super) fn launch(words: &[String]) -> Result<Child, String> {
    let Some((program, args)) = words.split_first() else { return Err("no command was given".to_owned()) };
    let child = Command::new(program).args(args).spawn();
    child.map_err(|error| format!("Failed to fork child: failed to execute '{program}': {}", reason(&error)))
}

/// Ends a child that still runs.
pub(super) fn end(child: &mut Child) {
    // It may have ended already.
    drop(child.kill());
    drop(child.wait());
}

/// Writes a line to standard output that no one may see.
pub(super) fn print_notice(text: &str) {
    drop(writeln!(io::stdout().lock(), "{text}"));
}

/// Asks the command of a session that has ended to end too, if it still runs.
pub(super) fn end_launched(finished: &mut Finished, pid: u32) {
    if finished.command.as_mut().is_some_and(|command| command.status().is_none()) {
        terminate(pid);
    }
}

/// Asks a process to end.
pub(super) fn terminate(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended already, so an error says nothing.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Whether there is a process of this number.
pub(super) fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
