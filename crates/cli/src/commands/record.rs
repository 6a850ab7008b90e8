//! `record`: every call of a whole program, as words, into a folder.
//!
//! In: what to record, a folder. Out: the folder with one file (`trapline::saved` has its form). The words are written as they
//! were taken, many at once. Invariant: OUT-1: an earlier recording stays until there is a session. Does not: show calls.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use trapline::{Builder, CompactValues, Finished, ProbeSpec, Session, saved};

use super::run::follow::Reporter;
use super::run::schedule::Event;
use super::run::{Request, typed};
use super::{Failure, Outcome};
use crate::args::command::record::Record;
use crate::args::command::types::{Signature, Type};
use crate::args::kept::{self, KeptError, Probe};
use crate::output::{Output, OutputError, print_line};
use crate::report::recorded::thinned::{Row, table};
use crate::report::summary;

/// After a round with more words than this, or than a quarter of a buffer, the next one follows at once.
const BUSY: usize = 1 << 15;

/// The note of the first block.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Version of the program that wrote it.
    pub(crate) version: String,
    /// The command line.
    pub(crate) command: String,
    /// Whether threads waited for room.
    pub(crate) lossless: bool,
    /// The probes with values, and their types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    probes: Vec<Probe>,
    /// The share of the program's time that recording might cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) budget: Option<f64>,
    /// What happens at calls of some functions when it is shown, as typed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) triggers: Vec<String>,
}

impl Begin {
    /// The types by which values are shown.
    pub(crate) fn signatures(&self) -> Result<Vec<(ProbeSpec, Option<Signature>)>, KeptError> {
        self.probes.iter().map(Probe::ready).collect()
    }
}

impl Record {
    /// What records hold besides the time.
    fn values(&self) -> Vec<CompactValues> {
        self.each(|signature| CompactValues {
            arguments: signature.registers(),
            returned: signature.value != Some(Type::Void),
        })
    }
    /// One of a signature's facts, for each probe; nothing for probes without one.
    fn each<T: Default>(&self, of: impl Fn(&Signature) -> T) -> Vec<T> {
        self.probes.iter().map(|(_, signature)| signature.as_ref().map_or_else(T::default, &of)).collect()
    }
}

/// The note of the last block.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct End {
    /// The summary for people.
    pub(crate) summary: String,
}

/// Whether a file's note is one of these.
pub(crate) fn is_of_words(note: &[u8]) -> bool {
    serde_json::from_slice::<Begin>(note).is_ok()
}

/// Runs `record`.
pub(crate) fn run(args: &Record) -> Result<Outcome, Failure> {
    let is_new = !args.run.dry_run && create(&args.dir)?;
    let start = |builder: Builder| {
        let builder = builder.leave_out(args.least_bytes, args.without.clone());
        let builder = builder.texts(args.each(Signature::texts)).ended_texts(args.each(Signature::ended));
        let builder = builder.floats(args.each(Signature::floats)).values(args.values());
        let builder = builder.filters(args.filters.clone()).libcalls(args.libcalls);
        builder.ring(args.buffer).budget(args.budget).record_words(args.lossless)
    };
    let request = Request::new(&args.run).ends(args.ends, true).often(true).reports(false);
    let outcome = request.run(start, &mut Writer { args });
    if is_new && outcome.is_err() {
        // Only an empty folder is removed.
        drop(fs::remove_dir(&args.dir));
    }
    outcome
}

/// Creates the folder; returns whether there was none.
fn create(dir: &Path) -> Result<bool, Failure> {
    match fs::create_dir(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(false),
        Err(source) => Err(OutputError::Open { file: dir.display().to_string(), source }.into()),
    }
}

/// Writes words as they come.
struct Writer<'a> {
    args: &'a Record,
}

impl Reporter for Writer<'_> {
    fn begin(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError> {
        let note = Begin {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: typed(),
            lossless: self.args.lossless,
            probes: Probe::all(&self.args.probes),
            budget: self.args.budget,
            triggers: self.args.triggers.clone(),
        };
        output.bytes(&session.save_begin(&kept::bytes(&note)))
    }
    fn take(&mut self, session: &mut Session, output: &mut Output) -> Result<Event, OutputError> {
        let taken = session.save(&mut |bytes: &[u8]| output.bytes(bytes))?;
        let busy = BUSY.min(self.args.buffer as usize / 32);
        Ok(if taken > busy { Event::Busy } else { Event::Quiet })
    }
    fn report(&mut self, _: &mut Session, _: &mut Output) -> Result<(), OutputError> {
        Ok(())
    }
    fn before_detach(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError> {
        self.take(session, output).map(drop)
    }
    fn close(&mut self, finished: &Finished, output: &mut Output) -> Result<(), OutputError> {
        output.bytes(&finished.saved)?;
        if !self.args.run.sink.quiet && !finished.thinned.is_empty() {
            let rows = finished.thinned.iter().map(|one| Row {
                at: one.at,
                calls: one.calls,
                share: one.share,
                function: &one.function,
            });
            print_line(table(rows).trim_end());
        }
        let note = End { summary: summary::text(&finished.summary) };
        output.bytes(&saved::end(&kept::bytes(&note)))
    }
}
