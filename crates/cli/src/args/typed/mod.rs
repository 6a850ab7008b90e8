//! The command line as clap reads it: words, with nothing looked up or opened.
//!
//! In: the command line. Out: [`Typed`], which [`ready`](super::ready) checks and converts. Help comes from
//! here too. Does not: know what the words mean.

mod count;
mod generate;
mod graph;
mod help;
mod hist;
mod lat;
mod once;
mod record;
mod script;
mod selection;
mod shared;
mod stack;
mod top;
mod trace;
mod watch;

use clap::{Parser, Subcommand};

use help::{ONCE, TRACED, sections};
use once::{DETACH, STATUS};

pub(crate) use count::TypedCount;
pub(crate) use generate::{TypedComplete, TypedCompletions, TypedMan};
pub(crate) use graph::TypedGraph;
pub(crate) use hist::TypedHist;
pub(crate) use lat::TypedLat;
pub(crate) use once::{TypedDemo, TypedDoctor, TypedList, TypedPids, TypedStatus};
pub(crate) use record::{
    TypedDiff, TypedDump, TypedField, TypedInfo, TypedRecord, TypedReplay, TypedReport, TypedSort,
};
pub(crate) use script::TypedScript;
pub(crate) use selection::TypedSelection;
pub(crate) use shared::{Common, TypedAmong, TypedBy, TypedEnds, TypedFilter, TypedReturns, TypedTarget};
pub(crate) use stack::{TypedStack, TypedUnwind};
pub(crate) use top::TypedTop;
pub(crate) use trace::TypedTrace;
pub(crate) use watch::TypedWatch;

/// Count, time and record the functions of running programs, from outside, without traps.
///
/// Trapline puts short jumps into the code of a running program. They lead to code that counts, takes the
/// time or writes records, and back. At the end the original code is put back. The program needs no restart,
/// no rebuild and no library; Trapline needs the right to ptrace it.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "trapline",
    version,
    max_term_width = 100,
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs",
    after_help = "Begin with: trapline, without a word. Probes, examples and exit statuses: trapline --help.",
    after_long_help = sections(MORE, TRACED)
)]
pub(crate) struct Typed {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const MORE: &str = "\
Probes:
  A probe names a place in a program, as bpftrace does:
    [KIND:][PATH:]NAME
  KIND  uprobe or u (the entry, the default), uretprobe or ur (the exits),
        usdt or U (a USDT probe, NAME or PROVIDER:NAME).
  PATH  A path, a library's short name such as libc, or a program's name.
        Without it: the program itself, then its libraries.
  NAME  A function; with * and ? a pattern; /a regular expression/;
        NAME+OFFSET an instruction; NAME@VERSION; 0xADDRESS.
  Quote what the shell would expand.

Examples:
  Does it work here, and what does a hit cost?
    trapline demo
  What is permitted here, and how to get more?
    trapline doctor
  Which functions of a library does a process call, and how often?
    trapline count -d 2 -p PID 'libssl:SSL_*'
  How long do calls take?
    trapline lat -p PID processCommand
  Which calls fail, with which arguments?
    trapline trace --if 'ret < 0' 'libc:open64(str path, hex flags) -> int'
  Which code calls a function?
    trapline stack -o malloc.svg -d 5 -p PID libc:malloc";

/// The verbs.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum Verb {
    Count(TypedCount),
    Lat(TypedLat),
    Hist(TypedHist),
    Trace(TypedTrace),
    Graph(TypedGraph),
    Record(TypedRecord),
    Replay(TypedReplay),
    Report(TypedReport),
    Diff(TypedDiff),
    Info(TypedInfo),
    Dump(TypedDump),
    Stack(TypedStack),
    Top(TypedTop),
    Watch(TypedWatch),
    Run(TypedScript),
    List(TypedList),
    /// What is patched in a process, and by which tracer
    ///
    /// Prints for each process whether it holds patches of Trapline, which tracer made them, and whether that
    /// tracer still runs. The process is only read.
    #[command(after_long_help = sections(STATUS, ONCE))]
    Status(TypedStatus),
    /// Clean up after a tracer that died
    ///
    /// A run of Trapline takes its patches out when it ends. If the tracer was killed with SIGKILL, they stay:
    /// the target runs on and counts into memory that no tracer reads. This puts the original code, signal
    /// handlers and return addresses back. It may be called at any time.
    #[command(after_long_help = sections(DETACH, ONCE))]
    Detach(TypedPids),
    Demo(TypedDemo),
    Doctor(TypedDoctor),
    Completions(TypedCompletions),
    Complete(TypedComplete),
    Man(TypedMan),
}
