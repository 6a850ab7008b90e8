//! Each command with all that it needs: plain values, which [`ready`](super::ready) makes from the typed
//! words. Does not: parse or check.

use std::path::PathBuf;
use std::time::Duration;

use trapline::calls::Floats;
use trapline::filter::Filter;
use trapline::watch::{Expr, WatchSpec};
use trapline::{By, ProbeSpec, Returns, Target};

use super::ends::Ends;
use super::filters::FilterOptions;
use super::otlp::Collector;
use super::serve::Address;
use super::sink::Sink;
use super::types::Signature;
use super::units::Linear;

/// What to trace and how to report it.
#[derive(Debug)]
pub(crate) struct Run {
    /// The functions to trace.
    pub(crate) probes: Vec<ProbeSpec>,
    /// The processes to trace.
    pub(crate) target: Target,
    /// Whether to follow exec, and forks that exec.
    pub(crate) follow: bool,
    /// Time between reports.
    pub(crate) interval: Option<Duration>,
    /// Time after which to stop.
    pub(crate) duration: Option<Duration>,
    /// Whether to show the time of day.
    pub(crate) timestamps: bool,
    /// Whether to show only the plan.
    pub(crate) dry_run: bool,
    /// Whether to stop all threads while patching.
    pub(crate) strict: bool,
    /// Whether to move instructions that may fault, too.
    pub(crate) faults_are_fatal: bool,
    /// Where to print, and in which format.
    pub(crate) sink: Sink,
    /// The address at which to offer metrics.
    pub(crate) serve: Option<Address>,
    /// The collector to which to send metrics.
    pub(crate) otlp: Option<Collector>,
}

/// `count`, ready.
#[derive(Debug)]
pub(crate) struct Count {
    /// What to trace and how to report it.
    pub(crate) run: Run,
    /// How hits are split.
    pub(crate) by: Option<By>,
}

/// The unit in which durations are shown.
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
    /// Nanoseconds in one unit.
    pub(crate) const fn nanos(self) -> u64 {
        match self {
            Self::Nanos => 1,
            Self::Micros => 1_000,
            Self::Millis => 1_000_000,
        }
    }
    /// The unit's word, as bcc writes it.
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
    /// The unit of the rows.
    pub(crate) unit: TimeUnit,
    /// Equal steps instead of powers of two, if requested.
    pub(crate) linear: Option<Linear>,
    /// Shorter calls are left out. In nanoseconds.
    pub(crate) min_ns: u64,
}

/// `lat`, ready.
#[derive(Debug)]
pub(crate) struct Lat {
    /// What to trace and how to report it.
    pub(crate) run: Run,
    /// Whether each function has a histogram of its own.
    pub(crate) per_function: bool,
    /// Whether only the outermost of recursive calls are timed.
    pub(crate) outermost: bool,
    /// How the ends of calls are seen.
    pub(crate) ends: Ends,
    /// How the histogram is drawn.
    pub(crate) shape: Shape,
}

/// `trace`, ready.
#[derive(Debug)]
pub(crate) struct Calls {
    /// What to trace and how to report it.
    pub(crate) run: Run,
    /// The same probes, with the types of their values as far as they were given.
    pub(crate) probes: Vec<(ProbeSpec, Option<Signature>)>,
    /// The filter of each probe.
    pub(crate) filters: Vec<Filter>,
    /// Whether exits are recorded too.
    pub(crate) returns: bool,
    /// How exits are seen.
    pub(crate) ends: Ends,
    /// The number of lines after which to end.
    pub(crate) max: Option<u64>,
}

/// `trace --from`, ready.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The file to read.
    pub(crate) file: PathBuf,
    /// Where to print, and in which format.
    pub(crate) sink: Sink,
    /// The filters that were typed.
    pub(crate) filter_options: FilterOptions,
    /// The number of lines after which to end.
    pub(crate) max: Option<u64>,
}

impl Calls {
    /// The number of integer arguments that are shown or that a filter needs.
    pub(crate) fn arguments(&self) -> u8 {
        let shown = self.probes.iter().filter_map(|(_, signature)| signature.as_ref());
        let shown = shown.map(Signature::registers);
        shown.chain(self.filters.iter().map(Filter::arguments)).max().unwrap_or(0)
    }
    /// The floats that are shown or that a filter needs, for each probe.
    pub(crate) fn floats(&self) -> Vec<Floats> {
        let one = |(nth, (_, signature)): (usize, &(ProbeSpec, Option<Signature>))| {
            let asked = self.filters.get(nth).map_or_else(Floats::default, Filter::floats);
            asked.and(signature.as_ref().map_or_else(Floats::default, Signature::floats))
        };
        self.probes.iter().enumerate().map(one).collect()
    }
    /// For each probe, the arguments that point to text which ends at a 0, as bits.
    pub(crate) fn ended(&self) -> Vec<u8> {
        self.probes.iter().map(|(_, signature)| signature.as_ref().map_or(0, Signature::ended)).collect()
    }
    /// For each probe, the arguments that point to text, as bits.
    pub(crate) fn texts(&self) -> Vec<u8> {
        self.probes.iter().map(|(_, signature)| signature.as_ref().map_or(0, Signature::texts)).collect()
    }
}

/// `watch`, ready.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The variables to watch.
    pub(crate) places: Vec<WatchSpec>,
    /// The processes to watch.
    pub(crate) target: Target,
    /// Whether forked children are watched too.
    pub(crate) forks: bool,
    /// Whether to print no line for each access.
    pub(crate) count: bool,
    /// Only accesses for which this holds are shown.
    pub(crate) filter: Option<Expr>,
    /// The first access for which this holds ends the run.
    pub(crate) until: Option<Expr>,
    /// Whether to show callers.
    pub(crate) stack: bool,
    /// The length of a turn, if places take turns because debug registers do not suffice.
    pub(crate) rotate: Option<Duration>,
    /// Time between summaries.
    pub(crate) interval: Option<Duration>,
    /// Time after which to stop.
    pub(crate) duration: Option<Duration>,
    /// Whether to show the time of day.
    pub(crate) timestamps: bool,
    /// Where to print, and in which format.
    pub(crate) sink: Sink,
}

/// `list`, ready.
#[derive(Debug)]
pub(crate) struct List {
    /// The functions to list.
    pub(crate) probes: Vec<ProbeSpec>,
    /// The processes to look at.
    pub(crate) target: Target,
    /// Whether to list exits too, as `lat` needs them.
    pub(crate) timed: bool,
    /// How exits are seen, as for `lat --ret`.
    pub(crate) returns: Returns,
    /// Whether to plan as with `--strict`.
    pub(crate) strict: bool,
    /// Whether to plan as with `--faults-are-fatal`.
    pub(crate) faults_are_fatal: bool,
    /// Where to print, and in which format.
    pub(crate) sink: Sink,
}

/// `status` and `detach`, ready.
#[derive(Debug)]
pub(crate) struct Pids {
    /// The processes.
    pub(crate) pids: Vec<u32>,
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
