//! Output as text, to the letter as bpftrace writes it.
//!
//! In: maps as tables. Out: bytes. Does not: decide what is written when.

use crate::plain::{key, write};
use crate::shown::Shown;
use crate::table::{Histogram, Series, Table};

/// The width of a histogram's bars.
const BAR: usize = 52;
/// The width of a time series' graph.
const GRAPH: usize = 53;

/// A map.
pub(crate) fn map(name: &str, table: &Table) -> Vec<u8> {
    let mut out = Vec::new();
    let head = |key: Option<&Shown>, out: &mut Vec<u8>| {
        out.extend(name.bytes());
        if let Some(value) = key {
            out.push(b'[');
            out.extend(self::key(value));
            out.push(b']');
        }
        out.push(b':');
    };
    match table {
        Table::Values { rows, .. } => {
            for (key, value) in rows {
                head(key.as_ref(), &mut out);
                out.push(b' ');
                write(value, &mut out);
                out.push(b'\n');
            }
        }
        Table::Histograms(rows) => {
            for (key, rows) in rows {
                head(key.as_ref(), &mut out);
                out.push(b'\n');
                histogram(rows, &mut out);
                out.push(b'\n');
            }
        }
        Table::Series(rows) => {
            for (key, rows) in rows {
                head(key.as_ref(), &mut out);
                out.push(b'\n');
                series(rows, &mut out);
                out.push(b'\n');
            }
        }
    }
    out
}

fn histogram(buckets: &Histogram, out: &mut Vec<u8>) {
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
    for bucket in buckets {
        let label = match (&bucket.from, &bucket.to) {
            (None, Some(to)) => format!("(..., {})", to.text),
            (Some(from), None) => format!("[{}, ...)", from.text),
            (Some(from), Some(to)) if from.is_plain && to.is_plain && from.value + 1 == to.value => {
                format!("[{}]", from.text)
            }
            (Some(from), Some(to)) => format!("[{}, {})", from.text, to.text),
            (None, None) => String::new(),
        };
        // The same rounding as bpftrace's, which computes in single precision.
        let width = (bucket.count as f32 / most as f32 * BAR as f32) as usize;
        let bar = "@".repeat(width.min(BAR));
        out.extend(format!("{label:<16}{:>8} |{bar:<BAR$}|\n", bucket.count).bytes());
    }
}

/// The line of a graph from `least` to `most`: a star for the value, a point for zero.
fn marked(value: Option<i128>, least: i128, most: i128) -> Vec<u8> {
    let mut line = vec![b' '; GRAPH];
    line[0] = b'|';
    line[GRAPH - 1] = b'|';
    let width = (most - least) as f32;
    if least < 0 && most > 0 {
        // As bpftrace computes it, from the negative distance.
        let zero = (GRAPH as f32 * -(least as f32) / width) as usize;
        if zero > 0 && zero < GRAPH {
            line[zero] = b'.';
        }
    }
    if let Some(value) = value {
        let at = ((GRAPH - 1) as f32 * ((value - least) as f32 / width)) as usize;
        line[at.min(GRAPH - 1)] = b'*';
    }
    line
}

fn series(series: &Series, out: &mut Vec<u8>) {
    if series.points.is_empty() {
        out.extend(b"<no data>");
        return;
    }
    let values = || series.points.iter().filter_map(|(_, value)| *value);
    let (mut least, mut most) = (values().min().unwrap_or(0), values().max().unwrap_or(0));
    if least == most {
        least = least.saturating_sub(i128::from(least > series.least));
        most = most.saturating_add(1);
    }
    let (unit, digits) = match series.interval {
        1_000_000_000.. => ("", 0),
        1_000_000.. => (".ms", 3),
        1_000.. => (".us", 6),
        _ => (".ns", 9),
    };
    let indent = 8 + if digits > 0 { digits + 1 } else { 0 };
    let ends = format!("{least:<21}{most:>width$}", width = GRAPH - 21);
    let head = format!("hh:mm:ss{unit}");
    out.extend(format!("{:indent$} {ends}\n", "").bytes());
    out.extend(format!("{head:<width$}|{}|\n", "_".repeat(GRAPH - 2), width = indent + 1).bytes());
    for (moment, value) in &series.points {
        let line = marked(*value, least, most);
        let shown = value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let fraction = match digits {
            0 => String::new(),
            digits => format!(".{:0digits$}", moment.nanos / 10u32.pow(9 - digits as u32)),
        };
        out.extend(
            format!("{}{fraction} {} {shown}\n", moment.clock(), String::from_utf8_lossy(&line)).bytes(),
        );
    }
    out.extend(format!("{:indent$} v{}v\n", "", "_".repeat(GRAPH - 2)).bytes());
    out.extend(format!("{:indent$} {ends}\n", "").bytes());
}
