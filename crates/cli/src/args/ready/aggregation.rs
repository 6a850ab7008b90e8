//! Decides where `hist` aggregates: in the target, or in the reader, from records.
//!
//! In: the expression of each probe, and filters. Out: an [`Aggregation`] with the filters that belong to it,
//! or what is wrong. Does not: aggregate.

use trapline::calls::Floats;
use trapline::filter::{Filter, GroupBy, Known, Misread, Sort, Tally, Tree, parse_with};
use trapline::probes::ProbeKind;
use trapline::{By, ProbeSpec};

use super::error::UsageError;
use super::fields::Fields;
use super::filters::symbols;
use crate::args::command::aggregation::{Aggregation, Of};
use crate::args::command::types::{ArgumentPlace, Parameter, Signature, Type};

/// The expression, as it applies to one probe.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Tree(Tree),
    Text(Parameter),
}

/// The expression for each probe, read with that probe's signature. `option` names where it was typed.
pub(super) fn values(
    probes: &[(ProbeSpec, Option<Signature>)],
    (option, expression): (&'static str, &str),
    fields: &[Fields<'_>],
) -> Result<Vec<Value>, UsageError> {
    let one = |((probe, signature), fields): (&(ProbeSpec, Option<Signature>), &Fields<'_>)| {
        let path = |wrong: Misread| UsageError::path(&probe.text, expression.trim(), &wrong);
        if let Some(text) = fields.text(expression.trim()).map_err(path)? {
            return Ok(Value::Text(text));
        }
        let tree =
            parse_with(expression, &symbols(probe, signature.as_ref(), true), &|path| fields.symbol(path));
        let wrong = |why| UsageError::Value { option, probe: probe.text.clone(), why: Box::new(why) };
        let tree = tree.map_err(wrong)?;
        if tree.float().is_some() {
            return Err(UsageError::HistOfFloats(expression.trim().to_owned()));
        }
        Ok(Value::Tree(tree))
    };
    probes.iter().zip(fields).map(one).collect()
}

/// The type by which each probe's value is shown, if the value is just an argument or the returned value.
pub(super) fn shown(
    probes: &[(ProbeSpec, Option<Signature>)],
    values: &[Value],
) -> Vec<(ProbeSpec, Option<Type>)> {
    let one = |((probe, signature), value): (&(ProbeSpec, Option<Signature>), &Value)| {
        let signature = signature.as_ref();
        let shown = match value {
            Value::Tree(Tree::Known(Known::Argument(index, _))) => signature
                .and_then(|signature| {
                    signature.parameters.iter().find(|one| one.place == ArgumentPlace::General(*index))
                })
                .map(|parameter| parameter.shown.clone()),
            Value::Tree(Tree::Known(Known::Returned(_))) => {
                signature.and_then(|signature| signature.value.clone())
            }
            Value::Text(parameter) => Some(parameter.shown.clone()),
            Value::Tree(_) => None,
        };
        (probe.clone(), shown)
    };
    probes.iter().zip(values).map(one).collect()
}

/// What values are grouped by.
#[derive(Debug, Clone, Default)]
pub(super) struct Split {
    pub(super) by: Option<By>,
    /// Whether threads are selected by name.
    pub(super) named: bool,
    /// The value of the call that is the group-by key, for each probe.
    pub(super) keys: Option<Vec<Value>>,
}

pub(super) fn aggregation(
    probes: &[(ProbeSpec, Option<Signature>)],
    values: Vec<Value>,
    sort: Sort,
    split: Split,
    filters: Vec<Filter>,
) -> Result<(Vec<Filter>, Aggregation), UsageError> {
    let Split { by, named, keys } = split;
    let by_thread = named || matches!(by, Some(By::Thread | By::ThreadName));
    // At each place of a USDT probe the arguments lie elsewhere.
    let marks = probes.iter().any(|(probe, _)| probe.kind == ProbeKind::Usdt);
    // Of what a thread's row has, the target does not know what it had under a former name.
    let named_sums = sort == Sort::Sums && by == Some(By::ThreadName);
    let group_by = group_bys(keys.as_deref(), values.len(), by_thread).filter(|_| !marks && !named_sums);
    if let Some(found) = group_by.and_then(|group_by| in_target(&values, sort, &group_by, &filters)) {
        return Ok(found);
    }
    if by == Some(By::Cpu) {
        return Err(UsageError::Conflict(
            "--by cpu is for what the target adds up, and this is for the reader; see docs/guide/hist.md",
        ));
    }
    let asked =
        |nth: usize| [values.get(nth), keys.as_ref().and_then(|keys| keys.get(nth))].into_iter().flatten();
    let all = || (0..values.len()).flat_map(asked);
    let returns = !all().filter_map(Value::tree).all(at_entry) || filters.iter().any(Filter::is_late);
    let texts = (0..values.len()).map(|nth| asked(nth).fold(0, |bits, value| bits | value.texts())).collect();
    let ended = (0..values.len()).map(|nth| asked(nth).fold(0, |bits, value| bits | value.ended())).collect();
    let of_filter = |nth: usize| filters.get(nth).map_or_else(Floats::default, Filter::floats);
    let floats = |nth| asked(nth).fold(of_filter(nth), |all, value| all.and(value.floats()));
    let floats = (0..values.len()).map(floats).collect();
    let arguments = all().map(Value::arguments).fold(6, u8::max);
    let keys = keys.map(|keys| keys.into_iter().map(|key| key.of(Sort::Each)).collect());
    let of = probes.iter().zip(values).map(|((probe, _), value)| (probe.clone(), value.of(sort))).collect();
    Ok((filters, Aggregation::InReader { of, keys, arguments, returns, texts, ended, floats }))
}

fn at_entry(tree: &Tree) -> bool {
    tree.is_known_at_entry() || tree.is_known_with_fields()
}

/// The group-by key of each probe, as the target can use it. `None` if the target cannot: for texts that it
/// cannot read, or if the key of one probe is a text and that of another a number.
fn group_bys(keys: Option<&[Value]>, probes: usize, by_thread: bool) -> Option<Vec<GroupBy>> {
    let Some(keys) = keys else { return Some(vec![GroupBy::threads(by_thread); probes]) };
    let texts = keys.iter().filter(|key| key.tree().is_none()).count();
    let one = |key: &Value| match key {
        Value::Tree(tree) => Some(GroupBy::Number(tree.clone())),
        Value::Text(_) => key.text().map(GroupBy::Text),
    };
    (texts == 0 || texts == keys.len()).then(|| keys.iter().map(one).collect())?
}

/// The filters with which the target can aggregate, and at which moment it does; `None` if it cannot.
fn in_target(
    values: &[Value],
    sort: Sort,
    group_by: &[GroupBy],
    filters: &[Filter],
) -> Option<(Vec<Filter>, Aggregation)> {
    let trees = values.iter().filter(|value| value.tree().is_some()).count();
    if trees != 0 && trees != values.len() {
        return None;
    }
    let one = |(value, group_by): (&Value, &GroupBy)| {
        let (value, sort) = match value {
            Value::Tree(tree) => (tree.clone(), sort),
            Value::Text(_) => (Tree::Number(0, false), Sort::Text(value.text()?)),
        };
        Some(Tally { value, sort, group_by: group_by.clone() })
    };
    let tallies: Vec<Tally> = values.iter().zip(group_by).map(one).collect::<Option<_>>()?;
    let exits = !tallies.iter().flat_map(Tally::trees).all(at_entry);
    let fit = |of_calls: bool| {
        let before = |n: usize| filters.get(n).cloned().unwrap_or_default();
        let one = |(n, tally): (usize, &Tally)| match of_calls {
            false => before(n).tally(tally.clone(), exits),
            true => before(n).tally_calls(tally.clone()),
        };
        tallies.iter().enumerate().map(one).collect::<Option<Vec<Filter>>>()
    };
    let at_once = fit(false).map(|filters| (filters, Aggregation::InTarget { exits }));
    at_once.or_else(|| Some((fit(true)?, Aggregation::InTarget { exits: true })))
}

impl Value {
    pub(super) const fn tree(&self) -> Option<&Tree> {
        match self {
            Self::Tree(tree) => Some(tree),
            Self::Text(_) => None,
        }
    }
    /// The argument that the text belongs to, if the value is a text that the target can read.
    const fn text(&self) -> Option<u8> {
        match self {
            Self::Text(Parameter { place: ArgumentPlace::General(n), shown: Type::Str, .. }) => Some(*n),
            _ => None,
        }
    }
    /// The same argument, as a bit.
    fn ended(&self) -> u16 {
        self.text().map_or(0, |nth| 1 << nth)
    }
    /// The argument with the text that records must contain, as a bit.
    const fn texts(&self) -> u16 {
        match self {
            Self::Text(Parameter { place: ArgumentPlace::General(n), .. }) => 1 << *n,
            _ => 0,
        }
    }
    /// How many arguments records must have for it.
    fn arguments(&self) -> u8 {
        let mut most = match self {
            Self::Text(Parameter { place: ArgumentPlace::General(n), .. }) => n + 1,
            _ => 0,
        };
        if let Some(tree) = self.tree() {
            tree.each_known(&mut |known| {
                if let Known::Argument(n, _) | Known::FloatArgument(n, _) = known {
                    most = most.max(n.saturating_add(1));
                }
            });
        }
        most
    }
    fn floats(&self) -> Floats {
        self.tree().map_or_else(Floats::default, Tree::floats)
    }
    fn of(self, sort: Sort) -> Of {
        match self {
            Self::Tree(value) => Of::Number(Tally { value, sort, group_by: GroupBy::Nothing }),
            Self::Text(parameter) => Of::Text(parameter),
        }
    }
}
