//! Reports for tests: small ones, with each kind of number in them.

use std::sync::Arc;

use trapline::containers::Workload;
use trapline::histogram::TickScale;
use trapline::listing::Listed;
use trapline::report::{Group, Refused, Share, Tactic};
use trapline::{By, Count, Histogram, ProcessReport, Returns, Site, Times};

fn site(name: &str, label: &str) -> Arc<Site> {
    Arc::new(Site {
        probe: format!("uprobe:/bin/victim:{name}"),
        aliases: if name == "work" { vec!["uprobe:/bin/victim:work_alias".to_owned()] } else { Vec::new() },
        file: "/bin/victim".to_owned(),
        offset: 4096,
        label: label.to_owned(),
        tactic: Tactic::Jump,
        slot: 0,
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
        processes: 1,
        name: "victim".to_owned(),
        workload: Workload::default(),
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
        declaration: None,
    };
    let refused = sample().refused[0].clone();
    vec![one(Some(42), "work", 4096, 120, Ok(Tactic::Jump)), one(None, "tiny", 8192, 3, Err(refused))]
}
