//! Signatures that were not typed: from debug information.
//!
//! In: a run's probes. Out: the signature of each function that they mean, if debug information has one. Does
//! not: replace what was typed.

use std::rc::Rc;

use trapline::ProbeSpec;
use trapline::beyond::{self, RECORDED};
use trapline::calls::FieldRead;
use trapline::filter::Misread;
use trapline::probes::{Pattern, ProbeKind};
use trapline::prototypes::{
    DeclaredParameter, MOST_BYTES, NoField, ParameterPlace, Parts, Piece, ProbedFunction, Prototype,
    ValueType, Whereabouts,
};

use super::error::UsageError;
use super::fields::{PATHS, find, is_path, stacked};
use super::run::run;
use super::signature::{self, SignatureError};
use crate::args::command::Run;
use crate::args::command::types::{ArgumentPlace, FieldOf, Parameter, Signature, Type};
use crate::args::command::whole::{RegisterPart, registers, returned_in};
use crate::args::typed::Common;
use crate::report::format::Format;

/// Number of floats in registers that a record holds.
const RECORDED_FLOATS: u8 = 8;

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
    let overload = |(text, half): (&String, &Result<(String, Option<Signature>), SignatureError>)| match half
    {
        Ok((_, None)) => None,
        Ok((_, Some(signature))) if !may_be_overload(signature) => None,
        // Behind an offset no types follow.
        Ok((probe, Some(_))) if probe.parse::<ProbeSpec>().is_ok_and(|probe| probe.is_inside()) => None,
        _ => Some(signature::call(text).0.to_owned()),
    };
    let overloads: Vec<Option<String>> = texts.iter().zip(&halves).map(overload).collect();
    let asked: Vec<String> = overloads.iter().flatten().cloned().collect();
    let is_probe = |text: &String| text.parse::<ProbeSpec>().is_ok();
    let found = if asked.is_empty() || !asked.iter().all(is_probe) {
        Vec::new()
    } else {
        look(&run(&asked, common.clone(), offered)?)
    };
    let mut found = found.into_iter();
    let (mut probes, mut signatures) = (Vec::new(), Vec::new());
    for ((text, half), overload) in texts.iter().zip(halves).zip(overloads) {
        let is_one = overload.is_some() && found.next().is_some_and(|functions| !functions.is_empty());
        let wrong = |why| UsageError::Signature { text: text.clone(), why };
        let (probe, signature) = match overload.filter(|_| is_one) {
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

/// Whether the brackets may select an overload: they hold types without names, or nothing.
fn may_be_overload(signature: &Signature) -> bool {
    signature.parameters.iter().all(|parameter| parameter.name.is_empty()) || !signature.selected.is_empty()
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
    let any = run.probes.iter().zip(&signatures).any(|(probe, one)| asks(one) && notes(probe));
    let mut noted = if any { look(run) } else { Vec::new() }.into_iter();
    let mut probes = Vec::new();
    for (probe, signature) in run.probes.iter().zip(signatures) {
        let functions = noted.next().unwrap_or_default();
        if functions.is_empty() && !probe.locals.is_empty() {
            return Err(UsageError::NothingInside(probe.text.clone()));
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
            let known = known.map(|known| moved(known, all.as_ref(), &mut fields));
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
            parameters.push(moved(parameter, all.as_ref(), &mut fields));
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
            let why =
                format!("this is one field too many; {PATHS} can be read, and a string of Go's takes two");
            return Err(wrong(Misread { at: 0..word.len(), why, is_unknown: false }));
        }
        if let Some((text, number)) = counted {
            let nth = fields.len() as u8;
            fields.push(FieldOf { path: format!("{word}.len"), read: number, shown: Type::Signed(64) });
            let shown = Type::BufField(nth);
            let place = ArgumentPlace::Field(nth + 1);
            parameters.push(Parameter { name: word.clone(), shown: shown.clone(), place });
            fields.push(FieldOf { path: word.clone(), read: text, shown });
            continue;
        }
        let field = find(noted, word).map_err(wrong)?;
        let place = ArgumentPlace::Field(fields.len() as u8);
        parameters.push(Parameter { name: word.clone(), shown: field.shown.clone(), place });
        fields.push(field);
    }
    let (value, value_in, noted) =
        all.map_or((None, Vec::new(), None), |all| (all.value, all.value_in, all.noted));
    let value = typed.value.clone().or(value);
    Ok(Signature { parameters, value, value_in, selected: Vec::new(), fields, noted, ..typed.clone() })
}

/// Whether a variable exists at a place inside a function, but has no place there that is known.
fn has_no_place(noted: &ProbedFunction, word: &str) -> bool {
    noted.field(word).is_err_and(|wrong| matches!(wrong.why, NoField::NoPlace { .. }))
}

/// An argument that was selected, with the field that it is, if it is one.
fn moved(parameter: Parameter, of: Option<&Signature>, fields: &mut Vec<FieldOf>) -> Parameter {
    let field = match parameter.place {
        ArgumentPlace::Field(n) => of.and_then(|of| of.fields.get(usize::from(n))),
        _ => None,
    };
    let Some(field) = field else { return parameter };
    fields.push(field.clone());
    Parameter { place: ArgumentPlace::Field(fields.len() as u8 - 1), ..parameter }
}

fn signature_of(noted: Rc<ProbedFunction>) -> Signature {
    let Some(Prototype { parameters, value, value_parts }) = noted.prototype.clone() else {
        let (parameters, value) = (Vec::new(), None);
        return Signature {
            parameters,
            value,
            selected: Vec::new(),
            fields: Vec::new(),
            kept: Vec::new(),
            value_in: Vec::new(),
            returned_text: None,
            noted: Some(noted),
        };
    };
    let at_return = noted.spec.kind == ProbeKind::Return;
    let parameters = if at_return { Vec::new() } else { parameters };
    let mut fields = Vec::new();
    let parameter = |DeclaredParameter { name, of, place, parts }: DeclaredParameter| {
        if let Some((place, shown)) = parts.as_ref().and_then(|parts| counted(&of, parts))
            && noted.reads_texts
        {
            return Parameter { name, shown, place };
        }
        let whole = parts.and_then(|parts| whole(name.clone(), parts, &noted, &mut fields));
        if let Some(whole) = whole {
            return whole;
        }
        let bytes = bytes_of(&of);
        let (place, read) = match place {
            // Values of USDT probes and variables are numbered on.
            ParameterPlace::General(n) if n < RECORDED || !noted.is_go => (ArgumentPlace::General(n), None),
            ParameterPlace::Vector(n) if n < RECORDED_FLOATS || !noted.is_go => {
                (ArgumentPlace::Vector(n), None)
            }
            place => (ArgumentPlace::Unseen, bytes.and_then(|bytes| further(place, bytes, noted.is_go))),
        };
        let is_seen = place != ArgumentPlace::Unseen || read.is_some();
        let text = of == ValueType::Text && noted.reads_texts && is_seen;
        let shown = if text { Type::Str } else { Type::from(of) };
        match read {
            // It may take a system call.
            Some(read) if noted.reads_texts && fields.len() < PATHS => {
                stacked(name, shown, read, &mut fields)
            }
            _ => Parameter { name, shown, place },
        }
    };
    let parameters = parameters.into_iter().map(parameter).collect();
    let (value, value_in) = match (value, value_parts.and_then(|parts| returned(&parts, noted.is_go))) {
        (ValueType::Other(_), Some(whole)) => whole,
        // It is returned at a place that the caller passed, or nobody knows where.
        (ValueType::Other(_), None) => (Type::Void, Vec::new()),
        (value, _) => (Type::from(value), Vec::new()),
    };
    Signature {
        value_in,
        parameters,
        value: Some(value),
        selected: Vec::new(),
        fields,
        kept: Vec::new(),
        returned_text: None,
        noted: Some(noted).filter(|_| !at_return),
    }
}

/// How the target reads a value that no record holds; `None` if it cannot.
fn further(place: ParameterPlace, bytes: u8, is_go: bool) -> Option<FieldRead> {
    match (place, is_go) {
        (ParameterPlace::General(nth), true) => beyond::go_argument(nth, bytes),
        (ParameterPlace::Stack(offset), true) => beyond::on_go_stack(offset, bytes),
        (ParameterPlace::Stack(offset), false) => Some(beyond::on_stack(offset, bytes)),
        (ParameterPlace::General(_) | ParameterPlace::Vector(_) | ParameterPlace::Elsewhere, _) => None,
    }
}

/// Rust's `&str` and `&[u8]`, Go's `string` and `[]uint8`, if registers hold both the address of the bytes and their
/// number.
fn counted(of: &ValueType, parts: &Parts) -> Option<(ArgumentPlace, Type)> {
    const TEXTS: [&str; 4] = ["struct &str", "struct &[u8]", "string", "[]uint8"];
    let is_text = matches!(of, ValueType::Other(name) if TEXTS.contains(&&**name));
    let Whereabouts::Registers(pieces) = &parts.at else { return None };
    match &pieces[..] {
        [
            Piece { place: ParameterPlace::General(address), offset: 0, bytes: 8 },
            Piece { place: ParameterPlace::General(length), offset: 8, bytes: 8 },
            // How much is allotted.
            ..,
        ] if is_text && address.max(length) < &RECORDED => {
            Some((ArgumentPlace::General(*address), Type::Buf(*length)))
        }
        _ => None,
    }
}

/// An argument of several parts, if it is known where these are.
fn whole(name: String, parts: Parts, noted: &ProbedFunction, fields: &mut Vec<FieldOf>) -> Option<Parameter> {
    let Parts { layout, at } = parts;
    let bytes = layout.bytes().min(MOST_BYTES) as u8;
    let shown = Type::Whole(Rc::new(layout));
    let read = match at {
        Whereabouts::Registers(pieces) => {
            let parts = registers(&pieces, RECORDED)?;
            return Some(Parameter { name, shown, place: ArgumentPlace::Parts(parts) });
        }
        Whereabouts::Stack(offset) => further(ParameterPlace::Stack(offset), bytes, noted.is_go),
        Whereabouts::Behind(nth) if nth < RECORDED => {
            Some(FieldRead { register: nth, offsets: vec![0], bytes })
        }
        Whereabouts::Behind(_) | Whereabouts::Unknown => None,
    };
    match read {
        // It may take a system call.
        Some(read) if noted.reads_texts && bytes > 0 && fields.len() < PATHS => {
            Some(stacked(name, shown, read, fields))
        }
        _ => None,
    }
}

/// How a returned value of several parts is shown, and the registers that hold it, up to one that no record holds. `None` if
/// no record holds the first one.
fn returned(parts: &Parts, is_go: bool) -> Option<(Type, Vec<RegisterPart>)> {
    let Whereabouts::Registers(pieces) = &parts.at else { return None };
    let registers = returned_in(pieces, beyond::returned_registers(is_go));
    (!registers.is_empty()).then(|| (Type::Whole(Rc::new(parts.layout.clone())), registers))
}

/// Bytes of a value that a register could hold; `None` for any other type.
const fn bytes_of(of: &ValueType) -> Option<u8> {
    match of {
        ValueType::Integer { bytes, .. } | ValueType::Enumeration { bytes, .. } | ValueType::Float(bytes) => {
            Some(*bytes)
        }
        ValueType::Char | ValueType::Bool => Some(1),
        ValueType::Pointer | ValueType::Code | ValueType::Text => Some(8),
        ValueType::Void | ValueType::Other(_) | ValueType::Unknown => None,
    }
}
