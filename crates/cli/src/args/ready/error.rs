//! Errors in a command line and their messages: exit status 2.
//!
//! In: what the parts of a command line find wrong. Out: one sentence each. Does not: print.

use trapline::containers::UnknownContainer;
use trapline::error::SpecError;
use trapline::filter::{FilterError, Misread};
use trapline::watch::{ExprError, WatchSpecError};
use trapline::{AmongError, Returns};

use super::signature::SignatureError;
use super::units::UnitError;
use crate::args::otlp::CollectorError;
use crate::args::serve::AddressError;
use crate::report::format::FormatError;

/// Wrong usage: exit status 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    /// A time or range is wrong.
    #[error("{option}: {why}")]
    Unit {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        why: UnitError,
    },
    /// The size of a buffer is wrong.
    #[error("--buffer: `{0}` is no size: write a number of bytes from 4K to 1G, with K, M or G after it")]
    Buffer(String),
    /// A trigger is wrong.
    #[error("--trigger: cannot read `{text}`: {why}")]
    Trigger {
        /// As typed.
        text: String,
        /// Why.
        why: String,
    },
    /// What is to be recorded is no function.
    #[error("record takes functions, whose entry and return it records: `{0}` is none")]
    RecordNotAFunction(String),
    /// A probe is wrong.
    #[error("cannot read probe `{text}`: {why}")]
    Probe {
        /// As typed.
        text: String,
        /// What is wrong with it.
        why: SpecError,
    },
    /// A rule about processes cannot be used.
    #[error(transparent)]
    Among(#[from] AmongError),
    #[error(transparent)]
    NoContainer(#[from] UnknownContainer),
    /// There is no such user.
    #[error("--uid: no user `{0}` in /etc/passwd; a number will do")]
    NoUser(String),
    /// A signature is wrong.
    #[error("cannot read the signature in `{text}`: {why}")]
    Signature {
        /// As typed.
        text: String,
        /// What is wrong with it.
        why: SignatureError,
    },
    /// A path to a field is wrong.
    #[error("cannot read the arguments of `{probe}`: {why}\n    {path}\n    {mark}")]
    Path {
        /// The probe, as typed.
        probe: String,
        /// As typed.
        path: String,
        /// The marks under the part that is wrong.
        mark: String,
        /// What is wrong with it.
        why: String,
    },
    /// A place to watch is wrong.
    #[error("cannot read place `{text}`: {why}")]
    Place {
        /// As typed.
        text: String,
        /// What is wrong with it.
        why: WatchSpecError,
    },
    /// A condition on calls is wrong.
    #[error("--if, for `{probe}`: {why}")]
    Filter {
        /// The probe, as typed.
        probe: String,
        /// What is wrong with it.
        why: FilterError,
    },
    /// A sample is wrong.
    #[error("--sample: `{0}` is no share; write 1/100 for one call in a hundred")]
    Sample(String),
    /// A thread does not exist.
    #[error("--tid {tid}: process {pid} has no such thread; /proc/{pid}/task has those of now")]
    NoThread {
        /// As typed.
        tid: u32,
        /// The (first) process.
        pid: u32,
    },
    /// A condition on accesses is wrong.
    #[error("{option}: cannot read `{text}`: {why}")]
    Expr {
        /// The option.
        option: &'static str,
        /// As typed.
        text: String,
        /// What is wrong with it.
        why: ExprError,
    },
    /// A value that is to be aggregated is wrong.
    #[error("{option}, for `{probe}`: {why}")]
    Value {
        /// The option or argument in which it was typed.
        option: &'static str,
        /// The probe, as typed.
        probe: String,
        /// What is wrong with it.
        why: Box<FilterError>,
    },
    /// `hist` needs calls of functions, or USDT probes.
    #[error("`{0}` has no arguments and no value; hist takes functions: PATH:func(TYPE NAME, …) -> TYPE")]
    HistNotAFunction(String),
    /// Histogram buckets are for integers.
    #[error("`{0}` is a float, and hist adds up whole numbers; a comparison is one: '{0} < 0.5'")]
    HistOfFloats(String),
    /// At an exit the arguments' registers hold other values.
    #[error(
        "`{0}` is at exits, where arguments are no longer known; write only `() -> TYPE`, or probe the function"
    )]
    ArgumentsAtReturn(String),
    /// One signature for functions that take different things.
    #[error("`{name}` is the name of several functions, and each takes something else; write one of {of}")]
    Overloads {
        /// The name, as typed.
        name: String,
        /// The functions.
        of: String,
    },
    /// Variables of a place that is not found, or of too many.
    #[error(
        "`{0}`: no place is found there whose variables could be named; without its brackets the run says why"
    )]
    NothingInside(String),
    /// Types at a place inside a function, where the registers for arguments hold other values.
    #[error(
        "`{0}` is inside a function, where registers hold other values than its arguments; name its variables, their fields \
         or registers: PROBE(count, at->id, reg(rbx))"
    )]
    TypesInside(String),
    /// A budget is wrong.
    #[error("--budget `{0}` is no share of the program's time; write 5%, or 0.5%")]
    Budget(String),
    /// A size of functions is wrong.
    #[error("--size-filter `{0}` is no number of bytes; write 100, or 1K")]
    SizeFilter(String),
    /// An option names functions.
    #[error("{option}: `{text}` is no function; write a name or a pattern, such as 'store*' or libc:malloc")]
    NoFunction {
        /// The option.
        option: &'static str,
        /// As typed.
        text: String,
    },
    /// The option chooses among the calls of a recording.
    #[error(
        "{0} chooses among the calls of a recording; make one with trapline record, and name it with --from DIR"
    )]
    NeedsRecording(&'static str),
    /// `graph` needs calls of functions.
    #[error("`{0}` has no calls; graph takes functions: PATH:func")]
    GraphNotAFunction(String),
    /// Outermost calls are found by comparing stack pointers, which return trampolines do not do.
    #[error(
        "--outermost and --ret=stack cannot go together: with replaced return addresses every call is timed"
    )]
    OutermostByStack,
    /// The number of return trampolines is out of range.
    #[error("--maxactive {0}: possible are 1 to {most}", most = Returns::MOST_ACTIVE)]
    MaxActive(u32),
    /// Patched exits need no return trampolines.
    #[error(
        "--maxactive and --ret=exits cannot go together: only a replaced return address takes a return trampoline"
    )]
    MaxActiveByExits,
    /// `lat` times only whole functions.
    #[error("cannot time `{0}`: lat takes functions; write PATH:func, or use count for uretprobe and usdt")]
    NotAFunction(String),
    /// `stack --time` sums only whole calls.
    #[error("cannot time `{0}`: stack --time takes functions; leave out --time, or write PATH:func")]
    NotTimed(String),
    /// `stack` records callers, which an exit does not have.
    #[error("cannot take stacks at `{0}`: a return's caller is its entry's; write PATH:func")]
    NoStackAtReturn(String),
    /// The words of a command cannot be split.
    #[error("-c: `{0}` has an open quote; close it, or write the command after --")]
    Quote(String),
    /// The command is empty.
    #[error("-c: no command was given; write for example -c 'ls -l'")]
    EmptyCommand,
    /// The file's format cannot be written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The address to serve at is wrong.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The collector to send to is wrong.
    #[error(transparent)]
    Collector(#[from] CollectorError),
    /// Options exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
}

impl UsageError {
    /// The error for a path, with marks under what is wrong.
    pub(crate) fn path(probe: &str, path: &str, wrong: &Misread) -> Self {
        let before = path.get(..wrong.at.start).unwrap_or(path).chars().count();
        let under = path.get(wrong.at.clone()).unwrap_or_default().chars().count().max(1);
        let mark = " ".repeat(before) + &"^".repeat(under);
        Self::Path { probe: probe.to_owned(), path: path.to_owned(), mark, why: wrong.why.clone() }
    }
}
