//! What every run reports at its end: four lines, and one for each kind of problem that there was.
//!
//! In: a session's totals. Out: text for people. Long lists are cut to their number and the first reason;
//! `--dry-run` and `--json` have all of them. Invariant: SUM-1 every kind of problem has a line with its
//! number, and no problem none. Does not: print.

use std::collections::BTreeMap;

use trapline::Summary;
use trapline::report::{Refused, Tactic, Unprobed};
use trapline::summary::Overwritten;
use trapline_order::Order as _;

use super::number::{bytes, grouped, plural, rough};

/// Renders the summary.
pub(crate) fn text(summary: &Summary) -> String {
    let mut lines = vec![sites(summary), hits(summary), cost(summary), memory(summary)];
    lines.extend(problems(summary));
    format!("\n{}\n", lines.join("\n"))
}

/// A line for each kind of problem that there was.
pub(crate) fn problems(summary: &Summary) -> Vec<String> {
    let mut lines = Vec::from_iter(refused(&summary.refused));
    lines.extend(unprobed(&summary.unprobed));
    lines.extend(system_calls(summary));
    lines.extend(overwritten(summary.overwritten));
    lines.extend(left_alone(summary.foreign_sites));
    // The line above has this one already.
    let first = summary
        .unprobed
        .first()
        .map(|one| format!("{} ({}) is not probed: {}", one.name, one.pid, one.reason));
    let notices = summary.notices.iter().filter(|notice| Some(*notice) != first.as_ref());
    lines.extend(notices.map(|notice| format!("note: {notice}")));
    lines
}

/// What the probes mean, and what became of it.
fn sites(summary: &Summary) -> String {
    let kernel = summary.patched.iter().find(|(tactic, _)| *tactic == Tactic::Kernel);
    let kernel = kernel.map_or_else(String::new, |(_, n)| format!(" ({} by the kernel)", grouped(n)));
    let mut line = format!(
        "sites: {} matched, {} probed{kernel}, {} refused; {}",
        grouped(summary.matched),
        grouped(summary.patched.total()),
        grouped(summary.refused.len() as u64),
        plural(summary.processes, "process", "processes"),
    );
    if summary.ended > 0 {
        line.push_str(&format!(", {} of them ended", grouped(summary.ended)));
    }
    if summary.killed > 0 {
        line.push_str(&format!(" ({} killed)", grouped(summary.killed)));
    }
    if summary.children > 0 {
        let children = plural(summary.children, "forked child", "forked children");
        line.push_str(&format!(", {children} counted with their parent"));
    }
    line
}

/// All hits, by what became of them.
fn hits(summary: &Summary) -> String {
    let mut line = format!("hits: {} recorded, {} missed", grouped(summary.hits), grouped(summary.missed));
    if summary.overwritten.sites > 0 {
        line.push_str(" besides those while sites were overwritten");
    }
    let Some(filtered) = summary.filtered else { return line };
    line.push_str(&format!(", {} filtered", grouped(filtered.in_target)));
    if filtered.unended > 0 {
        line.push_str(&format!(", {} not ended", grouped(filtered.unended)));
    }
    if filtered.by_reader > 0 {
        line.push_str(&format!("; {} of the recorded filtered later", grouped(filtered.by_reader)));
    }
    line
}

/// What the run took of the target's time.
fn cost(summary: &Summary) -> String {
    format!(
        "cost: attach {}, detach {}, longest stop of a thread {}, {}",
        rough(summary.attach_time),
        rough(summary.detach_time),
        rough(summary.longest_stop),
        plural(summary.guard_traps, "trap", "traps")
    )
}

/// What the run took of the target's memory, and whether it was given back.
fn memory(summary: &Summary) -> String {
    let left = match summary.left_mapped {
        0 => "all given back".to_owned(),
        space => format!(
            "{} stay in {} of addresses, as threads may still be there",
            bytes(summary.left_resident),
            bytes(space)
        ),
    };
    let (sites, per_cpu) = (bytes(summary.memory_sites), bytes(summary.memory_per_cpu));
    format!("memory: {sites}, and {per_cpu} for each CPU; {left}")
}

/// How many refusals of each kind, the most frequent first, and one reason.
pub(crate) fn refused(all: &[Refused]) -> Option<String> {
    let mut kinds: BTreeMap<&str, Vec<&Refused>> = BTreeMap::new();
    all.iter().for_each(|one| kinds.entry(one.kind).or_default().push(one));
    let mut kinds: Vec<(&str, Vec<&Refused>)> = kinds.into_iter().collect();
    kinds.order_by_key(|(_, some)| std::cmp::Reverse(some.len()));
    let first = kinds.first().and_then(|(_, some)| some.first())?;
    let counts = kinds.iter().map(|(kind, some)| format!("{} {kind}", grouped(some.len() as u64)));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let more = if all.len() > 1 { " (--dry-run shows all)" } else { "" };
    Some(format!("refused: {counts}; {}: {}{more}", first.probe, first.reason))
}

/// The first process that is not probed as a whole, with the reason, and how many more there are.
fn unprobed(all: &[Unprobed]) -> Option<String> {
    let (first, more) = all.split_first()?;
    let more = match more.len() as u64 {
        0 => String::new(),
        more => format!("; and {} (--json shows all)", plural(more, "more process", "more processes")),
    };
    Some(format!("not probed: {} ({}): {}{more}", first.name, first.pid, first.reason))
}

/// System calls that the program saw disturbed.
fn system_calls(summary: &Summary) -> Option<String> {
    let (interrupted, restarted) = (summary.interrupted_syscalls, summary.restarted_timeouts);
    (interrupted + restarted > 0).then(|| {
        let (interrupted, restarted) = (grouped(interrupted), grouped(restarted));
        format!("system calls: {interrupted} returned EINTR, {restarted} began their timeout again")
    })
}

/// Reports that another tool changed our patches during the run.
fn overwritten(Overwritten { sites, longest }: Overwritten) -> Option<String> {
    (sites > 0).then(|| {
        format!(
            "overwritten: {} changed by another tool for up to {}; hits in that time are missing",
            plural(sites, "site was", "sites were"),
            rough(longest)
        )
    })
}

/// Reports what another tool had changed at the end.
fn left_alone(sites: u64) -> Option<String> {
    let left = plural(sites, "site", "sites");
    (sites > 0).then(|| format!("left alone: {left} that another tool has changed since"))
}

#[cfg(test)]
mod tests {
    use super::text;
    use std::time::Duration;
    use trapline::Summary;
    use trapline::report::{Filtered, Refused, Tactic, Unprobed};
    use trapline::summary::{ByTactic, Overwritten};

    #[test]
    fn every_promise_has_its_line() {
        let mut patched = ByTactic::default();
        (0..3).for_each(|_| patched.add(Tactic::Jump));
        patched.add(Tactic::Kernel);
        let refuse =
            |kind| move |n| Refused { probe: format!("u:a:f{n}"), kind, reason: format!("{n} bytes") };
        let unprobed = |pid| Unprobed { pid, name: "git".to_owned(), reason: "no room".to_owned() };
        let summary = Summary {
            processes: 1,
            children: 2,
            matched: 10,
            patched,
            refused: (0..2).map(refuse("no-room")).chain((2..6).map(refuse("too-short"))).collect(),
            unprobed: vec![unprobed(7), unprobed(8)],
            hits: 1_000_000,
            missed: 3,
            interrupted_syscalls: 4,
            restarted_timeouts: 5,
            guard_traps: 7,
            attach_time: Duration::from_micros(1500),
            detach_time: Duration::from_millis(2),
            longest_stop: Duration::from_micros(80),
            memory_sites: 1200,
            memory_per_cpu: 64,
            left_mapped: 68_157_440,
            left_resident: 8192,
            foreign_sites: 2,
            overwritten: Overwritten { sites: 1, longest: Duration::from_millis(1073) },
            notices: ["git (7) is not probed: no room", "libx was replaced on disk"]
                .map(str::to_owned)
                .to_vec(),
            ..Summary::default()
        };
        let expected = "
sites: 10 matched, 4 probed (1 by the kernel), 6 refused; 1 process, 2 forked children counted with their parent
hits: 1,000,000 recorded, 3 missed besides those while sites were overwritten
cost: attach 1.50 ms, detach 2.00 ms, longest stop of a thread 80.0 us, 7 traps
memory: 2 KiB, and 64 B for each CPU; 8 KiB stay in 65.0 MiB of addresses, as threads may still be there
refused: 4 too-short, 2 no-room; u:a:f2: 2 bytes (--dry-run shows all)
not probed: git (7): no room; and 1 more process (--json shows all)
system calls: 4 returned EINTR, 5 began their timeout again
overwritten: 1 site was changed by another tool for up to 1.07 s; hits in that time are missing
left alone: 2 sites that another tool has changed since
note: libx was replaced on disk
";
        assert_eq!(text(&summary), expected);
    }

    #[test]
    fn a_run_without_problems_fits_in_four_short_lines() {
        let mut patched = ByTactic::default();
        (0..13).for_each(|_| patched.add(Tactic::Jump));
        let summary = Summary {
            processes: 1,
            matched: 13,
            patched,
            hits: 3_240_706,
            guard_traps: 267,
            attach_time: Duration::from_micros(13_872),
            detach_time: Duration::from_micros(7_742),
            longest_stop: Duration::from_nanos(410_227),
            memory_sites: 5000,
            memory_per_cpu: 128,
            ..Summary::default()
        };
        let expected = "
sites: 13 matched, 13 probed, 0 refused; 1 process
hits: 3,240,706 recorded, 0 missed
cost: attach 13.9 ms, detach 7.74 ms, longest stop of a thread 410 us, 267 traps
memory: 5 KiB, and 128 B for each CPU; all given back
";
        assert_eq!(text(&summary), expected);
        assert!(expected.lines().all(|line| line.len() <= 80), "short");
    }

    #[test]
    fn filtered_hits_are_no_missed_ones() {
        let second = |filtered| {
            let summary = Summary { hits: 60, filtered: Some(filtered), ..Summary::default() };
            text(&summary).lines().nth(2).expect("a line").to_owned()
        };
        let filtered = Filtered { in_target: 47, by_reader: 0, unended: 0 };
        assert_eq!(second(filtered), "hits: 60 recorded, 0 missed, 47 filtered");
        let expected =
            "hits: 60 recorded, 0 missed, 47 filtered, 3 not ended; 12 of the recorded filtered later";
        assert_eq!(second(Filtered { by_reader: 12, unended: 3, ..filtered }), expected);
    }

    #[test]
    fn what_did_not_come_about_is_reported_or_left_out() {
        let refused = Refused { probe: "u:a:f".to_owned(), kind: "too-short", reason: "2 bytes".to_owned() };
        let summary = Summary {
            processes: 3,
            ended: 2,
            killed: 1,
            children: 1,
            matched: 1,
            guard_traps: 1,
            refused: vec![refused],
            attach_time: Duration::from_nanos(900),
            ..Summary::default()
        };
        let expected = "
sites: 1 matched, 0 probed, 1 refused; 3 processes, 2 of them ended (1 killed), 1 forked child counted with their parent
hits: 0 recorded, 0 missed
cost: attach 900 ns, detach 0 ns, longest stop of a thread 0 ns, 1 trap
memory: 0 B, and 0 B for each CPU; all given back
refused: 1 too-short; u:a:f: 2 bytes
";
        assert_eq!(text(&summary), expected);
    }
}
