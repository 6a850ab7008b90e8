//! `replay`, `report`, `dump`, `graph --from`, `diff` and `info`: show what `record` wrote.
//!
//! In: a folder with a recording, which anyone may have written. Out: lines, a table, a tree or a file's text. Invariant:
//! everything that can be shown is shown before an error behind it is reported, and the exit status is then 1. Does not:
//! touch a process.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use trapline::recorded::{Recorded, Visit};
use trapline::saved::{SavedError, Step};

use super::record::{Begin, End};
use super::{Failure, Outcome};
use crate::args::command::record::{Diff, Form, Selection, Shown, Sort};
use crate::args::ready::record::FILE;
use crate::args::ready::trigger::triggers;
use crate::args::sink::Sink;
use crate::output::{Output, OutputError, print_line};
use crate::report::number::grouped;
use crate::report::recorded::diff::{Side, table};
use crate::report::recorded::info::{About, lines, object};
use crate::report::recorded::thinned::note;
use crate::report::recorded::{Chrome, Replay, Selected, Text, Totals, Tree};
use crate::report::stacks::flame;

/// Bytes that are read and written at once.
const AT_ONCE: usize = 1 << 20;
/// Bytes that are read at once where blocks are passed over.
const A_PAGE: usize = 1 << 12;

/// Runs `replay`, `report`, `dump` or `graph --from`.
pub(crate) fn run(args: &Shown) -> Result<Outcome, Failure> {
    if let Form::Picture { output, unit } = &args.form {
        return picture(&args.dir, output.clone(), unit);
    }
    let selection = &args.selection;
    let mut reading = Reading::open(&args.dir, (selection.since, selection.until))?;
    let signatures = reading.begin().signatures();
    let signatures =
        signatures.map_err(|why| Failure::Other(format!("cannot read {}: {why}", reading.name)))?;
    let file = match &args.form {
        Form::Chrome(file) | Form::Flame(file) => file.clone(),
        _ => None,
    };
    let mut output = match file {
        Some(_) => Output::open(&Sink { output: file, ..Sink::default() }, false)?,
        None => Output::pages(args.paged),
    };
    let shown = match &args.form {
        Form::Replay(fields) => {
            reading.choose(selection, &mut Replay::new(*fields, &signatures), &mut output)
        }
        Form::Report { sort, json } => reading.choose(selection, &mut Totals::new(*sort, *json), &mut output),
        Form::Graph { root, depth } => match root.parse() {
            Ok(root) => reading.choose(selection, &mut Tree::below(root, *depth), &mut output),
            Err(why) => return Err(Failure::Other(format!("cannot read `{root}`: {why}"))),
        },
        Form::Chrome(_) => reading.choose(selection, &mut Chrome::new(&signatures), &mut output),
        Form::Flame(_) | Form::Picture { .. } => reading.choose(selection, &mut Tree::folded(), &mut output),
    };
    outcome(shown)
}

fn outcome(shown: Result<bool, OutputError>) -> Result<Outcome, Failure> {
    match shown {
        Ok(true) | Err(OutputError::Gone) => Ok(Outcome::Done),
        Ok(false) => Ok(Outcome::Failed),
        Err(error) => Err(error.into()),
    }
}

/// Runs `diff`.
pub(crate) fn diff(args: &Diff) -> Result<Outcome, Failure> {
    let mut totals = [Totals::new(args.sort, false), Totals::new(args.sort, false)];
    let mut output = Output::pages(args.paged);
    let (mut sides, mut is_whole) = (Vec::new(), true);
    for (dir, totals) in args.dirs.iter().zip(&mut totals) {
        let mut reading = Reading::open(dir, (args.selection.since, args.selection.until))?;
        let selection = reading.selection(&args.selection);
        let step = reading.read(&mut Selected::new(selection, totals), |_| Ok(()));
        is_whole &= step.map(|step| reading.close(step))?;
        let ticks = reading.recorded.ticks();
        sides.push(Side { name: dir.display().to_string(), command: reading.begin().command, totals, ticks });
    }
    let Ok(sides) = <[Side<'_>; 2]>::try_from(sides) else { return Ok(Outcome::Failed) };
    let text = table(&sides, args.sort, args.full);
    outcome(output.bytes(text.as_bytes()).and_then(|()| output.end()).map(|()| is_whole))
}

/// Runs `info`.
pub(crate) fn info(dir: &Path, json: bool) -> Result<Outcome, Failure> {
    let Reading { recorded, name } = Reading::open(dir, (Duration::MAX, None))?;
    let bytes = std::fs::metadata(dir.join(FILE)).map_or(0, |meta| meta.len());
    let mut reading = Reading { recorded: recorded.without_words(), name };
    let step = reading.read(&mut Totals::new(Sort::Name, false), |_| Ok(()))?;
    let end = match &step {
        Ok(Step::End(_)) => "whole".to_owned(),
        Ok(Step::Cut(at)) => format!("ends at byte {at} without its end mark"),
        Ok(Step::Round { .. }) => String::new(),
        Err(error) => error.to_string(),
    };
    let summary = match &step {
        Ok(Step::End(note)) => serde_json::from_slice::<End>(note).map(|end| end.summary).unwrap_or_default(),
        _ => String::new(),
    };
    let (begin, path) = (reading.begin(), reading.name.clone());
    let Begin { version, command, lossless, triggers, budget, .. } = begin;
    let about = About { path, bytes, version, command, lossless, triggers, budget, end, summary };
    let mut output = Output::open(&Sink::default(), false)?;
    let text = if json { object(&about, &reading.recorded) } else { lines(&about, &reading.recorded) };
    outcome(output.bytes(text.as_bytes()).map(|()| matches!(step, Ok(Step::End(_)))))
}

/// Draws a file of folded stacks.
fn picture(from: &Path, output: Option<PathBuf>, unit: &str) -> Result<Outcome, Failure> {
    let cannot = |why: std::io::Error| {
        Failure::Other(format!("cannot read {}: {why}; give a file of folded stacks", from.display()))
    };
    let lines = std::fs::read_to_string(from).map_err(cannot)?;
    let title = from.file_name().unwrap_or(from.as_os_str()).to_string_lossy();
    let mut output = Output::open(&Sink { output, ..Sink::default() }, false)?;
    output.bytes(&flame::picture(&lines, &title, unit))?;
    Ok(Outcome::Done)
}

/// A recording that is being shown.
struct Reading {
    recorded: Recorded<BufReader<File>>,
    name: String,
}

impl Reading {
    /// Opens the file in a folder, to read what is between two times.
    fn open(dir: &Path, (since, until): (Duration, Option<Duration>)) -> Result<Self, Failure> {
        let path = dir.join(FILE);
        let name = path.display().to_string();
        let cannot = |why: &dyn std::fmt::Display| {
            Failure::Other(format!("cannot read {name}: {why}; make a recording with trapline record"))
        };
        let file = File::open(&path).map_err(|error| cannot(&error))?;
        let at_once = if since.is_zero() && until.is_none() { AT_ONCE } else { A_PAGE };
        let recorded =
            Recorded::open(BufReader::with_capacity(at_once, file)).map_err(|error| cannot(&error))?;
        Ok(Self { recorded: recorded.between(since, until), name })
    }
    /// What its first block says; nothing, if another program wrote it.
    fn begin(&self) -> Begin {
        serde_json::from_slice(self.recorded.note()).unwrap_or_default()
    }
    /// What is asked for, and what the recording itself asks for. It may have any words; those that are none count for nothing.
    fn selection(&self, asked: &Selection) -> Selection {
        asked.clone().with(triggers(&self.begin().triggers).unwrap_or_default())
    }
    /// Reads all of it. `each` comes behind each round.
    fn read<T: Visit>(
        &mut self,
        visit: &mut T,
        mut each: impl FnMut(&mut T) -> Result<(), OutputError>,
    ) -> Result<Result<Step, SavedError>, OutputError> {
        loop {
            let step = self.recorded.round(visit);
            each(visit)?;
            match step {
                Ok(Step::Round { .. }) => {}
                other => return Ok(other),
            }
        }
    }
    /// Shows what is selected; returns whether the recording was complete.
    fn choose<T: Visit + Text>(
        &mut self,
        selection: &Selection,
        text: &mut T,
        output: &mut Output,
    ) -> Result<bool, OutputError> {
        let selection = self.selection(selection);
        match selection.is_all() {
            true => self.show(text, output),
            false => {
                let mut selected = Selected::new(selection, text);
                let shown = self.show(&mut selected, output);
                selected.unmet().iter().for_each(|line| print_line(&format!("note: {line}")));
                shown
            }
        }
    }
    /// Shows all of it; returns whether it was complete.
    fn show<T: Visit + Text>(&mut self, text: &mut T, output: &mut Output) -> Result<bool, OutputError> {
        output.bytes(text.head().as_bytes())?;
        let step = self.read(text, |text| write(output, text, AT_ONCE))?;
        text.end(self.recorded.ticks());
        write(output, text, 0)?;
        output.end()?;
        Ok(self.close(step))
    }
    /// Says what a reader should know about the recording itself.
    fn close(&self, step: Result<Step, SavedError>) -> bool {
        let (totals, name) = (self.recorded.totals(), &self.name);
        let notes = [
            (
                totals.lost,
                "entries and exits are missing, which found their buffer full: record with --lossless, or a larger --buffer",
            ),
            (totals.unpaired, "returns are left out: the beginnings of their calls are not recorded"),
            (totals.skipped, "words of the file say nothing"),
        ];
        for (many, what) in notes.into_iter().filter(|(many, _)| *many > 0) {
            print_line(&format!("note: {} {what}", grouped(many)));
        }
        note(self.recorded.taken_out().len())
            .into_iter()
            .for_each(|line| print_line(&format!("note: {line}")));
        match step {
            Ok(Step::End(note)) => match serde_json::from_slice::<End>(&note) {
                Ok(_) => true,
                Err(error) => {
                    print_line(&format!("trapline: cannot read the end of {name}: {error}"));
                    false
                }
            },
            Ok(Step::Cut(at)) => {
                print_line(&format!(
                    "trapline: {name} ends at byte {at} without its end mark, as when its tracer is killed; shown is what is there: {} calls",
                    grouped(totals.calls)
                ));
                false
            }
            Ok(Step::Round { .. }) => true,
            Err(error) => {
                print_line(&format!("trapline: cannot read {name} further: {error}"));
                false
            }
        }
    }
}

/// Writes what there is, if it is more than that.
fn write(output: &mut Output, text: &mut dyn Text, least: usize) -> Result<(), OutputError> {
    let lines = text.lines();
    if lines.len() > least {
        output.bytes(lines)?;
        lines.clear();
    }
    Ok(())
}
