//! In which form each timed function's returns are seen: its exits patched, or its return address replaced.
//!
//! In: places to be timed, and what the user wants. Out: the same places, their roles decided before anything is patched, so that one
//! batch takes all, and a listing asks what an attach asks. Invariant: RET-3 a call is timed until it returns: a function with exits by a tail
//! call gets its return address replaced wherever that is possible, since its call goes on in the callee. Does not: patch.
//!
//! Unwinders that are not told of replaced return addresses see no further than the call. So without `--ret=stack` they are replaced only
//! where all unwinders are told, or where there is none and none comes ([`Unwinding::is_told`]).

use std::collections::{HashMap, HashSet};

use trapline_patch::{AttachReport, rehearse};
use trapline_plan::{PatchRole, Role};
use trapline_target::Process;

use crate::error::Error;
use crate::files::Files;
use crate::modules::Module;
use crate::question::{Question, refusals, second_choice};
use crate::report::Refused;
use crate::sites::Place;
use crate::traced::Wishes;
use crate::unwinders::{Unwinding, unwinding_now};

/// Places as one batch is to take them.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) places: Vec<Place>,
    /// Who is told of replaced return addresses.
    pub(crate) unwinding: Unwinding,
    /// Why a place's exits were not enough, by index: its return address is to be replaced.
    first: HashMap<usize, Refused>,
}

impl Decided {
    /// All as they are.
    pub(crate) fn as_asked(places: &[Place], unwinding: Unwinding) -> Self {
        Self { places: places.to_vec(), unwinding, first: HashMap::new() }
    }
    /// Exits where they can be had; where not, the return address, if all who unwind can be told. Costs a rehearsal.
    pub(crate) fn by_need(
        process: &Process,
        files: &mut Files,
        modules: &[Module],
        places: &[Place],
        wishes: &Wishes,
        guarded: bool,
    ) -> Result<Self, Error> {
        let question = Question::new(modules, places, guarded, None);
        let asked = question.asked();
        let report = rehearse(process, &question.request(&asked, question.filters(), wishes))?;
        let refused = refusals(&report, places);
        let mut again = second_choice(&refused, places);
        let mut decided = Self::as_asked(places, Unwinding::default());
        let tails = tail_called(&report, modules, places);
        if again.is_empty() && tails.is_empty() {
            return Ok(decided);
        }
        let Ok(found) = unwinding_now(process, files) else { return Ok(decided) };
        if !found.is_told() {
            return Ok(decided);
        }
        again.extend(with_slots(process, modules, tails, wishes, guarded)?);
        let mut refused: HashMap<usize, Refused> = refused.into_iter().collect();
        for (index, place) in again {
            decided.places[index] = place;
            decided.first.extend(refused.remove_entry(&index));
        }
        Ok(Self { unwinding: found, ..decided })
    }
    /// The reason to show for a place that was refused after all: exits are what was asked for.
    pub(crate) fn reason(&self, index: usize, refused: Refused) -> Refused {
        self.first.get(&index).cloned().unwrap_or(refused)
    }
    /// Whether this place's return address is to be replaced.
    pub(crate) fn is_slot(&self, index: usize) -> bool {
        self.places.get(index).is_some_and(|place| place.role == Role::LatencySlot)
    }
    /// Whether some were given another role than was asked for.
    pub(crate) fn has_slots(&self) -> bool {
        self.places.iter().any(|place| place.role == Role::LatencySlot)
    }
}

/// Functions that look at the address they return to: in the place of one that jumped to them they would find a slot. Where the jump leads
/// into the same file, planning sees for itself what is done there (`names_return_address`).
const LOOK_AT_CALLER: [&str; 4] = ["dlsym", "dlvsym", "dlopen", "dlmopen"];

/// Timed places whose exits can be patched, but some are jumps to other functions: by index, with the role that replaces return addresses.
fn tail_called(report: &AttachReport, modules: &[Module], places: &[Place]) -> Vec<(usize, Place)> {
    let tails = report.placed.iter().filter(|placed| placed.role == PatchRole::ExitTail);
    let tails: HashSet<usize> = tails.map(|placed| placed.probe as usize).collect();
    let looks = |module: &Module| module.file.image.imported().any(|name| LOOK_AT_CALLER.contains(&name.raw));
    let looks: Vec<bool> = modules.iter().map(looks).collect();
    let fits = |place: &Place| place.role == Role::Latency && !looks[place.module];
    let timed = (0..).zip(places).filter(|(index, place)| tails.contains(index) && fits(place));
    timed.map(|(index, place)| (index, Place { role: Role::LatencySlot, ..place.clone() })).collect()
}

/// Those of them whose return addresses can be replaced. Costs a rehearsal, since the others keep their exits.
fn with_slots(
    process: &Process,
    modules: &[Module],
    places: Vec<(usize, Place)>,
    wishes: &Wishes,
    guarded: bool,
) -> Result<Vec<(usize, Place)>, Error> {
    if places.is_empty() {
        return Ok(places);
    }
    let (indices, places): (Vec<usize>, Vec<Place>) = places.into_iter().unzip();
    let question = Question::new(modules, &places, guarded, None);
    let asked = question.asked();
    let report = rehearse(process, &question.request(&asked, question.filters(), wishes))?;
    let refused: HashSet<usize> = refusals(&report, &places).into_iter().map(|(index, _)| index).collect();
    let all = indices.into_iter().zip(places).enumerate();
    Ok(all.filter_map(|(nth, one)| (!refused.contains(&nth)).then_some(one)).collect())
}
