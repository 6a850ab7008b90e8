//! Each command with all that it needs: plain values that [`ready`](super::ready) makes of typed words.
//! Does not: parse or check.

use std::path::PathBuf;
use std::time::Duration;

use trapline::filter::Filter;
use trapline::watch::{Expr, WatchSpec};
use trapline::{By, Floats, ProbeSpec, Returns, Target};

use super::ends::Ends;
use super::filters::Wishes;
use super::otlp::Collector;
use super::serve::Address;
use super::sink::Sink;
use super::types::Signature;
use super::units::Linear;

/// What to trace and how to report it.
#[derive(Debug)]
pub(crate) struct Run {
    /// Which functions.
    pub(crate) probes: Vec<ProbeSpec>,
    /// Which processes.
    pub(crate) target: Target,
    /// Follow exec, and forks that exec.
    pub(crate) follow: bool,
    /// Report this often.
    pub(crate) interval: Option<Duration>,
    /// Stop after this long.
    pub(crate) duration: Option<Duration>,
    /// Show the time of day.
    pub(crate) timestamps: bool,
    /// Show the plan only.
    pub(crate) dry_run: bool,
    /// Stop all threads while patching.
    pub(crate) strict: bool,
    /// Move what may fault.
    pub(crate) faults_are_fatal: bool,
    /// Where and how to print.
    pub(crate) sink: Sink,
    /// Where to offer metrics.
    pub(crate) serve: Option<Address>,
    /// Where to send them.
    pub(crate) otlp: Option<Collector>,
}

/// `count`, ready.
#[derive(Debug)]
pub(crate) struct Count {
    /// What and how.
    pub(crate) run: Run,
    /// How hits are split.
    pub(crate) by: Option<By>,
}

/// The unit that durations are shown in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TimeUnit {
    /// Nanoseconds.
    #[default]
    Nanos,
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
}

impl TimeUnit {
    /// Nanoseconds in one.
    pub(crate) const fn nanos(self) -> u64 {
        match self {
            Self::Nanos => 1,
            Self::Micros => 1_000,
            Self::Millis => 1_000_000,
        }
    }
    /// As bcc writes it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Nanos => "nsecs",
            Self::Micros => "usecs",
            Self::Millis => "msecs",
        }
    }
}

/// How a histogram is drawn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    /// Unit of the rows.
    pub(crate) unit: TimeUnit,
    /// Equal steps.
    pub(crate) linear: Option<Linear>,
    /// Shorter calls are left out, nanoseconds.
    pub(crate) min_ns: u64,
}

/// `lat`, ready.
#[derive(Debug)]
pub(crate) struct Lat {
    /// What and how.
    pub(crate) run: Run,
    /// A histogram for each function.
    pub(crate) per_function: bool,
    /// Only the outermost of recursive calls.
    pub(crate) outermost: bool,
    /// How the ends of calls are seen.
    pub(crate) ends: Ends,
    /// How it is drawn.
    pub(crate) shape: Shape,
}

/// `trace`, ready.
#[derive(Debug)]
pub(crate) struct Calls {
    /// What and how.
    pub(crate) run: Run,
    /// The same probes, with what was said of their values.
    pub(crate) probes: Vec<(ProbeSpec, Option<Signature>)>,
    /// Which calls, probe by probe.
    pub(crate) filters: Vec<Filter>,
    /// Exits too.
    pub(crate) returns: bool,
    /// How they are seen.
    pub(crate) ends: Ends,
    /// End after so many lines.
    pub(crate) max: Option<u64>,
}

/// `trace --from`, ready.
#[derive(Debug)]
pub(crate) struct Recording {
    /// What is read.
    pub(crate) file: PathBuf,
    /// Where and how to print.
    pub(crate) sink: Sink,
    /// Which calls.
    pub(crate) wishes: Wishes,
    /// End after so many lines.
    pub(crate) max: Option<u64>,
}

impl Calls {
    /// Arguments that somebody wants to see.
    pub(crate) fn arguments(&self) -> u8 {
        let shown = self.probes.iter().filter_map(|(_, signature)| signature.as_ref());
        let shown = shown.map(Signature::registers);
        shown.chain(self.filters.iter().map(Filter::arguments)).max().unwrap_or(0)
    }
    /// Floats that somebody wants to see, probe by probe.
    pub(crate) fn floats(&self) -> Vec<Floats> {
        let one = |(nth, (_, signature)): (usize, &(ProbeSpec, Option<Signature>))| {
            let asked = self.filters.get(nth).map_or_else(Floats::default, Filter::floats);
            asked.and(signature.as_ref().map_or_else(Floats::default, Signature::floats))
        };
        self.probes.iter().enumerate().map(one).collect()
    }
    /// Of arguments that point to text those that end at a 0, probe by probe.
    pub(crate) fn ended(&self) -> Vec<u8> {
        self.probes.iter().map(|(_, signature)| signature.as_ref().map_or(0, Signature::ended)).collect()
    }
    /// Arguments that point to text, probe by probe.
    pub(crate) fn texts(&self) -> Vec<u8> {
        self.probes.iter().map(|(_, signature)| signature.as_ref().map_or(0, Signature::texts)).collect()
    }
}

/// `watch`, ready.
#[derive(Debug)]
pub(crate) struct Watch {
    /// What.
    pub(crate) places: Vec<WatchSpec>,
    /// Which processes.
    pub(crate) target: Target,
    /// With forked children.
    pub(crate) forks: bool,
    /// No line for each access.
    pub(crate) count: bool,
    /// Only accesses that fulfil it.
    pub(crate) filter: Option<Expr>,
    /// Ends the run.
    pub(crate) until: Option<Expr>,
    /// With callers.
    pub(crate) stack: bool,
    /// Turns of this length where debug registers do not suffice.
    pub(crate) rotate: Option<Duration>,
    /// Print the summary this often.
    pub(crate) interval: Option<Duration>,
    /// Stop after this long.
    pub(crate) duration: Option<Duration>,
    /// Show the time of day.
    pub(crate) timestamps: bool,
    /// Where and how to print.
    pub(crate) sink: Sink,
}

/// `list`, ready.
#[derive(Debug)]
pub(crate) struct List {
    /// Which functions.
    pub(crate) probes: Vec<ProbeSpec>,
    /// Which processes.
    pub(crate) target: Target,
    /// With exits, as `lat` needs them.
    pub(crate) timed: bool,
    /// As `lat --ret` would.
    pub(crate) returns: Returns,
    /// As `--strict` would.
    pub(crate) strict: bool,
    /// As `--faults-are-fatal` would.
    pub(crate) faults_are_fatal: bool,
    /// Where and how to print.
    pub(crate) sink: Sink,
}

/// `status` and `detach`, ready.
#[derive(Debug)]
pub(crate) struct Pids {
    /// Processes.
    pub(crate) pids: Vec<u32>,
    /// Where and how to print.
    pub(crate) sink: Sink,
}

/// `demo`, ready.
#[derive(Debug)]
pub(crate) struct Demo {
    /// Length of each part.
    pub(crate) duration: Duration,
    /// Leave the sample program behind.
    pub(crate) keep: bool,
}
