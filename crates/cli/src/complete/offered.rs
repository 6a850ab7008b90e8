//! The candidates for what is wanted at the cursor.
//!
//! In: what is wanted, with the options before it, which may name processes. Out: words with descriptions, or
//! that the shell shall offer files, directories or commands. Names of values (`PID`, `PROBE`) say what they are, as they
//! tell users in the help. Does not: leave out what does not begin as the cursor's word does.

use std::collections::BTreeSet;

use clap::{Arg, Command};
use trapline::completion::{MOST, probes, threads, users};
use trapline::system::busiest;

use super::wanted::{Wanted, What};

/// Candidates.
#[derive(Debug)]
pub(super) enum Offered {
    /// The shell's own files.
    Files,
    /// The shell's own directories.
    Directories,
    /// The shell's own commands.
    Commands,
    /// Words, each with a description that may be empty.
    Words(Vec<(String, String)>),
}

/// What is offered. `typed` is the cursor's word, behind the head.
pub(super) fn offered(wanted: &Wanted<'_>, typed: &str) -> Offered {
    match &wanted.what {
        What::Verb(command) => Offered::Words(verbs(command)),
        What::Option(command) => Offered::Words(options(command)),
        What::Value(arg) => values(arg, &wanted.given, typed),
        What::Command { is_first: true } => Offered::Commands,
        What::Command { is_first: false } => Offered::Files,
        What::Nothing => Offered::Words(Vec::new()),
    }
}

fn verbs(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    shown.map(|verb| (verb.get_name().to_owned(), text(verb.get_about()))).collect()
}

fn options(command: &Command) -> Vec<(String, String)> {
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let long = shown().filter_map(|arg| Some((format!("--{}", arg.get_long()?), text(arg.get_help()))));
    let short = shown().filter_map(|arg| Some((format!("-{}", arg.get_short()?), text(arg.get_help()))));
    long.chain(short).collect()
}

fn text(help: Option<&clap::builder::StyledStr>) -> String {
    help.map(ToString::to_string).unwrap_or_default()
}

/// Values of an argument.
fn values(arg: &Arg, given: &[(&Arg, String)], typed: &str) -> Offered {
    let known = arg.get_possible_values();
    if !known.is_empty() {
        let of = |one: &clap::builder::PossibleValue| (one.get_name().to_owned(), text(one.get_help()));
        return Offered::Words(known.iter().filter(|one| !one.is_hide_set()).map(of).collect());
    }
    let plain = |word: String| (word, String::new());
    let name = arg.get_value_names().and_then(<[_]>::first).map_or("", |name| name.as_str());
    Offered::Words(match name {
        "PID" => busiest().into_iter().take(MOST).map(|(pid, name)| (pid.to_string(), name)).collect(),
        "TID" => threads(&pids(given)).into_iter().map(|(tid, name)| (tid.to_string(), name)).collect(),
        "USER" => users().into_iter().map(plain).collect(),
        "NAME" => names().into_iter().map(plain).collect(),
        "PROBE" | "PATTERN" | "FUNC" | "BELOW" => {
            probes(typed, &pids(given)).into_iter().map(plain).collect()
        }
        "CMD" => return Offered::Commands,
        "FILE" => return Offered::Files,
        "DIR" | "FOLDER" | "A" | "B" => return Offered::Directories,
        _ => Vec::new(),
    })
}

/// Names of processes.
fn names() -> Vec<String> {
    let all: BTreeSet<String> = busiest().into_iter().map(|(_, name)| name).collect();
    all.into_iter().take(MOST).collect()
}

/// Pids of the processes that earlier options name.
fn pids(given: &[(&Arg, String)]) -> Vec<u32> {
    let of = |id: &str| given.iter().filter(|(arg, _)| arg.get_id() == id).map(|(_, value)| value).collect();
    let (typed, one, names): (Vec<&String>, Vec<&String>, Vec<&String>) =
        (of("pids"), of("pid"), of("names"));
    let named = || busiest().into_iter().filter(|(_, name)| names.contains(&name)).map(|(pid, _)| pid);
    let typed = typed.into_iter().chain(one).filter_map(|value| value.parse().ok());
    typed.chain((!names.is_empty()).then(named).into_iter().flatten()).collect()
}
