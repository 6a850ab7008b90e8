//! `-l`: probes by a pattern, or those of a script.
//!
//! In: a pattern, or a script. Out: one probe a line; of programs, those that are in their files, or in the files of a
//! process. With `-v`, the parameters of each function follow. Does not: attach.

use std::io::Write;
use std::path::{Path, PathBuf};

use trapline::Session;
use trapline::listing::Listed;
use trapline_script::{Probe, is_match, listed, matching};

use super::declared::DebugTypes;
use super::files::{files, is_pattern};
use super::source::{compiled, source};
use super::stop::{Stop, said, say};
use crate::args::command::{Input, Script};

/// Lists probes; the exit status.
pub(super) fn list(args: &Script, pattern: &str, pid: Option<u32>) -> Result<i32, Stop> {
    let script = match (&args.input, pattern) {
        (input @ (Input::Text(_) | Input::Stdin | Input::File(_)), _) => Some(input.clone()),
        (_, pattern) if pattern.ends_with(".bt") && Path::new(pattern).exists() => {
            Some(Input::File(pattern.into()))
        }
        _ => None,
    };
    let patterns = match script {
        Some(input) => listed(&compiled(args, source(&input)?)?.program),
        None => {
            if pattern.ends_with(".bt") && !args.no_warnings {
                say(&format!(
                    "WARNING: It appears that '{pattern}' is a filename but the file does not exist. Treating \
                     '{pattern}' as a search pattern.\n"
                ));
            }
            vec![pattern.to_owned()]
        }
    };
    let mut names = Vec::new();
    for pattern in &patterns {
        let of_us = matching(pattern).into_iter().map(str::to_owned);
        // A probe of a script is there, whatever it matches.
        let own = if patterns == [pattern.clone()] && args.input == Input::Nothing {
            of_us.collect()
        } else {
            named(pattern)
        };
        names.extend(own);
        names.extend(of_programs(pattern, pid, &args.debug_folders)?);
    }
    let types = DebugTypes::in_folders(&args.debug_folders);
    let mut out = std::io::stdout().lock();
    // A reader that is gone has enough.
    drop(names.iter().try_for_each(|name| {
        writeln!(out, "{name}")?;
        let lines = if args.verbose { parameters(&types, name) } else { Vec::new() };
        lines.iter().try_for_each(|line| writeln!(out, "    {line}"))
    }));
    Ok(0)
}

/// The probe of a script, if it is not one of programs.
fn named(probe: &str) -> Vec<String> {
    let of_program = Probe::parse(probe).is_ok_and(|probe| probe.is_of_program());
    if of_program { Vec::new() } else { vec![probe.to_owned()] }
}

/// The parameters of a function, as C spells them.
fn parameters(types: &DebugTypes, name: &str) -> Vec<String> {
    let probe = Probe::parse(name).ok();
    probe.into_iter().flat_map(|probe| types.spelled(&probe)).flat_map(|(_, lines)| lines).collect()
}

/// The sorts of probes that a word means; a pattern does not mean returns.
fn sorts(word: &str) -> Vec<&'static str> {
    match word {
        "u" | "uprobe" => vec!["uprobe"],
        "ur" | "uretprobe" => vec!["uretprobe"],
        "U" | "usdt" => vec!["usdt"],
        "" => vec!["uprobe", "usdt"],
        word if is_pattern(word) => {
            ["uprobe", "usdt"].into_iter().filter(|sort| is_match(word.as_bytes(), sort.as_bytes())).collect()
        }
        _ => Vec::new(),
    }
}

/// The functions or USDT probes that a pattern means.
fn of_programs(pattern: &str, pid: Option<u32>, folders: &[PathBuf]) -> Result<Vec<String>, Stop> {
    let (word, rest) = pattern.split_once(':').unwrap_or((pattern, ""));
    let mut names = Vec::new();
    for sort in sorts(word) {
        // `usdt:*` of a process is all of it; so is no pattern.
        let (file, name) = match rest.split_once(':') {
            Some((file, name)) => (file, name),
            None if pid.is_some() => (rest, "*"),
            None if rest.is_empty() || is_pattern(word) => continue,
            None => return Err(said(format!("{pattern}: write FILE:FUNCTION, or give a process with -p"))),
        };
        let several = file.is_empty() || is_pattern(file) || is_pattern(word);
        for file in files(file, pid) {
            match in_file(sort, (&file, name), pid, folders) {
                Ok(found) => names.extend(found),
                // Not every file is a program.
                Err(_) if several => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(names)
}

fn in_file(
    sort: &str,
    (file, name): (&str, &str),
    pid: Option<u32>,
    folders: &[PathBuf],
) -> Result<Vec<String>, Stop> {
    let engine = if sort == "usdt" { "usdt" } else { "uprobe" };
    let builder = Session::builder().probe(&format!("{engine}:{file}:{name}"));
    let builder = builder.map_err(|error| said(error.to_string()))?.debug_folders(folders);
    let builder = match pid {
        Some(pid) => builder.pid(pid),
        None => builder,
    };
    let shown = |one: &Listed| match sort {
        "usdt" => one.probe.clone(),
        sort => {
            let own = one.probe.strip_prefix(&format!("uprobe:{}:", one.file));
            format!("{sort}:{file}:{}", own.unwrap_or(&one.function))
        }
    };
    let listed = builder.list(false).map(|listing| listing.listed.iter().map(shown).collect());
    listed.map_err(|error| said(error.to_string()))
}
