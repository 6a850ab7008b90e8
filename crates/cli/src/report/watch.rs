//! Accesses as lines, writers as a table, and the summary of every watch.

use std::collections::HashMap;
use std::rc::Rc;

use trapline::system::time_of_day;
use trapline::watch::{
    Access, Accessed, Encoding, Facts, Kind, NewProgram, Tally, ValueSource, WatchEnd, Watched, Where,
};

use super::number::{duration, grouped, percent, plural};
use super::table::{Align, Table};
use super::visible;

/// What accesses are grouped by: a writer of one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    /// Index of the place.
    pub(crate) watched: usize,
    /// The thread's name.
    pub(crate) comm: Rc<str>,
    /// The kind of access.
    pub(crate) kind: Kind,
    /// The code that made the access.
    pub(crate) by: Rc<Where>,
}

/// The accesses of one writer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accesses {
    /// Their number.
    pub(crate) count: u64,
    /// The threads that made them.
    pub(crate) tids: Vec<u32>,
}

/// Counts over all accesses.
#[derive(Debug)]
pub(crate) struct Tallied {
    /// The watched places.
    pub(crate) watched: Vec<Watched>,
    writers: HashMap<Writer, Accesses>,
    /// Accesses shown or counted.
    pub(crate) shown: u64,
    /// Those of them whose value is exact.
    pub(crate) exact: u64,
    /// Accesses for which the condition could not be decided.
    pub(crate) undecided: u64,
}

/// Limit for the threads that are listed for one writer.
const MAX_TIDS: usize = 10_000;

impl Tallied {
    /// Counts of nothing yet.
    pub(crate) fn new(watched: &[Watched]) -> Self {
        Self { watched: watched.to_vec(), writers: HashMap::new(), shown: 0, exact: 0, undecided: 0 }
    }
    /// Counts one access.
    pub(crate) fn add(&mut self, one: &Accessed) {
        self.shown += 1;
        self.exact += u64::from(one.event.change.how.is_exact());
        let writer = Writer {
            watched: one.watched,
            comm: one.event.comm.clone(),
            kind: one.event.kind,
            by: one.by.clone(),
        };
        let accesses = self.writers.entry(writer).or_default();
        accesses.count += 1;
        if !accesses.tids.contains(&one.event.tid) && accesses.tids.len() < MAX_TIDS {
            accesses.tids.push(one.event.tid);
        }
    }
    /// Writers, most accesses first.
    pub(crate) fn writers(&self) -> Vec<(&Writer, &Accesses)> {
        let mut all: Vec<(&Writer, &Accesses)> = self.writers.iter().collect();
        all.sort_by(|a, b| b.1.count.cmp(&a.1.count).then_with(|| a.0.by.function.cmp(&b.0.by.function)));
        all
    }
    /// The number of accesses of one place.
    pub(crate) fn of_place(&self, watched: usize) -> u64 {
        self.writers.iter().filter(|(writer, _)| writer.watched == watched).map(|(_, all)| all.count).sum()
    }
    /// The values that conditions can use.
    pub(crate) fn facts(&self, one: &Accessed) -> Facts {
        let watched = &self.watched[one.watched];
        let number = |value: Option<u64>| value.map(|bits| typed(bits, watched).integer());
        let change = one.event.change;
        Facts {
            value: number(change.after),
            old: number(change.before),
            tid: one.event.tid,
            pid: one.event.pid,
            cpu: one.event.cpu,
        }
    }
}

/// A value, in the type of the watched variable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Typed {
    /// Unsigned.
    Unsigned(u64),
    /// Signed.
    Signed(i64),
    /// Floating point.
    Float(f64),
    /// An address.
    Pointer(u64),
    /// A character.
    Char(u8),
    /// True or false.
    Bool(bool),
}

/// The watched bytes as a value of the variable's type.
pub(crate) fn typed(bits: u64, watched: &Watched) -> Typed {
    let unused = 64 - 8 * u32::from(watched.len.clamp(1, 8));
    match watched.encoding {
        Encoding::Signed => Typed::Signed((bits << unused).cast_signed() >> unused),
        Encoding::Float if watched.len == 8 => Typed::Float(f64::from_bits(bits)),
        Encoding::Float if watched.len == 4 => Typed::Float(f32::from_bits(bits as u32).into()),
        Encoding::Pointer => Typed::Pointer(bits),
        Encoding::Char if watched.len == 1 => Typed::Char(bits as u8),
        Encoding::Bool => Typed::Bool(bits != 0),
        _ => Typed::Unsigned(bits),
    }
}

impl Typed {
    /// The value for conditions; fractions are cut off.
    fn integer(self) -> i128 {
        match self {
            Self::Unsigned(value) | Self::Pointer(value) => value.into(),
            Self::Signed(value) => value.into(),
            Self::Float(value) => value as i128,
            Self::Char(value) => value.into(),
            Self::Bool(value) => value.into(),
        }
    }
    fn text(self) -> String {
        match self {
            Self::Unsigned(value) => value.to_string(),
            Self::Signed(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Pointer(value) => format!("{value:#x}"),
            Self::Char(value) if value.is_ascii_graphic() => format!("{value} '{}'", char::from(value)),
            Self::Char(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
        }
    }
}

/// `old -> new`, with a `?` behind a value that is uncertain.
fn values(one: &Accessed, watched: &Watched) -> String {
    let change = one.event.change;
    let text = |value: Option<u64>, exact: bool| match value {
        Some(bits) => typed(bits, watched).text() + if exact { "" } else { "?" },
        None => "?".to_owned(),
    };
    let after = text(change.after, change.how.is_exact());
    match one.event.kind {
        Kind::Execute => String::new(),
        Kind::Read => format!("  = {after}"),
        Kind::Write | Kind::Kernel | Kind::Unknown => {
            format!("  {} -> {after}", text(change.before, change.before_exact))
        }
    }
}

/// The word for a kind of access.
pub(crate) const fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Write => "write",
        Kind::Read => "read",
        Kind::Execute => "execute",
        Kind::Kernel => "kernel",
        Kind::Unknown => "access",
    }
}

/// The word for the source of a value.
pub(crate) const fn how_word(how: ValueSource) -> &'static str {
    match how {
        ValueSource::Stored => "stored",
        ValueSource::Read => "read",
        ValueSource::Derived => "derived",
        ValueSource::Late => "late",
        ValueSource::Unknown => "unknown",
    }
}

/// The word for the accesses that are watched.
pub(crate) const fn access_word(access: Access) -> &'static str {
    match access {
        Access::Write => "w",
        Access::ReadWrite => "rw",
        Access::Execute => "x",
    }
}

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

/// The summary: what was seen, what was not, and what it cost.
pub(crate) fn summary(tallied: &Tallied, end: &WatchEnd) -> String {
    let tally = &end.tally;
    let mut out = String::from("\n");
    let mut add = |line: String| {
        out.push_str(&line);
        out.push('\n');
    };
    let share = if tallied.shown > 0 { tallied.exact as f64 / tallied.shown as f64 } else { 1.0 };
    let mut seen = format!(
        "{} in {:.2} s, {} with an exact value; {} lost",
        plural(tallied.shown, "access", "accesses"),
        tally.watched.as_secs_f64(),
        percent(share),
        grouped(tally.lost)
    );
    if tallied.undecided > 0 {
        seen.push_str(&format!("; {} whose condition could not be decided", grouped(tallied.undecided)));
    }
    if tally.malformed > 0 {
        seen.push_str(&format!("; {} that made no sense", plural(tally.malformed, "record", "records")));
    }
    add(seen);
    for (place, covered) in tallied.watched.iter().zip(tally.covered_ns.iter().flatten()) {
        let share = *covered as f64 / (tally.watched.as_nanos() as f64).max(1.0);
        add(format!("{}: watched {} of the time, in turns", place.label, percent(share.min(1.0))));
    }
    add(format!(
        "{} armed in {}, {} born since; disarmed in {}",
        plural(tally.threads as u64, "thread", "threads"),
        duration(tally.arming.as_nanos() as u64),
        grouped(tally.born),
        duration(tally.disarming.as_nanos() as u64)
    ));
    if tally.late + tally.unwatched > 0 {
        add(format!(
            "of those born, {} armed late, at most {} after birth; {} ended before",
            grouped(tally.late),
            duration(tally.latest.as_nanos() as u64),
            grouped(tally.unwatched)
        ));
    }
    add(cost(end));
    out
}

/// The number of traps times the measured cost of one.
fn cost(end: &WatchEnd) -> String {
    let traps = end.tally.events + end.tally.lost;
    let Some(ns) = end.ns_per_trap else {
        return format!("cost: {} traps, of a cost that could not be measured here", grouped(traps));
    };
    let spent = traps as f64 * ns;
    let share = match end.cpu.as_nanos() as f64 {
        cpu if cpu > 0.0 => format!("{} of the target's CPU time", percent((spent / cpu).min(1.0))),
        _ => "no CPU time of the target to compare with".to_owned(),
    };
    format!(
        "cost: {} traps x {}, measured here on ourselves = {}, {share}",
        grouped(traps),
        duration(ns as u64),
        duration(spent as u64)
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Tallied, Typed, line, summary, table, typed};
    use std::rc::Rc;
    use std::time::Duration;
    use trapline::watch::{
        Access, Accessed, Change, Encoding, Event, Kind, RemoteAddr, Tally, ValueSource, WatchEnd, Watched,
        Where,
    };

    fn place() -> Watched {
        Watched {
            pid: 42,
            process: "victim".into(),
            label: "server.small".into(),
            addr: RemoteAddr(0x1000),
            len: 1,
            access: Access::Write,
            encoding: Encoding::Signed,
        }
    }

    /// Two accesses of one writer, the second with a late value.
    pub(crate) fn sample() -> (Tallied, Vec<Accessed>, WatchEnd) {
        let by = Rc::new(Where { function: "store+0x4".into(), line: Some(("/src/a.c".into(), 7)) });
        let caller = Rc::new(Where { function: "libfoo:run+0x9".into(), line: None });
        let one = |time_ns, before, after, how| Accessed {
            event: Event {
                time_ns,
                target: 0,
                point: 0,
                pid: 42,
                tid: 43,
                comm: "worker".into(),
                cpu: 1,
                ip: RemoteAddr(0x2000),
                kind: Kind::Write,
                change: Change { before: Some(before), before_exact: true, after: Some(after), how },
                stack: Vec::new(),
            },
            watched: 0,
            by: by.clone(),
            stack: vec![caller.clone()],
        };
        let accesses = vec![one(1500, 0xff, 5, ValueSource::Stored), one(2500, 5, 6, ValueSource::Late)];
        let mut tallied = Tallied::new(&[place()]);
        accesses.iter().for_each(|one| tallied.add(one));
        let tally = Tally {
            events: 2,
            lost: 3,
            threads: 2,
            born: 1,
            arming: Duration::from_micros(1),
            disarming: Duration::from_micros(2),
            watched: Duration::from_secs(2),
            ..Tally::default()
        };
        let end = WatchEnd {
            rest: Vec::new(),
            tally,
            ns_per_trap: Some(9000.0),
            cpu: Duration::from_millis(1),
            command: None,
        };
        (tallied, accesses, end)
    }

    #[test]
    fn lines_and_summary_for_people() {
        let (tallied, accesses, end) = sample();
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
        let expected = "
2 accesses in 2.00 s, 50 % with an exact value; 3 lost
2 threads armed in 1.000 us, 1 born since; disarmed in 2.000 us
cost: 5 traps x 9.000 us, measured here on ourselves = 45.000 us, 4.5 % of the target's CPU time
";
        assert_eq!(summary(&tallied, &end), expected);
    }

    #[test]
    fn bytes_are_shown_as_they_are_meant() {
        let mut one = place();
        for (encoding, len, bits, text) in [
            (Encoding::Signed, 2, 0xffff, "-1"),
            (Encoding::Unsigned, 2, 0xffff, "65535"),
            (Encoding::Float, 4, 0x3fc0_0000, "1.5"),
            (Encoding::Float, 8, 0x3ff8_0000_0000_0000, "1.5"),
            (Encoding::Pointer, 8, 0x1000, "0x1000"),
            (Encoding::Char, 1, 97, "97 'a'"),
            (Encoding::Bool, 1, 1, "true"),
        ] {
            (one.encoding, one.len) = (encoding, len);
            assert_eq!(typed(bits, &one).text(), text);
        }
        assert_eq!(Typed::Float(2.9).integer(), 2);
    }
}
