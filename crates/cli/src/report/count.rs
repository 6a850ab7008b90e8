//! The table of `count`: most hits of the last interval first. Functions without a hit are left out and
//! counted.

use trapline::report::{Group, Share};
use trapline::{By, Count, ProcessReport};
use trapline_order::Order as _;

use super::number::{grouped, plural, rate};
use super::site;
use super::table::{Align, Table};
use super::visible;

/// Limit for the rows of the live table; the final one shows all.
const LIVE_ROWS: usize = 40;

/// Renders one process. A `live` report begins with what happened since the last one, and is at most a
/// screenful.
pub(crate) fn text(report: &ProcessReport, by: Option<By>, live: bool) -> String {
    let seconds = if live { report.delta_seconds } else { report.seconds };
    let hits_of = |count: &Count| if live { count.delta } else { count.hits };
    let mut hit: Vec<&Count> = report.counts.iter().filter(|count| hits_of(count) > 0).collect();
    hit.order_by(|a, b| hits_of(b).cmp(&hits_of(a)).then_with(|| a.site.label.cmp(&b.site.label)));
    let total: u64 = hit.iter().map(|count| hits_of(count)).sum();
    let quiet = report.quiet + (report.counts.len() - hit.len()) as u64;
    let shown = if live { hit.len().min(LIVE_ROWS) } else { hit.len() };

    let mut table = Table::new(&columns(by));
    for count in &hit[..shown] {
        for cells in rows(count, live, seconds, by) {
            table.row(cells);
        }
    }
    let mut out = format!("{}, {seconds:.2} s\n", visible::process(report));
    if shown > 0 {
        out.push_str(&table.text());
    }
    let rest = if shown < hit.len() { format!("; {} more rows", hit.len() - shown) } else { String::new() };
    out.push_str(&format!(
        "{} in {}, {} without a hit{rest}\n",
        plural(total, "hit", "hits"),
        plural(hit.len() as u64, "function", "functions"),
        grouped(quiet)
    ));
    out
}

fn columns(by: Option<By>) -> Vec<(&'static str, Align)> {
    let group: &[(&str, Align)] = match by {
        None => &[],
        Some(By::Cpu) => &[("CPU", Align::Right)],
        Some(By::Thread) => &[("TID", Align::Right), ("COMM", Align::Left)],
        Some(By::ThreadName) => &[("THREADS", Align::Right), ("COMM", Align::Left)],
    };
    let mut columns = vec![("HITS", Align::Right), ("HITS/S", Align::Right)];
    columns.extend_from_slice(group);
    columns.push(("FUNCTION", Align::Left));
    columns
}

/// One row for each share with hits; one row for all hits where they are not split.
fn rows(count: &Count, live: bool, seconds: f64, by: Option<By>) -> Vec<Vec<String>> {
    let per_second = |hits: u64| if seconds > 0.0 { rate(hits as f64 / seconds) } else { "-".to_owned() };
    let row = |hits: u64, group: Vec<String>| {
        let mut cells = vec![grouped(hits), per_second(hits)];
        cells.extend(group);
        cells.push(site::name(&count.site).into_owned());
        cells
    };
    let hits_of = |share: &Share| if live { share.delta } else { share.hits };
    let split = count.shares.iter().filter(|share| hits_of(share) > 0);
    let split: Vec<Vec<String>> = split.map(|share| row(hits_of(share), group(&share.group, by))).collect();
    if by.is_some() && !split.is_empty() {
        return split;
    }
    let no_group = match by {
        None => 0,
        Some(By::Cpu) => 1,
        Some(By::Thread | By::ThreadName) => 2,
    };
    vec![row(if live { count.delta } else { count.hits }, vec!["-".to_owned(); no_group])]
}

/// The cells between rate and function: the CPU, thread or name that the hits belong to.
fn group(group: &Group, by: Option<By>) -> Vec<String> {
    let name = |comm: &Option<String>| comm.clone().unwrap_or_else(|| "?".to_owned());
    match group {
        Group::Cpu(cpu) => vec![cpu.to_string()],
        Group::Thread { tid, comm } => vec![tid.to_string(), name(comm)],
        Group::Name { comm, threads } => vec![threads.to_string(), name(comm)],
        Group::Other if by == Some(By::Cpu) => vec!["other".to_owned()],
        Group::Other => vec!["other".to_owned(), "-".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::report::samples::{sample, split};
    use trapline::By;

    #[test]
    fn the_final_table_is_sorted_by_hits() {
        let expected = "victim (42), 2.00 s
 HITS  HITS/S  FUNCTION
1,500     750  libfoo:bar
   20      10  work
1,520 hits in 2 functions, 1 without a hit
";
        assert_eq!(text(&sample(), None, false), expected);
    }

    #[test]
    fn entries_and_exits_of_a_function_have_rows_of_two_names() {
        let mut report = sample();
        report.counts[1] = report.counts[0].clone();
        std::sync::Arc::make_mut(&mut report.counts[1].site).probe = "uretprobe:/bin/victim:work".to_owned();
        report.counts[1].hits = 19;
        let table = text(&report, None, false);
        let rows: Vec<&str> = table.lines().filter(|line| line.contains("work")).collect();
        assert_eq!(rows, ["   20      10  work", "   19     9.5  work (return)"]);
    }

    #[test]
    fn hits_split_by_cpu() {
        let expected = "victim (42), 2.00 s
 HITS  HITS/S    CPU  FUNCTION
1,000     500      0  libfoo:bar
  500     250  other  libfoo:bar
   20      10      0  work
1,520 hits in 2 functions, 1 without a hit
";
        assert_eq!(text(&split(By::Cpu), Some(By::Cpu), false), expected);
    }

    #[test]
    fn hits_split_by_thread_and_by_name() {
        let expected = "victim (42), 2.00 s
 HITS  HITS/S    TID  COMM    FUNCTION
1,000     500     43  worker  libfoo:bar
  400     200     44  worker  libfoo:bar
  100      50  other  -       libfoo:bar
   20      10     45  ?       work
1,520 hits in 2 functions, 1 without a hit
";
        assert_eq!(text(&split(By::Thread), Some(By::Thread), false), expected);
        let expected = "victim (42), 2.00 s
 HITS  HITS/S  THREADS  COMM    FUNCTION
1,400     700        2  worker  libfoo:bar
  100      50    other  -       libfoo:bar
   20      10        1  ?       work
1,520 hits in 2 functions, 1 without a hit
";
        assert_eq!(text(&split(By::ThreadName), Some(By::ThreadName), false), expected);
    }

    #[test]
    fn a_live_table_of_shares_shows_what_is_new() {
        let expected = "victim (42), 1.00 s
HITS  HITS/S  CPU  FUNCTION
 500     500    0  libfoo:bar
500 hits in 1 function, 2 without a hit
";
        assert_eq!(text(&split(By::Cpu), Some(By::Cpu), true), expected);
    }

    #[test]
    fn a_live_table_shows_what_is_new() {
        let expected = "victim (42), 1.00 s
HITS  HITS/S  FUNCTION
 500     500  libfoo:bar
500 hits in 1 function, 2 without a hit
";
        assert_eq!(text(&sample(), None, true), expected);
    }
}
