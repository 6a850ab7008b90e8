//! What a command line asks for, by verb: plain values, with no more options to check.
//!
//! In: plain values, which [`ready`](super::ready) makes from typed words. Out: [`Command`], and the types by
//! which verbs run and reports are drawn. Does not: know how options are typed. It is the ground floor: it
//! uses neither the typed words nor the conversion.

pub(crate) mod aggregation;
mod elements;
pub(crate) mod graph;
pub(crate) mod hist;
mod known;
mod lat;
pub(crate) mod otlp;
pub(crate) mod record;
mod run;
mod script;
pub(crate) mod serve;
pub(crate) mod sink;
pub(crate) mod stack;
pub(crate) mod top;
mod trace;
pub(crate) mod types;
mod watch;
pub(crate) mod whole;

use std::path::PathBuf;
use std::time::Duration;

use trapline::{By, ProbeSpec, Returns, Target};

use crate::complete::Shell;
use sink::Sink;

pub(crate) use lat::{HistogramStyle, Lat, Linear, TimeUnit};
pub(crate) use run::{Ends, Run};
pub(crate) use script::{Input, Script};
pub(crate) use trace::{Calls, FilterOptions, Recording};
pub(crate) use watch::Watch;

/// A whole command line, ready to run.
#[derive(Debug)]
pub(crate) enum Command {
    /// `count`
    Count(Count),
    /// `lat`
    Lat(Lat),
    /// `hist`
    Hist(Box<hist::Hist>),
    /// `graph`
    Graph(graph::Graph),
    /// `trace`
    Calls(Calls),
    /// `trace --from`
    Recording(Recording),
    /// `record`
    Record(record::Record),
    /// `replay`, `report`, `dump`, `graph --from`
    Recorded(record::Shown),
    /// `diff`
    Diff(record::Diff),
    /// `info`, of a folder; as JSON.
    Info(PathBuf, bool),
    /// `stack`
    Stack(stack::Stacks),
    /// `top`
    Top(top::Top),
    /// `watch`
    Watch(Watch),
    /// `run`
    Script(Script),
    /// `list`
    List(List),
    /// `status`
    Status(Pids),
    /// `detach`
    Detach(Pids),
    /// `demo`
    Demo(Demo),
    /// `doctor`
    Doctor(Sink),
    /// `completions`
    Completions(Shell),
    /// `complete`: what may stand behind these words
    Complete(Shell, Vec<String>),
    /// `man`, with its directory
    Man(PathBuf),
}

/// `count`, ready.
#[derive(Debug)]
pub(crate) struct Count {
    /// What to trace and how to report it.
    pub(crate) run: Run,
    /// How hits are split.
    pub(crate) by: Option<By>,
}

/// `list`, ready.
#[derive(Debug)]
pub(crate) struct List {
    /// The functions to list.
    pub(crate) probes: Vec<ProbeSpec>,
    /// The processes to look at.
    pub(crate) target: Target,
    /// Whether to show what functions take and return.
    pub(crate) verbose: bool,
    /// Whether to list exits too, as `lat` needs them.
    pub(crate) timed: bool,
    /// How exits are seen, as for `lat --ret`.
    pub(crate) returns: Returns,
    /// Whether to plan as with `--strict`.
    pub(crate) strict: bool,
    /// Whether to plan as with `--faults-are-fatal`.
    pub(crate) faults_are_fatal: bool,
    /// Whether to plan as with `--kernel-uprobes`.
    pub(crate) kernel_uprobes: bool,
    /// Whether a long list goes through a pager.
    pub(crate) paged: bool,
    /// Where to print, and in which format.
    pub(crate) sink: Sink,
}

/// `status` and `detach`, ready.
#[derive(Debug)]
pub(crate) struct Pids {
    /// The processes.
    pub(crate) pids: Vec<u32>,
    /// Whether a long text goes through a pager.
    pub(crate) paged: bool,
    /// Where to print, and in which format.
    pub(crate) sink: Sink,
}

/// `demo`, ready.
#[derive(Debug)]
pub(crate) struct Demo {
    /// The length of each part.
    pub(crate) duration: Duration,
    /// Whether to leave the sample program behind.
    pub(crate) keep: bool,
}
