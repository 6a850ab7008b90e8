//! Calls as rows of comma-separated values.
//!
//! In: a call, its signature. Out: a row. Does not: know what was written before, but whether it was the header.

use trapline::Call;

use super::json::{argument, returned_of};
use super::parts::{how, nanos, value_type};
use super::plain::number;
use crate::args::types::{Signature, Type};
use crate::report::digits;

/// One row of so many columns for arguments, preceded by the header unless that was written.
pub(super) fn row(call: &Call, signature: Option<&Signature>, (begun, columns): (bool, usize)) -> String {
    const HEAD: [&str; 7] = ["time_ns", "pid", "tid", "probe", "how", "ret", "dur_ns"];
    let mut to = csv::Writer::from_writer(Vec::new());
    // Writing to memory cannot fail, and every row has as many cells as the header.
    let mut put = |row: Vec<String>| drop(to.write_record(row));
    if !begun {
        let arguments = (0..columns).map(|n| format!("arg{n}"));
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
    cells.resize(HEAD.len() + columns, String::new());
    put(cells);
    to.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// Writes a row that holds only numbers. Returns false and writes nothing if it holds anything else.
pub(super) fn numbers(out: &mut Vec<u8>, call: &Call, signature: Option<&Signature>, columns: usize) -> bool {
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

#[cfg(test)]
mod tests {
    use crate::args::ready::signature::split;
    use crate::report::calls::Shown;
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
