//! The command line as clap reads it: words, with nothing looked up or opened.
//!
//! In: the command line. Out: [`Typed`], which [`ready`](super::ready) checks and converts. Help comes from
//! here too. Does not: know what the words mean.

mod count;
mod graph;
mod hist;
mod lat;
mod once;
mod shared;
mod stack;
mod top;
mod trace;
mod watch;

use clap::{Parser, Subcommand};

pub(crate) use count::TypedCount;
pub(crate) use graph::TypedGraph;
pub(crate) use hist::TypedHist;
pub(crate) use lat::TypedLat;
pub(crate) use once::{TypedDemo, TypedList, TypedPids};
pub(crate) use shared::{Common, TypedBy, TypedEnds, TypedFilter, TypedReturns, TypedTarget};
pub(crate) use stack::{TypedStack, TypedUnwind};
pub(crate) use top::TypedTop;
pub(crate) use trace::TypedTrace;
pub(crate) use watch::TypedWatch;

/// Count and time the functions of running programs, from outside, without traps.
#[derive(Parser, Debug, Clone)]
#[command(name = "trapline", version, about, max_term_width = 100, after_help = AFTER)]
pub(crate) struct Typed {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const AFTER: &str = "\
Probes are bpftrace's: uprobe:PATH:func[+off], uretprobe:PATH:func, usdt:PATH:provider:name, with u:, ur:, U: short.
PATH may be a path, a library's short name (libc) or the program's own name; without it: the program, then its
libraries. func may hold * and ?, or be a /regular expression/, sym@VERSION or 0xADDRESS.

Exit status: 0 done, 1 failed (also: a process of -p or -n was killed while probed), 2 wrong usage, 3 nothing could be probed (with -f known at the end). A command that was launched
gives its own status (128+n if signal n ended it), whatever became of the probes; it is not run if, without -f, it has
nothing that the probes name (3), or if our output cannot be opened (1). Ctrl-C prints the result, detaches and exits 0.";

/// The verbs.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum Verb {
    /// Hits and hits per second of each function
    Count(TypedCount),
    /// Time from entry to return, as a histogram
    Lat(TypedLat),
    /// How often an argument or a value returned was what: as a histogram, or the most frequent ones
    Hist(TypedHist),
    /// A line for each call: arguments, value, duration
    Trace(TypedTrace),
    /// The call tree below a function, with durations
    Graph(TypedGraph),
    /// Who calls: stacks at hits, by count or by time spent
    Stack(TypedStack),
    /// What is called most now: a live table of rates and percentiles
    Top(TypedTop),
    /// Who writes a variable, when, and what: by hardware breakpoints
    Watch(TypedWatch),
    /// Functions with file, offset, size, and the tactic that each would get
    List(TypedList),
    /// What is patched in a process, and by whom
    Status(TypedPids),
    /// Clean up after a tracer that died
    Detach(TypedPids),
    /// Build a sample program, trace it, and show what it costs
    Demo(TypedDemo),
}
