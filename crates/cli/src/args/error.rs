//! What can be wrong with a command line, and how that is said: exit status 2.
//!
//! In: what the parts of a command line find. Out: one sentence each. Does not: print.

use trapline::filter::{FilterError, Misread};
use trapline::watch::{ExprError, WatchSpecError};
use trapline::{Returns, SpecError};

use super::otlp::CollectorError;
use super::serve::AddressError;
use super::signature::SignatureError;
use super::units::UnitError;
use crate::report::format::FormatError;

/// Wrong usage: exit status 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    /// A time or range.
    #[error("{option}: {why}")]
    Unit {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        why: UnitError,
    },
    /// A probe.
    #[error("cannot read probe `{text}`: {why}")]
    Probe {
        /// As typed.
        text: String,
        /// What is wrong with it.
        why: SpecError,
    },
    /// A signature.
    #[error("cannot read the signature in `{text}`: {why}")]
    Signature {
        /// As typed.
        text: String,
        /// What is wrong with it.
        why: SignatureError,
    },
    /// A path to a field.
    #[error("cannot read the arguments of `{probe}`: {why}\n    {path}\n    {mark}")]
    Path {
        /// The probe, as typed.
        probe: String,
        /// As typed.
        path: String,
        /// What stands under the part that is wrong.
        mark: String,
        /// What is wrong with it.
        why: String,
    },
    /// A place to watch.
    #[error("cannot read place `{text}`: {why}")]
    Place {
        /// As typed.
        text: String,
        /// What is wrong with it.
        why: WatchSpecError,
    },
    /// A condition on calls.
    #[error("--if, for `{probe}`: {why}")]
    Filter {
        /// As typed.
        probe: String,
        /// What is wrong with it.
        why: FilterError,
    },
    /// A sample.
    #[error("--sample: `{0}` is no share; write 1/100 for one call in a hundred")]
    Sample(String),
    /// A thread that is not there.
    #[error("--tid {tid}: process {pid} has no such thread; /proc/{pid}/task has those of now")]
    NoThread {
        /// As typed.
        tid: u32,
        /// The (first) process.
        pid: u32,
    },
    /// A condition.
    #[error("{option}: cannot read `{text}`: {why}")]
    Expr {
        /// The option.
        option: &'static str,
        /// As typed.
        text: String,
        /// What is wrong with it.
        why: ExprError,
    },
    /// What is to be tallied.
    #[error("{option}, for `{probe}`: {why}")]
    Value {
        /// Where it was typed.
        option: &'static str,
        /// As typed.
        probe: String,
        /// What is wrong with it.
        why: Box<FilterError>,
    },
    /// `hist` is about calls of functions.
    #[error("`{0}` has no arguments and no value; hist takes functions: PATH:func(TYPE NAME, …) -> TYPE")]
    HistNotAFunction(String),
    /// A histogram has cells for integers.
    #[error("`{0}` is a float, and hist adds up whole numbers; a comparison is one: '{0} < 0.5'")]
    HistOfFloats(String),
    /// At an exit the arguments' registers hold something else.
    #[error(
        "`{0}` is at exits, where arguments are no longer known; write only `() -> TYPE`, or probe the function"
    )]
    ArgumentsAtReturn(String),
    /// `graph` is about calls of functions.
    #[error("`{0}` has no calls; graph takes functions: PATH:func")]
    GraphNotAFunction(String),
    /// Outermost calls are told by their stack pointers, which slots do not compare.
    #[error(
        "--outermost and --ret=stack cannot go together: with replaced return addresses every call is timed"
    )]
    OutermostByStack,
    /// No such number of slots.
    #[error("--maxactive {0}: possible are 1 to {most}", most = Returns::MOST_ACTIVE)]
    MaxActive(u32),
    /// Patched exits need none.
    #[error("--maxactive and --ret=exits cannot go together: only a replaced return address takes a slot")]
    MaxActiveByExits,
    /// `lat` times whole functions.
    #[error("cannot time `{0}`: lat takes functions; write PATH:func, or use count for uretprobe and usdt")]
    NotAFunction(String),
    /// `stack --time` sums whole calls.
    #[error("cannot time `{0}`: stack --time takes functions; leave out --time, or write PATH:func")]
    NotTimed(String),
    /// `stack` notes who called.
    #[error("cannot take stacks at `{0}`: a return's caller is its entry's; write PATH:func")]
    NoStackAtReturn(String),
    /// Words of a command that do not parse.
    #[error("-c: `{0}` has an open quote; close it, or write the command after --")]
    Quote(String),
    /// An empty command.
    #[error("-c: no command was given; write for example -c 'ls -l'")]
    EmptyCommand,
    /// A file that cannot be written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An address to serve at.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A collector to send to.
    #[error(transparent)]
    Collector(#[from] CollectorError),
    /// Options that exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
}

impl UsageError {
    /// A path, with marks under what is wrong.
    pub(crate) fn path(probe: &str, path: &str, wrong: &Misread) -> Self {
        let before = path.get(..wrong.at.start).unwrap_or(path).chars().count();
        let under = path.get(wrong.at.clone()).unwrap_or_default().chars().count().max(1);
        let mark = " ".repeat(before) + &"^".repeat(under);
        Self::Path { probe: probe.to_owned(), path: path.to_owned(), mark, why: wrong.why.clone() }
    }
}
