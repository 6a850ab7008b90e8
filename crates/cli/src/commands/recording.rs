//! `trace --from`: shows a recording as the same run would have shown its calls.
//!
//! In: a file, which anyone may have written. Out: lines, rows, objects or a timeline, by the code that the
//! live command uses ([`super::calls`]). Invariant: everything that can be shown is shown before an error
//! behind it is reported, and the exit status is then 1. Does not: touch a process.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use trapline::filter::Filter;
use trapline::saved::{Saved, SavedError, Step};
use trapline::{Call, ProbeSpec, Site};

use super::calls::{Report, Source};
use super::record::is_of_words;
use super::{Failure, Outcome};
use crate::args::command::Recording;
use crate::args::error::UsageError;
use crate::args::fields::Fields;
use crate::args::filters::filters;
use crate::args::kept::{Begin, End};
use crate::args::types::Signature;
use crate::output::{Output, OutputError, print_line};
use crate::report::format::Format;
use crate::report::number::grouped;
use crate::report::site::asked_for;

/// Bytes that are read at once.
const AT_ONCE: usize = 1 << 20;

type Probes = [(ProbeSpec, Option<Signature>)];

/// Runs `trace --from`.
pub(crate) fn run(args: &Recording) -> Result<Outcome, Failure> {
    let name = args.file.display();
    let cannot = |why: &dyn std::fmt::Display| Failure::Other(format!("cannot read {name}: {why}"));
    let file = File::open(&args.file).map_err(|error| cannot(&error))?;
    if is_output(args, &file) {
        return Err(Failure::Words(UsageError::Conflict("--from and -o are the same file")));
    }
    let saved = Saved::open(BufReader::with_capacity(AT_ONCE, file)).map_err(|error| cannot(&error))?;
    if is_of_words(saved.note()) {
        return Err(cannot(&SavedError::Compact));
    }
    let begin = Begin::read(saved.note()).map_err(|error| cannot(&error))?;
    let probes = begin.probes().map_err(|error| cannot(&error))?;
    let chosen = chosen(args, &begin, &probes).map_err(Failure::Words)?;
    let saved = match chosen.is_empty() {
        true => saved,
        false => saved.choose(|site| filter_of(&probes, &chosen, site)),
    };
    let mut output = Output::open(&args.sink, false)?;
    let mut report = Report::new(&probes, args.sink.format, false, args.max);
    let mut reading = Reading { saved, step: Ok(Step::Round { last: false }) };
    let reported = reading.report_calls(&mut report, &mut output);
    let reported = reported.and_then(|()| reading.close(args, &mut report, &mut output));
    Ok(match reported {
        Ok(true) | Err(OutputError::Gone) => Outcome::Done,
        Ok(false) => Outcome::Failed,
        Err(error) => {
            print_line(&format!("trapline: {error}"));
            Outcome::Failed
        }
    })
}

/// Whether the output would overwrite the file while it is read.
fn is_output(args: &Recording, file: &File) -> bool {
    let of = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    let read = file.metadata().map(of).ok();
    let written = args.sink.output.as_ref().and_then(|path| path.metadata().ok()).map(of);
    written.is_some() && read == written
}

/// The filter of each probe; empty if nothing is filtered.
fn chosen(args: &Recording, begin: &Begin, probes: &Probes) -> Result<Vec<Arc<Filter>>, UsageError> {
    let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::of(one.as_ref())).collect();
    if args.filter_options.is_nothing() {
        return Ok(Vec::new());
    }
    let filters = filters(probes, begin.returns, &args.filter_options, &fields)?;
    let filters: Vec<Arc<Filter>> = filters.into_iter().map(|filter| Arc::new(filter.by_reader())).collect();
    if filters.iter().any(|filter| filter.arguments() > begin.arguments) {
        return Err(UsageError::Conflict(
            "--if asks of an argument that was not recorded; name it in the probe's signature when recording",
        ));
    }
    Ok(filters)
}

fn filter_of(probes: &Probes, filters: &[Arc<Filter>], site: &Site) -> Option<Arc<Filter>> {
    let (nth, _) = asked_for(probes, site).next()?;
    filters.get(nth).cloned()
}

/// A recording, as far as it was read.
struct Reading<'a, R> {
    saved: Saved<'a, R>,
    step: Result<Step, SavedError>,
}

impl<R: Read> Source for Reading<'_, R> {
    fn each(&mut self, each: &mut dyn FnMut(&Call)) -> usize {
        self.step = self.saved.each_call(each);
        0
    }
    fn calls(&mut self) -> Vec<Call> {
        let (calls, step) = match self.saved.calls() {
            Ok((calls, step)) => (calls, Ok(step)),
            Err(error) => (Vec::new(), Err(error)),
        };
        self.step = step;
        calls
    }
    fn is_last(&self) -> bool {
        matches!(self.step, Ok(Step::Round { last: true }))
    }
    fn name(&mut self, call: &Call) -> Option<String> {
        self.saved.thread_name(call)
    }
}

impl<R: Read> Reading<'_, R> {
    /// Shows all rounds.
    fn report_calls(&mut self, report: &mut Report<'_>, output: &mut Output) -> Result<(), OutputError> {
        while report.left > 0 && matches!(self.step, Ok(Step::Round { .. })) {
            report.round(self, output)?;
        }
        Ok(())
    }
    /// Shows what stands behind the calls; returns whether the recording was complete.
    fn close(
        &self,
        args: &Recording,
        report: &mut Report<'_>,
        output: &mut Output,
    ) -> Result<bool, OutputError> {
        let name = args.file.display();
        report.names(self.saved.processes(), output)?;
        match &self.step {
            Ok(Step::End(note)) => match End::read(note) {
                Ok(end) => self.end(args, &end, output),
                Err(error) => {
                    print_line(&format!("trapline: cannot read the end of {name}: {error}"));
                    Ok(false)
                }
            },
            // The limit of `--max` was reached.
            Ok(Step::Round { .. }) => Ok(true),
            Ok(Step::Cut(at)) => {
                let (read, lost) = self.saved.counted();
                print_line(&format!(
                    "trapline: {name} ends at byte {at} without its end mark, as when its tracer is killed; shown is what is there: {} hits recorded, {} missed as far as is known",
                    grouped(read),
                    grouped(lost)
                ));
                Ok(false)
            }
            Err(error) => {
                print_line(&format!("trapline: cannot read {name} further: {error}"));
                Ok(false)
            }
        }
    }
    /// Shows what the live command prints at its end.
    fn end(&self, args: &Recording, end: &End, output: &mut Output) -> Result<bool, OutputError> {
        if args.sink.json {
            for line in &end.reports {
                output.print(line)?;
            }
        }
        if args.sink.quiet {
            return Ok(true);
        }
        let mut text = end.summary.clone();
        let left_out = self.saved.left_out();
        if left_out > 0 {
            text.push_str(&format!("note: {} calls are left out here\n", grouped(left_out)));
        }
        self.saved.notices().iter().for_each(|notice| text.push_str(&format!("note: {notice}\n")));
        match output {
            Output::File(..) if args.sink.format == Format::Text => output.print(&text)?,
            _ => print_line(text.trim_end()),
        }
        Ok(true)
    }
}
