//! `watch` as JSON lines, see docs/guide/json.md. Field order is part of the format.

use serde::Serialize;
use trapline::watch::{Accessed, NewProgram, Tally, WatchEnd, Watched, Where};

use super::tally::Tallied;
use super::value::{Typed, typed};
use super::words::{access_word, how_word, kind_word};
use crate::report::json::{SCHEMA, line};

#[derive(Serialize)]
#[serde(untagged)]
enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
}

impl From<Typed> for Value {
    fn from(typed: Typed) -> Self {
        match typed {
            Typed::Unsigned(value) | Typed::Pointer(value) => Self::Unsigned(value),
            Typed::Char(value) => Self::Unsigned(value.into()),
            Typed::Signed(value) => Self::Signed(value),
            Typed::Float(value) => Self::Float(value),
            Typed::Bool(value) => Self::Bool(value),
        }
    }
}

#[derive(Serialize)]
struct Start<'a> {
    r#type: &'static str,
    schema: u32,
    places: Vec<PlaceRow<'a>>,
}

#[derive(Serialize)]
struct ProgramRow<'a> {
    r#type: &'static str,
    schema: u32,
    time_ns: u64,
    pid: u32,
    program: &'a str,
    unwatched_ns: Option<u64>,
    places: Vec<PlaceRow<'a>>,
    misses: &'a [String],
}

#[derive(Serialize)]
struct PlaceRow<'a> {
    place: &'a str,
    pid: u32,
    addr: u64,
    len: u8,
    access: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    covered_ns: Option<u64>,
}

#[derive(Serialize)]
struct Row<'a> {
    r#type: &'static str,
    schema: u32,
    time_ns: u64,
    place: &'a str,
    pid: u32,
    tid: u32,
    comm: &'a str,
    cpu: u32,
    kind: &'static str,
    before: Option<Value>,
    before_exact: bool,
    after: Option<Value>,
    how: &'static str,
    exact: bool,
    ip: u64,
    #[serde(flatten)]
    by: WhereRow<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<WhereRow<'a>>,
}

#[derive(Serialize)]
struct WhereRow<'a> {
    function: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
}

#[derive(Serialize)]
struct Summary<'a> {
    r#type: &'static str,
    schema: u32,
    last: bool,
    seconds: f64,
    accesses: u64,
    exact: u64,
    traps: u64,
    lost: u64,
    undecided: u64,
    malformed: u64,
    threads: usize,
    born: u64,
    arming_ns: u64,
    disarming_ns: u64,
    ns_per_trap: Option<f64>,
    cpu_ns: Option<u64>,
    places: Vec<PlaceRow<'a>>,
    writers: Vec<WriterRow<'a>>,
    late: u64,
    unwatched: u64,
    lost_traps: u64,
    unexplained: u64,
    #[serde(skip_serializing_if = "is_false")]
    lost_more: bool,
}

const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[derive(Serialize)]
struct WriterRow<'a> {
    place: &'a str,
    pid: u32,
    comm: &'a str,
    kind: &'static str,
    #[serde(flatten)]
    by: WhereRow<'a>,
    threads: usize,
    accesses: u64,
}

fn place(watched: &Watched) -> PlaceRow<'_> {
    PlaceRow {
        place: &watched.label,
        pid: watched.pid,
        addr: watched.addr.0,
        len: watched.len,
        access: access_word(watched.access),
        events: None,
        covered_ns: None,
    }
}

fn location(by: &Where) -> WhereRow<'_> {
    let (file, line) = by.line.as_ref().map(|(file, line)| (file.as_str(), *line)).unzip();
    WhereRow { function: &by.function, file, line }
}

/// The object that is written when everything is armed.
pub(crate) fn start(watched: &[Watched]) -> String {
    line(&Start { r#type: "watch_start", schema: SCHEMA, places: watched.iter().map(place).collect() })
}

/// The object for a process that runs another program.
pub(crate) fn program(program: &NewProgram, watched: &[Watched]) -> String {
    let unwatched = program.unwatched.as_nanos() as u64;
    line(&ProgramRow {
        r#type: "watch_exec",
        schema: SCHEMA,
        time_ns: program.time_ns,
        pid: program.pid,
        program: &program.comm,
        unwatched_ns: (!watched.is_empty()).then_some(unwatched),
        places: watched.iter().map(place).collect(),
        misses: &program.misses,
    })
}

/// The object for one access.
pub(crate) fn access(one: &Accessed, tallied: &Tallied) -> String {
    let watched = &tallied.watched[one.watched];
    let event = &one.event;
    let value = |bits: Option<u64>| bits.map(|bits| typed(bits, watched).into());
    line(&Row {
        r#type: "watch",
        schema: SCHEMA,
        time_ns: event.time_ns,
        place: &watched.label,
        pid: event.pid,
        tid: event.tid,
        comm: &event.comm,
        cpu: event.cpu,
        kind: kind_word(event.kind),
        before: value(event.change.before),
        before_exact: event.change.before_exact,
        after: value(event.change.after),
        how: how_word(event.change.how),
        exact: event.change.how.is_exact(),
        ip: event.ip.0,
        by: location(&one.by),
        stack: one.stack.iter().map(|caller| location(caller)).collect(),
    })
}

/// The summary, so far or at the end.
pub(crate) fn summary(tallied: &Tallied, tally: &Tally, end: Option<&WatchEnd>, last: bool) -> String {
    let mut covered = tally.covered_ns.iter().flatten();
    let places = tallied.watched.iter().enumerate().map(|(index, one)| PlaceRow {
        events: Some(tallied.of_place(index)),
        covered_ns: covered.next().copied(),
        ..place(one)
    });
    let writers = tallied.writers().into_iter().map(|(writer, accesses)| WriterRow {
        place: &tallied.watched[writer.watched].label,
        pid: tallied.watched[writer.watched].pid,
        comm: &writer.comm,
        kind: kind_word(writer.kind),
        by: location(&writer.by),
        threads: accesses.tids.len(),
        accesses: accesses.count,
    });
    line(&Summary {
        r#type: "watch_summary",
        schema: SCHEMA,
        last,
        seconds: tally.watched.as_secs_f64(),
        accesses: tallied.shown,
        exact: tallied.exact,
        traps: tally.events + tally.lost,
        lost: tally.lost,
        undecided: tallied.undecided,
        malformed: tally.malformed,
        threads: tally.threads,
        born: tally.born,
        arming_ns: tally.arming.as_nanos() as u64,
        disarming_ns: tally.disarming.as_nanos() as u64,
        ns_per_trap: end.and_then(|end| end.ns_per_trap),
        cpu_ns: end.map(|end| end.cpu.as_nanos() as u64),
        places: places.collect(),
        writers: writers.collect(),
        late: tally.late,
        unwatched: tally.unwatched,
        lost_traps: tally.lost_traps,
        unexplained: tally.unexplained,
        lost_more: tally.lost_more,
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples::sample;
    use super::{access, start, summary};

    #[test]
    fn objects_are_as_documented() {
        let (tallied, accesses, end) = sample();
        let expected = r#"{"type":"watch_start","schema":1,"places":[{"place":"server.small","pid":42,"addr":4096,"len":1,"access":"w"}]}
"#;
        assert_eq!(start(&tallied.watched), expected);
        let expected = r#"{"type":"watch","schema":1,"time_ns":1500,"place":"server.small","pid":42,"tid":43,"comm":"worker","cpu":1,"kind":"write","before":-1,"before_exact":true,"after":5,"how":"stored","exact":true,"ip":8192,"function":"store+0x4","file":"/src/a.c","line":7,"stack":[{"function":"libfoo:run+0x9","file":null,"line":null}]}
"#;
        assert_eq!(access(&accesses[0], &tallied), expected);
        let expected = r#"{"type":"watch_summary","schema":1,"last":true,"seconds":2.0,"accesses":2,"exact":1,"traps":5,"lost":3,"undecided":0,"malformed":0,"threads":2,"born":1,"arming_ns":1000,"disarming_ns":2000,"ns_per_trap":9000.0,"cpu_ns":1000000,"places":[{"place":"server.small","pid":42,"addr":4096,"len":1,"access":"w","events":2}],"writers":[{"place":"server.small","pid":42,"comm":"worker","kind":"write","function":"store+0x4","file":"/src/a.c","line":7,"threads":1,"accesses":2}],"late":0,"unwatched":0,"lost_traps":0,"unexplained":0}
"#;
        assert_eq!(summary(&tallied, &end.tally, Some(&end), true), expected);
    }
}
