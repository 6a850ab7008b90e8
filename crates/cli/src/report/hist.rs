//! Tables of `hist`: for people as bpftrace draws histograms, or as JSON (docs/guide/json.md).
//!
//! In: aggregations, made in the target or in the reader. Out: text. Does not: aggregate.

use std::collections::BTreeSet;

use serde::Serialize;
use trapline::aggregation::{GroupHits, Tallied};
use trapline::filter::Sort;
use trapline::report::Group;
use trapline::{By, ProcessReport, Site};
use trapline_order::Order as _;

use super::format::Format;
use super::histogram::bars;
use super::json::{self, SCHEMA, line};
use super::number::{binary, grouped};
use super::site::{self, asked_for};
use super::sums::{self, OfHits, SumFields};
use super::visible;
use crate::args::hist::{ByKey, Hist};
use crate::args::types::Type;

/// The aggregations, and the meaning of keys that are not numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    pub(crate) tallied: Vec<Tallied>,
    /// The texts that keys stand for, if the reader aggregated texts.
    pub(crate) texts: Option<Vec<String>>,
    /// The group-by key of each part, indexed by aggregation (process and site) and part. Empty where no
    /// value of the calls is the group-by key.
    pub(crate) keys: Vec<Vec<What>>,
}

impl Sums {
    /// Takes what the target aggregated. Group-by keys can be many, so the parts with the most hits come
    /// first.
    pub(crate) fn of_target(args: &Hist, mut tallied: Vec<Tallied>) -> Self {
        let Some(by) = &args.key else { return Self { tallied, ..Self::default() } };
        for one in &mut tallied {
            one.parts.order_by_key(|part| std::cmp::Reverse(part.hits.values().sum::<u64>()));
        }
        let what = |one: &Tallied, part: &GroupHits| match part.key.unwrap_or(0) {
            key if by.texts => What::Text(one.texts.get(&key).cloned().unwrap_or_default()),
            key => What::of(key, by.shown(&one.site), by.unsigned),
        };
        let keys = tallied.iter().map(|one| one.parts.iter().map(|part| what(one, part)).collect()).collect();
        Self { tallied, texts: None, keys }
    }
    /// The group-by key of a part of a site's aggregation, if a value of the calls is one.
    fn key(&self, site: usize, part: usize) -> Option<&What> {
        self.keys.get(site).and_then(|keys| keys.get(part))
    }
}

/// What a row stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// Values from the first on and below the second; open where there is `None`.
    Range(Option<i128>, Option<i128>),
    Value(i128),
    Text(String),
}

type ValueHits = (What, u64);

impl What {
    /// A word in its type. Where the type is not known it is a number, and `unsigned` excludes negative ones.
    /// Arguments were widened according to their types, so signed ones are negative if their high bit is set.
    pub(crate) fn of(word: u64, shown: Option<&Type>, unsigned: bool) -> Self {
        let signed = shown.map_or(!unsigned, |shown| shown.int().is_some_and(|int| int.signed));
        Self::Value(if signed { word.cast_signed().into() } else { word.into() })
    }
}

#[derive(Serialize)]
struct Head<'a> {
    r#type: &'static str,
    schema: u32,
    pid: u32,
    seconds: f64,
    expr: &'a str,
    sort: &'static str,
    probes: Vec<Probe<'a>>,
    missed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
}

#[derive(Serialize)]
struct Probe<'a> {
    #[serde(flatten)]
    place: json::SiteFields<'a>,
    hits: u64,
    overflow: u64,
    unseen: u64,
    filtered: u64,
    unnamed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<Total>,
    parts: Vec<PartRow<'a>>,
}

#[derive(Serialize)]
struct Total {
    hits: u64,
    #[serde(flatten)]
    sums: SumFields,
}

impl Total {
    fn of(parts: &[GroupHits]) -> Option<Self> {
        let all = OfHits::total(parts.iter().map(OfHits::of));
        Some(Self { hits: all.hits, sums: all.fields()? })
    }
}

#[derive(Serialize)]
struct Totals<'a> {
    r#type: &'static str,
    schema: u32,
    processes: usize,
    expr: &'a str,
    probes: Vec<ProbeTotal<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
}

#[derive(Serialize)]
struct ProbeTotal<'a> {
    probe: &'a str,
    hits: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    sums: Option<SumFields>,
}

#[derive(Serialize)]
struct PartRow<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    /// Null where the name is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<RowKey<'a>>,
    values: u64,
    hits: u64,
    rows: Vec<Shown>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    sums: Option<SumFields>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum RowKey<'a> {
    Value(i128),
    Text(&'a str),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Range(Option<i128>, Option<i128>, u64),
    Value(i128, u64),
    Text(String, u64),
}

/// Renders one process.
pub(crate) fn text(args: &Hist, sums: &Sums, report: &ProcessReport) -> String {
    let mut out = format!("{}, {:.2} s\n", visible::process(report), report.seconds);
    let mut quiet = 0;
    for (nth, tallied) in sums.tallied.iter().enumerate().filter(|(_, tallied)| tallied.pid == report.pid) {
        if tallied.hits() == 0 {
            quiet += 1;
            continue;
        }
        out.push_str(&format!(
            "\nFunction = {}, {}\n",
            visible::name(&site::name(&tallied.site)),
            args.expression
        ));
        if let Some(columns) = args.columns {
            let (by, groups) = groups(args, sums, nth);
            out.push_str(&sums::table(columns, by, &groups));
        }
        for (at, part) in tallied.parts.iter().enumerate().filter(|_| args.columns.is_none()) {
            if let Some((by, key)) = args.key.as_ref().zip(sums.key(nth, at)) {
                out.push_str(&format!("{} = {}\n", by.text, label(key, by.shown(&tallied.site))));
            }
            if let Some(group) = &part.group {
                out.push_str(&format!("{}\n", name(group)));
            }
            let rows = rows(args, sums, &tallied.site, part);
            let shown = shown(args, &tallied.site);
            out.push_str(&bars(rows.iter().map(|(what, hits)| (label(what, shown), *hits))));
            let values = part.hits.len();
            if values > rows.len() && args.sort == Sort::Each {
                let rest: u64 = part.hits.values().sum::<u64>() - rows.iter().map(|row| row.1).sum::<u64>();
                let more = grouped((values - rows.len()) as u64);
                out.push_str(&format!("{} hits of {more} other values\n", grouped(rest)));
            }
        }
        out.push_str(&asides(tallied, filtered(tallied, report)));
    }
    if quiet > 0 {
        out.push_str(&format!("\n{} without a hit\n", grouped(quiet)));
    }
    out
}

/// What the groups of a site are, and what each gave.
fn groups<'a>(args: &'a Hist, sums: &Sums, nth: usize) -> (Option<&'a str>, Vec<(String, OfHits)>) {
    let tallied = &sums.tallied[nth];
    let by = match (&args.key, args.by) {
        (Some(by), _) => Some(by.text.as_str()),
        (None, Some(By::Cpu)) => Some("CPU"),
        (None, Some(_)) => Some("THREAD"),
        (None, None) => None,
    };
    let called = |(at, part): (usize, &GroupHits)| match (&args.key, sums.key(nth, at), &part.group) {
        (Some(by), Some(key), _) => label(key, by.shown(&tallied.site)),
        (_, _, Some(group)) => name(group),
        _ => String::new(),
    };
    let parts = tallied.parts.iter().enumerate();
    (by, parts.map(|(at, part)| (called((at, part)), OfHits::of(part))).collect())
}

/// Sums and extremes of each function over all processes; nothing if there is only one.
pub(crate) fn totals(args: &Hist, sums: &Sums, time: Option<&str>) -> Option<String> {
    let columns = args.columns?;
    let mut functions: Vec<(&Site, Vec<OfHits>)> = Vec::new();
    for tallied in &sums.tallied {
        let parts = tallied.parts.iter().map(OfHits::of);
        match functions.iter_mut().find(|(site, _)| site.probe == tallied.site.probe) {
            Some((_, all)) => all.extend(parts),
            None => functions.push((&tallied.site, parts.collect())),
        }
    }
    let processes: BTreeSet<u32> = sums.tallied.iter().map(|tallied| tallied.pid).collect();
    let functions = functions.into_iter().map(|(site, parts)| (site, OfHits::total(parts)));
    Some(match args.run.sink.format {
        _ if processes.len() < 2 => return None,
        Format::Json => line(&Totals {
            r#type: "hist_total",
            schema: SCHEMA,
            processes: processes.len(),
            expr: &args.expression,
            probes: functions
                .map(|(site, all)| ProbeTotal { probe: &site.probe, hits: all.hits, sums: all.fields() })
                .collect(),
            time,
        }),
        _ => {
            let row = |(site, all): (&Site, OfHits)| (visible::name(&site::name(site)).into_owned(), all);
            let rows: Vec<_> = functions.map(row).collect();
            let table = sums::table(columns, Some("FUNCTION"), &rows);
            format!("\n{} processes, {}\n{table}", processes.len(), args.expression)
        }
    })
}

/// Hits that a filter rejected, in the target or in the reader, and hits of calls that did not return, so
/// that the filter could not decide.
fn filtered(tallied: &Tallied, report: &ProcessReport) -> u64 {
    let count = report.counts.iter().find(|count| count.site.probe == tallied.site.probe);
    let filtered = count.and_then(|count| count.filtered);
    filtered.map_or(tallied.filtered, |all| all.in_target + all.by_reader + all.unended)
}

fn asides(tallied: &Tallied, filtered: u64) -> String {
    let all = [
        (tallied.overflow, "for which the table had no row left"),
        (
            tallied.unseen,
            "without a value: what they hold could not be read, or they went on as another function",
        ),
        (filtered, "filtered"),
        (tallied.unnamed, "of these of threads that ended before their names were read"),
    ];
    let notes: Vec<String> =
        all.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", grouped(*n))).collect();
    let more = if notes.is_empty() { String::new() } else { format!("; hits {}", notes.join(", ")) };
    format!("hits = {}{more}\n", grouped(tallied.hits()))
}

fn name(group: &Group) -> String {
    match group {
        Group::Cpu(cpu) => format!("CPU {cpu}"),
        Group::Thread { tid, comm } => format!("thread {tid} ({})", comm.as_deref().unwrap_or("?")),
        Group::Name { comm, .. } => format!("threads {}", comm.as_deref().unwrap_or("?")),
        Group::Other => "others".to_owned(),
    }
}

/// One `hist` object.
pub(crate) fn object(args: &Hist, sums: &Sums, report: &ProcessReport, time: Option<&str>) -> String {
    let of_it = sums.tallied.iter().enumerate().filter(|(_, tallied)| tallied.pid == report.pid);
    let probes = of_it.map(|(nth, tallied)| Probe {
        place: json::place(&tallied.site),
        hits: tallied.hits(),
        overflow: tallied.overflow,
        unseen: tallied.unseen,
        filtered: filtered(tallied, report),
        unnamed: tallied.unnamed,
        total: args.columns.and_then(|_| Total::of(&tallied.parts)),
        parts: (tallied.parts.iter().enumerate())
            .map(|(at, part)| part_row(args, sums, &tallied.site, part, sums.key(nth, at)))
            .collect(),
    });
    line(&Head {
        r#type: "hist",
        schema: SCHEMA,
        pid: report.pid,
        seconds: (report.seconds * 1e6).round() / 1e6,
        expr: &args.expression,
        sort: match args.sort {
            Sort::Log2 => "log2",
            Sort::Linear { .. } => "linear",
            Sort::Each | Sort::Text(_) => "top",
            Sort::Sums => "sums",
        },
        probes: probes.collect(),
        missed: report.missed,
        time,
    })
}

fn part_row<'a>(
    args: &Hist,
    sums: &Sums,
    site: &Site,
    part: &'a GroupHits,
    key: Option<&'a What>,
) -> PartRow<'a> {
    let (cpu, tid, comm) = match &part.group {
        Some(Group::Cpu(cpu)) => (Some(*cpu), None, None),
        Some(Group::Thread { tid, comm }) => (None, Some(*tid), Some(comm.as_deref())),
        Some(Group::Name { comm, .. }) => (None, None, Some(comm.as_deref())),
        Some(Group::Other) | None => (None, None, None),
    };
    let rows = if args.columns.is_some() { Vec::new() } else { rows(args, sums, site, part) };
    let rows = rows.into_iter().map(|(what, hits)| match what {
        What::Range(low, high) => Shown::Range(low, high, hits),
        What::Value(value) => Shown::Value(value, hits),
        What::Text(text) => Shown::Text(text, hits),
    });
    let rows = rows.collect();
    let OfHits { hits, .. } = OfHits::of(part);
    let values = if args.columns.is_some() { 0 } else { part.hits.len() as u64 };
    let sums = args.columns.and_then(|_| OfHits::of(part).fields());
    let key = key.and_then(|key| match key {
        What::Value(value) => Some(RowKey::Value(*value)),
        What::Text(text) => Some(RowKey::Text(text)),
        What::Range(..) => None,
    });
    PartRow { cpu, tid, comm, key, values, hits, rows, sums }
}

impl ByKey {
    /// The type by which a site's group-by key is shown, if it is just an argument or the returned value.
    pub(crate) fn shown(&self, site: &Site) -> Option<&Type> {
        asked_for(&self.shown, site).next().and_then(|(_, (_, shown))| shown.as_ref())
    }
}

/// The type by which a site's value is shown, if it is just an argument or the returned value.
fn shown<'a>(args: &'a Hist, site: &Site) -> Option<&'a Type> {
    asked_for(&args.shown, site).next().and_then(|(_, (_, shown))| shown.as_ref())
}

/// A part's rows. Histogram buckets come in their order, with the empty ones between them. Values and texts
/// come by hits, as many as were requested.
fn rows(args: &Hist, sums: &Sums, site: &Site, part: &GroupHits) -> Vec<ValueHits> {
    if args.sort != Sort::Each {
        let (Some((&first, _)), Some((&last, _))) = (part.hits.first_key_value(), part.hits.last_key_value())
        else {
            return Vec::new();
        };
        // If the target has overwritten a key, it is far from the others, so no empty buckets are shown.
        let all: Vec<u64> =
            if last < 1 << 16 { (first..=last).collect() } else { part.hits.keys().copied().collect() };
        let hits = |cell| part.hits.get(&cell).copied().unwrap_or(0);
        return all.into_iter().map(|cell| (range(args.sort, cell), hits(cell))).collect();
    }
    let shown = shown(args, site);
    let found = sums.tallied.iter().find(|tallied| std::ptr::eq(&*tallied.site, site));
    // Texts of group-by keys are not values.
    let by_text = args.key.as_ref().is_some_and(|by| by.texts);
    let in_target = |key: u64| found.and_then(|tallied| tallied.texts.get(&key)).cloned();
    let what = |key: u64| match &sums.texts {
        Some(texts) => {
            What::Text(usize::try_from(key).ok().and_then(|key| texts.get(key)).cloned().unwrap_or_default())
        }
        None if !by_text && found.is_some_and(|tallied| !tallied.texts.is_empty()) => {
            What::Text(in_target(key).unwrap_or_default())
        }
        None => What::of(key, shown, args.unsigned),
    };
    let mut rows: Vec<ValueHits> = part.hits.iter().map(|(&key, &hits)| (what(key), hits)).collect();
    rows.order_by_key(|(_, hits)| std::cmp::Reverse(*hits));
    rows.truncate(args.top.unwrap_or(u32::MAX) as usize);
    rows
}

/// The values of a histogram bucket.
fn range(sort: Sort, cell: u64) -> What {
    match sort {
        Sort::Linear { min, step, count } => {
            let edge = |n: u64| i128::from(min) + i128::from(n) * i128::from(step);
            match cell {
                0 => What::Range(None, Some(min.into())),
                cell if cell > u64::from(count) => What::Range(Some(edge(count.into())), None),
                cell => What::Range(Some(edge(cell - 1)), Some(edge(cell))),
            }
        }
        _ => match cell {
            0 => What::Range(None, Some(0)),
            1 => What::Range(Some(0), Some(1)),
            cell => {
                let low = 1_i128 << (cell - 2).min(64);
                What::Range(Some(low), Some(2 * low))
            }
        },
    }
}

fn label(what: &What, shown: Option<&Type>) -> String {
    let edge = |value: i128| match u64::try_from(value) {
        Ok(value) => binary(value),
        Err(_) if value == 1 << 64 => "16E".to_owned(),
        Err(_) => value.to_string(),
    };
    match what {
        What::Range(None, high) => format!("(..., {})", high.map_or_else(String::new, edge)),
        What::Range(Some(low), None) => format!("[{}, ...)", edge(*low)),
        What::Range(Some(low), Some(high)) => format!("[{}, {})", edge(*low), edge(*high)),
        What::Value(value) => match shown {
            Some(shown @ (Type::Hex | Type::Code | Type::Bool | Type::Char | Type::Enum(_))) => {
                shown.show(*value as u64)
            }
            _ => value.to_string(),
        },
        What::Text(text) => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{What, label, range};
    use crate::args::types::Type;
    use trapline::filter::Sort;

    #[test]
    fn cells_have_edges() {
        let linear = Sort::Linear { min: 10, step: 5, count: 2 };
        for (sort, cell, expected) in [
            (Sort::Log2, 0, "(..., 0)"),
            (Sort::Log2, 1, "[0, 1)"),
            (Sort::Log2, 2, "[1, 2)"),
            (Sort::Log2, 12, "[1K, 2K)"),
            (Sort::Log2, 65, "[8E, 16E)"),
            (linear, 0, "(..., 10)"),
            (linear, 1, "[10, 15)"),
            (linear, 2, "[15, 20)"),
            (linear, 3, "[20, ...)"),
        ] {
            assert_eq!(label(&range(sort, cell), None), expected);
        }
        assert_eq!(label(&What::Value(255), Some(&Type::Hex)), "0xff");
        assert_eq!(label(&What::Value(-1), Some(&Type::Signed(32))), "-1");
        assert_eq!(label(&What::Text("a\"b".to_owned()), None), "\"a\\\"b\"");
    }
}
