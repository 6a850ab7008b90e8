//! What a recording is of, in the form of `uftrace info`.
//!
//! In: what stands beside the words of a file. Out: lines. Does not: read, or know calls.

use std::time::Duration;

use trapline::recorded::Recorded;

use crate::report::number::{duration, grouped};
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
    for line in about.summary.lines() {
        if let Some((name, value)) = line.split_once(": ") {
            row(name, value);
        }
    }
    for (nth, process) in recorded.processes().iter().enumerate() {
        text.push_str("#\n# process\n# =======\n");
        let functions = recorded.functions().iter().filter(|function| function.process == nth).count();
        let mut threads = recorded.named_threads(nth);
        threads.sort_unstable();
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
    text
}

/// A time as `date -d @…` takes it.
fn began(since_1970: Duration) -> String {
    format!("@{}.{:09} (seconds since 1970)", since_1970.as_secs(), since_1970.subsec_nanos())
}
