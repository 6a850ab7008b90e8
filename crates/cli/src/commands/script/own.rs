//! Our own child, and what tests are told.
//!
//! In: the text of a command. Out: a process. Does not: trace it.

use std::io::{self, Write};
use std::process::{Child, Command};

use super::system::reason;

/// Starts a command that is not probed. Words are separated by white space.
pub(super) fn launch(text: &str) -> Result<Child, String> {
    let mut words = text.split_whitespace();
    let Some(program) = words.next() else { return Err("no command was given".to_owned()) };
    let child = Command::new(program).args(words).spawn();
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
