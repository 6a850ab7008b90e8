//! The signature of a function as debug information has it.
//!
//! In: a function with its prototype. Out: names, types and places of its arguments and of what it returns: in registers, or
//! memory that the target reads at each hit. What no record can hold is not seen. Does not: look functions up.

use std::rc::Rc;

use trapline::beyond::{self, RECORDED};
use trapline::calls::FieldRead;
use trapline::probes::ProbeKind;
use trapline::prototypes::{
    CountedRead, DeclaredParameter, Elements, Layout, MOST_BYTES, ParameterPlace, Parts, Piece,
    ProbedFunction, Prototype, ValueType, Whereabouts,
};

use super::fields::{PATHS, stacked};
use crate::args::command::types::{ArgumentPlace, ElementsOf, FieldOf, Parameter, Signature, Type};
use crate::args::command::whole::{RegisterPart, registers, returned_in};

/// Number of floats in registers that a record holds.
const RECORDED_FLOATS: u8 = 8;

/// An argument that is a text, slice or vector: its elements and their number are added to the fields.
pub(super) fn elements(name: String, read: CountedRead, fields: &mut Vec<FieldOf>) -> Parameter {
    let nth = fields.len() as u8;
    let shown = match read.of {
        Elements::Text => Type::BufField(nth),
        Elements::Values { of, stride, by_end } => {
            Type::Elements(Rc::new(ElementsOf { of, stride, by_end }), nth)
        }
    };
    let path = format!("{name}.len");
    // The addresses of both ends are no number.
    let number = if read.number.bytes == 8 { Type::Signed(64) } else { Type::Opaque };
    fields.push(FieldOf { path, read: read.number, shown: number });
    fields.push(FieldOf { path: name.clone(), read: read.elements, shown: shown.clone() });
    Parameter { name, shown, place: ArgumentPlace::Field(nth + 1) }
}

/// The signature that debug information has of a function.
pub(super) fn signature_of(noted: Rc<ProbedFunction>) -> Signature {
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
        if let Some(read) = referred(&name, &of, parts.as_ref(), &noted).filter(|_| fields.len() + 2 <= PATHS)
        {
            return elements(name, read, &mut fields);
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

/// A string, slice or vector to which an argument refers: by a reference, or as it is passed in memory.
fn referred(
    name: &str,
    of: &ValueType,
    parts: Option<&Parts>,
    noted: &ProbedFunction,
) -> Option<CountedRead> {
    let is_behind = parts.is_some_and(|parts| matches!(parts.at, Whereabouts::Behind(_)));
    let may_be = noted.reads_texts && !name.is_empty() && (*of == ValueType::Pointer || is_behind);
    if may_be { noted.counted_field(name) } else { None }
}

/// A string or a slice of bytes (C++, Rust, Go), if registers hold both the address of the bytes and their number.
fn counted(of: &ValueType, parts: &Parts) -> Option<(ArgumentPlace, Type)> {
    const TEXTS: [&str; 4] = ["struct &str", "struct &[u8]", "string", "[]uint8"];
    const VIEWS: [&str; 2] = ["class basic_string_view<char,", "struct basic_string_view<char,"];
    let ValueType::Other(name) = of else { return None };
    if !TEXTS.contains(&&**name) && !VIEWS.iter().any(|view| name.starts_with(view)) {
        return None;
    }
    let Whereabouts::Registers(pieces) = &parts.at else { return None };
    let [
        Piece { place: ParameterPlace::General(first), offset: 0, bytes: 8 },
        Piece { place: ParameterPlace::General(second), offset: 8, bytes: 8 },
        // How much is allotted.
        ..,
    ] = &pieces[..]
    else {
        return None;
    };
    // libstdc++ has the number first.
    let is_turned = matches!(&parts.layout, Layout::Record(all) if all.iter().any(|one| one.name == "_M_len" && one.offset == 0));
    let (address, length) = if is_turned { (second, first) } else { (first, second) };
    (address.max(length) < &RECORDED).then_some((ArgumentPlace::General(*address), Type::Buf(*length)))
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
