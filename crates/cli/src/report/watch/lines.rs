//! Accesses as lines, and writers as a table.
//!
//! In: accesses, and their counts. Out: text for people. Does not: print.

use trapline::system::time_of_day;
use trapline::watch::{Accessed, NewProgram, Tally, Watched, Where};

use super::tally::Tallied;
use super::value::values;
use super::words::kind_word;
use crate::report::number::{duration, grouped, plural};
use crate::report::table::{Align, Table};
use crate::report::visible;

/// `function+0x12 file.c:34`.
fn place(by: &Where) -> String {
    match &by.line {
        Some((file, line)) => format!("{} {}:{line}", by.function, base(file)),
        None => by.function.clone(),
    }
}

fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// One access, with its callers on the lines below.
pub(crate) fn line(one: &Accessed, tallied: &Tallied, since_ns: u64, time: bool) -> String {
    let watched = &tallied.watched[one.watched];
    let when = if time { time_of_day() } else { format!("{:>10.6}", since_ns as f64 / 1e9) };
    let event = &one.event;
    let mut out = format!(
        "{when} {}/{} {} {} {}{}\n",
        visible::name(&event.comm),
        event.tid,
        kind_word(event.kind),
        visible::name(&watched.label),
        visible::name(&place(&one.by)),
        values(one, watched)
    );
    one.stack
        .iter()
        .for_each(|caller| out.push_str(&format!("             {}\n", visible::name(&place(caller)))));
    out
}

fn places(watched: &[Watched]) -> String {
    let one = |one: &Watched| {
        format!("{} at {} ({} bytes) in {} ({})", one.label, one.addr, one.len, one.process, one.pid)
    };
    watched.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The message when everything is armed.
pub(crate) fn start(watched: &[Watched], tally: &Tally) -> String {
    let threads = plural(tally.threads as u64, "thread", "threads");
    format!("trapline: watching {}, {threads}", places(watched))
}

/// The message about a process that runs another program.
pub(crate) fn program(program: &NewProgram, watched: &[Watched]) -> String {
    let NewProgram { pid, comm, unwatched, misses, .. } = program;
    let mut sentence = format!("trapline: process {pid} runs {comm} now: ");
    if watched.is_empty() {
        sentence.push_str("not watched");
    } else {
        let after = duration(unwatched.as_nanos() as u64);
        sentence.push_str(&format!("watching {}, from {after} after its start", places(watched)));
    }
    if !misses.is_empty() {
        sentence.push_str(&format!("; {}", misses.join("; ")));
    }
    sentence
}

/// Writers, most accesses first.
pub(crate) fn table(tallied: &Tallied) -> String {
    let several = tallied.watched.len() > 1;
    let mut columns = vec![("HITS", Align::Right), ("KIND", Align::Left), ("THREADS", Align::Right)];
    columns.push(("COMM", Align::Left));
    if several {
        columns.push(("PLACE", Align::Left));
    }
    columns.push(("FUNCTION", Align::Left));
    let mut table = Table::new(&columns);
    for (writer, accesses) in tallied.writers() {
        let mut row = vec![
            grouped(accesses.count),
            kind_word(writer.kind).to_owned(),
            grouped(accesses.tids.len() as u64),
            writer.comm.to_string(),
        ];
        if several {
            row.push(tallied.watched[writer.watched].label.clone());
        }
        row.push(place(&writer.by));
        table.row(row);
    }
    format!("\n{}", table.text())
}

#[cfg(test)]
mod tests {
    use super::{line, table};
    use crate::report::watch::samples::sample;

    #[test]
    fn lines_and_a_table_for_people() {
        let (tallied, accesses, _) = sample();
        let text: String = accesses.iter().map(|one| line(one, &tallied, one.event.time_ns, false)).collect();
        let expected = "  0.000002 worker/43 write server.small store+0x4 a.c:7  -1 -> 5
             libfoo:run+0x9
  0.000003 worker/43 write server.small store+0x4 a.c:7  5 -> 6?
             libfoo:run+0x9
";
        assert_eq!(text, expected);
        let expected = "
HITS  KIND   THREADS  COMM    FUNCTION
   2  write        1  worker  store+0x4 a.c:7
";
        assert_eq!(table(&tallied), expected);
    }
}
