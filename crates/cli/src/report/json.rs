//! JSON lines, as docs/guide/json.md states them: one object a line, each with `type` and `schema`.
//!
//! The order of fields is part of the format. It is the order of the structs' fields below.

use serde::Serialize;
use trapline::histogram::HistogramRow;
use trapline::listing::Listed;
use trapline::report::{Group, Late, Share, Unprobed};
use trapline::{By, Count, ProcessReport, Returns, Times};

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
}

#[derive(Serialize)]
struct ListRow<'a> {
    r#type: &'static str,
    schema: u32,
    probe: &'a str,
    aliases: &'a [String],
    file: &'a str,
    offset: u64,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tactic: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    returns: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
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

/// One `list` object for each function.
pub(crate) fn list(listed: &[Listed]) -> String {
    listed
        .iter()
        .map(|one| {
            line(&ListRow {
                r#type: "list",
                schema: SCHEMA,
                probe: &one.probe,
                aliases: &one.aliases,
                file: &one.file,
                offset: one.offset,
                size: one.size,
                pid: one.pid,
                tactic: one.tactic.as_ref().ok().map(|tactic| tactic.name()),
                returns: form(one),
                reason: one.tactic.as_ref().err().map(|refused| refused.reason.as_str()),
            })
        })
        .collect()
}

/// The form in which a function's calls would be timed.
pub(crate) fn form(one: &Listed) -> Option<&'static str> {
    match (one.returns?, one.tactic.is_ok()) {
        (Returns::Stack, true) => Some("stack"),
        (_, true) => Some("exits"),
        (_, false) => None,
    }
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
        refused: report
            .refused
            .iter()
            .map(|one| RefusedRow { probe: &one.probe, reason: &one.reason })
            .collect(),
        missed: report.missed,
        interrupted_syscalls: report.interrupted_syscalls,
        restarted_timeouts: report.restarted_timeouts,
        time,
        late: report.late.iter().map(late).collect(),
        quiet: (report.quiet > 0).then_some(report.quiet),
    })
}

pub(super) fn place(site: &trapline::Site) -> SiteFields<'_> {
    let trapline::Site { probe, aliases, file, offset, label: _, tactic } = site;
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
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{count, lat, list, unprobed};
    use std::sync::Arc;
    use trapline::histogram::TickScale;
    use trapline::listing::Listed;
    use trapline::report::{Group, Refused, Share, Tactic, Unprobed};
    use trapline::{By, Count, Histogram, ProcessReport, Returns, Site, Times};

    fn site(name: &str, label: &str) -> Arc<Site> {
        Arc::new(Site {
            probe: format!("uprobe:/bin/victim:{name}"),
            aliases: if name == "work" {
                vec!["uprobe:/bin/victim:work_alias".to_owned()]
            } else {
                Vec::new()
            },
            file: "/bin/victim".to_owned(),
            offset: 4096,
            label: label.to_owned(),
            tactic: Tactic::Jump,
        })
    }

    /// A report with three functions, one of them without a hit.
    pub(crate) fn sample() -> ProcessReport {
        let count = |name: &str, label: &str, hits, delta| Count {
            site: site(name, label),
            hits,
            delta,
            shares: Vec::new(),
            filtered: None,
        };
        ProcessReport {
            pid: 42,
            nth: 0,
            name: "victim".to_owned(),
            seconds: 2.0,
            delta_seconds: 1.0,
            counts: vec![
                count("work", "work", 20, 0),
                count("idle", "idle", 0, 0),
                count("bar", "libfoo:bar", 1500, 500),
            ],
            times: Vec::new(),
            quiet: 0,
            refused: Arc::new(vec![Refused {
                probe: "uprobe:/bin/victim:tiny".to_owned(),
                kind: "too-short",
                reason: "3 bytes".to_owned(),
            }]),
            late: Vec::new(),
            missed: 1,
            interrupted_syscalls: 2,
            restarted_timeouts: 3,
            ended: None,
        }
    }

    /// The same report, with its hits split by `by`.
    pub(crate) fn split(by: By) -> ProcessReport {
        let cpu = |cpu| Group::Cpu(cpu);
        let thread = |tid, comm: Option<&str>| Group::Thread { tid, comm: comm.map(str::to_owned) };
        let name = |threads, comm: Option<&str>| Group::Name { threads, comm: comm.map(str::to_owned) };
        let (work, idle, bar) = match by {
            By::Cpu => (
                vec![(cpu(0), 20, 0), (cpu(1), 0, 0), (Group::Other, 0, 0)],
                vec![(cpu(0), 0, 0), (cpu(1), 0, 0), (Group::Other, 0, 0)],
                vec![(cpu(0), 1000, 500), (cpu(1), 0, 0), (Group::Other, 500, 0)],
            ),
            By::Thread => (
                vec![(thread(45, None), 20, 0)],
                Vec::new(),
                vec![
                    (thread(43, Some("worker")), 1000, 500),
                    (thread(44, Some("worker")), 400, 0),
                    (Group::Other, 100, 0),
                ],
            ),
            By::ThreadName => (
                vec![(name(1, None), 20, 0)],
                Vec::new(),
                vec![(name(2, Some("worker")), 1400, 500), (Group::Other, 100, 0)],
            ),
        };
        let mut report = sample();
        for (count, shares) in report.counts.iter_mut().zip([work, idle, bar]) {
            let share = |(group, hits, delta)| Share { group, hits, delta };
            count.shares = shares.into_iter().map(share).collect();
        }
        report
    }

    /// A report with one timed function: calls of 100, 101 and 310 ns.
    pub(crate) fn timed() -> ProcessReport {
        let mut buckets = vec![0; trapline::histogram::BUCKETS];
        [100, 101, 310].iter().for_each(|&ns| buckets[trapline::histogram::bucket(ns)] += 1);
        let times = Times {
            site: Some(site("work", "work")),
            calls: 3,
            tail_exits: 1,
            in_flight: 1,
            unpaired: 0,
            unreturned: 0,
            clamped: 0,
            total_ns: 511,
            min_ns: 100,
            max_ns: 310,
            histogram: Histogram::new(&buckets, TickScale::new(1.0)),
        };
        ProcessReport { counts: Vec::new(), times: vec![times], ..sample() }
    }

    /// A function that would be probed, and one that would not.
    pub(crate) fn listed() -> Vec<Listed> {
        let one = |pid, name: &str, offset, size, tactic| Listed {
            pid,
            probe: format!("uprobe:/bin/victim:{name}"),
            aliases: site(name, name).aliases.clone(),
            file: "/bin/victim".to_owned(),
            function: name.to_owned(),
            offset,
            size,
            returns: (name == "work").then_some(Returns::Stack),
            tactic,
        };
        let refused = sample().refused[0].clone();
        vec![one(Some(42), "work", 4096, 120, Ok(Tactic::Jump)), one(None, "tiny", 8192, 3, Err(refused))]
    }

    #[test]
    fn list_is_as_documented() {
        let expected = concat!(
            r#"{"type":"list","schema":1,"probe":"uprobe:/bin/victim:work","aliases":["uprobe:/bin/victim:work_alias"],"#,
            r#""file":"/bin/victim","offset":4096,"size":120,"pid":42,"tactic":"jump","returns":"stack"}"#,
            "\n",
            r#"{"type":"list","schema":1,"probe":"uprobe:/bin/victim:tiny","aliases":[],"file":"/bin/victim","#,
            r#""offset":8192,"size":3,"reason":"3 bytes"}"#,
            "\n"
        );
        assert_eq!(list(&listed()), expected);
    }

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
            r#""refused":[{"probe":"uprobe:/bin/victim:tiny","reason":"3 bytes"}],"#,
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
            r#""log2_ns":[[64,128,2],[256,512,1]]}]"#
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
