//! Finds the places in modules that the specifications mean.
//!
//! In: modules that are newly mapped. Out: places to probe, and a line for each specification that found
//! nothing. A specification without a file means the first module that has what it names; the program comes
//! first. Does not: patch.

use std::sync::Arc;

use trapline_image::{Convention, Image, MarkArgument};
use trapline_plan::{Action, Floats, Unwind};

use super::{HitAction, SessionRequest, Traced};
use crate::files::Files;
use crate::modules::{Mapped, Module};
use crate::report::Refused;
use crate::sites::{Miss, ProbedPlace, ProbedPlaces, miss_text};
use crate::threads::{are_renumbered, own_number};
use crate::values::{Marked, NeededArguments, Values, convention};

/// Why a place's values cannot be read: the kind of reason, and a text for people.
type Unseen = (&'static str, &'static str);

/// Fills in what the values of a place are.
fn values(
    image: &Image,
    requested: &SessionRequest,
    nth: usize,
    place: &mut ProbedPlace,
) -> Result<(), Unseen> {
    match place.arguments.clone() {
        Some(arguments) => of_mark(image, requested, nth, place, &arguments),
        None => of_function(image, requested, nth, place),
    }
}

fn of_mark(
    image: &Image,
    requested: &SessionRequest,
    nth: usize,
    place: &mut ProbedPlace,
    arguments: &[MarkArgument],
) -> Result<(), Unseen> {
    let texts = requested.texts.get(nth).copied().unwrap_or(0) & 0x3f;
    let filter = place.filter.clone();
    let asks = filter.as_ref().map_or(0, |filter| filter.arguments_named()) | texts;
    let (values, at) = match (requested.hit_action, place.action) {
        (HitAction::Record { values, .. }, Action::RecordAt(at, Unwind::None)) => (values, Some(at)),
        _ => (0, None),
    };
    let at = match at {
        _ if asks == 0 && values == 0 => return Ok(()),
        Some(at) => at,
        None => return Err(("mark-arguments", "only trace and hist read a mark's arguments")),
    };
    if !cfg!(target_arch = "x86_64") {
        place.values = Values::Unknown;
        let why = ("mark-arguments", "no code reads a mark's arguments on this processor");
        return if asks == 0 { Ok(()) } else { Err(why) };
    }
    place.asked = filter.clone();
    let filter = filter.unwrap_or_default();
    let (marked, operands, reads) = Marked::new(image, arguments, NeededArguments { values, texts }, &filter);
    let filter = filter.at_mark(&marked, operands, reads);
    place.action = Action::RecordMark(at, filter.field_words());
    place.values = Values::Marked(Box::new(marked));
    place.filter = Some(Arc::new(filter));
    Ok(())
}

fn of_function(
    image: &Image,
    requested: &SessionRequest,
    nth: usize,
    place: &mut ProbedPlace,
) -> Result<(), Unseen> {
    const TEXT: &str =
        "Go's strings end by their length, which is the argument behind: say buf(len=n) text, u64 n";
    const STACK: &str = "Go passes what this function takes and returns on the stack, or it cannot be told where; \
                         probe it without a signature and conditions";
    let filter = place.filter.as_ref();
    // The target aggregates texts only if they end at a zero byte.
    let tally = filter.and_then(|filter| filter.tallied());
    let ends = requested.ended.get(nth).is_some_and(|ended| *ended != 0)
        || tally.is_some_and(|tally| tally.texts() != 0);
    let asks = ends
        || requested.texts.get(nth).is_some_and(|texts| *texts != 0)
        || requested.floats.get(nth).is_some_and(|floats| *floats != Floats::default())
        || filter.is_some_and(|filter| filter.asks_for_values());
    match convention(image, place) {
        Convention::Go if ends => Err(("go-text", TEXT)),
        Convention::Unknown if asks => Err(("go-assembly", STACK)),
        Convention::Unknown => {
            place.values = Values::Unknown;
            Ok(())
        }
        Convention::C | Convention::Go => Ok(()),
    }
}

impl Traced {
    /// Places that the specifications mean in new modules.
    pub(crate) fn choose(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        fresh: &[Mapped],
    ) -> (Vec<Module>, ProbedPlaces) {
        let mut opened: Vec<Option<usize>> = vec![None; fresh.len()];
        let (mut modules, mut places) = (Vec::new(), ProbedPlaces::at_most(requested.most));
        let pid = self.process.pid();
        let is_renumbered = are_renumbered(pid);
        // Stubs compare thread numbers as the threads themselves see them.
        let own = |tid: u64| {
            let own = u32::try_from(tid).ok().and_then(|tid| own_number(pid, tid));
            own.unwrap_or(u32::MAX).into()
        };
        // Places whose values cannot be read. They stay in the list until all are found, since places are
        // known by index.
        let mut unknown = Vec::new();
        for (nth, spec) in requested.specs.iter().enumerate() {
            let anywhere = spec.file.is_none();
            let mut missed: (Vec<String>, Vec<Miss>) = Default::default();
            for (index, one) in fresh.iter().enumerate() {
                if anywhere && self.matched.contains(&nth) {
                    break;
                }
                let called = match spec.file.as_deref() {
                    Some(name) => one.path_as(&self.process, name),
                    None => Some(one.usual_path(&self.process)),
                };
                let Some(called) = called else { continue };
                let module = match opened[index] {
                    Some(module) => module,
                    None => match one.open(&self.process, files) {
                        Ok(module) => {
                            self.note_replaced(&module);
                            modules.push(module);
                            opened[index] = Some(modules.len() - 1);
                            modules.len() - 1
                        }
                        Err(reason) => {
                            if !anywhere {
                                let probe = spec.text.clone();
                                places.refused.push(Refused { probe, kind: "file-unreadable", reason });
                                self.matched.insert(nth);
                            }
                            continue;
                        }
                    },
                };
                modules[module].called = called;
                let known = places.found.len();
                let selected =
                    places.select(Some(&self.process), &modules, module, spec, requested.hit_action);
                places.found[known..].iter_mut().for_each(|place| {
                    let filter = requested.filters.get(nth);
                    let renumbered =
                        filter.filter(|_| is_renumbered).map(|filter| Arc::new(filter.with_threads(&own)));
                    place.filter = renumbered.or_else(|| filter.cloned());
                    if let Action::Record { texts, floats, fields, .. } = &mut place.action {
                        *texts = requested.texts.get(nth).copied().unwrap_or(0) & 0x3f;
                        *fields = place.filter.as_ref().map_or(0, |filter| filter.field_words());
                        *floats = requested.floats.get(nth).copied().unwrap_or_default();
                    }
                });
                for (index, place) in places.found.iter_mut().enumerate().skip(known) {
                    if let Err((kind, reason)) = values(&modules[module].file.image, requested, nth, place) {
                        let (probe, reason) = (place.probe.clone(), reason.to_owned());
                        places.refused.push(Refused { probe, kind, reason });
                        unknown.push(index);
                    }
                }
                match selected {
                    Ok(()) => drop(self.matched.insert(nth)),
                    Err(miss) => {
                        missed.0.push(modules[module].called.clone());
                        missed.1.push(miss);
                    }
                }
            }
            if !self.matched.contains(&nth) {
                self.misses.push(match (&spec.file, missed.0.is_empty()) {
                    (Some(file), true) => {
                        format!("no file {file} is mapped by {} ({})", self.name, self.process.pid())
                    }
                    _ => miss_text(spec, &missed.0, &missed.1),
                });
            }
        }
        unknown.into_iter().rev().for_each(|index| drop(places.found.remove(index)));
        places.distinguish();
        (modules, places)
    }
    fn note_replaced(&mut self, module: &Module) {
        if module.file.replaced {
            self.notices.push(format!(
                "{} was replaced on disk since process {} mapped it; the mapped file is probed",
                module.file.path,
                self.process.pid()
            ));
        }
    }
}
