//! A large batch, planned before the process was looked at: which windows the entries of its functions have.
//!
//! In: a file, its map, the functions in the order of the batch. Out: their sites, for `plan_module` to take in place of planning them, if what it is asked for then is
//! what was foreseen ([`Foreseen::fits`]). Invariant FOR-1: what is taken is what planning would be free to choose: a site depends on the file, on its map (which only
//! gains by covering more), on the batch's wants, and on the traits of the process that `fits` compares. What depends on more, a punned jump, a trap or a refusal, is not foreseen:
//! then nothing is.
//! Does not: lay code; look at a process.
//!
//! Another thread foresees while the one that asks does what comes first. They meet at the map's lock:
//!
//! - *it has begun*: who plans waits for its end. That is sooner than both together would have it from the start, or nearly.
//! - *it has not begun*: who plans finds nothing, plans, and leaves word that it is over; the other finds that, and does nothing.
//! - *it ended badly*: the lock is poisoned, and holds nothing.
//! - *nobody plans*: the batch failed before. Whoever made the other thread drops what is there.

use smallvec::SmallVec;
use trapline_image::{FunctionIndex, Image, Machine};
use trapline_record::addr::Bias;

use crate::codemap::CodeMap;
use crate::request::{CallInput, ProcessTraits, Role, Want};
use crate::space::AddressSpace;
use crate::x86_64::Env;
use crate::x86_64::function::Planner;
use crate::x86_64::pun::Puns;
use crate::x86_64::site::{Reach, Site};

/// What becomes of a map's foresight.
#[derive(Debug, Default)]
pub(crate) enum Foresight {
    /// Nobody asked.
    #[default]
    None,
    /// For whoever plans next; `None`: it could not be foreseen.
    Is(Option<Foreseen>),
    /// Somebody planned.
    Over,
}

/// A batch: the functions whose entries are wanted, in its order, and their sites, by function.
#[derive(Debug)]
pub(crate) struct Foreseen {
    functions: Vec<FunctionIndex>,
    sites: Vec<Site>,
}

impl Foreseen {
    /// The sites, if this batch in this process is the one that was foreseen.
    pub(crate) fn fits(
        self,
        traits: &ProcessTraits,
        calls: Option<CallInput<'_>>,
        wants: &[Want],
    ) -> Option<Vec<Site>> {
        let by_jump = calls.is_some_and(|calls| calls.callees.iter().all(|callee| !callee.by_trap));
        let same = self.functions.len() == wants.len()
            && (0..).zip(&self.functions).zip(wants).all(|((probe, &f), want)| entry(probe, f) == *want);
        (decides(traits) == decides(&assumed()) && by_jump && same).then_some(self.sites)
    }
}

/// What a process of our own is, as a rule.
const fn assumed() -> ProcessTraits {
    ProcessTraits::usual(1)
}

/// What windows at entries depend on.
fn decides(traits: &ProcessTraits) -> impl PartialEq + use<> {
    (traits.traps, traits.has_fault_handler, traits.shadow_stack, traits.go)
}

/// Plans the entries of these functions, each for the callee of that number.
pub(crate) fn foresee(image: &Image, map: &CodeMap, functions: &[FunctionIndex]) -> Option<Foreseen> {
    if image.machine() != Machine::X86_64 || image.is_go() {
        return None;
    }
    let mut order: Vec<(FunctionIndex, u32)> = functions.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let (traits, space) = (assumed(), AddressSpace::default());
    let env = Env { image, map, traits: &traits, calls: None, filters: &[], by_thread: false };
    let mut planner = Planner::new(env, Bias(0), Puns::new(&space, Default::default(), u32::MAX));
    planner.sites.reserve(order.len());
    planner.wants_of(order.iter().map(|one| one.0));
    let mut wants: SmallVec<[(u32, Want); 1]> = SmallVec::new();
    let depends = |site: &Site| matches!(site.reach, Reach::Pun(..) | Reach::Trap);
    let is_sure = |planner: &Planner<'_>| {
        planner.refused.is_empty() && planner.kernel.is_empty() && !planner.sites.last().is_some_and(depends)
    };
    let is_whole = order.chunk_by(|a, b| a.0 == b.0).all(|its| {
        wants.clear();
        wants.extend(its.iter().map(|&(function, probe)| (probe, entry(probe, function))));
        planner.function(Some(its[0].0), &wants);
        is_sure(&planner)
    });
    is_whole.then(|| Foreseen { functions: functions.to_vec(), sites: planner.sites })
}

/// The batch's want of that number.
const fn entry(probe: u32, function: FunctionIndex) -> Want {
    Want { probe, latency: None, function: Some(function), role: Role::CallEntry }
}
