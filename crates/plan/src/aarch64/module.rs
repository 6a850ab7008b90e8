//! A module's plan on arm64: one word for each site, and a stub that it leads to.
//!
//! In: [`ModuleInput`]. Out: [`ModulePlan`], as on x86-64, so that the code which writes it need not know for
//! which processor it is. Invariants: PLAN-3, PLAN-4. What is not implemented here yet is refused by name
//! ([`Refusal::Unsupported`]). Counting, aggregating, timing and recording are implemented; calling consumers is
//! not. Where the code lies: `lay`.
//!
//! # How a site is made
//!
//! 1. The word. At an entry it is the first one behind the landing pads, which stay, since a branch may land
//!    there. For `func+off` it is the word there. For returns it is each word by which the function returns
//!    (`exits`). For durations, and for records with returns, it is the entry and each word that leaves the
//!    function, by jumps to others too (`exits::ways_out`).
//! 2. The region: one region of code for the module, in a gap that a `b` reaches from every requested word,
//!    and from which a `b` reaches back (128 MiB). If there is no such gap, the region lies anywhere, and
//!    each word has an island within its reach (`island`), in as few pages as serve all. A word that has not
//!    even one page near it is refused. Data may lie anywhere: stubs hold its address.
//! 3. The stub. It does its action (counts, by thread or not, aggregates, or times; a filter decides before
//!    that) and what the word did, and jumps back. If a word has several actions, the stub of each but the
//!    last leads to the next one's.
//!
//! A patch is one aligned word, so it never crosses a line, and no thread can stand inside it: there are no
//! guards, and nothing traps.
//!
//! x16 and x17 are not taken to be free, even at an entry, which may be the head of a loop: stubs push them.

use super::function::{PlannedSites, words_of};
use super::lay::lay;
use super::site::{Sites, add};
use crate::input::ModuleInput;
use crate::plan::{ModulePlan, Refused};
use crate::refusal::{CodeBytes, PlanError, Refusal};
use crate::request::{Action, ActionRequest};

/// Plans all requests for one module.
///
/// # Errors
/// [`PlanError`] if nothing at all can be planned; a request that fails alone is in [`ModulePlan::refused`].
pub(crate) fn plan_module(input: &ModuleInput<'_>) -> Result<ModulePlan, PlanError> {
    let (mut sites, mut plan) = (Sites::new(), ModulePlan::default());
    for (index, request) in (0..).zip(input.requests) {
        match found_or_armed(input, request) {
            Ok((found, armed)) => {
                add(&mut sites, index, found);
                let armed = armed.map(|why| Refused { probe: request.probe, request: index, why });
                plan.armed.extend(armed);
            }
            Err(why) => plan.refused.push(Refused { probe: request.probe, request: index, why }),
        }
    }
    while let Err((request, why)) = lay(input, &sites, &mut plan)? {
        // The request is refused as a whole, and the others are laid out again.
        let probe = input.requests.get(request as usize).map_or(0, |request| request.probe);
        plan.refused.push(Refused { probe, request, why });
        sites.retain(|_, site| {
            site.actions.retain(|one| one.0 != request);
            !site.actions.is_empty()
        });
    }
    finish(&mut plan, &sites);
    Ok(plan)
}

/// The words that a request needs. If its exits cannot be found, or one of them jumps to another function, and
/// return trampolines may be used instead: the word that arms the call, and why.
fn found_or_armed(
    input: &ModuleInput<'_>,
    request: &ActionRequest,
) -> Result<(PlannedSites, Option<Refusal>), Refusal> {
    let or_trampolines =
        input.latency.is_some_and(|latency| latency.or_trampolines && latency.trampolines.is_some());
    let timed = request.action == Action::Latency && or_trampolines;
    let instead = || words_of(input, &ActionRequest { action: Action::LatencyByTrampoline, ..*request });
    let found = match words_of(input, request) {
        Err(why) if timed && why.is_of_exits() => {
            return instead().map(|found| (found, Some(why.clone()))).map_err(|_| why);
        }
        found => found?,
    };
    let tail = found.iter().find(|(_, action)| timed && action.is_tail()).map(|(site, _)| site.at());
    if let Some(at) = tail
        && let Ok(armed) = instead()
    {
        let at = CodeBytes::new(at, input.image.text(at, 4).unwrap_or(&[]));
        return Ok((armed, Some(Refusal::TailCall { at })));
    }
    Ok((found, None))
}

/// What follows from the sites and patches.
fn finish(plan: &mut ModulePlan, sites: &Sites) {
    plan.refused.sort_by_key(|refused| refused.request);
    let actions = sites.values().flat_map(|site| &site.actions);
    plan.tails = actions.filter(|(_, action)| action.is_tail()).map(|&(request, _)| request).collect();
    for site in sites.values() {
        let first = site.actions[0].0;
        let others = site.actions[1..].iter().map(|other| other.0).filter(|&other| other != first);
        plan.shares.extend(others.map(|other| (first, other)));
    }
    for patch in &plan.patches {
        plan.stats.sites[patch.tactic as usize] += 1;
    }
    plan.stats.refused = plan.refused.len() as u32;
}
