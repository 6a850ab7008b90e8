//! Who adds up what `hist` is asked for: the target, or the reader from records.
//!
//! In: expressions, probe by probe, and filters. Out: a [`Gather`] with the filters that belong to it, or what is wrong. Does not: add up.

use trapline::filter::{Apart, Filter, Known, Sort, Tally, Tree, parse_with};
use trapline::{By, Floats, ProbeKind, ProbeSpec};

use super::error::UsageError;
use super::fields::Fields;
use super::filters::symbols;
use super::types::{Parameter, Place, Signature, Type};

/// Who adds up.
#[derive(Debug)]
pub(crate) enum Gather {
    /// The target.
    InTarget {
        /// At exits.
        exits: bool,
    },
    /// We, from records: what of each call, probe by probe.
    Here {
        of: Vec<(ProbeSpec, Of)>,
        /// By what values are told apart, probe by probe; `None` if by nothing that a call has.
        keys: Option<Vec<Of>>,
        /// Exits too.
        returns: bool,
        /// Arguments that point to text, probe by probe.
        texts: Vec<u8>,
        /// Those of them that end at a 0.
        ended: Vec<u8>,
        /// Floats, probe by probe.
        floats: Vec<Floats>,
    },
}

impl Gather {
    /// Whether the ends of calls are waited for.
    pub(crate) const fn waits(&self) -> bool {
        match self {
            Self::InTarget { exits } => *exits,
            Self::Here { returns, .. } => *returns,
        }
    }
}

/// What is taken of a call.
#[derive(Debug, Clone)]
pub(crate) enum Of {
    /// A number.
    Number(Tally),
    /// What an argument points to.
    Text(Parameter),
}

/// What the expression is for one probe.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Tree(Tree),
    Text(Parameter),
}

/// Each probe reads it by its own signature; `option` is where it was typed.
pub(super) fn values(
    probes: &[(ProbeSpec, Option<Signature>)],
    (option, expression): (&'static str, &str),
    fields: &[Fields<'_>],
) -> Result<Vec<Value>, UsageError> {
    let one = |((probe, signature), fields): (&(ProbeSpec, Option<Signature>), &Fields<'_>)| {
        let parameters = signature.as_ref().map_or(&[][..], |signature| &signature.parameters);
        let named = parameters.iter().find(|parameter| parameter.name == expression.trim());
        if let Some(parameter @ Parameter { shown: Type::Str | Type::Buf(_), .. }) = named {
            return Ok(Value::Text(parameter.clone()));
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

/// How a value is shown that is no more than an argument, or what is returned.
pub(super) fn shown(
    probes: &[(ProbeSpec, Option<Signature>)],
    values: &[Value],
) -> Vec<(ProbeSpec, Option<Type>)> {
    let one = |((probe, signature), value): (&(ProbeSpec, Option<Signature>), &Value)| {
        let signature = signature.as_ref();
        let shown = match value {
            Value::Tree(Tree::Known(Known::Argument(index, _))) => signature
                .and_then(|signature| {
                    signature.parameters.iter().find(|one| one.place == Place::General(*index))
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

/// What is told apart besides values.
#[derive(Debug, Clone, Default)]
pub(super) struct Split {
    pub(super) by: Option<By>,
    /// Threads are chosen by name.
    pub(super) named: bool,
    /// What each call says itself, probe by probe.
    pub(super) keys: Option<Vec<Value>>,
}

pub(super) fn gather(
    probes: &[(ProbeSpec, Option<Signature>)],
    values: Vec<Value>,
    sort: Sort,
    split: Split,
    filters: Vec<Filter>,
) -> Result<(Vec<Filter>, Gather), UsageError> {
    let Split { by, named, keys } = split;
    let by_thread = named || matches!(by, Some(By::Thread | By::ThreadName));
    // Each place of a mark has its arguments elsewhere.
    let marks = probes.iter().any(|(probe, _)| probe.kind == ProbeKind::Usdt);
    let apart = aparts(keys.as_deref(), values.len(), by_thread).filter(|_| !marks);
    if let Some(found) = apart.and_then(|apart| in_target(&values, sort, &apart, &filters)) {
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
    let keys = keys.map(|keys| keys.into_iter().map(|key| key.of(Sort::Each)).collect());
    let of = probes.iter().zip(values).map(|((probe, _), value)| (probe.clone(), value.of(sort))).collect();
    Ok((filters, Gather::Here { of, keys, returns, texts, ended, floats }))
}

fn at_entry(tree: &Tree) -> bool {
    tree.is_known_at_entry() || tree.is_known_with_fields()
}

/// What the target tells values apart by, probe by probe; `None` if it cannot: texts that it does not know, or of one probe a text and of another a number.
fn aparts(keys: Option<&[Value]>, probes: usize, by_thread: bool) -> Option<Vec<Apart>> {
    let Some(keys) = keys else { return Some(vec![Apart::threads(by_thread); probes]) };
    let texts = keys.iter().filter(|key| key.tree().is_none()).count();
    let one = |key: &Value| match key {
        Value::Tree(tree) => Some(Apart::Number(tree.clone())),
        Value::Text(_) => key.text().map(Apart::Text),
    };
    (texts == 0 || texts == keys.len()).then(|| keys.iter().map(one).collect())?
}

/// Filters that let the target add up, and when, if it can.
fn in_target(
    values: &[Value],
    sort: Sort,
    apart: &[Apart],
    filters: &[Filter],
) -> Option<(Vec<Filter>, Gather)> {
    let trees = values.iter().filter(|value| value.tree().is_some()).count();
    if trees != 0 && trees != values.len() {
        return None;
    }
    let one = |(value, apart): (&Value, &Apart)| {
        let (value, sort) = match value {
            Value::Tree(tree) => (tree.clone(), sort),
            Value::Text(_) => (Tree::Number(0, false), Sort::Text(value.text()?)),
        };
        Some(Tally { value, sort, apart: apart.clone() })
    };
    let tallies: Vec<Tally> = values.iter().zip(apart).map(one).collect::<Option<_>>()?;
    let exits = !tallies.iter().flat_map(Tally::trees).all(at_entry);
    let fit = |of_calls: bool| {
        let before = |n: usize| filters.get(n).cloned().unwrap_or_default();
        let one = |(n, tally): (usize, &Tally)| match of_calls {
            false => before(n).tally(tally.clone(), exits),
            true => before(n).tally_calls(tally.clone()),
        };
        tallies.iter().enumerate().map(one).collect::<Option<Vec<Filter>>>()
    };
    let at_once = fit(false).map(|filters| (filters, Gather::InTarget { exits }));
    at_once.or_else(|| Some((fit(true)?, Gather::InTarget { exits: true })))
}

impl Value {
    pub(super) const fn tree(&self) -> Option<&Tree> {
        match self {
            Self::Tree(tree) => Some(tree),
            Self::Text(_) => None,
        }
    }
    /// The argument whose text it is, if the target may read that.
    const fn text(&self) -> Option<u8> {
        match self {
            Self::Text(Parameter { place: Place::General(n), shown: Type::Str, .. }) => Some(*n),
            _ => None,
        }
    }
    /// The same, as bits.
    fn ended(&self) -> u8 {
        self.text().map_or(0, |nth| 1 << nth)
    }
    /// Which argument's text records are to hold.
    const fn texts(&self) -> u8 {
        match self {
            Self::Text(Parameter { place: Place::General(n), .. }) => 1 << *n,
            _ => 0,
        }
    }
    fn floats(&self) -> Floats {
        self.tree().map_or_else(Floats::default, Tree::floats)
    }
    fn of(self, sort: Sort) -> Of {
        match self {
            Self::Tree(value) => Of::Number(Tally { value, sort, apart: Apart::Nothing }),
            Self::Text(parameter) => Of::Text(parameter),
        }
    }
}
