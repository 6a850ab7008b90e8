//! Whether a filter can be decided at all. If neither the target nor the reader can decide it, hits must not
//! be reported as if they had passed.
//!
//! In: a filter, and the action at a hit. Out: why the filter could not be decided, before any process is
//! touched. The target alone decides about hits that are counted or aggregated, since no reader sees them one
//! by one. For records, the reader decides what is left.

use trapline_plan::filter::{Known, Tree};
use trapline_plan::{Action, Unwind};

use super::Filter;

/// Why a filter cannot be decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Undecided {
    /// Timed calls all enter the histogram.
    #[error("timed calls are not filtered; record them, or tally their durations")]
    Timed,
    /// Counters are in rows of threads.
    #[error(
        "hits that are counted by thread are not filtered; ask for the threads in the condition, or record the calls"
    )]
    ByThread,
    /// The reader looks thread names up, and only for records and for rows of threads.
    #[error("what threads are called is known of recorded calls, and of what is tallied by thread")]
    Names,
    /// An argument, at a return for which nothing was kept.
    #[error("arguments are not known where a return is counted; record the calls, or tally them")]
    Arguments,
    /// The returned value or the duration, at an entry.
    #[error("what a call returns, and how long it takes, is not known where its entry is counted")]
    Return,
    /// The duration, at a return for which nothing was kept.
    #[error("how long a call took is not known where its return is counted; record the calls, or tally them")]
    Duration,
    /// A field of what an argument points to.
    #[error("fields are read for recorded calls only")]
    Fields,
    /// The returned value or the duration, where only entries are recorded.
    #[error(
        "what a call returns, and how long it takes, is not known of entries that are recorded alone; record returns too"
    )]
    Unrecorded,
    /// A value that the entry knew, where its record holds a stack instead.
    #[error("with stacks no arguments are recorded; ask for what is known at the entry alone")]
    Stacks,
    /// The condition's code would have no upper bound on its length.
    #[error("the condition is too long for where a return is counted")]
    TooLong,
    /// The filter does not say what to aggregate ([`Filter::tally`], [`Filter::tally_calls`]).
    #[error("its filter does not say what to tally, or says it of another moment than is tallied")]
    NotTallied,
}

impl Undecided {
    /// Why the filter could not be decided for hits of such a probe; `None` if it can be.
    pub(crate) fn of(filter: &Filter, action: Action, by_thread: bool) -> Option<Self> {
        match action {
            Action::Record { values, returns, stack, .. } => Self::unrecorded(filter, values, returns, stack),
            Action::RecordAt(_, stack) => (stack != Unwind::None && filter.is_named()).then_some(Self::Names),
            Action::RecordMark(..) => Self::unrecorded(filter, 6, false, Unwind::None),
            Action::Tally { exits } => Self::untallied(filter, exits),
            _ if !filter.rejects() => None,
            Action::CountEntry | Action::CountExits | Action::CountAt(_) if by_thread => Some(Self::ByThread),
            Action::CountEntry | Action::CountExits | Action::CountAt(_) => {
                Self::unknown(filter, action == Action::CountExits)
            }
            _ => Some(Self::Timed),
        }
    }
    fn unknown(filter: &Filter, at_exit: bool) -> Option<Self> {
        if filter.is_named() {
            return Some(Self::Names);
        }
        let whole = filter.whole()?;
        let why = |known| match known {
            Known::Thread => None,
            Known::Field(..) | Known::FloatField(..) | Known::Readable(_) => Some(Self::Fields),
            Known::Argument(..) | Known::FloatArgument(..) | Known::Float(..) => {
                at_exit.then_some(Self::Arguments)
            }
            Known::Took => Some(if at_exit { Self::Duration } else { Self::Return }),
            Known::Returned(_) | Known::FloatReturned(_) => (!at_exit).then_some(Self::Return),
        };
        let mut found = None;
        whole.each_known(&mut |known| found = found.or(why(known)));
        // A return may be a jump to another function, of which less is known.
        found.or((at_exit && !whole.is_known_at_return()).then_some(Self::TooLong))
    }
    /// Why no record will hold what the reader's part needs.
    fn unrecorded(filter: &Filter, values: u8, returns: bool, stack: Unwind) -> Option<Self> {
        // Stacks are summed as they are read: no reader decides about them.
        let summed = stack != Unwind::None;
        if summed && filter.is_named() {
            return Some(Self::Names);
        }
        let why = |known| match known {
            Known::Took | Known::Returned(_) | Known::FloatReturned(_) if summed => Some(Self::Stacks),
            Known::Took | Known::Returned(_) | Known::FloatReturned(_) => {
                (!returns).then_some(Self::Unrecorded)
            }
            Known::Argument(index, _) | Known::FloatArgument(index, _) => {
                (index >= values).then_some(Self::Stacks)
            }
            Known::Field(..) | Known::FloatField(..) | Known::Float(..) => summed.then_some(Self::Stacks),
            Known::Thread | Known::Readable(_) => None,
        };
        let mut found = None;
        let trees = [&filter.read, &filter.late].into_iter().flatten();
        trees.for_each(|tree| tree.each_known(&mut |known| found = found.or(why(known))));
        found
    }
    fn untallied(filter: &Filter, exits: bool) -> Option<Self> {
        if filter.runs_program() {
            return None;
        }
        let Some(tally) = &filter.tally else { return Some(Self::NotTallied) };
        if filter.is_named() && !filter.fits_rows(tally) {
            return Some(Self::Names);
        }
        if filter.of_calls {
            // Conditions that were added after the aggregation may need anything.
            let mut trees = [&filter.read, &filter.late].into_iter().flatten().chain(tally.trees());
            let known = trees.all(|tree| filter.is_known_of_calls(tree));
            return (!exits || !known).then_some(Self::NotTallied);
        }
        let known =
            |tree: &Tree| if exits { tree.is_known_at_exit() } else { filter.is_known_when_read(tree) };
        let trees = [&filter.early, &filter.read, &filter.late].into_iter().flatten().chain(tally.trees());
        // At an exit alone, no text was copied.
        let is_there = !exits || tally.texts() == 0;
        (!is_there || !trees.into_iter().all(known)).then_some(Self::NotTallied)
    }
}

#[cfg(test)]
mod tests {
    use trapline_plan::{Action, Floats, Read, Unwind};

    use super::super::{Filter, GroupBy, Int, Known, Sort, Symbol, Tally, Tree};
    use super::Undecided;

    fn filter(text: &str, bytes: u8) -> Filter {
        let field = Known::Field(0, Int { bits: 32, signed: true });
        let names = [("field".to_owned(), Symbol::Known(field))];
        let filter = Filter::default().condition(text, &names).expect(text);
        filter.reads(vec![Read { register: 0, offsets: vec![0], bytes }])
    }

    /// Code in the target assumes that a field is as wide as its type; a field that was read at another width
    /// is left to the reader.
    #[test]
    fn fields_of_another_width_are_not_decided_in_the_target() {
        let (floats, stack) = (Floats::default(), Unwind::None);
        let action = Action::Record {
            values: 6,
            returns: false,
            valued: false,
            texts: 0,
            ended: 0,
            floats,
            fields: 2,
            stack,
        };
        for (bytes, decides) in [(4, true), (8, false), (2, false)] {
            let filter = filter("field < 3", bytes);
            assert_eq!(filter.in_target(action, None).is_some_and(|one| one.fields.is_some()), decides);
            assert_eq!(filter.left_to_reader(action, true).is_late(), !decides, "{bytes}");
            let value = Tree::Known(Known::Field(0, Int { bits: 32, signed: true }));
            let by = Tally {
                value: Tree::Number(1, false),
                sort: Sort::Log2,
                group_by: GroupBy::Number(value.clone()),
            };
            for tally in [Tally { value, sort: Sort::Log2, group_by: GroupBy::Nothing }, by] {
                let tallied = Filter { read: None, ..filter.clone() }.tally(tally.clone(), false);
                assert_eq!(tallied.is_some(), decides, "{bytes}");
                let of_calls = Filter { read: None, ..filter.clone() }.tally_calls(tally);
                assert_eq!(of_calls.is_some(), decides, "{bytes}");
            }
        }
    }

    /// A group-by key must be known when hits are added up, just as the value must.
    #[test]
    fn a_key_that_is_not_known_there_is_not_tallied() {
        let (took, first) = (Known::Took, Known::Argument(0, Int::U64));
        let text = |sort| Tally { value: Tree::Number(0, false), sort, group_by: GroupBy::Text(1) };
        let by = |value, key| Tally {
            value: Tree::Known(value),
            sort: Sort::Log2,
            group_by: GroupBy::Number(Tree::Known(key)),
        };
        for (tally, at_entry, at_exit, of_calls) in [
            (by(first, first), true, false, true),
            (by(first, took), false, false, true),
            (by(took, first), false, false, true),
            (by(Known::Thread, Known::Returned(Int::U64)), false, true, true),
            (text(Sort::Log2), true, false, true),
            (text(Sort::Text(0)), false, false, false),
        ] {
            let filter = Filter::default();
            let can = [false, true].map(|exits| filter.clone().tally(tally.clone(), exits));
            assert_eq!(can.clone().map(|one| one.is_some()), [at_entry, at_exit], "{tally:?}");
            for (exits, one) in [false, true].into_iter().zip(can) {
                let Some(one) = one else { continue };
                assert_eq!(Undecided::of(&one, Action::Tally { exits }, false), None, "{tally:?}");
                let other = Undecided::of(&one, Action::Tally { exits: !exits }, false);
                assert_eq!(other, Some(Undecided::NotTallied), "{tally:?}");
            }
            assert_eq!(filter.clone().tally_calls(tally.clone()).is_some(), of_calls, "{tally:?}");
            // Rows belong to keys, not to threads.
            let named = filter.named(vec!["name".to_owned()]);
            assert!(
                named.clone().tally(tally.clone(), false).is_none() && named.tally_calls(tally).is_none()
            );
        }
    }
}
