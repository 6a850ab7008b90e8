//! `graph`, checked and converted.
//!
//! In: typed words, debug information. Out: a [`Graph`], or of a recording a [`Shown`], or what is wrong. Does not: trace.

use trapline::ProbeSpec;
use trapline::probes::Pattern;

use super::error::UsageError;
use super::prototype::{Look, split};
use super::run::{ends, is_function};
use super::selection::selection;
use crate::args::command::Command;
use crate::args::command::record::{Form, Shown};
use crate::args::graph::Graph;
use crate::args::sink::LINES;
use crate::args::typed::TypedGraph;

/// Checks and converts.
pub(super) fn graph(mut typed: TypedGraph, look: Look<'_>) -> Result<Command, UsageError> {
    let Some(dir) = typed.from.take() else { return live(typed, look).map(Command::Graph) };
    let form = Form::Graph { root: typed.root, depth: typed.depth.unwrap_or(usize::MAX) };
    let selection = selection(&typed.selection, None)?;
    Ok(Command::Recorded(Shown { dir, selection, form, paged: false }))
}

fn live(typed: TypedGraph, look: Look<'_>) -> Result<Graph, UsageError> {
    let TypedGraph { root, mut below, each, depth, ends, common, from: _, selection } = typed;
    if let Some(option) = selection.given() {
        return Err(UsageError::NeedsRecording(option));
    }
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
    Ok(Graph { run, root, ends: self::ends(&ends)?, each, depth: depth.unwrap_or(usize::MAX) })
}
