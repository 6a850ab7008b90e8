//! What decisions about a site depend on.
//!
//! In: a file, its branch map, what the process allows, filters. Out: what can be recorded, decided or called at
//! a site, or the refusal that says why not (PLAN-4).

use super::branch_map::BranchMap;
use crate::calls::{CallInput, Callee};
use crate::filter::{Tally, TargetFilter, Tree};
use crate::hit::HitProgram;
use crate::machine::{ProcessTraits, ThreadId};
use crate::refusal::{CodeBytes, Refusal};
use crate::request::{Action, ActionRequest, Read};
use trapline_image::{Convention, Image};
use trapline_record::Svma;

/// The stack of a goroutine may have no room for the system call.
const NO_KEPT_IN_GO: &str = "no code copies long texts, or texts at returns, in Go programs";

/// What decisions about a site depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Env<'a> {
    pub(crate) image: &'a Image,
    pub(crate) map: &'a BranchMap,
    pub(crate) traits: &'a ProcessTraits,
    pub(crate) calls: Option<CallInput<'a>>,
    pub(crate) filters: &'a [Option<TargetFilter>],
    /// Hits are counted by thread.
    pub(crate) by_thread: bool,
    /// Ranges that earlier patches need, in order and disjoint.
    pub(crate) patched: &'a [(Svma, Svma)],
    /// Where registers are read by more than the program's own code: probes at single instructions, and the
    /// file's USDT probes, whoever attaches to them. In order (VAL-1).
    pub(crate) observed: &'a [Svma],
}

/// Where a file's USDT probes and these requests read registers, in order.
pub(crate) fn observed(image: &Image, requests: &[ActionRequest]) -> Vec<Svma> {
    let marks = image.usdt().iter().map(|mark| mark.location);
    let mut all = Vec::from_iter(marks.chain(requests.iter().filter_map(|one| one.action.instruction())));
    all.sort_unstable();
    all
}

impl<'a> Env<'a> {
    /// Whether no earlier patch needs a byte of `start..end`.
    pub(crate) fn is_unpatched(&self, start: Svma, end: Svma) -> bool {
        let next = self.patched.partition_point(|range| range.1 <= start);
        self.patched.get(next).is_none_or(|range| range.0 >= end)
    }
    /// Whether the straight line of code from `start` on is observed at this later instruction, so that a register
    /// which is overwritten only behind it is still needed there. An earlier patch may be a probe as well.
    pub(crate) fn is_observed(&self, start: Svma, at: Svma) -> bool {
        at > start && (self.observed.binary_search(&at).is_ok() || !self.is_unpatched(at, at + 1))
    }
    /// The filter that decides which hits of this probe are recorded.
    pub(crate) fn filter(&self, probe: u32) -> Option<&'a TargetFilter> {
        self.filters.get(probe as usize)?.as_ref().filter(|filter| !filter.passes_all())
    }
    /// What this probe's hits run, if that is a program of their own.
    pub(crate) fn program(&self, probe: u32) -> Option<&'a HitProgram> {
        self.filters.get(probe as usize)?.as_ref()?.program.as_deref()
    }
    /// How this probe's hits are aggregated.
    pub(crate) fn tally(&self, probe: u32) -> Option<&'a Tally> {
        self.filters.get(probe as usize)?.as_ref()?.tally.as_ref()
    }
    /// What this probe's records read from memory.
    pub(crate) fn reads(&self, probe: u32) -> &'a [Read] {
        self.filters.get(probe as usize).and_then(Option::as_ref).map_or(&[], |filter| &filter.reads)
    }
    /// The general registers that this probe's records and values have besides arguments, as bits.
    pub(crate) fn registers_read(&self, probe: u32) -> u16 {
        self.reads(probe).iter().filter_map(Read::general).fold(0, |all, nth| all | 1 << (nth & 15))
    }
    /// Whether arguments are in Go's registers in this function.
    pub(crate) fn is_go_at(&self, at: Svma) -> bool {
        let function = if self.image.is_go() { self.image.function_at(at) } else { None };
        let start = function.map(|function| self.image.function(function).start);
        start.is_some_and(|start| self.image.convention_at(start) == Convention::Go)
    }
    /// Whether this probe's records can be written.
    pub(crate) fn recordable(&self, at: Svma, probe: u32, texts: bool) -> Result<(), Refusal> {
        let filter = self.filters.get(probe as usize).and_then(Option::as_ref);
        let asks = texts || filter.is_some_and(TargetFilter::asks_for_thread);
        if self.traits.go && filter.is_some_and(|filter| !filter.kept.is_empty()) {
            return Err(Refusal::Undecided { at, what: NO_KEPT_IN_GO });
        }
        match self.traits.thread_id {
            ThreadId::Unknown if asks => Err(Refusal::NoThreadNumber { at }),
            _ => Ok(()),
        }
    }
    /// Checks that only hits which pass are counted or timed: all that the filter depends on must be known at
    /// the hit.
    pub(crate) fn decides(&self, at: Svma, request: &ActionRequest) -> Result<(), Refusal> {
        let Some(filter) = self.filter(request.probe) else { return Ok(()) };
        let at_exit = request.action == Action::CountExits;
        let known = |tree: &Tree| match at_exit {
            // At a tail call the code of the filter is longer.
            true => tree.is_known_at_exit() && tree.is_known_at_return(),
            false => tree.is_known_at_entry(),
        };
        let what = match () {
            () if request.action.is_timed() => "no code filters what it times",
            () if request.action.calls() => "no code filters what it calls",
            () if self.by_thread => "no code counts by thread what passes a filter",
            () if filter.by_name => "no code that counts looks at what threads are called",
            () if filter.fields.is_some() => "no code that counts reads fields",
            () if filter.late.is_some() => "no code that counts decides at returns by what entries left",
            () if !filter.condition.as_ref().is_none_or(known) => {
                "no code decides by what is not known there"
            }
            () => return self.recordable(at, request.probe, false),
        };
        Err(Refusal::Undecided { at, what })
    }
    /// What a request for this probe calls. That there is one was checked before anything is planned.
    pub(crate) fn callee(&self, probe: u32) -> Option<Callee> {
        self.calls.and_then(|calls| calls.callees.get(probe as usize).copied())
    }
    /// An address and up to `len` bytes there.
    pub(crate) fn place(&self, at: Svma, len: u64) -> CodeBytes {
        let bytes = (1..=len).rev().find_map(|len| self.image.text(at, len));
        CodeBytes::new(at, bytes.unwrap_or(&[]))
    }
}
