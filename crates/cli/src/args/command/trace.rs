//! What `trace` asks for, of processes or of a recording.
//!
//! In: plain values. Out: [`Calls`], [`Recording`], [`FilterOptions`]. Does not: read conditions.

use std::path::PathBuf;

use trapline::ProbeSpec;
use trapline::calls::Floats;
use trapline::filter::Filter;

use super::run::{Ends, Run};
use super::sink::Sink;
use super::types::Signature;

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
    pub(crate) fn ended(&self) -> Vec<u16> {
        self.probes.iter().map(|(_, signature)| signature.as_ref().map_or(0, Signature::ended)).collect()
    }
    /// For each probe, the arguments that point to text, as bits.
    pub(crate) fn texts(&self) -> Vec<u16> {
        self.probes.iter().map(|(_, signature)| signature.as_ref().map_or(0, Signature::texts)).collect()
    }
}

/// The filter options as typed. A condition is read for each probe, with that probe's names.
#[derive(Debug, Default)]
pub(crate) struct FilterOptions {
    /// `--if`: the condition.
    pub(crate) condition: Option<String>,
    /// `--tid`: threads by number.
    pub(crate) tids: Vec<u32>,
    /// `--comm`: threads by name.
    pub(crate) comms: Vec<String>,
    /// `--sample`: one call in this many.
    pub(crate) sample: Option<u32>,
}

impl FilterOptions {
    /// Whether nothing is filtered.
    pub(crate) fn is_nothing(&self) -> bool {
        let Self { condition, tids, comms, sample } = self;
        condition.is_none() && tids.is_empty() && comms.is_empty() && sample.is_none()
    }
}
