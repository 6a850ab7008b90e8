//! `top`: a table that is redrawn continually on a terminal; lines elsewhere.
//!
//! Invariants: END-1, as for every run; TOP-2 the terminal is restored before anything is printed on it.

use std::io;
use std::time::Duration;

use trapline::{Builder, Error, Finished, Interrupts, ProcessReport, Session, Target};

use super::run::follow::{ROUND, TICK, Turns, follow};
use super::run::schedule::{Event, Schedule};
use super::run::sinks::Sinks;
use super::run::{Request, ending, interrupts};
use super::tables::Tables;
use super::{Failure, Outcome};
use crate::args::command::Ends;
use crate::args::top::Top;
use crate::output::OutputError;
use crate::report::csv::Csv;
use crate::report::format::Format;
use crate::report::{Renderer, json, summary};
use crate::top::draw;
use crate::top::lines::Lines;
use crate::top::model::Model;
use crate::top::screen::{self, Screen};
use crate::top::view::{KeyAction, View};

/// Runs `top`.
pub(crate) fn run(args: &Top) -> Result<Outcome, Failure> {
    let Top { run, timed, .. } = args;
    let (sink, timed) = (&run.sink, *timed);
    let launched = matches!(run.target, Target::Launch(_));
    let plain = sink.format == Format::Text && sink.output.is_none();
    if plain && !run.dry_run && !launched && screen::is_there() {
        return live(args);
    }
    let renderer: Box<dyn Renderer> = match sink.format {
        Format::Json => {
            Box::new(
                move |report: &ProcessReport, _: bool, time: Option<&str>| {
                    if timed { json::lat(report, time) } else { json::count(report, None, time) }
                },
            )
        }
        Format::Csv if timed => Box::new(Csv::lat(run.timestamps)),
        Format::Csv => Box::new(Csv::count(None, run.timestamps)),
        _ => Box::new(Lines::new(timed, args.sort)),
    };
    let request = Request::new(run).ends(Ends::default(), timed);
    request.run(|builder| start(builder, timed), &mut Tables::new(run, renderer))
}

fn start(builder: Builder, timed: bool) -> Result<Session, Error> {
    if timed { builder.latency() } else { builder.count() }
}

/// Runs it on a terminal.
fn live(args: &Top) -> Result<Outcome, Failure> {
    let run = &args.run;
    let interrupts = interrupts()?;
    let mut sinks = Sinks::open(&run.sink, &run.target)?;
    let mut session = start(run.builder(), args.timed)?;
    // The terminal is for the table until the end.
    let mut notices = session.take_notices();
    let opened =
        Screen::open().map_err(|source| OutputError::Open { file: "the terminal".to_owned(), source })?;
    let interval = run.interval.unwrap_or(TICK);
    let mut table = TopTable {
        session: &mut session,
        interrupts: &interrupts,
        model: Model::default(),
        view: View::new(args.timed, args.sort, interval, screen::is_ascii()),
        screen: opened,
        stale: true,
    };
    let pace = if run.follow { ROUND } else { TICK };
    let followed = table.report().and_then(|()| follow(Schedule::new(pace, run.duration), &mut table));
    let TopTable { model, screen, .. } = table;
    let finished = session.detach();
    drop(screen);
    let reported = followed.and_then(|()| {
        notices.retain(|notice| !finished.summary.notices.contains(notice));
        sinks.notices(notices);
        close(args, model, &finished, &mut sinks)
    });
    ending::end(finished, reported.map_err(Failure::from), &sinks, &interrupts)
}

/// The table on the screen.
struct TopTable<'a> {
    session: &'a mut Session,
    interrupts: &'a Interrupts,
    model: Model,
    view: View,
    screen: Screen,
    /// Whether what is on the screen is no longer so.
    stale: bool,
}

impl Turns for TopTable<'_> {
    fn turn(&mut self, at_most: Duration) -> Result<Event, OutputError> {
        if std::mem::take(&mut self.stale) {
            let (model, view) = (&self.model, &mut self.view);
            self.screen.draw(|frame| draw::draw(frame, model, view)).map_err(broken)?;
        }
        for event in self.screen.events(at_most).map_err(broken)? {
            self.stale = true;
            let page = draw::page(self.screen.height());
            if event.is_some_and(|key| self.view.key(key, page) == KeyAction::Quit) {
                return Ok(Event::Enough);
            }
        }
        if self.interrupts.wait(Duration::ZERO).is_some() {
            return Ok(Event::Interrupted);
        }
        Ok(if self.session.poll() { Event::Quiet } else { Event::TargetEnded })
    }
    fn report(&mut self) -> Result<(), OutputError> {
        self.model.feed(&self.session.report());
        self.stale = true;
        Ok(())
    }
    fn interval(&self) -> Option<Duration> {
        (!self.view.paused).then_some(self.view.interval)
    }
}

/// What an error of the terminal means, judged as [`Output::print`](crate::output::Output::print) does for a
/// stream.
fn broken(source: io::Error) -> OutputError {
    let is_gone =
        matches!(source.raw_os_error(), Some(5 | 32)) || source.kind() == io::ErrorKind::UnexpectedEof;
    match is_gone {
        true => OutputError::Gone,
        false => OutputError::Write { file: "the terminal".to_owned(), source },
    }
}

/// Prints the whole run as lines, where the prompt will be.
fn close(args: &Top, model: Model, finished: &Finished, sinks: &mut Sinks) -> Result<(), OutputError> {
    let mut lines = Lines::after(model, args.timed, args.sort);
    for report in &finished.reports {
        sinks.output.print(&lines.report(report, false, None))?;
    }
    sinks.summary(&summary::text(&finished.summary))
}
