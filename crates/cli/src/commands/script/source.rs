//! Where a script comes from, and what it is compiled with.
//!
//! In: options. Out: a source, a compiled program. Does not: run it.

use std::fs;
use std::io::{self, Read};
use std::rc::Rc;

use trapline_script::{Compiled, Options, Probe, Source, compile};

use super::declared::DebugTypes;
use super::stop::{Stop, said};
use super::{headers, registers, system};
use crate::args::command::{Input, Script};

/// Compiles the script, with the settings of the environment.
pub(super) fn compiled(args: &Script, source: Source) -> Result<Compiled, Stop> {
    let environment = std::env::vars().filter(|(name, _)| name.starts_with("BPFTRACE_")).collect();
    let mut options = Options {
        positional: args.positional.clone(),
        named: args.named.clone(),
        allow_unsafe: args.allow_unsafe,
        environment,
        constants: Vec::new(),
        registers: registers::names(),
        declared: Some(Rc::new(DebugTypes::in_folders(&args.debug_folders))),
    };
    let included = headers::of_script(&source);
    for header in args.headers.iter().chain(&included) {
        options.constants.extend(headers::constants(header).map_err(Stop::Said)?);
    }
    let mut compiled = compile(source, &options).map_err(Stop::Said)?;
    if let Some(filter) = &args.probe_filter {
        filtered(&mut compiled, filter)?;
    }
    Ok(compiled)
}

/// Leaves out the probes whose names a regular expression does not match. Blocks at begin and end stay.
fn filtered(compiled: &mut Compiled, filter: &str) -> Result<(), Stop> {
    let wrong = |error| said(format!("Invalid --probe-filter regex '{filter}': {error}"));
    let regex = regex_lite::Regex::new(filter).map_err(wrong)?;
    for block in &mut compiled.program.blocks {
        block.probes.retain(|probe| {
            matches!(probe, Probe::Begin | Probe::End | Probe::Signal(_))
                || regex.is_match(&probe.to_string())
        });
    }
    Ok(())
}

/// The script's text.
pub(super) fn source(input: &Input) -> Result<Source, Stop> {
    match input {
        Input::Text(text) => Ok(Source::new("stdin", text.as_bytes())),
        Input::Stdin => {
            let mut text = Vec::new();
            io::stdin()
                .lock()
                .read_to_end(&mut text)
                .map_err(|error| said(format!("failed to read stdin: {error}")))?;
            Ok(Source::new("stdin", &text))
        }
        Input::File(path) => {
            let name = path.display();
            let text = fs::read(path)
                .map_err(|error| said(format!("failed to open file '{name}': {}", system::reason(&error))))?;
            let short =
                path.file_name().map_or_else(|| name.to_string(), |name| name.to_string_lossy().into_owned());
            Ok(Source::new(&short, &text))
        }
        Input::Nothing => Err(said("no script was given; use -e 'PROGRAM' or the name of a file")),
    }
}
