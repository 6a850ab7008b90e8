//! Speculative planning: which windows the entries of a large batch have, computed before the process is
//! examined.
//!
//! In: a file, its map, the functions in the order of the batch. Out: their sites. `plan_module` takes them
//! instead of planning, if its input matches what was assumed ([`SpeculativeSites::fits`]). Invariant: FOR-1 the
//! result is one that planning could have chosen too. A site depends on the file, on its map (which only
//! gains by covering more), on the batch's requests, and on the traits of the process that `fits` compares.
//! Punned jumps, traps and refusals depend on more. If one of these is needed, there is no result at all.
//! Does not: lay out code; look at a process.
//!
//! Another thread plans speculatively while the requesting thread does what comes first. They meet at the
//! map's lock:
//!
//! - *It has begun*: the planning thread waits for its end. That is sooner, or nearly, than both together
//!   would finish from the start.
//! - *It has not begun*: the planning thread finds nothing, plans, and notes that it is over; the other
//!   thread finds the note, and does nothing.
//! - *It panicked*: the lock is poisoned, and holds nothing.
//! - *No thread plans*: the batch failed before. The code that started the other thread drops the result.

use smallvec::SmallVec;
use std::sync::{Mutex, MutexGuard, PoisonError};
use trapline_image::{FunctionIndex, Image};
use trapline_record::addr::Bias;

use super::branch_map::BranchMap;
use super::env::{Env, observed};
use super::function::{Planner, Sites};
use super::pun::Puns;
use super::site::{PatchedSite, Reach};
use crate::calls::CallInput;
use crate::machine::ProcessTraits;
use crate::request::{Action, ActionRequest};
use crate::space::AddressSpace;

/// What is planned in advance with one map: computed once, and taken once.
#[derive(Debug, Default)]
pub(crate) struct Speculation(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// It was not requested.
    #[default]
    None,
    /// The result, for the next plan; `None` if the sites could not be planned in advance.
    Is(Option<SpeculativeSites>),
    /// A plan was made already.
    Over,
}

impl Speculation {
    /// Plans the entries of these functions, unless this was done before, or the result was taken already.
    pub(crate) fn plan(&self, image: &Image, map: &BranchMap, functions: &[FunctionIndex]) {
        let mut state = self.state();
        if matches!(*state, State::None) {
            *state = State::Is(plan_entries(image, map, functions));
        }
    }
    /// Takes the result; waits if a thread is still computing it. From now on none is computed.
    pub(crate) fn take(&self) -> Option<SpeculativeSites> {
        match std::mem::replace(&mut *self.state(), State::Over) {
            State::Is(speculative) => speculative,
            State::None | State::Over => None,
        }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A batch: the functions of which the entries are requested, in the batch's order, and their sites, by function.
#[derive(Debug)]
pub(crate) struct SpeculativeSites {
    functions: Vec<FunctionIndex>,
    sites: Vec<PatchedSite>,
}

impl SpeculativeSites {
    /// The sites, if this batch in this process matches what was assumed.
    pub(crate) fn fits(
        self,
        traits: &ProcessTraits,
        calls: Option<CallInput<'_>>,
        requests: &[ActionRequest],
    ) -> Option<Vec<PatchedSite>> {
        let by_jump = calls.is_some_and(|calls| calls.callees.iter().all(|callee| !callee.by_trap));
        let same = self.functions.len() == requests.len()
            && (0..)
                .zip(&self.functions)
                .zip(requests)
                .all(|((probe, &f), request)| entry(probe, f) == *request);
        (decides(traits) == decides(&assumed()) && by_jump && same).then_some(self.sites)
    }
}

/// The traits that are assumed: those of our own process, as a rule.
const fn assumed() -> ProcessTraits {
    ProcessTraits::usual(1)
}

/// The traits on which windows at entries depend.
fn decides(traits: &ProcessTraits) -> impl PartialEq + use<> {
    (traits.traps, traits.has_fault_handler, traits.faults_delivered, traits.shadow_stack, traits.go)
}

/// Plans the entries of these functions; the probe of each is its index.
fn plan_entries(image: &Image, map: &BranchMap, functions: &[FunctionIndex]) -> Option<SpeculativeSites> {
    if image.is_go() {
        return None;
    }
    let mut order: Vec<(FunctionIndex, u32)> = functions.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let (traits, space) = (assumed(), AddressSpace::default());
    let observed = observed(image, &[]);
    let env = Env {
        image,
        map,
        traits: &traits,
        calls: None,
        filters: &[],
        by_thread: false,
        patched: &[],
        observed: &observed,
    };
    let mut planner = Planner::new(env, Bias(0), Puns::new(&space, Default::default(), u32::MAX));
    planner.sites = Sites::with_capacity(order.len());
    planner.requests_of(order.iter().map(|one| one.0));
    let mut requests: SmallVec<[(u32, ActionRequest); 1]> = SmallVec::new();
    let depends = |site: &PatchedSite| matches!(site.reach, Reach::Pun(..) | Reach::Trap);
    let is_sure = |planner: &Planner<'_>| {
        planner.refused.is_empty() && planner.kernel.is_empty() && !planner.sites.last().is_some_and(depends)
    };
    let is_whole = order.chunk_by(|a, b| a.0 == b.0).all(|its| {
        requests.clear();
        requests.extend(its.iter().map(|&(function, probe)| (probe, entry(probe, function))));
        planner.function(Some(its[0].0), &requests);
        is_sure(&planner)
    });
    is_whole.then(|| SpeculativeSites { functions: functions.to_vec(), sites: planner.sites.into_all() })
}

/// The batch's request with that number.
const fn entry(probe: u32, function: FunctionIndex) -> ActionRequest {
    ActionRequest { probe, latency: None, function: Some(function), action: Action::CallEntry }
}
