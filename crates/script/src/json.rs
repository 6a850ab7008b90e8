//! Output as lines of JSON, to the letter as bpftrace writes it.
//!
//! In: shown values, and maps as tables. Out: bytes. Numbers that are no exact floating point numbers are in quotes, as
//! are all keys. Does not: decide what is written when.

use crate::plain::key;
use crate::shown::Shown;
use crate::table::{Histogram, Label, Series, Table};

/// A line: `{"type": KIND, "data": DATA}`.
pub(crate) fn line(kind: &str, data: &[u8]) -> Vec<u8> {
    let mut out = format!("{{\"type\": \"{kind}\", \"data\": ").into_bytes();
    out.extend(data);
    out.extend(b"}\n");
    out
}

/// A text in quotes.
pub(crate) fn quoted(text: &[u8]) -> Vec<u8> {
    let mut out = vec![b'"'];
    for &byte in text {
        match byte {
            b'"' => out.extend(b"\\\""),
            b'\\' => out.extend(b"\\\\"),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0..32 => out.extend(format!("\\u{byte:04x}").bytes()),
            byte => out.push(byte),
        }
    }
    out.push(b'"');
    out
}

/// A number; in quotes if a floating point number cannot hold it.
fn number(value: i128) -> Vec<u8> {
    let text = value.to_string().into_bytes();
    if value as f64 as i128 == value { text } else { quoted(&text) }
}

fn list(parts: impl Iterator<Item = Vec<u8>>, between: &[u8]) -> Vec<u8> {
    parts.collect::<Vec<_>>().join(between)
}

fn wrapped(open: u8, inside: Vec<u8>, close: u8) -> Vec<u8> {
    let mut out = vec![open];
    out.extend(inside);
    out.push(close);
    out
}

fn pair(key: Vec<u8>, value: Vec<u8>) -> Vec<u8> {
    [key, b": ".to_vec(), value].concat()
}

/// A value.
pub(crate) fn value(shown: &Shown) -> Vec<u8> {
    match shown {
        Shown::Null => b"null".to_vec(),
        Shown::Bool(value) => value.to_string().into_bytes(),
        Shown::Int(value) => number(i128::from(*value)),
        Shown::Uint(value) | Shown::Symbolic(_, value) => number(i128::from(*value)),
        Shown::Text(text) => quoted(text),
        Shown::Buffer(bytes) => {
            let signed = bytes.iter().map(|byte| (*byte as i8).to_string().into_bytes());
            wrapped(b'[', list(signed, b","), b']')
        }
        Shown::Array(values) | Shown::Tuple(values) => {
            wrapped(b'[', list(values.iter().map(value), b","), b']')
        }
        Shown::Record(fields) => {
            let fields = fields.iter().map(|(name, field)| pair(quoted(name.as_bytes()), value(field)));
            wrapped(b'{', list(fields, b", "), b'}')
        }
    }
}

/// A map; nothing if it is empty.
pub(crate) fn map(name: &str, table: &Table) -> Vec<u8> {
    if table.is_empty() {
        return Vec::new();
    }
    let (kind, data) = match table {
        Table::Values { rows, stats } => (if *stats { "stats" } else { "map" }, rows_of(rows, value)),
        Table::Histograms(rows) => ("hist", rows_of(rows, histogram)),
        Table::Series(rows) => ("tseries", rows_of(rows, series)),
    };
    let named = wrapped(b'{', pair(quoted(name.as_bytes()), data), b'}');
    line(kind, &named)
}

/// The value alone, if there is no key; else all by their keys, which have no spaces.
fn rows_of<T>(rows: &[(Option<Shown>, T)], write: impl Fn(&T) -> Vec<u8>) -> Vec<u8> {
    if let [(None, value)] = rows {
        return write(value);
    }
    let name = |shown: &Shown| {
        let text: Vec<u8> = key(shown).into_iter().filter(|byte| *byte != b' ').collect();
        quoted(&text)
    };
    let row = |(of, value): &(Option<Shown>, T)| pair(of.as_ref().map_or_else(Vec::new, name), write(value));
    wrapped(b'{', list(rows.iter().map(row), b", "), b'}')
}

fn histogram(buckets: &Histogram) -> Vec<u8> {
    let end = |name: &str, label: Option<&Label>, less: i128| {
        label.map(|label| pair(quoted(name.as_bytes()), number(label.value - less)))
    };
    let bucket = buckets.iter().map(|bucket| {
        let count = Some(pair(quoted(b"count"), bucket.count.to_string().into_bytes()));
        let parts = [end("min", bucket.from.as_ref(), 0), end("max", bucket.to.as_ref(), 1), count];
        wrapped(b'{', list(parts.into_iter().flatten(), b", "), b'}')
    });
    wrapped(b'[', list(bucket, b","), b']')
}

fn series(series: &Series) -> Vec<u8> {
    let point = series.points.iter().filter_map(|(moment, value)| {
        let value = value.as_ref()?;
        Some(format!("{{\"interval_start\":\"{}\",\"value\":{value}}}", moment.long()).into_bytes())
    });
    wrapped(b'[', list(point, b","), b']')
}
