//! What every run reports at its end: matched, patched, refused, missed, interrupted, left.

use std::collections::BTreeMap;

use trapline::Summary;
use trapline::report::{Refused, Tactic};
use trapline::summary::Overwritten;

use super::number::{bytes, duration, grouped, plural};

/// Limit for the examples of each kind of refusal.
const EXAMPLES: usize = 3;

/// Renders the summary.
pub(crate) fn text(summary: &Summary) -> String {
    let mut out = String::from("\n");
    let mut add = |line: String| {
        out.push_str(&line);
        out.push('\n');
    };
    add(patched(summary));
    refused(&summary.refused).into_iter().for_each(&mut add);
    let unprobed = summary.unprobed.iter();
    unprobed.map(|one| format!("not probed: {} ({}): {}", one.name, one.pid, one.reason)).for_each(&mut add);
    add(format!(
        "hits: {} recorded, {} missed; calls: {} interrupted, {} restarted with a timeout; guard traps: {}",
        grouped(summary.hits),
        grouped(summary.missed),
        grouped(summary.interrupted_syscalls),
        grouped(summary.restarted_timeouts),
        grouped(summary.guard_traps)
    ));
    if let Some(filtered) = summary.filtered {
        let unended = match filtered.unended {
            0 => String::new(),
            calls => format!(", {} had not ended", grouped(calls)),
        };
        add(format!(
            "filtered: {} in the target{unended}, {} of the recorded by the reader",
            grouped(filtered.in_target),
            grouped(filtered.by_reader)
        ));
    }
    overwritten(summary).into_iter().for_each(&mut add);
    add(left(summary));
    add(memory(summary));
    summary.notices.iter().map(|notice| format!("note: {notice}")).for_each(&mut add);
    out
}

fn patched(summary: &Summary) -> String {
    let tactics: Vec<String> =
        summary.patched.iter().map(|(tactic, n)| format!("{} {}", grouped(n), tactic.name())).collect();
    let tactics = if tactics.is_empty() { String::new() } else { format!(" ({})", tactics.join(", ")) };
    let mut line = format!(
        "sites: {} matched, {} probed{tactics}, {} refused; {}",
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
        line.push_str(&format!(
            ", {} counted with their parent",
            plural(summary.children, "forked child", "forked children")
        ));
    }
    line
}

/// Refusals by kind, the most frequent first, each with a few examples.
pub(crate) fn refused(all: &[Refused]) -> Vec<String> {
    let mut kinds: BTreeMap<&str, Vec<&Refused>> = BTreeMap::new();
    all.iter().for_each(|one| kinds.entry(one.kind).or_default().push(one));
    let mut kinds: Vec<(&str, Vec<&Refused>)> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, some)| std::cmp::Reverse(some.len()));
    let mut lines = Vec::new();
    for (kind, some) in kinds {
        lines.push(format!("refused: {} {kind}", grouped(some.len() as u64)));
        lines.extend(some.iter().take(EXAMPLES).map(|one| format!("  {}: {}", one.probe, one.reason)));
    }
    lines
}

fn left(summary: &Summary) -> String {
    let mut line = format!(
        "attach took {}, detach {}; longest stop of a thread {}; ",
        duration(nanos(summary.attach_time)),
        duration(nanos(summary.detach_time)),
        duration(nanos(summary.longest_stop))
    );
    line.push_str(&match summary.left_mapped {
        0 => "nothing stays mapped".to_owned(),
        some => {
            let (resident, space) = (bytes(summary.left_resident), bytes(some));
            format!("{resident} of memory in {space} of address space stay, for threads that may still be in our code")
        }
    });
    if summary.foreign_sites > 0 {
        line.push_str(&format!(
            "; {} changed by someone else meanwhile, left alone",
            plural(summary.foreign_sites, "site was", "sites were")
        ));
    }
    line
}

/// Reports that another tool changed our patches during the run.
fn overwritten(summary: &Summary) -> Option<String> {
    let Overwritten { sites, longest } = summary.overwritten;
    (sites > 0).then(|| {
        format!(
            "overwritten: {} changed by another tool for up to {}; hits there in that time are missing, their number is unknown",
            plural(sites, "site was", "sites were"),
            duration(nanos(longest))
        )
    })
}

fn memory(summary: &Summary) -> String {
    let jumps: u64 =
        summary.patched.iter().filter(|(tactic, _)| *tactic != Tactic::Kernel).map(|(_, n)| n).sum();
    format!(
        "memory added: {} ({} a site), and {} for each CPU that hits",
        bytes(summary.memory_sites),
        bytes(summary.memory_sites / jumps.max(1)),
        bytes(summary.memory_per_cpu)
    )
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::text;
    use std::time::Duration;
    use trapline::Summary;
    use trapline::report::{Refused, Tactic, Unprobed};
    use trapline::summary::ByTactic;

    #[test]
    fn every_promise_has_its_line() {
        let mut patched = ByTactic::default();
        (0..3).for_each(|_| patched.add(Tactic::Jump));
        patched.add(Tactic::Pun);
        let refuse =
            |n| Refused { probe: format!("u:a:f{n}"), kind: "too-short", reason: format!("{n} bytes") };
        let summary = Summary {
            processes: 1,
            children: 2,
            matched: 8,
            patched,
            refused: (0..4).map(refuse).collect(),
            unprobed: vec![Unprobed { pid: 7, name: "git".to_owned(), reason: "no room".to_owned() }],
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
            notices: vec!["libx was replaced on disk".to_owned()],
            ..Summary::default()
        };
        let expected = "
sites: 8 matched, 4 probed (3 jump, 1 pun), 4 refused; 1 process, 2 forked children counted with their parent
refused: 4 too-short
  u:a:f0: 0 bytes
  u:a:f1: 1 bytes
  u:a:f2: 2 bytes
not probed: git (7): no room
hits: 1,000,000 recorded, 3 missed; calls: 4 interrupted, 5 restarted with a timeout; guard traps: 7
attach took 1.500 ms, detach 2.000 ms; longest stop of a thread 80.000 us; 8 KiB of memory in 65.0 MiB of address space stay, for threads that may still be in our code
memory added: 2 KiB (300 B a site), and 64 B for each CPU that hits
note: libx was replaced on disk
";
        assert_eq!(text(&summary), expected);
    }

    #[test]
    fn what_did_not_come_about_is_said_or_left_out() {
        let summary = Summary {
            processes: 3,
            ended: 2,
            children: 1,
            matched: 1,
            foreign_sites: 2,
            attach_time: Duration::from_nanos(900),
            ..Summary::default()
        };
        let expected = "
sites: 1 matched, 0 probed, 0 refused; 3 processes, 2 of them ended, 1 forked child counted with their parent
hits: 0 recorded, 0 missed; calls: 0 interrupted, 0 restarted with a timeout; guard traps: 0
attach took 900 ns, detach 0 ns; longest stop of a thread 0 ns; nothing stays mapped; 2 sites were changed by someone else meanwhile, left alone
memory added: 0 B (0 B a site), and 0 B for each CPU that hits
";
        assert_eq!(text(&summary), expected);
    }
}
