//! Signatures that nobody typed: from what compilers noted of functions.
//!
//! In: a run's probes. Out: for each function that they mean its signature, where debug information has one. Does not: overrule what
//! was typed.

use std::rc::Rc;
use std::sync::Arc;

use trapline::filter::{Float, Int, MAX_FIELDS, Misread};
use trapline::{DeclaredParameter, Noted, ParameterPlace, ProbeKind, ProbeSpec, Prototype, ValueType};

use super::command::Run;
use super::error::UsageError;
use super::fields::{FieldOf, find};
use super::ready::is_function;
use super::types::{Enumeration, Parameter, Place, Signature, Type};

/// What asks for noted functions: [`look`], or in tests of the arguments alone nobody.
pub(crate) type Look<'a> = &'a dyn Fn(&Run) -> Vec<Vec<Noted>>;

/// Asks the files and processes that a run is about.
pub(crate) fn look(run: &Run) -> Vec<Vec<Noted>> {
    crate::commands::trace::builder(run).prototypes()
}

/// Probes with their signatures: those typed, and those noted of the others. A probe that means several functions becomes one for
/// each of them; the run's probes change with it.
pub(crate) fn complete(
    run: &mut Run,
    signatures: Vec<Option<Signature>>,
    look: Look<'_>,
) -> Result<Vec<(ProbeSpec, Option<Signature>)>, UsageError> {
    let asks = |signature: &Option<Signature>| signature.as_ref().is_none_or(|one| !one.selected.is_empty());
    let notes = |probe: &ProbeSpec| is_function(probe) || probe.kind == ProbeKind::Usdt;
    let any = run.probes.iter().zip(&signatures).any(|(probe, one)| asks(one) && notes(probe));
    let mut noted = if any { look(run) } else { Vec::new() }.into_iter();
    let mut probes = Vec::new();
    for (probe, signature) in run.probes.iter().zip(signatures) {
        let functions = noted.next().unwrap_or_default();
        if !asks(&signature) || signature.is_none() && functions.iter().all(|one| one.prototype.is_none()) {
            probes.push((probe.clone(), signature));
            continue;
        }
        if let (Some(typed), true) = (&signature, functions.is_empty()) {
            selected(probe, typed, None)?;
        }
        for one in functions {
            let spec = one.spec.clone();
            let own = match &signature {
                Some(typed) => Some(selected(probe, typed, Some(one))?),
                None => one.prototype.is_some().then(|| signature_of(Rc::new(one))),
            };
            probes.push((spec, own));
        }
    }
    run.probes = probes.iter().map(|(probe, _)| probe.clone()).collect();
    Ok(probes)
}

/// The arguments and fields that were typed by name.
fn selected(probe: &ProbeSpec, typed: &Signature, noted: Option<Noted>) -> Result<Signature, UsageError> {
    let all = noted.map(|noted| signature_of(Rc::new(noted)));
    let mut parameters = Vec::new();
    let mut fields: Vec<FieldOf> = Vec::new();
    for word in &typed.selected {
        let wrong = |wrong: Misread| UsageError::path(&probe.text, word, &wrong);
        let by_number = || word.strip_prefix("arg").and_then(|n| n.parse::<usize>().ok());
        let named = all.as_ref().and_then(|all| {
            let nth = all.parameters.iter().position(|one| one.name == *word).or_else(by_number)?;
            all.parameters.get(nth).cloned()
        });
        if let Some(parameter) = named {
            parameters.push(parameter);
            continue;
        }
        if fields.len() == MAX_FIELDS {
            let why = format!("this is one field too many; {MAX_FIELDS} can be read");
            return Err(wrong(Misread { at: 0..word.len(), why }));
        }
        let field = find(all.as_ref().and_then(|all| all.noted.as_deref()), word).map_err(wrong)?;
        let place = Place::Field(fields.len() as u8);
        parameters.push(Parameter { name: word.clone(), shown: field.shown.clone(), place });
        fields.push(field);
    }
    let (value, noted) = all.map_or((None, None), |all| (all.value, all.noted));
    Ok(Signature { parameters, value: typed.value.clone().or(value), selected: Vec::new(), fields, noted })
}

fn signature_of(noted: Rc<Noted>) -> Signature {
    let Some(Prototype { parameters, value }) = noted.prototype.clone() else {
        let (parameters, value) = (Vec::new(), None);
        return Signature { parameters, value, selected: Vec::new(), fields: Vec::new(), noted: Some(noted) };
    };
    let parameter = |DeclaredParameter { name, of, place }: DeclaredParameter| {
        let place = match place {
            ParameterPlace::General(n) => Place::General(n),
            ParameterPlace::Vector(n) => Place::Vector(n),
            ParameterPlace::Elsewhere => Place::Unseen,
        };
        let text = of == ValueType::Text && noted.reads_texts && place != Place::Unseen;
        Parameter { name, shown: if text { Type::Str } else { type_of(of) }, place }
    };
    let value = match value {
        // Several registers, or a place that the caller gave.
        ValueType::Other(_) => Type::Void,
        value => type_of(value),
    };
    Signature {
        parameters: parameters.into_iter().map(parameter).collect(),
        value: Some(value),
        selected: Vec::new(),
        fields: Vec::new(),
        noted: Some(noted),
    }
}

pub(super) fn type_of(of: ValueType) -> Type {
    match of {
        ValueType::Void => Type::Void,
        ValueType::Integer { bytes, signed: true } => Type::Signed(bytes * 8),
        ValueType::Integer { bytes, signed: false } => Type::Unsigned(bytes * 8),
        ValueType::Char => Type::Char,
        ValueType::Bool => Type::Bool,
        ValueType::Float(4) => Type::Float(Float::Single),
        ValueType::Float(_) => Type::Float(Float::Double),
        ValueType::Pointer | ValueType::Text => Type::Hex,
        ValueType::Enumeration { bytes, signed, names } => {
            Type::Enum(Arc::new(Enumeration { int: Int { bits: bytes * 8, signed }, names }))
        }
        ValueType::Other(_) => Type::Opaque,
    }
}
