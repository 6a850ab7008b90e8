//! What a recording is of, in the form of `uftrace info`.
//!
//! In: what stands beside the words of a file. Out: lines. Does not: read, or know calls.

use std::time::Duration;

use trapline::recorded::Recorded;
use trapline_order::Order as _;

use serde::Serialize;

use super::thinned::{Row, table};
use crate::report::number::{duration, grouped, percent};
use crate::report::visible;

/// What the file itself does not say of a recording.
#[derive(Debug)]
pub(crate) struct About {
    /// Its path, and its length in bytes.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Version of the program that wrote it, and the command line.
    pub(crate) version: String,
    pub(crate) command: String,
    /// Whether threads waited for room.
    pub(crate) lossless: bool,
    /// What happens at calls of some functions when it is shown, as typed.
    pub(crate) triggers: Vec<String>,
    /// The share of the program's time that recording might cost.
    pub(crate) budget: Option<f64>,
    /// How it ends: `whole`, or where and why it does not.
    pub(crate) end: String,
    /// The summary of the run, if there is one.
    pub(crate) summary: String,
}

/// The lines.
pub(crate) fn lines<R>(about: &About, recorded: &Recorded<R>) -> String {
    let (mut text, totals) = (String::from("# recording\n# =========\n"), recorded.totals());
    let words = (totals.passed + 8 * totals.words) / 8;
    let rows = [
        ("recorded by", format!("trapline {}", about.version)),
        ("command", about.command.clone()),
        ("began", began(recorded.began())),
        ("elapsed", duration(recorded.ticks().since_begin(recorded.last_round()))),
        ("file", format!("{}, {} bytes, {}", about.path, grouped(about.bytes), about.end)),
        ("words", format!("{} at most, of 8 bytes: entries, exits, and contexts", grouped(words))),
        (
            "full buffers",
            if about.lossless { "threads waited".to_owned() } else { "records were dropped".to_owned() },
        ),
        ("missing", format!("{} entries and exits", grouped(totals.lost))),
    ];
    let mut row = |name: &str, value: &str| {
        text.push_str(&format!("# {name:<16}: {}\n", visible::name(value)));
    };
    rows.iter().for_each(|(name, value)| row(name, value));
    if let Some(budget) = about.budget {
        row("budget", &percent(budget));
    }
    about.triggers.iter().for_each(|trigger| row("trigger", trigger));
    for line in about.summary.lines() {
        if let Some((name, value)) = line.split_once(": ") {
            row(name, value);
        }
    }
    for (nth, process) in recorded.processes().iter().enumerate() {
        text.push_str("#\n# process\n# =======\n");
        let functions = recorded.functions().iter().filter(|function| function.process == nth).count();
        let mut threads = recorded.named_threads(nth);
        threads.order();
        let named = |(tid, name): &(u32, Option<&str>)| format!("{tid}({})", name.unwrap_or("?"));
        let threads: Vec<String> = threads.iter().map(named).collect();
        for (name, value) in [
            ("pid", process.pid.to_string()),
            ("name", process.name.clone()),
            ("functions", grouped(functions as u64)),
            ("threads", format!("{}: {}", threads.len(), threads.join(", "))),
        ] {
            text.push_str(&format!("# {name:<16}: {}\n", visible::name(&value)));
        }
    }
    if !recorded.taken_out().is_empty() {
        let rows = recorded.taken_out().iter().map(|out| Row {
            at: Duration::from_nanos(recorded.ticks().since_begin(out.at)),
            calls: out.calls,
            share: out.share,
            function: &recorded.functions()[out.function].site.label,
        });
        let table = table(rows);
        text.push_str("#\n");
        table.lines().for_each(|line| text.push_str(&format!("# {line}\n")));
    }
    text
}

/// The same as one JSON object.
#[derive(Serialize)]
struct Object<'a> {
    file: &'a str,
    bytes: u64,
    version: &'a str,
    command: &'a str,
    began_ns: u64,
    elapsed_ns: u64,
    end: &'a str,
    words: u64,
    lossless: bool,
    missing: u64,
    triggers: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<f64>,
    processes: Vec<ProcessObject<'a>>,
    taken_out: Vec<TakenOutObject<'a>>,
}

#[derive(Serialize)]
struct ProcessObject<'a> {
    pid: u32,
    name: &'a str,
    functions: usize,
    threads: Vec<ThreadObject<'a>>,
}

#[derive(Serialize)]
struct ThreadObject<'a> {
    tid: u32,
    name: Option<&'a str>,
}

#[derive(Serialize)]
struct TakenOutObject<'a> {
    pid: u32,
    function: &'a str,
    at_ns: u64,
    calls: u64,
    cost: f64,
    record_ns: f64,
}

/// The object, and the end of the line.
pub(crate) fn object<R>(about: &About, recorded: &Recorded<R>) -> String {
    let (totals, ticks) = (recorded.totals(), recorded.ticks());
    let processes = recorded.processes().iter().enumerate().map(|(nth, process)| {
        let mut threads = recorded.named_threads(nth);
        threads.order();
        ProcessObject {
            pid: process.pid,
            name: &process.name,
            functions: recorded.functions().iter().filter(|function| function.process == nth).count(),
            threads: threads.into_iter().map(|(tid, name)| ThreadObject { tid, name }).collect(),
        }
    });
    let taken_out = recorded.taken_out().iter().map(|out| {
        let function = &recorded.functions()[out.function];
        TakenOutObject {
            pid: recorded.processes()[function.process].pid,
            function: &function.site.label,
            at_ns: ticks.since_begin(out.at),
            calls: out.calls,
            cost: out.share,
            record_ns: out.record_ns,
        }
    });
    let object = Object {
        file: &about.path,
        bytes: about.bytes,
        version: &about.version,
        command: &about.command,
        began_ns: u64::try_from(recorded.began().as_nanos()).unwrap_or(u64::MAX),
        elapsed_ns: ticks.since_begin(recorded.last_round()),
        end: &about.end,
        words: (totals.passed + 8 * totals.words) / 8,
        lossless: about.lossless,
        missing: totals.lost,
        triggers: &about.triggers,
        budget: about.budget,
        processes: processes.collect(),
        taken_out: taken_out.collect(),
    };
    serde_json::to_string(&object).unwrap_or_default() + "\n"
}

/// A time as `date -d @…` takes it.
fn began(since_1970: Duration) -> String {
    format!("@{}.{:09} (seconds since 1970)", since_1970.as_secs(), since_1970.subsec_nanos())
}
