//! Calls as JSON.
//!
//! In: a call, its signature, names of code. Out: an object on a line, or members of one. Does not: know other calls.

use std::borrow::Cow;

use serde::Serialize;
use trapline::Call;

use super::parts::{how, named, nanos, value_type};
use crate::args::types::{Parameter, Signature, Type, Value};
use crate::report::code_names::CodeNames;
use crate::report::json::{SCHEMA, line};
use crate::report::text;

#[derive(Serialize)]
struct Row<'a> {
    r#type: &'static str,
    schema: u32,
    time_ns: u64,
    pid: u32,
    tid: u32,
    probe: &'a str,
    args: Vec<Argument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ret: Option<Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ret_cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ret_fault: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ret_name: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur_ns: Option<u64>,
    how: &'static str,
}

#[derive(Serialize)]
pub(super) struct Argument<'a> {
    name: &'a str,
    pub(super) value: Value,
    /// The name that an enumeration gives it, or that of the function to which it points.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<u64>,
}

/// The line of a call.
pub(super) fn json(call: &Call, signature: Option<&Signature>, names: &mut Option<Box<CodeNames>>) -> String {
    let arguments = signature.map_or(&[][..], |signature| &signature.parameters);
    let value = value_type(signature);
    let returned = call.returned.filter(|_| *value != Type::Void);
    let read = text::returned(call, signature.and_then(|signature| signature.returned_text));
    let ret_text = read.as_ref().map(|read| match read.is_nothing() {
        true => Value::Nothing,
        false => Value::Text(String::from_utf8_lossy(read.bytes).into_owned()),
    });
    let args = arguments.iter().map(|parameter| {
        let code = parameter.raw(call).filter(|_| parameter.shown == Type::Code);
        let name = code.and_then(|raw| named(names, call.pid, raw)).map(|name| name.to_string().into());
        let argument = argument(call, parameter);
        Argument { label: name.or(argument.label), ..argument }
    });
    let args = args.collect();
    let ret_name = returned.and_then(|returned| match value {
        Type::Code => named(names, call.pid, returned).map(|name| name.to_string().into()),
        value => value.label(returned).map(Cow::Borrowed),
    });
    line(&Row {
        r#type: "call",
        schema: SCHEMA,
        time_ns: nanos(call.at),
        pid: call.pid,
        tid: call.tid,
        probe: &call.site.probe,
        args,
        ret: returned.map(|raw| ret_text.unwrap_or_else(|| returned_of(call, raw, signature))),
        ret_cut: read.as_ref().is_some_and(|read| read.cut),
        ret_fault: read.as_ref().and_then(|read| read.fault),
        ret_name,
        dur_ns: call.took.map(nanos),
        how: how(call.how),
    })
}

/// Arguments and the returned value by their names, as the members of a JSON object; without a name, an argument is `arg0` and
/// so on. Nothing, if the call has neither.
pub(crate) fn members(call: &Call, signature: Option<&Signature>) -> Option<String> {
    let parameters = signature.map_or(&[][..], |signature| &signature.parameters);
    let named = |(nth, parameter): (usize, &Parameter)| {
        let name = if parameter.name.is_empty() { format!("arg{nth}") } else { parameter.name.clone() };
        (name, argument(call, parameter).value)
    };
    let value = value_type(signature);
    let returned = call.returned.filter(|_| *value != Type::Void);
    let returned = returned.map(|raw| ("return".to_owned(), returned_of(call, raw, signature)));
    let all = parameters.iter().enumerate().map(named).chain(returned);
    let text = |(name, value): (String, Value)| {
        // A name and a value are JSON.
        let [name, value] =
            [serde_json::to_string(&name), serde_json::to_string(&value)].map(Result::unwrap_or_default);
        format!("{name}:{value}")
    };
    let all: Vec<String> = all.map(text).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// What a call returned; `raw` is its first word.
pub(super) fn returned_of(call: &Call, raw: u64, signature: Option<&Signature>) -> Value {
    signature.map_or_else(|| Type::Hex.value(raw), |signature| signature.returned(call, raw))
}

/// An argument as it is shown.
pub(super) fn argument<'a>(call: &Call, parameter: &'a Parameter) -> Argument<'a> {
    let (value, cut, fault) = match text::read(call, parameter) {
        None => (parameter.value(call), false, None),
        Some(read) if read.is_nothing() => (Value::Nothing, false, read.fault),
        Some(read) => (Value::Text(String::from_utf8_lossy(read.bytes).into_owned()), read.cut, read.fault),
    };
    let label = parameter.label(call).map(Cow::Borrowed);
    Argument { name: &parameter.name, value, label, cut, fault }
}
