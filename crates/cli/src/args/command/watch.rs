//! What `watch` asks for.
//!
//! In: plain values. Out: [`Watch`]. Does not: look a variable up.

use std::time::Duration;

use trapline::Target;
use trapline::watch::{Expr, WatchSpec};

use super::sink::Sink;

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
    /// Whether threads are traced where the machine may lose a trap's reason.
    pub(crate) shield: bool,
    /// Time between summaries.
    pub(crate) interval: Option<Duration>,
    /// Time after which to stop.
    pub(crate) duration: Option<Duration>,
    /// Whether to show the time of day.
    pub(crate) timestamps: bool,
    /// Where to print, and in which format.
    pub(crate) sink: Sink,
}
