//! `graph`, as typed and as ready values.

use clap::Args;
use trapline::ProbeSpec;
use trapline::probes::Pattern;

use super::command::Run;
use super::ends::{Ends, TypedEnds};
use super::error::UsageError;
use super::prototype::{Look, split};
use super::ready::is_function;
use super::sink::LINES;
use super::typed::Common;

/// `graph`, as typed.
#[derive(Args, Debug, Clone)]
#[command(after_help = HELP)]
pub(crate) struct TypedGraph {
    /// The function whose calls are shown, for example processCommand
    #[arg(value_name = "FUNC", required = true)]
    pub(crate) root: String,
    /// Functions below it, for example 'lookup*' 'libc:mem*' (all of its file)
    #[arg(value_name = "BELOW")]
    pub(crate) below: Vec<String>,
    /// Each call by itself, with what it calls in their order, instead of all added up
    #[arg(long, help_heading = "Tree")]
    pub(crate) each: bool,
    /// Only N levels below FUNC
    #[arg(long, value_name = "N", help_heading = "Tree")]
    pub(crate) depth: Option<usize>,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) common: Common,
}

const HELP: &str = "\
Entries and exits are recorded as trace records them, and put together here, thread by thread. Functions whose exits are not all known
are left out, and what they call stands where they would. All functions of a large program are many records: name some.
In a Go program trees are of threads, too: what a goroutine called after it had gone on in another thread is below other calls, or in no tree.";

/// `graph`, ready.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) run: Run,
    /// Whose calls.
    pub(crate) root: ProbeSpec,
    /// How the ends of calls are seen.
    pub(crate) ends: Ends,
    pub(crate) each: bool,
    pub(crate) depth: usize,
}

/// Checks and converts.
pub(crate) fn graph(typed: TypedGraph, look: Look<'_>) -> Result<Graph, UsageError> {
    let TypedGraph { root, mut below, each, depth, ends, common } = typed;
    if below.is_empty() {
        let file = root.parse::<ProbeSpec>().ok().and_then(|spec| spec.file);
        below.push(file.map_or_else(|| "*".to_owned(), |file| format!("{file}:*")));
    }
    let texts: Vec<String> = std::iter::once(root).chain(below).collect();
    // The signature selects a function. A tree does not show arguments.
    let (run, _) = split(&texts, common, LINES, look)?;
    if let Some(wrong) = run.probes.iter().find(|probe| !is_function(probe)) {
        return Err(UsageError::GraphNotAFunction(wrong.text.clone()));
    }
    let root = run.probes[0].clone();
    // `f(char*)` is a name, not a pattern.
    let is_name = matches!(&root.func, Pattern::Glob(glob) if glob.0.contains('('));
    if root.func.is_wild() && !is_name {
        return Err(UsageError::Conflict(
            "graph shows the calls of one function: FUNC is no pattern; BELOW may be",
        ));
    }
    Ok(Graph { run, root, ends: ends.ready()?, each, depth: depth.unwrap_or(usize::MAX) })
}
