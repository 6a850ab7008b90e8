//! `graph`, as clap reads it.

use clap::Args;

use super::shared::{Common, TypedEnds};

/// `graph`
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
