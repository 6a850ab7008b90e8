//! In which form each timed function's returns are seen: its exits patched, or its return address replaced.
//!
//! In: places to be timed, and what the user wants. Out: the same places, their roles decided, so that a
//! listing tells what an attach would do; an attach leaves the decision to the planner (`Options::or_slots`). Does not: patch.
//!
//! Unwinders that are not told of replaced return addresses see no further than the call. So without `--ret=stack` they are replaced only
//! where all unwinders are told, or where there is none and none comes ([`Unwinding::is_told`](crate::unwinders::Unwinding::is_told)).

use std::collections::HashMap;

use trapline_patch::rehearse;
use trapline_plan::Role;
use trapline_target::Process;

use crate::error::Error;
use crate::files::Files;
use crate::modules::Module;
use crate::question::{Question, refusals, second_choice};
use crate::report::Refused;
use crate::sites::Place;
use crate::traced::Wishes;
use crate::unwinders::unwinding_now;

/// Places as one batch is to take them.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) places: Vec<Place>,
    /// Why a place's exits were not enough, by index: its return address is to be replaced.
    first: HashMap<usize, Refused>,
}

impl Decided {
    /// All as they are.
    fn as_asked(places: &[Place]) -> Self {
        Self { places: places.to_vec(), first: HashMap::new() }
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
        let again = second_choice(&refused, places);
        let mut decided = Self::as_asked(places);
        if again.is_empty() {
            return Ok(decided);
        }
        let Ok(found) = unwinding_now(process, files) else { return Ok(decided) };
        if !found.is_told() {
            return Ok(decided);
        }
        let mut refused: HashMap<usize, Refused> = refused.into_iter().collect();
        for (index, place) in again {
            decided.places[index] = place;
            decided.first.extend(refused.remove_entry(&index));
        }
        Ok(decided)
    }
    /// The reason to show for a place that was refused after all: exits are what was asked for.
    pub(crate) fn reason(&self, index: usize, refused: Refused) -> Refused {
        self.first.get(&index).cloned().unwrap_or(refused)
    }
    /// Whether this place's return address is to be replaced.
    pub(crate) fn is_slot(&self, index: usize) -> bool {
        self.places.get(index).is_some_and(|place| place.role == Role::LatencySlot)
    }
}
