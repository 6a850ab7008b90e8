//! The actions at a word, as stubs.
//!
//! In: an action, and everything that stubs depend on. Out: the part of the stub before the displaced code, and what
//! appends the rest later. Does not: choose words or places.

use trapline_record::ring::RecordKind;
use trapline_record::{RemoteAddr, control};

use super::setting::Setting;
use crate::aarch64::action::SiteAction;
use crate::aarch64::stub::arguments::Moved;
use crate::aarch64::stub::{self, ARGUMENTS, Code, NoWords};
use crate::request::Hold;

impl Setting<'_> {
    /// The stub at `at`, up to the displaced code. `None` if durations or records are requested and there is
    /// no place for them.
    pub(in crate::aarch64) fn begin(
        &self,
        at: RemoteAddr,
        action: SiteAction,
    ) -> Option<Moved<'_, Begun<'_>>> {
        let form = self.arguments(action);
        let stub = self.action(RemoteAddr(at.0 + form.bytes_before()), action)?;
        Some(Moved::new(stub, form))
    }
    fn action(&self, at: RemoteAddr, action: SiteAction) -> Option<Begun<'_>> {
        Some(match action {
            SiteAction::Count { probe } => match self.threads() {
                Some(threads) => Begun::Threads(stub::count_by_thread(at.0, &self.machine, &threads, probe)),
                None => {
                    let word = self.data.of(self.layout.counters.word(probe));
                    Begun::Count(stub::count(at.0, &self.machine, word, false))
                }
            },
            SiteAction::FilteredCount { probe, .. } => {
                let word = self.data.of(self.layout.counters.word(probe));
                let filtered = self.filtered(probe)?;
                Begun::FilteredCount(stub::count_filtered(at.0, &self.machine, self.id, filtered, word))
            }
            SiteAction::Tally { probe, kind, late: true, goroutine, .. } => {
                let (traced, tallied) = self.aggregated(probe, goroutine)?;
                match kind {
                    RecordKind::Entry => Begun::Deferred(stub::defer(at.0, traced, kind, ARGUMENTS)?),
                    _ => Begun::Aggregated(stub::aggregate_call(at.0, traced, tallied, kind)?),
                }
            }
            SiteAction::Tally { probe, kind, goroutine, .. }
                if let Some(ran) = self.ran(probe, goroutine) =>
            {
                Begun::Run(stub::run::run(at.0, &self.machine, self.id, ran, kind))
            }
            SiteAction::Tally { probe, kind, goroutine, .. } => {
                let seen = (kind != RecordKind::Tail, goroutine);
                let filtered = Some(self.filtered(probe)?).filter(|one| !one.filter.passes_all());
                let tallied = self.tallied(probe)?;
                Begun::Tallied(stub::tally(at.0, &self.machine, self.id, filtered, tallied, seen))
            }
            SiteAction::Enter { latency, looped, goroutine } => {
                Begun::Latency(stub::latency_enter(at.0, self.timed(latency, goroutine)?, looped))
            }
            SiteAction::Arm { latency, signed } => {
                Begun::Latency(stub::latency_arm(at.0, self.timed(latency, false)?, signed)?)
            }
            SiteAction::Exit { latency, kind, goroutine } => {
                Begun::Latency(stub::latency_exit(at.0, self.timed(latency, goroutine)?, kind))
            }
            SiteAction::Hold(Hold::Load(state)) => {
                let words = (self.data.of(control::at::LOADED), self.data.of(control::at::LOOKED));
                Begun::Hold(stub::load(at.0, &self.machine, state, words, self.below))
            }
            SiteAction::Hold(hold) => {
                let words = (self.data.of(control::at::ASKED), self.data.of(control::at::CLOSED));
                Begun::Hold(stub::hold(at.0, &self.machine, hold, words, self.below))
            }
            SiteAction::Record(record) => {
                let (traced, values) = (self.traced(record)?, record.values.into());
                match stub::defer(at.0, traced, record.kind, values) {
                    Some(deferred) => Begun::Deferred(deferred),
                    None => Begun::Traced(stub::trace(at.0, traced, record.kind, values)),
                }
            }
        })
    }
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack: a box would cost more than the copy"
)]
pub(in crate::aarch64) enum Begun<'a> {
    Count(stub::UnfinishedCount),
    Threads(stub::threads::UnfinishedThreadCount),
    FilteredCount(stub::filtered_count::UnfinishedFilteredCount),
    Tallied(stub::tally::UnfinishedTally),
    Run(stub::run::UnfinishedRun),
    Latency(stub::latency::UnfinishedLatency<'a>),
    Traced(stub::trace::UnfinishedTrace<'a>),
    Deferred(stub::deferred::UnfinishedDeferred<'a>),
    Aggregated(stub::aggregate_at_return::UnfinishedAggregation<'a>),
    Hold(stub::UnfinishedHold),
}

impl Code for Begun<'_> {
    fn displaced_at(&self) -> u64 {
        match self {
            Self::Count(pending) => pending.displaced_at(),
            Self::Threads(pending) => pending.displaced_at(),
            Self::FilteredCount(pending) => pending.displaced_at(),
            Self::Tallied(pending) => pending.displaced_at(),
            Self::Run(pending) => pending.displaced_at(),
            Self::Latency(pending) => pending.displaced_at(),
            Self::Traced(pending) => pending.displaced_at(),
            Self::Deferred(pending) => pending.displaced_at(),
            Self::Aggregated(pending) => pending.displaced_at(),
            Self::Hold(pending) => pending.displaced_at(),
        }
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        match self {
            Self::Count(pending) => pending.finish(displaced, back),
            Self::Threads(pending) => pending.finish(displaced, back),
            Self::FilteredCount(pending) => pending.finish(displaced, back),
            Self::Tallied(pending) => pending.finish(displaced, back),
            Self::Run(pending) => pending.finish(displaced, back),
            Self::Latency(pending) => pending.finish(displaced, back),
            Self::Traced(pending) => pending.finish(displaced, back),
            Self::Deferred(pending) => pending.finish(displaced, back),
            Self::Aggregated(pending) => pending.finish(displaced, back),
            Self::Hold(pending) => pending.finish(displaced, back),
        }
    }
}
