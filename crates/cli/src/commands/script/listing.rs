//! `-l`: probes by a pattern, or those of a script.
//!
//! In: a pattern, or a script. Out: one probe a line. Does not: attach.

use std::io::Write;
use std::path::Path;

use trapline_script::{listed, matching};

use super::source::{compiled, source};
use super::stop::{Stop, say};
use crate::args::command::{Input, Script};

/// Lists probes; the exit status.
pub(super) fn list(args: &Script, pattern: &str) -> Result<i32, Stop> {
    let script = match (&args.input, pattern) {
        (input @ (Input::Text(_) | Input::Stdin | Input::File(_)), _) => Some(input.clone()),
        (_, pattern) if pattern.ends_with(".bt") && Path::new(pattern).exists() => {
            Some(Input::File(pattern.into()))
        }
        _ => None,
    };
    let names: Vec<String> = match script {
        Some(input) => listed(&compiled(args, source(&input)?)?.program),
        None => {
            if pattern.ends_with(".bt") && !args.no_warnings {
                say(&format!(
                    "WARNING: It appears that '{pattern}' is a filename but the file does not exist. Treating \
                     '{pattern}' as a search pattern.\n"
                ));
            }
            matching(pattern).into_iter().map(str::to_owned).collect()
        }
    };
    let mut out = std::io::stdout().lock();
    for name in names {
        drop(writeln!(out, "{name}"));
    }
    Ok(0)
}
