//! `run`: which words are the script, which its parameters.
//!
//! In: typed words. Out: [`Script`]. Does not: read the script.

use std::path::PathBuf;

use trapline::Returns;

use super::error::UsageError;
use super::run::{CHOOSES, among};
use super::words::split_words;
use crate::args::command::{Input, Script};
use crate::args::typed::{TypedReturns, TypedScript};

/// Makes `run` ready. Without `-e` the first word is the file; what is behind `--` with two dashes has a name.
pub(super) fn script(typed: TypedScript) -> Result<Script, UsageError> {
    let mut words = typed.words.into_iter();
    let input = match typed.programs.is_empty() {
        false => Input::Text(typed.programs.join("\n")),
        true => match words.next() {
            Some(word) if word == "-" => Input::Stdin,
            Some(word) => Input::File(PathBuf::from(word)),
            None => Input::Nothing,
        },
    };
    // `-lv PATTERN` is `-l -v PATTERN`, and a word with a colon is no file.
    let spelled = typed.list.as_deref() == Some("v");
    let bare = spelled || typed.list.as_deref() == Some("");
    let list = if spelled { Some(String::new()) } else { typed.list };
    let (input, list) = match input {
        Input::File(pattern) if bare && pattern.to_string_lossy().contains([':', '*']) => {
            (Input::Nothing, Some(pattern.display().to_string()))
        }
        input => (input, list),
    };
    let (named, unnamed): (Vec<String>, Vec<String>) =
        typed.after.into_iter().partition(|word| word.starts_with("--"));
    let named = named.iter().map(|word| word.trim_start_matches('-').to_owned()).collect();
    let among = among(typed.among)?;
    if !among.is_all() && (typed.pid.is_some() || typed.command.is_some()) {
        return Err(UsageError::Conflict(CHOOSES));
    }
    let command = typed.command.map(|command| split_words(&command)).transpose()?;
    Ok(Script {
        input,
        positional: words.chain(unnamed).collect(),
        named,
        headers: typed.include,
        allow_unsafe: typed.allow_unsafe,
        probe_filter: typed.probe_filter,
        among,
        pid: typed.pid,
        command,
        debug_folders: typed.debuginfo,
        format: typed.format,
        output: typed.output,
        buffered: typed.buffer.as_deref() == Some("full"),
        quiet: typed.quiet,
        verbose: typed.verbose || spelled,
        no_warnings: typed.no_warnings,
        lookups: typed.lookups,
        list,
        shows_tree: typed.debug.is_some(),
        dry_run: typed.dry_run,
        returns: typed.ret.map_or_else(Returns::default, TypedReturns::ready),
        interpret: typed.interpret,
        bench: typed.bench || typed.mode.as_deref() == Some("bench"),
        test: typed.mode.as_deref() == Some("test"),
    })
}
