//! What `count`, `lat` and `top` make of a session: its reports, at intervals and at the end.
//!
//! In: reports. Out: what a [`Renderer`] makes of them. Does not: know what it makes.

use std::borrow::Cow;

use trapline::system::time_of_day;
use trapline::{Finished, ProcessReport, Session, merged};

use super::run::follow::Reporter;
use crate::args::command::Run;
use crate::output::{Output, OutputError};
use crate::report::Renderer;
use crate::report::format::Format;

/// The reports of a run.
pub(super) struct Tables<'a> {
    run: &'a Run,
    renderer: Box<dyn Renderer + 'a>,
}

impl<'a> Tables<'a> {
    pub(super) fn new(run: &'a Run, renderer: Box<dyn Renderer + 'a>) -> Self {
        Self { run, renderer }
    }
    /// Writes the present reports of all processes.
    fn print(
        &mut self,
        reports: &[ProcessReport],
        live: bool,
        output: &mut Output,
    ) -> Result<(), OutputError> {
        let time = self.run.timestamps.then(time_of_day);
        // For people, a table for each program is enough.
        let reports = match self.run.sink.format {
            Format::Text => Cow::Owned(merged(reports)),
            _ => Cow::Borrowed(reports),
        };
        for report in &*reports {
            output.print(&head(self.run.sink.format, time.as_deref()))?;
            output.print(&self.renderer.report(report, live, time.as_deref()))?;
        }
        Ok(())
    }
}

impl Reporter for Tables<'_> {
    fn report(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError> {
        self.print(&session.report(), true, output)
    }
    fn close(&mut self, finished: &Finished, output: &mut Output) -> Result<(), OutputError> {
        self.print(&finished.reports, false, output)?;
        output.print(&self.renderer.end(&finished.summary))
    }
}

/// The time of day and a blank line between reports, for people.
fn head(format: Format, time: Option<&str>) -> String {
    match (format, time) {
        (Format::Text, Some(time)) => format!("\n{time}\n"),
        (Format::Text, None) => "\n".to_owned(),
        _ => String::new(),
    }
}
