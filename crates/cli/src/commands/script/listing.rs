//! `-l`: probes by a pattern, or those of a script.
//!
//! In: a pattern, or a script. Out: one probe a line; of programs, those that are in their files. Does not: attach.

use std::io::Write;
use std::path::Path;

use trapline::Session;
use trapline::listing::Listed;
use trapline_script::{listed, matching};

use super::source::{compiled, source};
use super::stop::{Stop, said, say};
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
        Some(input) => {
            let listed = listed(&compiled(args, source(&input)?)?.program);
            let named =
                listed.into_iter().map(|name| of_programs(&name).unwrap_or_else(|| Ok(vec![name.clone()])));
            named.collect::<Result<Vec<_>, Stop>>()?.concat()
        }
        None => {
            if let Some(listed) = of_programs(pattern) {
                return Ok(print(&listed?));
            }
            if pattern.ends_with(".bt") && !args.no_warnings {
                say(&format!(
                    "WARNING: It appears that '{pattern}' is a filename but the file does not exist. Treating \
                     '{pattern}' as a search pattern.\n"
                ));
            }
            matching(pattern).into_iter().map(str::to_owned).collect()
        }
    };
    Ok(print(&names))
}

/// Writes names, one a line; the exit status.
fn print(names: &[String]) -> i32 {
    let mut out = std::io::stdout().lock();
    // A reader that is gone has enough.
    drop(names.iter().try_for_each(|name| writeln!(out, "{name}")));
    0
}

/// The functions or USDT probes that a pattern means; `None` if it is not about programs.
fn of_programs(pattern: &str) -> Option<Result<Vec<String>, Stop>> {
    let (word, rest) = pattern.split_once(':')?;
    let (sort, spec) = match word {
        "u" | "uprobe" => ("uprobe", format!("uprobe:{rest}")),
        "ur" | "uretprobe" => ("uretprobe", format!("uprobe:{rest}")),
        "U" | "usdt" => ("usdt", format!("usdt:{rest}")),
        _ => return None,
    };
    let file = rest.rsplit_once(':').map_or(rest, |(file, _)| file);
    let builder = match Session::builder().probe(&spec) {
        Ok(builder) => builder,
        Err(error) => return Some(Err(said(error.to_string()))),
    };
    let name = |one: &Listed| match sort {
        "usdt" => one.probe.clone(),
        sort => format!("{sort}:{file}:{}", one.function),
    };
    let listed = builder.list(false).map(|listing| listing.listed.iter().map(name).collect());
    Some(listed.map_err(|error| said(error.to_string())))
}
