//! `top`: a table that is redrawn continually on a terminal; lines elsewhere.
//!
//! Invariants: END-1, as for `count`; TOP-2 the terminal is restored before anything is printed on it.

use std::io;
use std::time::{Duration, Instant};

use trapline::{Builder, Error, Finished, Interrupts, Session, Target};

use super::intervals::{FOLLOW_TICK, TICK, builder, report_at_intervals};
use super::{Failure, Outcome};
use crate::args::top::Top;
use crate::output::{Output, OutputError, print_line};
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
    let sink = &args.run.sink;
    if args.run.dry_run {
        return super::list::show(&builder(&args.run), args.timed, sink);
    }
    let launched = matches!(args.run.target, Target::Launch(_));
    if sink.format == Format::Text && sink.output.is_none() && !launched && screen::is_there() {
        return live(args);
    }
    let timed = args.timed;
    let mut renderer: Box<dyn Renderer> = match sink.format {
        Format::Json => {
            Box::new(
                move |report: &_, _: bool, time: Option<&str>| {
                    if timed { json::lat(report, time) } else { json::count(report, None, time) }
                },
            )
        }
        Format::Csv if timed => Box::new(Csv::lat(args.run.timestamps)),
        Format::Csv => Box::new(Csv::count(None, args.run.timestamps)),
        _ => Box::new(Lines::new(timed, args.sort)),
    };
    report_at_intervals(&args.run, |builder| start(builder, timed), &mut *renderer)
}

fn start(builder: Builder, timed: bool) -> Result<Session, Error> {
    if timed { builder.latency() } else { builder.count() }
}

/// Runs it on a terminal.
fn live(args: &Top) -> Result<Outcome, Failure> {
    let failed = |source| OutputError::Open { file: "the signals that end a run".to_owned(), source };
    let interrupts = Interrupts::new().map_err(failed)?;
    let mut session = start(builder(&args.run), args.timed)?;
    let mut notices = session.take_notices();
    let opened =
        Screen::open().map_err(|source| OutputError::Open { file: "the terminal".to_owned(), source })?;
    let interval = args.run.interval.unwrap_or(TICK);
    let mut table = Table {
        args,
        model: Model::default(),
        view: View::new(args.timed, args.sort, interval, screen::is_ascii()),
        screen: opened,
    };
    let broken = table.follow(&mut session, &interrupts).err();
    let finished = session.detach();
    let Table { model, screen, .. } = table;
    drop(screen);
    if let Some(error) = broken {
        // The terminal has hung up.
        return if is_gone(&error) { Ok(Outcome::Done) } else { Err(lost(error).into()) };
    }
    notices.retain(|notice| !finished.summary.notices.contains(notice));
    close(args, model, &notices, &finished)?;
    match finished.nothing {
        Some(nothing) => Err(nothing.into()),
        None => Ok(Outcome::Done),
    }
}

fn lost(source: io::Error) -> OutputError {
    OutputError::Write { file: "the terminal".to_owned(), source }
}

/// Whether an error means that the terminal is gone, judged as [`Output::print`] does for a stream.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(5 | 32)) || error.kind() == io::ErrorKind::UnexpectedEof
}

/// The table on the screen.
struct Table<'a> {
    args: &'a Top,
    model: Model,
    view: View,
    screen: Screen,
}

impl Table<'_> {
    /// Redraws until something ends the run.
    fn follow(&mut self, session: &mut Session, interrupts: &Interrupts) -> io::Result<()> {
        let tick = if self.args.run.follow { FOLLOW_TICK } else { TICK };
        let end = self.args.run.duration.map(|duration| Instant::now() + duration);
        let mut last = None;
        let mut stale = true;
        loop {
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Ok(());
            }
            let due = last.is_none_or(|last| now >= last + self.view.interval);
            if due && !self.view.paused {
                last = Some(now);
                self.model.feed(&session.report());
                stale = true;
            }
            if std::mem::take(&mut stale) {
                let (model, view) = (&self.model, &mut self.view);
                self.screen.draw(|frame| draw::draw(frame, model, view))?;
            }
            let next = last.map_or(now, |last| last + self.view.interval);
            let until = [Some(next), end]
                .into_iter()
                .flatten()
                .min()
                .map_or(tick, |at| at.saturating_duration_since(now));
            for event in self.screen.events(until.clamp(Duration::from_millis(1), tick))? {
                stale = true;
                let page = draw::page(self.screen.height());
                if event.is_some_and(|key| self.view.key(key, page) == KeyAction::Quit) {
                    return Ok(());
                }
            }
            if interrupts.wait(Duration::ZERO).is_some() || !session.poll() {
                return Ok(());
            }
        }
    }
}

/// Prints the whole run as lines, where the prompt will be.
fn close(args: &Top, model: Model, notices: &[String], finished: &Finished) -> Result<(), OutputError> {
    notices
        .iter()
        .filter(|_| !args.run.sink.quiet)
        .for_each(|notice| print_line(&format!("trapline: {notice}")));
    let mut lines = Lines::after(model, args.timed, args.sort);
    let mut output = Output::Stdout;
    for report in &finished.reports {
        output.print(&lines.report(report, false, None))?;
    }
    if !args.run.sink.quiet {
        print_line(summary::text(&finished.summary).trim_end());
    }
    Ok(())
}
