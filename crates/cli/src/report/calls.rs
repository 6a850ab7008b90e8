//! A line for each call: for people, as JSON (docs/json.md), or as a row of comma-separated values (RFC 4180).
//!
//! In: calls, and the signatures that were typed. Out: text. Does not: sort, count, write.

use std::collections::HashMap;

use serde::Serialize;
use trapline::{Call, How, ProbeSpec, Site, time_of_day};

use super::format::Format;
use super::json::{SCHEMA, line};
use super::text;
use crate::args::types::{Parameter, Signature, Type, Value};

/// Which signature a function's values have.
#[derive(Debug)]
pub(crate) struct Signatures<'a> {
    probes: &'a [(ProbeSpec, Option<Signature>)],
    /// By probe text; looked up once.
    known: HashMap<String, Option<&'a Signature>>,
}

/// How calls are shown, line by line.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    signatures: Signatures<'a>,
    format: Format,
    timestamps: bool,
    /// Columns of arguments, in a table.
    columns: usize,
    begun: bool,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    ret_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur_ns: Option<u64>,
    how: &'static str,
}

#[derive(Serialize)]
struct Argument<'a> {
    name: &'a str,
    value: Value,
    /// An enumeration's name of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<u64>,
}

impl<'a> Signatures<'a> {
    pub(crate) fn new(probes: &'a [(ProbeSpec, Option<Signature>)]) -> Self {
        Self { probes, known: HashMap::new() }
    }
    /// The first that was typed for a function of one of its names.
    pub(crate) fn of(&mut self, site: &Site) -> Option<&'a Signature> {
        if let Some(known) = self.known.get(&site.probe) {
            return *known;
        }
        let found = self.probes.iter().find(|(spec, signature)| signature.is_some() && means(spec, site));
        let found = found.and_then(|(_, signature)| signature.as_ref());
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
        Self { signatures: Signatures::new(probes), format, timestamps, columns, begun: false }
    }
    /// One call.
    pub(crate) fn line(&mut self, call: &Call) -> String {
        let signature = self.signatures.of(&call.site);
        match self.format {
            Format::Json => json(call, signature),
            Format::Csv => self.row(call, signature),
            _ => plain(call, signature, self.timestamps),
        }
    }
    /// A row, and before the first one the header.
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
            number(returned.map(|returned| value.value(returned).cell())),
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

/// Whether a site has a name that was asked for.
pub(crate) fn means(spec: &ProbeSpec, site: &Site) -> bool {
    let last = |text: &str| text.rsplit(':').next().unwrap_or_default().to_owned();
    let mut names = [&site.probe, &site.label].into_iter().chain(&site.aliases);
    names.any(|name| spec.func.matches(&last(name)))
}

fn plain(call: &Call, signature: Option<&Signature>, timestamps: bool) -> String {
    let when = if timestamps { time_of_day() } else { format!("{:>12.6}", call.at.as_secs_f64()) };
    let arguments: Vec<String> = signature.map_or_else(Vec::new, |signature| {
        let one = |parameter: &Parameter| {
            let shown = text::show(call, parameter);
            let shown = shown.unwrap_or_else(|| parameter.show(call));
            match parameter.name.as_str() {
                "" => shown,
                name => format!("{name}={shown}"),
            }
        };
        signature.parameters.iter().map(one).collect()
    });
    let took = call.took.map_or_else(String::new, |took| format!(" <{:.9}>", took.as_secs_f64()));
    let value = value_type(signature);
    let end = match (call.how, call.returned) {
        (How::Entered, _) => String::new(),
        (How::Returned, Some(_)) if *value == Type::Void => took,
        (How::Returned, Some(returned)) => format!(" = {}{took}", value.show(returned)),
        (How::Returned | How::TailCall, _) => format!(" = ? (tail call){took}"),
        (How::Unfinished, _) => " <unfinished ...>".to_owned(),
    };
    format!("{when} {:>7} {}({}){end}\n", call.tid, call.site.label, arguments.join(", "))
}

fn json(call: &Call, signature: Option<&Signature>) -> String {
    let arguments = signature.map_or(&[][..], |signature| &signature.parameters);
    let value = value_type(signature);
    let returned = call.returned.filter(|_| *value != Type::Void);
    line(&Row {
        r#type: "call",
        schema: SCHEMA,
        time_ns: nanos(call.at),
        pid: call.pid,
        tid: call.tid,
        probe: &call.site.probe,
        args: arguments.iter().map(|parameter| argument(call, parameter)).collect(),
        ret: returned.map(|returned| value.value(returned)),
        ret_name: returned.and_then(|returned| value.label(returned)),
        dur_ns: call.took.map(nanos),
        how: how(call.how),
    })
}

/// How a call ended, as one word.
const fn how(how: How) -> &'static str {
    match how {
        How::Entered => "entered",
        How::Returned => "returned",
        How::TailCall => "tail",
        How::Unfinished => "unfinished",
    }
}

/// How what is returned is shown.
pub(super) fn value_type(signature: Option<&Signature>) -> &Type {
    signature.and_then(|signature| signature.value.as_ref()).unwrap_or(&Type::Hex)
}

fn argument<'a>(call: &Call, parameter: &'a Parameter) -> Argument<'a> {
    let (value, cut, fault) = match text::read(call, parameter) {
        None => (parameter.value(call), false, None),
        Some(read) if read.is_nothing() => (Value::Nothing, false, read.fault),
        Some(read) => (Value::Text(String::from_utf8_lossy(read.bytes).into_owned()), read.cut, read.fault),
    };
    Argument { name: &parameter.name, value, label: parameter.label(call), cut, fault }
}

pub(super) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::Shown;
    use crate::args::signature::split;
    use crate::report::format::Format;
    use std::sync::Arc;
    use std::time::Duration;
    use trapline::{Call, How, Reading, Site, Tactic, Text};

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
            })
        };
        let text = Text { argument: 0, bytes: b"a,\"b\0c".to_vec(), reading: Reading::Fault };
        let open = Call {
            pid: 7,
            tid: 8,
            site: site("open"),
            at: Duration::from_nanos(1500),
            arguments: [0x1000, u64::MAX, 3, 4, 5, 6],
            floats: [0; 8],
            texts: vec![text],
            fields: Vec::new(),
            returned: Some(0xffff_ffff),
            took: Some(Duration::from_nanos(20)),
            how: How::Returned,
        };
        let close = Call {
            site: site("close"),
            texts: Vec::new(),
            fields: Vec::new(),
            returned: None,
            took: None,
            how: How::Unfinished,
            ..open.clone()
        };
        let wanted = "time_ns,pid,tid,probe,how,ret,dur_ns,arg0,arg1
1500,7,8,uprobe:/bin/x:open,returned,-1,20,\"a,\"\"b\",-1
";
        assert_eq!(shown.line(&open), wanted);
        assert_eq!(shown.line(&close), "1500,7,8,uprobe:/bin/x:close,unfinished,,,,\n");
    }
}
