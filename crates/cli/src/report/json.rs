//! JSON lines, as docs/guide/json.md states them: one object a line, each with `type` and `schema`.
//!
//! The order of fields is part of the format. It is the order of the structs' fields below.

use std::collections::BTreeMap;

use serde::Serialize;
use trapline::histogram::HistogramRow;
use trapline::report::{Group, Late, Refused, Share, Unprobed};
use trapline::{By, Count, Error, ProcessReport, Times};

use super::workload;

/// Schema version of every object here.
pub(crate) const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Head<'a, P> {
    r#type: &'static str,
    schema: u32,
    pid: u32,
    seconds: f64,
    probes: Vec<P>,
    refused: Vec<RefusedRow<'a>>,
    missed: u64,
    interrupted_syscalls: u64,
    restarted_timeouts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    late: Vec<LateRow<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quiet: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'static str, &'a str>,
}

#[derive(Serialize)]
struct LateRow<'a> {
    file: &'a str,
    loads: u64,
    longest_ns: u64,
    exact: bool,
    passed: u64,
}

#[derive(Serialize)]
pub(super) struct SiteFields<'a> {
    probe: &'a str,
    aliases: &'a [String],
    file: &'a str,
    offset: u64,
    tactic: &'static str,
}

#[derive(Serialize)]
struct RefusedRow<'a> {
    probe: &'a str,
    reason: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
struct ErrorRow<'a> {
    r#type: &'static str,
    schema: u32,
    message: &'a str,
    refused: Vec<RefusedRow<'a>>,
}

#[derive(Serialize)]
struct CountRow<'a> {
    #[serde(flatten)]
    place: SiteFields<'a>,
    hits: u64,
    delta: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<Vec<ShareRow<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unended: Option<u64>,
}

#[derive(Serialize)]
struct ShareRow<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<Option<u32>>,
    comm: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<Option<u32>>,
    hits: u64,
    delta: u64,
}

#[derive(Serialize)]
struct TimesRow<'a> {
    #[serde(flatten)]
    place: SiteFields<'a>,
    calls: u64,
    tail_exits: u64,
    in_flight: u64,
    unpaired: u64,
    unreturned: u64,
    total_ns: u64,
    min_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    log2_ns: Vec<HistogramRow>,
    buckets_ns: Vec<(f64, f64, u64)>,
}

#[derive(Serialize)]
struct UnprobedRow<'a> {
    r#type: &'static str,
    schema: u32,
    pid: u32,
    name: &'a str,
    reason: &'a str,
}

/// An `unprobed` object for each entry.
pub(crate) fn unprobed(all: &[Unprobed]) -> String {
    let row = |one: &Unprobed| {
        line(&UnprobedRow {
            r#type: "unprobed",
            schema: SCHEMA,
            pid: one.pid,
            name: &one.name,
            reason: &one.reason,
        })
    };
    all.iter().map(row).collect()
}

/// One `count` object.
pub(crate) fn count(report: &ProcessReport, by: Option<By>, time: Option<&str>) -> String {
    let probes = report.counts.iter().map(|count: &Count| CountRow {
        place: place(&count.site),
        hits: count.hits,
        delta: count.delta,
        cpus: (by == Some(By::Cpu)).then(|| count.shares.iter().map(|share| share.hits).collect()),
        by: by.filter(|&by| by != By::Cpu).map(|by| count.shares.iter().map(|one| share(one, by)).collect()),
        filtered: count.filtered.map(|filtered| filtered.in_target),
        left_out: count.filtered.map(|filtered| filtered.by_reader),
        unended: count.filtered.map(|filtered| filtered.unended).filter(|&calls| calls > 0),
    });
    head("count", report, probes.collect(), time)
}

/// One share of the hits: a thread's, or those of a name. Any other share has neither number nor name.
fn share(share: &Share, by: By) -> ShareRow<'_> {
    let (tid, threads, comm) = match &share.group {
        Group::Thread { tid, comm } => (Some(*tid), None, comm.as_deref()),
        Group::Name { threads, comm } => (None, Some(*threads), comm.as_deref()),
        Group::Cpu(_) | Group::Other => (None, None, None),
    };
    let Share { hits, delta, .. } = *share;
    let (tid, threads) = ((by == By::Thread).then_some(tid), (by == By::ThreadName).then_some(threads));
    ShareRow { tid, comm, threads, hits, delta }
}

/// One `lat` object, in nanoseconds.
pub(crate) fn lat(report: &ProcessReport, time: Option<&str>) -> String {
    head("lat", report, report.times.iter().filter_map(times_row).collect(), time)
}

/// Any value as one line.
pub(crate) fn line(value: &impl Serialize) -> String {
    // The values hold only strings, numbers and sequences, with strings as keys. serde_json refuses none of
    // these.
    serde_json::to_string(value).map_or_else(
        |e| format!("{{\"type\":\"error\",\"message\":{:?}}}\n", e.to_string()),
        |text| text + "\n",
    )
}

fn late(late: &Late) -> LateRow<'_> {
    let longest_ns = u64::try_from(late.longest.as_nanos()).unwrap_or(u64::MAX);
    LateRow { file: &late.file, loads: late.loads, longest_ns, exact: late.exact, passed: late.passed }
}

fn head<P: Serialize>(
    kind: &'static str,
    report: &ProcessReport,
    probes: Vec<P>,
    time: Option<&str>,
) -> String {
    line(&Head {
        r#type: kind,
        schema: SCHEMA,
        pid: report.pid,
        seconds: (report.seconds * 1e6).round() / 1e6,
        probes,
        refused: refused(&report.refused),
        missed: report.missed,
        interrupted_syscalls: report.interrupted_syscalls,
        restarted_timeouts: report.restarted_timeouts,
        time,
        late: report.late.iter().map(late).collect(),
        quiet: (report.quiet > 0).then_some(report.quiet),
        labels: workload::labels(&report.workload).into_iter().collect(),
    })
}

fn refused(all: &[Refused]) -> Vec<RefusedRow<'_>> {
    all.iter().map(|one| RefusedRow { probe: &one.probe, reason: &one.reason, kind: one.kind }).collect()
}

/// The `error` object of a run that could not begin.
pub(crate) fn error(error: &Error) -> String {
    let refused = match error {
        Error::AllRefused { refused: all, .. } => refused(all),
        _ => Vec::new(),
    };
    line(&ErrorRow { r#type: "error", schema: SCHEMA, message: &error.to_string(), refused })
}

pub(super) fn place(site: &trapline::Site) -> SiteFields<'_> {
    let trapline::Site { probe, aliases, file, offset, label: _, tactic, slot: _ } = site;
    SiteFields { probe, aliases, file, offset: *offset, tactic: tactic.name() }
}

fn times_row(times: &Times) -> Option<TimesRow<'_>> {
    let histogram = &times.histogram;
    Some(TimesRow {
        place: place(times.site.as_deref()?),
        calls: times.calls,
        tail_exits: times.tail_exits,
        in_flight: times.in_flight,
        unpaired: times.unpaired,
        unreturned: times.unreturned,
        total_ns: times.total_ns,
        min_ns: times.min_ns,
        p50_ns: times.percentile(0.5),
        p90_ns: times.percentile(0.9),
        p99_ns: times.percentile(0.99),
        p999_ns: times.percentile(0.999),
        max_ns: times.max_ns,
        log2_ns: histogram.log2(1).into_iter().filter(|row| row.2 > 0).collect(),
        buckets_ns: histogram.rows().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::{count, lat, unprobed};
    use crate::report::samples::{sample, split, timed};
    use trapline::By;
    use trapline::report::Unprobed;

    #[test]
    fn unprobed_is_as_documented() {
        let one = Unprobed { pid: 7, name: "git".to_owned(), reason: "no room".to_owned() };
        let expected = r#"{"type":"unprobed","schema":1,"pid":7,"name":"git","reason":"no room"}"#;
        assert_eq!(unprobed(&[one]), format!("{expected}\n"));
    }

    #[test]
    fn count_is_as_documented() {
        let expected = concat!(
            r#"{"type":"count","schema":1,"pid":42,"seconds":2.0,"probes":["#,
            r#"{"probe":"uprobe:/bin/victim:work","aliases":["uprobe:/bin/victim:work_alias"],"file":"/bin/victim","#,
            r#""offset":4096,"tactic":"jump","hits":20,"delta":0},"#,
            r#"{"probe":"uprobe:/bin/victim:idle","aliases":[],"file":"/bin/victim","offset":4096,"tactic":"jump","hits":0,"delta":0},"#,
            r#"{"probe":"uprobe:/bin/victim:bar","aliases":[],"file":"/bin/victim","offset":4096,"tactic":"jump","hits":1500,"delta":500}],"#,
            r#""refused":[{"probe":"uprobe:/bin/victim:tiny","reason":"3 bytes","kind":"too-short"}],"#,
            r#""missed":1,"interrupted_syscalls":2,"restarted_timeouts":3}"#,
            "\n"
        );
        assert_eq!(count(&sample(), None, None), expected);
        assert!(count(&split(By::Cpu), Some(By::Cpu), None).contains(r#""delta":500,"cpus":[1000,0,500]}"#));
        let threads = count(&split(By::Thread), Some(By::Thread), None);
        let expected = concat!(
            r#""delta":500,"by":[{"tid":43,"comm":"worker","hits":1000,"delta":500},"#,
            r#"{"tid":44,"comm":"worker","hits":400,"delta":0},{"tid":null,"comm":null,"hits":100,"delta":0}]}"#
        );
        assert!(threads.contains(expected), "{threads}");
        let names = count(&split(By::ThreadName), Some(By::ThreadName), None);
        let expected = concat!(
            r#""delta":500,"by":[{"comm":"worker","threads":2,"hits":1400,"delta":500},"#,
            r#"{"comm":null,"threads":null,"hits":100,"delta":0}]}"#
        );
        assert!(names.contains(expected), "{names}");
        assert!(
            count(&sample(), None, Some("12:00:00"))
                .ends_with("\"restarted_timeouts\":3,\"time\":\"12:00:00\"}\n")
        );
    }

    #[test]
    fn lat_is_as_documented() {
        let text = lat(&timed(), None);
        let expected = concat!(
            r#""tactic":"jump","calls":3,"tail_exits":1,"in_flight":1,"unpaired":0,"unreturned":0,"total_ns":511,"#,
            r#""min_ns":100,"p50_ns":102,"p90_ns":310,"p99_ns":310,"p999_ns":310,"max_ns":310,"#,
            r#""log2_ns":[[64,128,2],[256,512,1]],"buckets_ns":[[100.0,104.0,2],[304.0,320.0,1]]}]"#
        );
        assert!(
            text.starts_with(r#"{"type":"lat","schema":1,"pid":42,"#) && text.contains(expected),
            "{text}"
        );
        let mut report = timed();
        let times = &mut report.times[0];
        (times.tail_exits, times.in_flight, times.unpaired, times.unreturned, times.clamped) =
            (2, 3, 4, 5, 6);
        let expected = r#""tail_exits":2,"in_flight":3,"unpaired":4,"unreturned":5,"#;
        assert!(lat(&report, None).contains(expected));
    }
}
