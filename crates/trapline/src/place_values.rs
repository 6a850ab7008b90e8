//! Fills in what the values of a place are, and checks that its records can hold them.
//!
//! In: a place, what was requested of it. Out: the place with its values and filter, or why they cannot be read. Does
//! not: choose places; turn notes of USDT probes into operands (`values`).

use std::sync::Arc;

use trapline_image::{Convention, Image, MarkArgument};
use trapline_plan::{Action, Floats, Read, Unwind};
use trapline_record::calls::MOST_VALUES;
use trapline_record::latency::MOST_CELL_BITS;
use trapline_record::ring::RingArea;

use crate::session_request::{HitAction, SessionRequest};
use crate::sites::NamedSite;
use crate::values::{Marked, NeededArguments, NotKnown, Values};

/// Why a place's values cannot be read: the kind of reason, and a text for people.
pub(crate) type Unseen = (&'static str, &'static str);

/// Fills in what the values of a place are. Returns the arguments of a USDT probe that are not known.
pub(crate) fn values(
    image: &Image,
    requested: &SessionRequest,
    nth: usize,
    place: &mut NamedSite,
) -> Result<Vec<(usize, NotKnown)>, Unseen> {
    match place.arguments.clone() {
        Some(arguments) => of_mark(image, requested, nth, place, &arguments),
        None => of_function(image, requested, nth, place).map(|()| Vec::new()),
    }
}

fn of_mark(
    image: &Image,
    requested: &SessionRequest,
    nth: usize,
    place: &mut NamedSite,
    arguments: &[MarkArgument],
) -> Result<Vec<(usize, NotKnown)>, Unseen> {
    let filter = place.filter.clone();
    let runs = filter.as_ref().and_then(|filter| filter.run_arguments());
    let texts = runs.map_or_else(|| requested.texts.get(nth).copied().unwrap_or(0), |(_, texts)| texts);
    let named = || filter.as_ref().map_or(0, |filter| filter.arguments_named());
    let decides = runs.map_or_else(named, |(arguments, _)| arguments);
    if let (Action::CountAt(at), Some(_)) = (place.action, runs) {
        place.action = Action::RunAt(at);
    }
    let asks = decides | texts;
    let values = if let HitAction::Record { values, .. } = requested.action_of(nth) { values } else { 0 };
    if asks == 0 && values == 0 {
        if runs.is_some() {
            place.filter = filter.map(|filter| Arc::new(filter.inside()));
        }
        return Ok(Vec::new());
    }
    let needed = NeededArguments { values, texts, decides, numbers_texts: runs.is_some() && texts != 0 };
    let (marked, code, unknown) = Marked::new(image, arguments, needed);
    let decided = filter.clone().unwrap_or_default().at_mark(&marked, code);
    match place.action {
        Action::RecordAt(at, Unwind::None) => {
            place.action = Action::RecordMark(at, decided.field_words());
            place.asked = filter;
        }
        Action::RunAt(_) => {}
        // No reader decides about stacks, and their records hold no memory.
        Action::RecordAt(_, Unwind::Frames(_)) if !decided.is_late() => {}
        Action::RecordAt(_, Unwind::Frames(_)) => {
            return Err(("mark-arguments", "with stacks, only arguments in registers decide"));
        }
        Action::RecordAt(_, Unwind::Copy(_)) => {
            return Err(("mark-arguments", "where stacks are copied, no argument of a mark decides"));
        }
        _ => return Err(("mark-arguments", "only trace, hist and stack read a mark's arguments")),
    }
    place.values = Values::Marked(Box::new(marked));
    place.filter = Some(Arc::new(decided));
    Ok(unknown)
}

fn of_function(
    image: &Image,
    requested: &SessionRequest,
    nth: usize,
    place: &mut NamedSite,
) -> Result<(), Unseen> {
    const TEXT: &str =
        "Go's strings end by their length, which is the argument behind: say buf(len=n) text, u64 n";
    const STACK: &str = "Go passes what this function takes and returns on the stack, or at unknown places; \
                         probe it without a signature and conditions";
    const KEPT: &str = "no code copies long texts, or texts at returns, in Go programs";
    const REGISTERS: &str = "Go passes more than six arguments in registers of its own, and has none on the stack where C has them; \
                             without a signature they are found by debug information";
    let filter = place.filter.as_ref();
    // The target aggregates texts only if they end at a zero byte.
    let tally = filter.and_then(|filter| filter.tallied());
    let ends = requested.ended.get(nth).is_some_and(|ended| *ended != 0)
        || tally.is_some_and(|tally| tally.texts() != 0)
        || filter.is_some_and(|filter| filter.run_arguments().is_some_and(|(_, texts)| texts != 0));
    let asks = ends
        || requested.texts.get(nth).is_some_and(|texts| *texts != 0)
        || requested.floats.get(nth).is_some_and(|floats| *floats != Floats::default())
        || filter.is_some_and(|filter| filter.asks_for_values());
    let is_beyond = |reads: &[Read]| reads.iter().any(|read| read.register == Read::STACK);
    match place.convention(image) {
        Convention::Go if filter.is_some_and(|filter| is_beyond(filter.read_memory())) => {
            Err(("go-arguments", REGISTERS))
        }
        Convention::Go | Convention::Unknown if filter.is_some_and(|filter| filter.keeps_texts()) => {
            Err(("go-text", KEPT))
        }
        Convention::Go if ends => Err(("go-text", TEXT)),
        Convention::Unknown if asks => Err(("go-assembly", STACK)),
        Convention::Unknown => {
            place.values = Values::Unknown;
            Ok(())
        }
        convention @ (Convention::C | Convention::Go) => {
            place.filter = place.filter.take().map(|filter| match filter.run_arguments() {
                Some((_, 1..)) => Arc::new(filter.with_texts()),
                _ if convention == Convention::Go && !filter.read_memory().is_empty() => {
                    Arc::new(filter.in_go())
                }
                _ => filter,
            });
            Ok(())
        }
    }
}

/// Checks that what a call keeps for its return fits into its memory.
pub(crate) fn fits(place: &NamedSite, is_compact: bool) -> Result<(), Unseen> {
    let Action::Record { values, texts, floats, fields, .. } = place.action else { return Ok(()) };
    if place.action.compact_values() > MOST_VALUES && is_compact {
        return Err(("record-too-long", "with all its values, an entry would have more than 254 words"));
    }
    let keeps = place.filter.as_ref().is_some_and(|filter| filter.keeps_texts());
    let floats = floats.arguments.count_ones() as usize;
    let bytes =
        RingArea::slot_with_floats(values.into(), texts.count_ones() as usize, floats + usize::from(fields));
    match keeps && bytes > 1 << MOST_CELL_BITS {
        true => Err((
            "record-too-long",
            "with all its texts, a call would have a record of more than 4,096 bytes",
        )),
        false => Ok(()),
    }
}
