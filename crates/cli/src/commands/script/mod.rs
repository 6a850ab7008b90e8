//! `run`: scripts in bpftrace's language.
//!
//! In: a script and what is asked of it. Out: what the script writes, its exit status. Messages about the script are
//! bpftrace's, to the letter. Invariants: READY-1, END-1, as for every run.
//! Does not: know the language; that is the crate `script`.

mod bench;
mod declared;
mod files;
mod found;
mod frames;
mod headers;
mod host;
mod listing;
mod native;
mod own;
mod places;
mod probing;
mod ran;
mod recorded;
mod registers;
mod running;
mod said;
mod source;
mod stop;
mod system;
mod watched;

use std::io::{self, Write};
use std::process::ExitStatus;

use trapline_script::Style;

use self::source::{compiled, source};
use self::stop::{Stop, said, say};
use super::{Failure, Outcome};
use crate::args::command::Script;

/// Runs `run`.
pub(crate) fn run(args: &Script) -> Result<Outcome, Failure> {
    match outcome(args) {
        Ok(status) => Ok(exit(status)),
        Err(Stop::Said(text)) => {
            say(&text);
            Ok(Outcome::Failed)
        }
        Err(Stop::Failure(failure)) => Err(failure),
    }
}

/// An exit status that a script chose.
fn exit(status: i32) -> Outcome {
    use std::os::unix::process::ExitStatusExt;
    match status & 0xff {
        0 => Outcome::Done,
        code => Outcome::Command(ExitStatus::from_raw(code << 8)),
    }
}

fn outcome(args: &Script) -> Result<i32, Stop> {
    if let Some(pattern) = &args.list {
        let pid = args.pid.as_deref().map(pid).transpose()?;
        return listing::list(args, pattern, pid);
    }
    let style = Style { json: json(args)?, no_warnings: args.no_warnings, lookups: args.lookups };
    let source = source(&args.input)?;
    if args.shows_tree {
        let tree = trapline_script::shown_tree(&source, &args.positional).map_err(Stop::Said)?;
        drop(io::stdout().lock().write_all(tree.as_bytes()));
    }
    let pid = args.pid.as_deref().map(pid).transpose()?;
    let compiled = compiled(args, source)?;
    if !args.no_warnings {
        say(&compiled.warnings);
    }
    if args.dry_run {
        return Ok(0);
    }
    running::run(args, compiled.program, style, pid)
}

/// Whether output is JSON.
fn json(args: &Script) -> Result<bool, Stop> {
    match args.format.as_deref() {
        None | Some("text") => Ok(false),
        Some("json") => Ok(true),
        Some(other) => Err(said(format!("Invalid output format \"{other}\"\nValid formats: 'text', 'json'"))),
    }
}

/// A process number, as bpftrace reads it.
fn pid(text: &str) -> Result<u32, Stop> {
    /// The most that Linux has.
    const MOST: u32 = 0x40_0000;
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    match text[..digits].parse::<u64>() {
        Err(_) => Err(said(format!("Failed to parse pid: invalid integer: {text}"))),
        Ok(_) if digits < text.len() => {
            Err(said(format!("Failed to parse pid: invalid trailing bytes: {text}")))
        }
        Ok(pid) => match u32::try_from(pid).ok().filter(|pid| (1..=MOST).contains(pid)) {
            Some(pid) => Ok(pid),
            None => Err(said(format!("Pid out of range: {text}"))),
        },
    }
}
