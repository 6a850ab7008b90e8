//! The table of `count`: most hits last interval first, functions without a hit left out and counted.

use trapline::{Count, ProcessReport};

use super::number::{grouped, plural, rate};
use super::table::{Align, Table};
use crate::args::ready::By;

/// Most rows of the live table; the final one shows all.
const LIVE_ROWS: usize = 40;

/// Renders one process. `live` reports show what happened since the last one first, and at most a screenful.
pub(crate) fn text(report: &ProcessReport, by: Option<By>, live: bool) -> String {
    let seconds = if live { report.delta_seconds } else { report.seconds };
    let hits_of = |count: &Count| if live { count.delta } else { count.hits };
    let mut hit: Vec<&Count> = report.counts.iter().filter(|count| hits_of(count) > 0).collect();
    hit.sort_by(|a, b| hits_of(b).cmp(&hits_of(a)).then_with(|| a.site.label.cmp(&b.site.label)));
    let total: u64 = hit.iter().map(|count| hits_of(count)).sum();
    let quiet = report.counts.len() - hit.len();
    let shown = if live { hit.len().min(LIVE_ROWS) } else { hit.len() };

    let mut table = Table::new(&columns(by));
    for count in &hit[..shown] {
        for cells in rows(count, hits_of(count), seconds, by) {
            table.row(cells);
        }
    }
    let mut out = format!("{} ({}), {seconds:.2} s\n", report.name, report.pid);
    if shown > 0 {
        out.push_str(&table.text());
    }
    let rest = if shown < hit.len() { format!("; {} more rows", hit.len() - shown) } else { String::new() };
    out.push_str(&format!(
        "{} in {}, {} without a hit{rest}\n",
        plural(total, "hit", "hits"),
        plural(hit.len() as u64, "function", "functions"),
        grouped(quiet as u64)
    ));
    out
}

fn columns(by: Option<By>) -> Vec<(&'static str, Align)> {
    let mut columns = vec![("HITS", Align::Right), ("HITS/S", Align::Right)];
    if by == Some(By::Cpu) {
        columns.push(("CPU", Align::Right));
    }
    columns.push(("FUNCTION", Align::Left));
    columns
}

fn rows(count: &Count, hits: u64, seconds: f64, by: Option<By>) -> Vec<Vec<String>> {
    let per_second = |hits: u64| if seconds > 0.0 { rate(hits as f64 / seconds) } else { "-".to_owned() };
    let label = count.site.label.clone();
    if by != Some(By::Cpu) {
        return vec![vec![grouped(hits), per_second(hits), label]];
    }
    let last = count.cpus.len().saturating_sub(1);
    let name = |cpu: usize| if cpu == last { "other".to_owned() } else { cpu.to_string() };
    let row = |(cpu, &hits): (usize, &u64)| {
        (hits > 0).then(|| vec![grouped(hits), per_second(hits), name(cpu), label.clone()])
    };
    let split: Vec<Vec<String>> = count.cpus.iter().enumerate().filter_map(row).collect();
    if split.is_empty() { vec![vec![grouped(hits), per_second(hits), "-".to_owned(), label]] } else { split }
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::args::ready::By;
    use crate::report::json::tests::sample;

    #[test]
    fn the_final_table_is_sorted_by_hits() {
        let wanted = "victim (42), 2.00 s
 HITS  HITS/S  FUNCTION
1,500     750  libfoo:bar
   20      10  work
1,520 hits in 2 functions, 1 without a hit
";
        assert_eq!(text(&sample(), None, false), wanted);
    }

    #[test]
    fn hits_split_by_cpu() {
        let wanted = "victim (42), 2.00 s
 HITS  HITS/S    CPU  FUNCTION
1,000     500      0  libfoo:bar
  500     250  other  libfoo:bar
   20      10      0  work
1,520 hits in 2 functions, 1 without a hit
";
        assert_eq!(text(&sample(), Some(By::Cpu), false), wanted);
    }

    #[test]
    fn a_live_table_shows_what_is_new() {
        let wanted = "victim (42), 1.00 s
HITS  HITS/S  FUNCTION
 500     500  libfoo:bar
500 hits in 1 function, 2 without a hit
";
        assert_eq!(text(&sample(), None, true), wanted);
    }
}
