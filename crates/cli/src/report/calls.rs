//! A line for each call, for people and as JSON (docs/json.md).
//!
//! In: calls, and the signatures that were typed. Out: text. Does not: sort, count, write.

use std::collections::HashMap;

use serde::Serialize;
use trapline::{Call, How, ProbeSpec, Site, time_of_day};

use super::json::{SCHEMA, line};
use crate::args::signature::{Signature, Type};

/// Which signature a function's values have.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    probes: &'a [(ProbeSpec, Option<Signature>)],
    /// By probe text; looked up once.
    known: HashMap<String, Option<&'a Signature>>,
    json: bool,
    timestamps: bool,
}

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
    ret: Option<i128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur_ns: Option<u64>,
    how: &'static str,
}

#[derive(Serialize)]
struct Argument<'a> {
    name: &'a str,
    value: i128,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(probes: &'a [(ProbeSpec, Option<Signature>)], json: bool, timestamps: bool) -> Self {
        Self { probes, known: HashMap::new(), json, timestamps }
    }
    /// One call.
    pub(crate) fn line(&mut self, call: &Call) -> String {
        let signature = self.signature(&call.site);
        if self.json { json(call, signature) } else { text(call, signature, self.timestamps) }
    }
    /// The first that was typed for a function of one of its names.
    fn signature(&mut self, site: &Site) -> Option<&'a Signature> {
        if let Some(known) = self.known.get(&site.probe) {
            return *known;
        }
        let last = |text: &str| text.rsplit(':').next().unwrap_or_default().to_owned();
        let names: Vec<String> =
            [&site.probe, &site.label].into_iter().chain(&site.aliases).map(|text| last(text)).collect();
        let means = |spec: &ProbeSpec| names.iter().any(|name| spec.func.matches(name));
        let found = self.probes.iter().find(|(spec, signature)| signature.is_some() && means(spec));
        let found = found.and_then(|(_, signature)| signature.as_ref());
        self.known.insert(site.probe.clone(), found);
        found
    }
}

fn text(call: &Call, signature: Option<&Signature>, timestamps: bool) -> String {
    let when = if timestamps { time_of_day() } else { format!("{:>12.6}", call.at.as_secs_f64()) };
    let arguments: Vec<String> = signature.map_or_else(Vec::new, |signature| {
        let shown = signature.parameters.iter().zip(&call.arguments);
        shown
            .map(|(parameter, &value)| match parameter.name.as_str() {
                "" => parameter.shown.show(value),
                name => format!("{name}={}", parameter.shown.show(value)),
            })
            .collect()
    });
    let took = call.took.map_or_else(String::new, |took| format!(" <{:.9}>", took.as_secs_f64()));
    let value = signature.and_then(|signature| signature.value).unwrap_or(Type::Hex);
    let end = match (call.how, call.returned) {
        (How::Entered, _) => String::new(),
        (How::Returned, Some(_)) if value == Type::Void => took,
        (How::Returned, Some(returned)) => format!(" = {}{took}", value.show(returned)),
        (How::Returned | How::TailCall, _) => format!(" = ? (tail call){took}"),
        (How::Unfinished, _) => " <unfinished ...>".to_owned(),
    };
    format!("{when} {:>7} {}({}){end}\n", call.tid, call.site.label, arguments.join(", "))
}

fn json(call: &Call, signature: Option<&Signature>) -> String {
    let arguments = signature.map_or(&[][..], |signature| &signature.parameters);
    let value = signature.and_then(|signature| signature.value).unwrap_or(Type::Hex);
    line(&Row {
        r#type: "call",
        schema: SCHEMA,
        time_ns: nanos(call.at),
        pid: call.pid,
        tid: call.tid,
        probe: &call.site.probe,
        args: arguments
            .iter()
            .zip(&call.arguments)
            .map(|(parameter, &raw)| Argument { name: &parameter.name, value: parameter.shown.number(raw) })
            .collect(),
        ret: call.returned.filter(|_| value != Type::Void).map(|returned| value.number(returned)),
        dur_ns: call.took.map(nanos),
        how: match call.how {
            How::Entered => "entered",
            How::Returned => "returned",
            How::TailCall => "tail",
            How::Unfinished => "unfinished",
        },
    })
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
