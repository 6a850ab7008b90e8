//! `count` and `lat` as comma-separated values (RFC 4180): a header, then a row for each site, process and
//! report. Names and numbers are those of docs/guide/json.md. With `--by` there is a row for each share.
//!
//! In: reports. Out: text. Does not: repeat what was refused or missed; the summary and `--json` report that.

use trapline::report::{Group, Share};
use trapline::{By, Count, ProcessReport, Site, Times};

use super::Renderer;

/// Writes rows as reports come; the header first.
#[derive(Debug)]
pub(crate) struct Csv {
    by: Option<By>,
    timed: bool,
    timestamps: bool,
    begun: bool,
}

const PLACE: &[&str] = &["seconds", "pid", "probe", "file", "offset", "tactic"];
const COUNT: &[&str] = &["hits", "delta"];
const LAT: &[&str] = &[
    "calls",
    "tail_exits",
    "in_flight",
    "unpaired",
    "unreturned",
    "total_ns",
    "min_ns",
    "p50_ns",
    "p90_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
];

impl Csv {
    /// Makes the writer for `count`.
    pub(crate) const fn count(by: Option<By>, timestamps: bool) -> Self {
        Self { by, timed: false, timestamps, begun: false }
    }
    /// Makes the writer for `lat`.
    pub(crate) const fn lat(timestamps: bool) -> Self {
        Self { by: None, timed: true, timestamps, begun: false }
    }
    fn header(&self) -> Vec<String> {
        let time: &[&str] = if self.timestamps { &["time"] } else { &[] };
        let group: &[&str] = match self.by {
            None => &[],
            Some(By::Cpu) => &["cpu"],
            Some(By::Thread) => &["tid", "comm"],
            Some(By::ThreadName) => &["comm", "threads"],
        };
        let numbers = if self.timed { LAT } else { COUNT };
        [time, PLACE, group, numbers].concat().into_iter().map(str::to_owned).collect()
    }
    fn count_rows(&self, count: &Count) -> Vec<Vec<String>> {
        let numbers = |hits: u64, delta: u64| [hits.to_string(), delta.to_string()];
        let row = |share: &Share| {
            [group(&share.group, self.by), numbers(share.hits, share.delta).to_vec()].concat()
        };
        match (self.by, &count.shares[..]) {
            (None, _) => vec![numbers(count.hits, count.delta).to_vec()],
            // The kernel counted these hits, and they are not split.
            (Some(_), []) => {
                let whole = Share { group: Group::Other, hits: count.hits, delta: count.delta };
                vec![row(&whole)]
            }
            (Some(_), shares) => shares.iter().map(row).collect(),
        }
    }
}

impl Renderer for Csv {
    fn report(&mut self, report: &ProcessReport, _: bool, time: Option<&str>) -> String {
        let mut to = csv::Writer::from_writer(Vec::new());
        // Writing to memory cannot fail, and every row has as many cells as the header.
        let mut put = |row: Vec<String>| drop(to.write_record(row));
        if !std::mem::replace(&mut self.begun, true) {
            put(self.header());
        }
        let head = |site: &Site| {
            let seconds = format!("{:.6}", report.seconds);
            let place = [seconds, report.pid.to_string(), site.probe.clone(), site.file.clone()];
            let end = [site.offset.to_string(), site.tactic.name().to_owned()];
            let time = time.filter(|_| self.timestamps).map(str::to_owned);
            time.into_iter().chain(place).chain(end).collect::<Vec<_>>()
        };
        for count in &report.counts {
            for cells in self.count_rows(count) {
                put([head(&count.site), cells].concat());
            }
        }
        for times in &report.times {
            if let Some(site) = &times.site {
                put([head(site), lat_row(times)].concat());
            }
        }
        to.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

fn lat_row(times: &Times) -> Vec<String> {
    let percentiles = [0.5, 0.9, 0.99, 0.999].map(|share| times.percentile(share));
    let ended = [times.calls, times.tail_exits, times.in_flight, times.unpaired, times.unreturned];
    let numbers = ended.into_iter().chain([times.total_ns, times.min_ns]).chain(percentiles);
    numbers.chain([times.max_ns]).map(|number| number.to_string()).collect()
}

/// The cells before the numbers; empty for hits of all others.
fn group(group: &Group, by: Option<By>) -> Vec<String> {
    let name = |comm: &Option<String>| comm.clone().unwrap_or_default();
    match group {
        Group::Cpu(cpu) => vec![cpu.to_string()],
        Group::Thread { tid, comm } => vec![tid.to_string(), name(comm)],
        Group::Name { comm, threads } => vec![name(comm), threads.to_string()],
        Group::Other => vec![String::new(); if by == Some(By::Cpu) { 1 } else { 2 }],
    }
}

#[cfg(test)]
mod tests {
    use super::{Csv, LAT};
    use crate::report::samples::{sample, split, timed};
    use crate::report::{Renderer as _, json};
    use trapline::By;

    #[test]
    fn rows_follow_a_header_that_stands_once() {
        let mut csv = Csv::count(None, true);
        let expected = "time,seconds,pid,probe,file,offset,tactic,hits,delta
12:00:00,2.000000,42,uprobe:/bin/victim:work,/bin/victim,4096,jump,20,0
12:00:00,2.000000,42,uprobe:/bin/victim:idle,/bin/victim,4096,jump,0,0
12:00:00,2.000000,42,uprobe:/bin/victim:bar,/bin/victim,4096,jump,1500,500
";
        assert_eq!(csv.report(&sample(), true, Some("12:00:00")), expected);
        assert!(csv.report(&sample(), false, Some("12:00:01")).starts_with("12:00:01,2.0"));
    }

    #[test]
    fn a_row_for_each_share() {
        let mut csv = Csv::count(Some(By::Thread), false);
        let text = csv.report(&split(By::Thread), false, None);
        let expected = "seconds,pid,probe,file,offset,tactic,tid,comm,hits,delta
2.000000,42,uprobe:/bin/victim:work,/bin/victim,4096,jump,45,,20,0
2.000000,42,uprobe:/bin/victim:idle,/bin/victim,4096,jump,,,0,0
2.000000,42,uprobe:/bin/victim:bar,/bin/victim,4096,jump,43,worker,1000,500
2.000000,42,uprobe:/bin/victim:bar,/bin/victim,4096,jump,44,worker,400,0
2.000000,42,uprobe:/bin/victim:bar,/bin/victim,4096,jump,,,100,0
";
        assert_eq!(text, expected);
        for (by, row) in [(By::Cpu, "4096,jump,,500,0"), (By::ThreadName, "4096,jump,worker,2,1400,500")] {
            let text = Csv::count(Some(by), false).report(&split(by), false, None);
            assert!(text.lines().any(|line| line.ends_with(row)), "{text}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_json() {
        let text = Csv::lat(false).report(&timed(), false, None);
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let (header, row) = (lines.next().expect("a header"), lines.next().expect("a row"));
        let object: serde_json::Value = serde_json::from_str(&json::lat(&timed(), None)).expect("JSON");
        for name in LAT {
            let column = header.iter().position(|one| one == name).expect(name);
            assert_eq!(row[column], object["probes"][0][name].to_string(), "{name}");
        }
    }

    #[test]
    fn names_with_commas_and_quotes_stay_one_cell() {
        let mut report = sample();
        report.counts.truncate(1);
        std::sync::Arc::make_mut(&mut report.counts[0].site).probe = "u:a:f(int, \"x\")".to_owned();
        let text = Csv::count(None, false).report(&report, false, None);
        assert!(text.contains(r#",42,"u:a:f(int, ""x"")",/bin"#), "{text}");
    }
}
