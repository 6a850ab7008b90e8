//! `replay`, `report`, `dump` and `graph --from`: show what `record` wrote.
//!
//! In: a folder with a recording, which anyone may have written. Out: lines, a table, a tree or a file's text. Invariant:
//! everything that can be shown is shown before an error behind it is reported, and the exit status is then 1. Does not:
//! touch a process.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use trapline::recorded::{Recorded, Visit};
use trapline::saved::{SavedError, Step};

use super::record::End;
use super::{Failure, Outcome};
use crate::args::command::record::{Form, Shown};
use crate::args::ready::record::FILE;
use crate::args::sink::Sink;
use crate::output::{Output, OutputError, print_line};
use crate::report::number::grouped;
use crate::report::recorded::{Chrome, Replay, Text, Totals, Tree};
use crate::report::stacks::flame;

/// Bytes that are read and written at once.
const AT_ONCE: usize = 1 << 20;

/// Runs one of these verbs.
pub(crate) fn run(args: &Shown) -> Result<Outcome, Failure> {
    if let Form::Picture { output, unit } = &args.form {
        return picture(&args.dir, output.clone(), unit);
    }
    let path = args.dir.join(FILE);
    let name = path.display();
    let cannot = |why: &dyn std::fmt::Display| {
        Failure::Other(format!("cannot read {name}: {why}; make a recording with trapline record"))
    };
    let file = File::open(&path).map_err(|error| cannot(&error))?;
    let recorded = Recorded::open(BufReader::with_capacity(AT_ONCE, file)).map_err(|error| cannot(&error))?;
    let file = match &args.form {
        Form::Chrome(file) | Form::Flame(file) => file.clone(),
        _ => None,
    };
    let output = Output::open(&Sink { output: file, ..Sink::default() }, false)?;
    let mut reading = Reading { recorded, output, name: name.to_string() };
    let shown = match &args.form {
        Form::Replay { depth, tid } => reading.show(&mut Replay::new(*depth, *tid)),
        Form::Report(sort) => reading.show(&mut Totals::new(*sort)),
        Form::Graph { root, depth } => match root.parse() {
            Ok(root) => reading.show(&mut Tree::below(root, *depth)),
            Err(why) => return Err(Failure::Other(format!("cannot read `{root}`: {why}"))),
        },
        Form::Chrome(_) => reading.show(&mut Chrome::default()),
        Form::Flame(_) | Form::Picture { .. } => reading.show(&mut Tree::folded()),
    };
    match shown {
        Ok(true) | Err(OutputError::Gone) => Ok(Outcome::Done),
        Ok(false) => Ok(Outcome::Failed),
        Err(error) => Err(error.into()),
    }
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
    output: Output,
    name: String,
}

impl Reading {
    /// Shows all of it; returns whether it was complete.
    fn show<T: Visit + Text>(&mut self, text: &mut T) -> Result<bool, OutputError> {
        self.output.bytes(text.head().as_bytes())?;
        let step = loop {
            let step = self.recorded.round(text);
            self.write(text, AT_ONCE)?;
            match step {
                Ok(Step::Round { .. }) => {}
                other => break other,
            }
        };
        text.end(self.recorded.ticks());
        self.write(text, 0)?;
        Ok(self.close(step))
    }
    /// Writes what there is, if it is that much.
    fn write(&mut self, text: &mut dyn Text, least: usize) -> Result<(), OutputError> {
        let lines = text.lines();
        if lines.len() > least {
            self.output.bytes(lines)?;
            lines.clear();
        }
        Ok(())
    }
    /// Says what a reader should know about the recording itself.
    fn close(&self, step: Result<Step, SavedError>) -> bool {
        let (totals, name) = (self.recorded.totals(), &self.name);
        let notes = [
            (
                totals.lost,
                "entries and exits are missing, which found their buffer full: record with --lossless, or a larger --buffer",
            ),
            (totals.unpaired, "returns were of calls without a recorded entry"),
            (totals.skipped, "words of the file say nothing"),
        ];
        for (many, what) in notes.into_iter().filter(|(many, _)| *many > 0) {
            print_line(&format!("note: {} {what}", grouped(many)));
        }
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
