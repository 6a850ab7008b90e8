//! A line for each call: for people, as JSON (docs/guide/json.md), or as a row of comma-separated values (RFC
//! 4180).
//!
//! In: calls, and the signatures that were typed. Out: text. Does not: sort, count, write.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use trapline::calls::CallEnd;
use trapline::stacks::CodeAt;
use trapline::system::time_of_day;
use trapline::{Call, ProbeSpec, Site};

use super::code_names::CodeNames;
use super::format::Format;
use super::json::{SCHEMA, line};
use super::site::asked_for;
use super::visible;
use super::{digits, text};
use crate::args::types::{Parameter, Signature, Type, Value};

/// The signatures by which functions' values are shown.
#[derive(Debug)]
pub(crate) struct Signatures<'a> {
    probes: &'a [(ProbeSpec, Option<Signature>)],
    /// The signature for each probe text, looked up once.
    known: HashMap<String, Option<&'a Signature>>,
}

/// How calls are written, line by line.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    signatures: Signatures<'a>,
    format: Format,
    timestamps: bool,
    /// Number of columns for arguments, in a table.
    columns: usize,
    begun: bool,
    /// The last call's function, and its signature.
    last: Option<(Arc<Site>, Option<&'a Signature>)>,
    /// Names of functions; `None` if no value points to one.
    names: Option<Box<CodeNames>>,
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
struct Argument<'a> {
    name: &'a str,
    value: Value,
    /// The name that an enumeration gives it, or that of the function to which it points.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<u64>,
}

impl<'a> Signatures<'a> {
    pub(crate) fn new(probes: &'a [(ProbeSpec, Option<Signature>)]) -> Self {
        Self { probes, known: HashMap::new() }
    }
    /// The first signature that was typed for any of the function's names.
    pub(crate) fn of(&mut self, site: &Site) -> Option<&'a Signature> {
        if let Some(known) = self.known.get(&site.probe) {
            return *known;
        }
        let found = asked_for(self.probes, site).find_map(|(_, (_, signature))| signature.as_ref());
        self.known.insert(site.probe.clone(), found);
        found
    }
}

impl<'a> Shown<'a> {
    pub(crate) fn new(
        probes: &'a [(ProbeSpec, Option<Signature>)],
        format: Format,
        timestamps: bool,
    ) -> Self {
        let widths = probes.iter().map(|(_, signature)| signature.as_ref().map_or(0, |s| s.parameters.len()));
        let columns = widths.max().unwrap_or(0);
        let signatures = || probes.iter().filter_map(|(_, signature)| signature.as_ref());
        let names = signatures().any(Signature::points_to_code).then(Box::default);
        let signatures = Signatures::new(probes);
        Self { signatures, format, timestamps, columns, begun: false, last: None, names }
    }
    /// Whether values point to functions, which have names where their code is noted.
    pub(crate) const fn names_code(&self) -> bool {
        self.names.is_some()
    }
    /// Takes the code that was noted.
    pub(crate) fn take_code(&mut self, noted: CodeAt) {
        if let Some(names) = &mut self.names {
            names.take(noted);
        }
    }
    /// Appends one call's line to `out`.
    pub(crate) fn line(&mut self, call: &Call, out: &mut Vec<u8>) {
        let signature = match &self.last {
            Some((site, signature)) if Arc::ptr_eq(site, &call.site) => *signature,
            _ => {
                let signature = self.signatures.of(&call.site);
                self.last = Some((Arc::clone(&call.site), signature));
                signature
            }
        };
        match self.format {
            Format::Json => out.extend_from_slice(json(call, signature, &mut self.names).as_bytes()),
            Format::Csv if self.begun && numbers(out, call, signature, self.columns) => {}
            Format::Csv => out.extend_from_slice(self.row(call, signature).as_bytes()),
            _ => plain(out, call, signature, (self.timestamps, &mut self.names)),
        }
    }
    /// One row, preceded by the header if it is the first.
    fn row(&mut self, call: &Call, signature: Option<&Signature>) -> String {
        const HEAD: [&str; 7] = ["time_ns", "pid", "tid", "probe", "how", "ret", "dur_ns"];
        let mut to = csv::Writer::from_writer(Vec::new());
        // Writing to memory cannot fail, and every row has as many cells as the header.
        let mut put = |row: Vec<String>| drop(to.write_record(row));
        if !std::mem::replace(&mut self.begun, true) {
            let arguments = (0..self.columns).map(|n| format!("arg{n}"));
            put(HEAD.iter().map(|&name| name.to_owned()).chain(arguments).collect());
        }
        let value = value_type(signature);
        let returned = call.returned.filter(|_| *value != Type::Void);
        let number = |number: Option<String>| number.unwrap_or_default();
        let head = [
            nanos(call.at).to_string(),
            call.pid.to_string(),
            call.tid.to_string(),
            call.site.probe.clone(),
            how(call.how).to_owned(),
            number(returned.map(|raw| returned_of(call, raw, signature).cell())),
            number(call.took.map(|took| nanos(took).to_string())),
        ];
        let parameters = signature.map_or(&[][..], |signature| &signature.parameters);
        let mut cells: Vec<String> = head.into_iter().collect();
        cells.extend(parameters.iter().map(|parameter| argument(call, parameter).value.cell()));
        cells.resize(HEAD.len() + self.columns, String::new());
        put(cells);
        to.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

fn plain(
    out: &mut Vec<u8>,
    call: &Call,
    signature: Option<&Signature>,
    (timestamps, names): (bool, &mut Option<Box<CodeNames>>),
) {
    if timestamps {
        out.extend_from_slice(time_of_day().as_bytes());
    } else {
        let micros = nanos(call.at).saturating_add(500) / 1000;
        digits::padded(out, micros / 1_000_000, 5, b' ');
        out.push(b'.');
        digits::padded(out, micros % 1_000_000, 6, b'0');
    }
    out.push(b' ');
    digits::padded(out, call.tid.into(), 7, b' ');
    out.push(b' ');
    out.extend_from_slice(visible::name(&call.site.label).as_bytes());
    arguments(out, call, signature, names);
    let value = value_type(signature);
    match (call.how, call.returned) {
        (CallEnd::Entered, _) => {}
        (CallEnd::Returned, Some(_)) if *value == Type::Void => took(out, call),
        (CallEnd::Returned, returned) => {
            match returned.filter(|_| *value == Type::Code).and_then(|raw| named(names, call.pid, raw)) {
                Some(name) => out.extend_from_slice(format!(" = {}", visible::name(&name)).as_bytes()),
                None => returned_value(out, call, returned, signature),
            }
            took(out, call);
        }
        (CallEnd::TailCall, _) => {
            out.extend_from_slice(b" = ? (tail call)");
            took(out, call);
        }
        (CallEnd::Unfinished, _) => out.extend_from_slice(b" <unfinished ...>"),
    }
    out.push(b'\n');
}

/// The name of the function that a value points to.
fn named(names: &mut Option<Box<CodeNames>>, pid: u32, raw: u64) -> Option<Arc<str>> {
    names.as_mut()?.of(pid, raw)
}

/// Writes a call's arguments in brackets.
pub(super) fn arguments(
    out: &mut Vec<u8>,
    call: &Call,
    signature: Option<&Signature>,
    names: &mut Option<Box<CodeNames>>,
) {
    out.push(b'(');
    for (n, parameter) in signature.iter().flat_map(|signature| &signature.parameters).enumerate() {
        if n > 0 {
            out.extend_from_slice(b", ");
        }
        if !parameter.name.is_empty() {
            out.extend_from_slice(parameter.name.as_bytes());
            out.push(b'=');
        }
        let raw = parameter.raw(call);
        if let Some(name) =
            raw.filter(|_| parameter.shown == Type::Code).and_then(|raw| named(names, call.pid, raw))
        {
            out.extend_from_slice(visible::name(&name).as_bytes());
            continue;
        }
        shown(out, &parameter.shown, raw, || {
            text::show(call, parameter).unwrap_or_else(|| parameter.show(call))
        });
    }
    out.push(b')');
}

/// Writes ` = ` and what a call returned; a question mark, if that is not in the register where it is looked for.
pub(super) fn returned_value(
    out: &mut Vec<u8>,
    call: &Call,
    returned: Option<u64>,
    signature: Option<&Signature>,
) {
    out.extend_from_slice(b" = ");
    let value = value_type(signature);
    let Some(returned) = returned else { return out.push(b'?') };
    match text::returned(call, signature.and_then(|signature| signature.returned_text)) {
        Some(read) => out.extend_from_slice(text::shown(&read).as_bytes()),
        None => shown(out, value, Some(returned), || match signature {
            Some(signature) => signature.show_returned(call, returned),
            None => value.show(returned),
        }),
    }
}

/// Arguments and the returned value by their names, as the members of a JSON object; without a name, an argument is `arg0` and
/// so on. Nothing, if the call has neither.
pub(super) fn members(call: &Call, signature: Option<&Signature>) -> Option<String> {
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

/// Writes a value by its digits if it is just a number, otherwise as `other` shows it.
fn shown(out: &mut Vec<u8>, shown: &Type, raw: Option<u64>, other: impl FnOnce() -> String) {
    match (shown, raw) {
        (Type::Hex | Type::Code, Some(raw)) => digits::hex(out, raw),
        (_, Some(raw)) if number(out, shown, raw) => {}
        _ => out.extend_from_slice(other().as_bytes()),
    }
}

/// Writes an integer as wide as its type; returns false for any other type.
fn number(out: &mut Vec<u8>, shown: &Type, raw: u64) -> bool {
    let unused = |bits: u8| 64_u32.saturating_sub(bits.into()).min(63);
    match *shown {
        Type::Signed(bits) => {
            digits::signed(out, raw.wrapping_shl(unused(bits)).cast_signed() >> unused(bits))
        }
        Type::Unsigned(bits) => digits::decimal(out, raw.wrapping_shl(unused(bits)) >> unused(bits)),
        _ => return false,
    }
    true
}

fn took(out: &mut Vec<u8>, call: &Call) {
    if let Some(took) = call.took {
        // The call goes on as another function, so its duration is only known to be at least this.
        let at_least = if call.how == CallEnd::TailCall { ">= " } else { "" };
        out.extend_from_slice(b" <");
        out.extend_from_slice(at_least.as_bytes());
        digits::decimal(out, took.as_secs());
        out.push(b'.');
        digits::padded(out, took.subsec_nanos().into(), 9, b'0');
        out.push(b'>');
    }
}

/// Writes a row that holds only numbers. Returns false and writes nothing if it holds anything else.
fn numbers(out: &mut Vec<u8>, call: &Call, signature: Option<&Signature>, columns: usize) -> bool {
    let start = out.len();
    let parameters = signature.map_or(&[][..], |signature| &signature.parameters);
    let value = value_type(signature);
    let plain = |text: &str| !text.bytes().any(|byte| matches!(byte, b'"' | b',' | b'\r' | b'\n'));
    // In a table pointers are numbers too.
    let cell = |out: &mut Vec<u8>, shown: &Type, raw: u64| match shown {
        Type::Hex | Type::Code => {
            digits::decimal(out, raw);
            true
        }
        shown => number(out, shown, raw),
    };
    for number in [nanos(call.at), call.pid.into(), call.tid.into()] {
        digits::decimal(out, number);
        out.push(b',');
    }
    out.extend_from_slice(call.site.probe.as_bytes());
    out.push(b',');
    out.extend_from_slice(how(call.how).as_bytes());
    out.push(b',');
    let mut whole = plain(&call.site.probe);
    if let Some(returned) = call.returned.filter(|_| *value != Type::Void) {
        whole &= cell(out, value, returned);
    }
    out.push(b',');
    if let Some(took) = call.took {
        digits::decimal(out, nanos(took));
    }
    for parameter in parameters {
        out.push(b',');
        whole &= parameter.raw(call).is_some_and(|raw| cell(out, &parameter.shown, raw));
    }
    (parameters.len()..columns).for_each(|_| out.push(b','));
    out.push(b'\n');
    if !whole {
        out.truncate(start);
    }
    whole
}

fn json(call: &Call, signature: Option<&Signature>, names: &mut Option<Box<CodeNames>>) -> String {
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

/// The end of a call as one word.
const fn how(how: CallEnd) -> &'static str {
    match how {
        CallEnd::Entered => "entered",
        CallEnd::Returned => "returned",
        CallEnd::TailCall => "tail",
        CallEnd::Unfinished => "unfinished",
    }
}

/// The type by which a returned value is shown.
pub(super) fn value_type(signature: Option<&Signature>) -> &Type {
    signature.and_then(|signature| signature.value.as_ref()).unwrap_or(&Type::Hex)
}

/// What a call returned; `raw` is its first word.
fn returned_of(call: &Call, raw: u64, signature: Option<&Signature>) -> Value {
    signature.map_or_else(|| Type::Hex.value(raw), |signature| signature.returned(call, raw))
}

fn argument<'a>(call: &Call, parameter: &'a Parameter) -> Argument<'a> {
    let (value, cut, fault) = match text::read(call, parameter) {
        None => (parameter.value(call), false, None),
        Some(read) if read.is_nothing() => (Value::Nothing, false, read.fault),
        Some(read) => (Value::Text(String::from_utf8_lossy(read.bytes).into_owned()), read.cut, read.fault),
    };
    let label = parameter.label(call).map(Cow::Borrowed);
    Argument { name: &parameter.name, value, label, cut, fault }
}

pub(super) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::Shown;
    use crate::args::ready::signature::split;
    use crate::report::format::Format;
    use std::sync::Arc;
    use std::time::Duration;
    use trapline::calls::{CallEnd, FloatArguments, ReadOutcome, Text};
    use trapline::report::Tactic;
    use trapline::{Call, Site};

    #[test]
    fn rows_have_a_column_for_each_argument() {
        let read = |text: &str| {
            let (probe, signature) = split(text).expect("a signature");
            (probe.parse().expect("a probe"), signature)
        };
        let probes = [read("open(str path, int flags) -> int"), read("close")];
        let mut shown = Shown::new(&probes, Format::Csv, false);
        let site = |name: &str| {
            Arc::new(Site {
                probe: format!("uprobe:/bin/x:{name}"),
                aliases: Vec::new(),
                file: "/bin/x".to_owned(),
                offset: 1,
                label: name.to_owned(),
                tactic: Tactic::Jump,
                slot: 0,
            })
        };
        let text = Text { argument: 0, bytes: b"a,\"b\0c".to_vec(), reading: ReadOutcome::Fault };
        let open = Call {
            pid: 7,
            tid: 8,
            site: site("open"),
            at: Duration::from_nanos(1500),
            arguments: [0x1000, u64::MAX, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0],
            unseen: 0,
            float_arguments: FloatArguments::default(),
            floats: [0; 8],
            texts: vec![text],
            fields: Vec::new(),
            kept: Vec::new(),
            stack: None,
            returned: Some(0xffff_ffff),
            results: Vec::new(),
            took: Some(Duration::from_nanos(20)),
            how: CallEnd::Returned,
        };
        let close = Call {
            site: site("close"),
            texts: Vec::new(),
            fields: Vec::new(),
            returned: None,
            results: Vec::new(),
            took: None,
            how: CallEnd::Unfinished,
            ..open.clone()
        };
        let wanted = "time_ns,pid,tid,probe,how,ret,dur_ns,arg0,arg1
1500,7,8,uprobe:/bin/x:open,returned,-1,20,\"a,\"\"b\",-1
";
        let mut line = |call: &Call| {
            let mut out = Vec::new();
            shown.line(call, &mut out);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(line(&open), wanted);
        assert_eq!(line(&close), "1500,7,8,uprobe:/bin/x:close,unfinished,,,,\n");
    }
}
