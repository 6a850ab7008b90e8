//! Reports of processes that have ended, added up: one for each program.
//!
//! In: reports of a session. Out: those of processes that live, as they are; one for all processes of a program and a
//! workload that have ended. Does not: tell such processes apart; the reports that go in do.

use std::collections::HashMap;
use std::hash::Hash;

use crate::containers::Workload;
use crate::report::{Count, Filtered, Group, ProcessReport, Share, Times};

/// Adds up the reports of processes that have ended, if they have the same name and are a part of the same workload. A sum
/// stands where the first of them stood.
#[must_use]
pub fn merged(reports: &[ProcessReport]) -> Vec<ProcessReport> {
    let program = |report: &ProcessReport| match report.ended {
        Some(_) => (0, report.name.clone(), report.workload.clone()),
        // A number of its own.
        None => (report.nth + 1, String::new(), Workload::default()),
    };
    grouped(reports.iter(), program).iter().filter_map(|group| sum(group)).collect()
}

/// Groups of items with the same key, in the order of their first items.
fn grouped<'a, T, K: Hash + Eq>(
    items: impl Iterator<Item = &'a T>,
    key: impl Fn(&'a T) -> K,
) -> Vec<Vec<&'a T>> {
    let (mut places, mut groups) = (HashMap::new(), Vec::<Vec<&'a T>>::new());
    for item in items {
        let place = *places.entry(key(item)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups
}

fn sum(all: &[&ProcessReport]) -> Option<ProcessReport> {
    let first = all.first()?;
    if all.len() == 1 {
        return Some((*first).clone());
    }
    let total = |of: fn(&ProcessReport) -> u64| all.iter().map(|report| of(report)).sum();
    let longest = |of: fn(&ProcessReport) -> f64| all.iter().map(|report| of(report)).fold(0.0, f64::max);
    let counts = grouped(all.iter().flat_map(|report| &report.counts), |count| &*count.site);
    let counts: Vec<Count> = counts.iter().filter_map(|of| sum_of_counts(of)).collect();
    let times = grouped(all.iter().flat_map(|report| &report.times), |times| times.site.as_deref());
    let of_site =
        |of: &Vec<&Times>| Some(Times { site: of.first()?.site.clone(), ..Times::sum(of.iter().copied()) });
    let times: Vec<Times> = times.iter().filter_map(of_site).collect();
    // Each process has the same sites, as far as the same files are mapped.
    let sites = |report: &&ProcessReport| report.quiet + report.counts.len().max(report.times.len()) as u64;
    let most = all.iter().map(sites).max().unwrap_or(0);
    Some(ProcessReport {
        processes: total(|report| report.processes),
        seconds: longest(|report| report.seconds),
        delta_seconds: longest(|report| report.delta_seconds),
        quiet: most.saturating_sub(counts.len().max(times.len()) as u64),
        counts,
        times,
        late: all.iter().flat_map(|report| report.late.iter().cloned()).collect(),
        missed: total(|report| report.missed),
        interrupted_syscalls: total(|report| report.interrupted_syscalls),
        restarted_timeouts: total(|report| report.restarted_timeouts),
        ..(*first).clone()
    })
}

fn sum_of_counts(all: &[&Count]) -> Option<Count> {
    let filtered = all.iter().filter_map(|count| count.filtered).reduce(|a, b| Filtered {
        in_target: a.in_target + b.in_target,
        by_reader: a.by_reader + b.by_reader,
        unended: a.unended + b.unended,
    });
    let shares = grouped(all.iter().flat_map(|count| &count.shares), |share| match &share.group {
        Group::Name { comm, .. } => Group::Name { comm: comm.clone(), threads: 0 },
        other => other.clone(),
    });
    Some(Count {
        site: all.first()?.site.clone(),
        hits: all.iter().map(|count| count.hits).sum(),
        delta: all.iter().map(|count| count.delta).sum(),
        shares: shares.iter().filter_map(|of| sum_of_shares(of)).collect(),
        filtered,
    })
}

fn sum_of_shares(all: &[&Share]) -> Option<Share> {
    let threads = all.iter().map(|share| match share.group {
        Group::Name { threads, .. } => threads,
        _ => 0,
    });
    let group = match &all.first()?.group {
        Group::Name { comm, .. } => Group::Name { comm: comm.clone(), threads: threads.sum() },
        other => other.clone(),
    };
    let hits = all.iter().map(|share| share.hits).sum();
    Some(Share { group, hits, delta: all.iter().map(|share| share.delta).sum() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::merged;
    use crate::Histogram;
    use crate::containers::{Container, Workload};
    use crate::histogram::TickScale;
    use crate::report::{Count, Ended, Filtered, Group, ProcessReport, Share, Site, Tactic, Times};

    fn site(func: &str) -> Arc<Site> {
        Arc::new(Site {
            probe: format!("uprobe:/bin/a:{func}"),
            aliases: Vec::new(),
            file: "/bin/a".to_owned(),
            offset: 0,
            label: func.to_owned(),
            tactic: Tactic::Jump,
            slot: 0,
        })
    }

    fn process(nth: u32, name: &str, ended: bool, hits: &[(&str, u64)]) -> ProcessReport {
        let count = |&(func, hits): &(&str, u64)| Count {
            site: site(func),
            hits,
            delta: 1,
            shares: vec![
                Share { group: Group::Name { comm: Some("t".to_owned()), threads: 2 }, hits, delta: 1 },
                Share { group: Group::Cpu(nth), hits: 1, delta: 0 },
            ],
            filtered: Some(Filtered { in_target: 3, ..Filtered::default() }),
        };
        ProcessReport {
            pid: 100 + nth,
            nth,
            processes: 1,
            name: name.to_owned(),
            workload: Workload::default(),
            seconds: f64::from(nth),
            delta_seconds: 0.5,
            counts: hits.iter().map(count).collect(),
            times: Vec::new(),
            quiet: 10 - hits.len() as u64,
            refused: Arc::default(),
            late: Vec::new(),
            missed: 1,
            interrupted_syscalls: 0,
            restarted_timeouts: 2,
            ended: ended.then_some(Ended::Exited),
        }
    }

    #[test]
    fn processes_of_one_program_that_have_ended_are_one_report() {
        let lives = process(1, "a", false, &[("f", 5)]);
        let mut elsewhere = process(5, "a", true, &[("f", 7)]);
        elsewhere.workload.container = Some(Container { id: "3f".to_owned(), ..Container::default() });
        let all = [
            process(0, "a", true, &[("f", 1), ("g", 2)]),
            lives.clone(),
            process(2, "b", true, &[("f", 9)]),
            process(3, "a", true, &[("g", 4), ("h", 8)]),
            process(4, "a", false, &[("f", 6)]),
            elsewhere.clone(),
        ];
        let merged = merged(&all);
        let shown: Vec<_> = merged.iter().map(|one| (one.pid, one.processes)).collect();
        assert_eq!(shown, [(100, 2), (101, 1), (102, 1), (104, 1), (105, 1)]);
        assert_eq!((&merged[1], &merged[4]), (&lives, &elsewhere));
        let sum = &merged[0];
        let hits: Vec<_> =
            sum.counts.iter().map(|count| (&*count.site.label, count.hits, count.delta)).collect();
        assert_eq!(hits, [("f", 1, 1), ("g", 6, 2), ("h", 8, 1)]);
        assert_eq!((sum.seconds, sum.quiet, sum.missed, sum.restarted_timeouts), (3.0, 7, 2, 4));
        let g = &sum.counts[1];
        assert_eq!(g.filtered.map(|one| one.in_target), Some(6));
        let name = Group::Name { comm: Some("t".to_owned()), threads: 4 };
        let share = |group, hits, delta| Share { group, hits, delta };
        assert_eq!(g.shares, [share(name, 6, 2), share(Group::Cpu(0), 1, 0), share(Group::Cpu(3), 1, 0)]);
    }

    fn buckets(ns: u64) -> Vec<u64> {
        let mut buckets = vec![0; crate::histogram::BUCKETS];
        buckets[crate::histogram::bucket(ns)] = 1;
        buckets
    }

    #[test]
    fn durations_are_added_up_by_function() {
        let times = |func: &str, ns: u64| Times {
            site: Some(site(func)),
            calls: 1,
            total_ns: ns,
            min_ns: ns,
            max_ns: ns,
            histogram: Histogram::new(&buckets(ns), TickScale::new(1.0)),
            ..Times::default()
        };
        let (mut a, mut b) = (process(0, "a", true, &[]), process(1, "a", true, &[]));
        (a.times, b.times) = (vec![times("f", 10), times("g", 20)], vec![times("g", 40)]);
        let merged = merged(&[a, b]);
        let shown: Vec<_> = merged[0]
            .times
            .iter()
            .map(|one| {
                (&*one.site.as_ref().expect("named").label, one.calls, one.total_ns, one.min_ns, one.max_ns)
            })
            .collect();
        assert_eq!(shown, [("f", 1, 10, 10, 10), ("g", 2, 60, 20, 40)]);
        assert_eq!(merged[0].times[1].histogram.calls(), 2);
    }
}
