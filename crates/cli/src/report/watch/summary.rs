//! The closing summary of every watch: what was seen, what was not, and what it cost.
//!
//! In: counts of accesses and of the kernel's records. Out: three lines, and one for each kind of problem.
//! Does not: print.

use std::time::Duration;

use trapline::watch::{Tally, WatchEnd, Watched};

use super::tally::Tallied;
use crate::report::number::{grouped, percent, plural, rough};

/// The summary: what was seen, what was not, and what it cost.
pub(crate) fn text(tallied: &Tallied, end: &WatchEnd) -> String {
    let tally = &end.tally;
    let mut lines = vec![seen(tallied, tally), threads(tally)];
    lines.extend(late(tally));
    lines.extend(reasonless(tally));
    lines.extend(turns(tallied, tally));
    lines.push(cost(end));
    format!("\n{}\n", lines.join("\n"))
}

fn seen(tallied: &Tallied, tally: &Tally) -> String {
    let exact = match tallied.shown {
        0 => String::new(),
        shown => format!(", {} with an exact value", percent(tallied.exact as f64 / shown as f64)),
    };
    let mut line = format!(
        "accesses: {} in {:.2} s{exact}, {} lost",
        grouped(tallied.shown),
        tally.watched.as_secs_f64(),
        grouped(tally.lost)
    );
    if tally.lost_more {
        line.push_str(", and maybe more at the end");
    }
    if tallied.undecided > 0 {
        let undecided = grouped(tallied.undecided);
        line.push_str(&format!("; {undecided} left out, as the condition could not be decided"));
    }
    if tally.malformed > 0 {
        let records = plural(tally.malformed, "record", "records");
        line.push_str(&format!("; {records} of the kernel could not be read"));
    }
    line
}

fn threads(tally: &Tally) -> String {
    format!(
        "threads: {} watched, {} born since; armed in {}, disarmed in {}",
        grouped(tally.threads as u64),
        grouped(tally.born),
        rough(tally.arming),
        rough(tally.disarming)
    )
}

/// Threads that ran unwatched for a while.
fn late(tally: &Tally) -> Option<String> {
    (tally.late + tally.unwatched > 0).then(|| {
        format!(
            "late: {} born since were watched at most {} after their birth; {} ended before",
            plural(tally.late, "thread", "threads"),
            rough(tally.latest),
            grouped(tally.unwatched)
        )
    })
}

/// Traps of which the machine lost the reason.
fn reasonless(tally: &Tally) -> Option<String> {
    (tally.lost_traps > 0).then(|| {
        format!(
            "machine: {} came without a reason (a fault of KVM hosts before Linux 6.14), and did not end the program; {} of them are not among the accesses",
            plural(tally.lost_traps, "trap", "traps"),
            grouped(tally.unexplained)
        )
    })
}

/// For how much of the time each place was watched, where they took turns.
fn turns(tallied: &Tallied, tally: &Tally) -> Option<String> {
    let all = (tally.watched.as_nanos() as f64).max(1.0);
    let share = |(place, covered): (&Watched, &u64)| {
        format!("{} {}", place.label, percent((*covered as f64 / all).min(1.0)))
    };
    let shares: Vec<String> =
        tallied.watched.iter().zip(tally.covered_ns.iter().flatten()).map(share).collect();
    (!shares.is_empty()).then(|| format!("in turns, for a share of the time: {}", shares.join(", ")))
}

/// The number of traps times the measured cost of one.
fn cost(end: &WatchEnd) -> String {
    let traps = end.tally.events + end.tally.lost;
    let Some(ns) = end.ns_per_trap else {
        return format!("cost: {}, of a length that could not be measured", plural(traps, "trap", "traps"));
    };
    let spent = traps as f64 * ns;
    let share = match end.cpu.as_nanos() as f64 {
        cpu if cpu > 0.0 => format!(", {} of the target's CPU time", percent((spent / cpu).min(1.0))),
        _ => String::new(),
    };
    let time = |ns: f64| rough(Duration::from_nanos(ns as u64));
    format!("cost: {} of {} each, {} in all{share}", plural(traps, "trap", "traps"), time(ns), time(spent))
}

#[cfg(test)]
mod tests {
    use super::{Tallied, text};
    use crate::report::watch::samples::sample;

    #[test]
    fn a_summary_for_people() {
        let (tallied, _, end) = sample();
        let expected = "
accesses: 2 in 2.00 s, 50 % with an exact value, 3 lost
threads: 2 watched, 1 born since; armed in 1.00 us, disarmed in 2.00 us
cost: 5 traps of 9.00 us each, 45.0 us in all, 4.5 % of the target's CPU time
";
        assert_eq!(text(&tallied, &end), expected);
    }

    #[test]
    fn of_no_accesses_none_is_exact() {
        let (_, _, end) = sample();
        let none = Tallied::new(&[]);
        assert!(text(&none, &end).starts_with("\naccesses: 0 in 2.00 s, 3 lost\n"), "{}", text(&none, &end));
    }
}
