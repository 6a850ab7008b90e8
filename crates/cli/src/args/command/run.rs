//! What all tracing verbs have in common: what to trace, how the ends of calls are seen, how to report.
//!
//! In: plain values. Out: [`Run`], [`Ends`]. Does not: start a session; it only sets a
//! builder's options.

use std::time::Duration;

use trapline::{Builder, ProbeSpec, Returns, Session, Target};

use super::otlp::Collector;
use super::serve::Address;
use super::sink::Sink;

/// What to trace and how to report it.
#[derive(Debug)]
pub(crate) struct Run {
    /// The functions to trace.
    pub(crate) probes: Vec<ProbeSpec>,
    /// The processes to trace.
    pub(crate) target: Target,
    /// Whether to follow exec, and forks that exec.
    pub(crate) follow: bool,
    /// Whether to wait for functions that nobody has yet.
    pub(crate) wait: bool,
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
    /// Whether kernel uprobes count where no jump fits.
    pub(crate) kernel_uprobes: bool,
    /// Where to print, and in which format.
    pub(crate) sink: Sink,
    /// The address at which to offer metrics.
    pub(crate) serve: Option<Address>,
    /// The collector to which to send metrics.
    pub(crate) otlp: Option<Collector>,
}

impl Run {
    /// The session that these options describe.
    pub(crate) fn builder(&self) -> Builder {
        let builder = Session::builder().target(self.target.clone()).probes(self.probes.iter().cloned());
        builder
            .strict(self.strict)
            .faults_are_fatal(self.faults_are_fatal)
            .kernel_uprobes(self.kernel_uprobes)
            .follow(self.follow)
            .wait(self.wait)
    }
}

/// How the ends of calls are seen. It is the same in each verb that waits for them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ends {
    /// Whether exits are patched or return addresses replaced.
    pub(crate) returns: Returns,
    /// The number of calls that can have their return address replaced at a time.
    pub(crate) maxactive: Option<u32>,
}

impl Ends {
    /// Sets the options of a session.
    pub(crate) const fn of(self, builder: Builder) -> Builder {
        builder.returns(self.returns).maxactive(self.maxactive)
    }
}
