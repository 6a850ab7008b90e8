//! Signatures that were not typed: from debug information.
//!
//! In: a run's probes. Out: the signature of each function that they mean, if debug information has one. Does
//! not: replace what was typed.

use std::rc::Rc;

use trapline::ProbeSpec;
use trapline::beyond;
use trapline::filter::Misread;
use trapline::probes::{Pattern, ProbeKind};
use trapline::prototypes::{MOST_BYTES, NoField, ProbedFunction};

use super::error::UsageError;
use super::fields::{PATHS, find, held, is_path};
use super::noted::{elements, signature_of};
use super::overloads;
use super::run::run;
use super::signature;
use crate::args::command::Run;
use crate::args::command::types::{ArgumentPlace, FieldOf, Parameter, Signature, Type};
use crate::args::typed::Common;
use crate::report::format::Format;

/// A function that reads the debug information of a run's files and processes, probe by probe. In tests it
/// returns none.
pub(crate) type Look<'a> = &'a dyn Fn(&Run) -> Vec<Vec<ProbedFunction>>;

/// A run and its typed signatures. What stands in brackets is a signature, unless the whole text is the name
/// of a function: of an overload, as C++ writes it.
pub(crate) fn split(
    texts: &[String],
    common: Common,
    offered: &[Format],
    look: Look<'_>,
) -> Result<(Run, Vec<Option<Signature>>), UsageError> {
    let halves: Vec<_> = texts.iter().map(|text| signature::split(text)).collect();
    let overloads = overloads::named(texts, &halves, &|asked| run(asked, common.clone(), offered), look)?;
    let (mut probes, mut signatures) = (Vec::new(), Vec::new());
    for ((text, half), overload) in texts.iter().zip(halves).zip(overloads) {
        let wrong = |why| UsageError::Signature { text: text.clone(), why };
        let (probe, signature) = match overload {
            Some(name) => {
                (name, signature::call(text).1.map(signature::value_alone).transpose().map_err(wrong)?)
            }
            None => half.map_err(wrong)?,
        };
        probes.push(probe);
        signatures.push(signature);
    }
    let run = run(&probes, common, offered)?;
    for (probe, signature) in run.probes.iter().zip(&signatures) {
        refuse(probe, signature.as_ref())?;
    }
    Ok((run, signatures))
}

/// Refuses a signature at a place where no call begins, because there the registers for arguments hold other
/// values.
fn refuse(probe: &ProbeSpec, signature: Option<&Signature>) -> Result<(), UsageError> {
    let takes = signature.is_some_and(|one| !one.parameters.is_empty() || !one.selected.is_empty());
    match probe.kind {
        ProbeKind::Return if takes => Err(UsageError::ArgumentsAtReturn(probe.text.clone())),
        _ => Ok(()),
    }
}

/// Whether the probe is at a function's entry or exits.
fn is_noted(probe: &ProbeSpec) -> bool {
    let inside = matches!(&probe.func, Pattern::Exact(exact) if exact.offset > 0);
    probe.kind != ProbeKind::Usdt && !inside
}

/// The variables and registers that a signature names inside a function; `None` if it names types.
fn locals(signature: &Signature) -> Option<Vec<String>> {
    if !signature.selected.is_empty() || signature.parameters.is_empty() {
        return Some(signature.selected.clone());
    }
    let register = |field: &FieldOf| Some(format!("reg({})", beyond::register_name(&field.read)?));
    let registers: Option<Vec<String>> = signature.fields.iter().map(register).collect();
    registers.filter(|registers| registers.len() == signature.parameters.len())
}

/// The values that a probe inside a function names, in one of its places.
fn inside(probe: &ProbeSpec, typed: &Signature, noted: ProbedFunction) -> Result<Signature, UsageError> {
    let named = Signature { selected: probe.locals.clone(), ..typed.clone() };
    let mut found = selected(probe, &named, Some(noted))?;
    if typed.selected.is_empty() {
        let names = typed.parameters.iter().map(|parameter| parameter.name.clone());
        found.parameters.iter_mut().zip(names).for_each(|(parameter, name)| parameter.name = name);
    }
    Ok(found)
}

/// Probes with their signatures: the typed ones, and for the others those from debug information. A probe
/// that means several functions becomes one probe for each of them, in the run too.
pub(crate) fn complete(
    run: &mut Run,
    signatures: Vec<Option<Signature>>,
    look: Look<'_>,
) -> Result<Vec<(ProbeSpec, Option<Signature>)>, UsageError> {
    let has_types = |probe: &ProbeSpec, signature: &Option<Signature>| {
        let types = |one: &Signature| one.selected.is_empty() && !one.parameters.is_empty();
        signature.as_ref().is_some_and(types)
            && matches!(probe.func, Pattern::Exact(_))
            && probe.kind != ProbeKind::Usdt
    };
    let asks = |signature: &Option<Signature>| {
        signature.as_ref().is_none_or(|one| !one.selected.is_empty() || one.value.is_none())
    };
    for (probe, signature) in run.probes.iter_mut().zip(&signatures) {
        if let Some(signature) = signature.as_ref().filter(|_| probe.is_inside()) {
            probe.locals = locals(signature).ok_or_else(|| UsageError::TypesInside(probe.text.clone()))?;
        }
    }
    let notes =
        |probe: &ProbeSpec| is_noted(probe) || probe.kind == ProbeKind::Usdt || !probe.locals.is_empty();
    let any = run
        .probes
        .iter()
        .zip(&signatures)
        .any(|(probe, one)| (asks(one) || has_types(probe, one)) && notes(probe));
    let mut noted = if any { look(run) } else { Vec::new() }.into_iter();
    let mut probes = Vec::new();
    for (probe, signature) in run.probes.iter().zip(signatures) {
        let functions = noted.next().unwrap_or_default();
        if functions.is_empty() && !probe.locals.is_empty() {
            return Err(UsageError::NothingInside(probe.text.clone()));
        }
        if has_types(probe, &signature) {
            overloads::distinct(&probe.text, &functions)?;
        }
        let needs = signature.as_ref().is_some_and(|one| one.selected.iter().any(|word| is_path(word)));
        if !asks(&signature) || !needs && functions.iter().all(|one| one.prototype.is_none()) {
            probes.push((probe.clone(), signature));
            continue;
        }
        if let (Some(typed), true) = (&signature, functions.is_empty()) {
            selected(probe, typed, None)?;
        }
        for one in functions {
            let spec = one.spec.clone();
            let own = match &signature {
                Some(typed) if one.is_inside() => Some(inside(probe, typed, one)?),
                Some(typed) if typed.selected.is_empty() => Some(valued(typed, one)),
                Some(typed) => Some(selected(probe, typed, Some(one))?),
                None => one.prototype.is_some().then(|| signature_of(Rc::new(one))),
            };
            probes.push((spec, own));
        }
    }
    run.probes = probes.iter().map(|(probe, _)| probe.clone()).collect();
    Ok(probes)
}

/// Refuses texts that calls keep for their return, where calls are not recorded with their returns.
pub(super) fn refuse_kept(probes: &[(ProbeSpec, Option<Signature>)]) -> Result<(), UsageError> {
    match probes.iter().flat_map(|(_, signature)| signature).any(|signature| !signature.kept.is_empty()) {
        true => Err(UsageError::Conflict(
            "str[N], buf(…)[N] and texts of the return are for trace, without --entry-only: a call keeps them for its return",
        )),
        false => Ok(()),
    }
}

/// The typed signature, with the noted type of the returned value unless one was typed.
fn valued(typed: &Signature, noted: ProbedFunction) -> Signature {
    let all = noted.prototype.is_some().then(|| signature_of(Rc::new(noted)));
    let noted = all.filter(|_| typed.value.is_none());
    match noted {
        Some(Signature { value, value_in, .. }) => Signature { value, value_in, ..typed.clone() },
        None => typed.clone(),
    }
}

/// The arguments, variables and fields that were typed by name. Where the source's names are not known, they stand for the
/// arguments in their order.
fn selected(
    probe: &ProbeSpec,
    typed: &Signature,
    noted: Option<ProbedFunction>,
) -> Result<Signature, UsageError> {
    let all = noted.map(|noted| signature_of(Rc::new(noted)));
    let mut parameters = Vec::new();
    let mut fields: Vec<FieldOf> = Vec::new();
    let known = all.as_ref().filter(|all| !all.parameters.is_empty()).map(|all| all.parameters.clone());
    let inside = all.as_ref().and_then(|all| all.noted.clone()).filter(|noted| noted.is_inside());
    let has_names = known.iter().flatten().any(|one| !one.name.is_empty());
    let numbered = |word: &String| word.strip_prefix("arg").is_some_and(|n| n.parse::<usize>().is_ok());
    let by_order = inside.is_none()
        && !typed.parameters.is_empty()
        && !has_names
        && !typed.selected.iter().all(numbered);
    for (nth, word) in typed.selected.iter().enumerate() {
        if by_order {
            let known = known.as_ref().and_then(|known| known.get(nth).cloned());
            let known = known.map(|known| moved(known, all.as_ref(), &mut fields)).transpose();
            let known = known.map_err(|why| UsageError::path(&probe.text, word, &why))?;
            let unknown =
                Parameter { name: String::new(), shown: Type::Unknown, place: ArgumentPlace::Unseen };
            parameters.push(Parameter { name: word.clone(), ..known.unwrap_or(unknown) });
            continue;
        }
        let wrong = |wrong: Misread| UsageError::path(&probe.text, word, &wrong);
        let by_number = || word.strip_prefix("arg").and_then(|n| n.parse::<usize>().ok());
        let named = all.as_ref().and_then(|all| {
            let nth = all.parameters.iter().position(|one| one.name == *word).or_else(by_number)?;
            all.parameters.get(nth).cloned()
        });
        if let Some(parameter) = named {
            parameters.push(moved(parameter, all.as_ref(), &mut fields).map_err(wrong)?);
            continue;
        }
        if inside.as_ref().is_some_and(|noted| has_no_place(noted, word)) {
            let (shown, place) = (Type::Unknown, ArgumentPlace::Unseen);
            parameters.push(Parameter { name: word.clone(), shown, place });
            continue;
        }
        let noted = all.as_ref().and_then(|all| all.noted.as_deref());
        let counted = noted.and_then(|noted| noted.counted_field(word));
        if fields.len() + usize::from(counted.is_some()) >= PATHS {
            return Err(wrong(too_many(word)));
        }
        if let Some(counted) = counted {
            parameters.push(elements(word.clone(), counted, &mut fields));
            continue;
        }
        let found = find(noted, word).map_err(wrong)?;
        if fields.len() + found.len() > PATHS {
            return Err(wrong(too_many(word)));
        }
        parameters.extend(held(word.clone(), found, &mut fields));
    }
    let (value, value_in, noted) =
        all.map_or((None, Vec::new(), None), |all| (all.value, all.value_in, all.noted));
    let value = typed.value.clone().or(value);
    Ok(Signature { parameters, value, value_in, selected: Vec::new(), fields, noted, ..typed.clone() })
}

fn too_many(word: &str) -> Misread {
    let why = format!(
        "this is one field too many; {PATHS} can be read. A string takes two, and a structure one for each {MOST_BYTES} bytes"
    );
    Misread { at: 0..word.len(), why, is_unknown: false }
}

/// Whether a variable exists at a place inside a function, but has no place there that is known.
fn has_no_place(noted: &ProbedFunction, word: &str) -> bool {
    noted.field(word).is_err_and(|wrong| matches!(wrong.why, NoField::NoPlace { .. }))
}

/// An argument that was selected, with the fields that it is, if it is one.
fn moved(
    parameter: Parameter,
    of: Option<&Signature>,
    fields: &mut Vec<FieldOf>,
) -> Result<Parameter, Misread> {
    let ArgumentPlace::Field(nth) = parameter.place else { return Ok(parameter) };
    let noted = |nth: u8| of.and_then(|of| of.fields.get(usize::from(nth)));
    let number = match parameter.shown {
        Type::BufField(nth) | Type::Elements(_, nth) => noted(nth),
        _ => None,
    };
    let Some(field) = noted(nth) else { return Ok(parameter) };
    if fields.len() + usize::from(number.is_some()) >= PATHS {
        return Err(too_many(&parameter.name));
    }
    let length = fields.len() as u8;
    fields.extend(number.cloned());
    let shown = match parameter.shown {
        Type::BufField(_) => Type::BufField(length),
        Type::Elements(of, _) => Type::Elements(of, length),
        other => other,
    };
    fields.push(FieldOf { shown: shown.clone(), ..field.clone() });
    Ok(Parameter { name: parameter.name, shown, place: ArgumentPlace::Field(fields.len() as u8 - 1) })
}
