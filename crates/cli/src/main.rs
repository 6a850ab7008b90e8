//! The `trapline` command: typed words, a command, a verb, an exit status.
//!
//! In: the command line. Out: reports on standard output (or standard error, or `-o`), and messages on
//! standard error. The exit status is 0 for done, 1 for failed, 2 for usage, 3 if nothing could be probed, or
//! a launched command's own. Does not: know how tracing works.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod complete;
mod demo;
mod output;
mod pager;
mod progress;
mod report;
mod serve;
mod top;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser};
use clap::{ColorChoice, CommandFactory, FromArgMatches};

use args::command::{Command, Run};
use args::ready::ready;
use args::ready::threads::{are_there, has_thread};
use args::typed::Typed;
use commands::{Failure, Outcome};
use progress::ProgressLine;

fn main() -> ExitCode {
    // Without a word: what can be done here.
    if std::env::args_os().len() == 1 {
        return ended(commands::first::run());
    }
    let verb = typed().unwrap_or_else(|error| help_or_exit(&error)).verb;
    let look = |run: &Run| ProgressLine::begin(run.sink.quiet).of(run.builder()).prototypes();
    let command = match are_there(&verb, &has_thread).and_then(|()| ready(verb, &look)) {
        Ok(command) => command,
        Err(error) => {
            output::print_line(&format!("trapline: {error}"));
            return ExitCode::from(2);
        }
    };
    let done = match &command {
        Command::Count(args) => commands::count::run(args),
        Command::Lat(args) => commands::lat::run(args),
        Command::Hist(args) => commands::hist::run(args),
        Command::Graph(args) => commands::graph::run(args),
        Command::Record(args) => commands::record::run(args),
        Command::Recorded(args) => commands::recorded::run(args),
        Command::Diff(args) => commands::recorded::diff(args),
        Command::Info(dir, json) => commands::recorded::info(dir, *json),
        Command::Calls(args) => commands::trace::run(args),
        Command::Recording(args) => commands::recording::run(args),
        Command::Stack(args) => commands::stack::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Watch(args) => commands::watch::run(args),
        Command::List(args) => commands::list::run(args),
        Command::Status(args) => commands::patched::status(args),
        Command::Detach(args) => commands::patched::detach(args),
        Command::Script(args) => commands::script::run(args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Doctor(sink) => commands::doctor::run(sink),
        Command::Completions(shell) => commands::manual::completions(*shell),
        // A shell shows what a completion prints, so an error is not said.
        Command::Complete(shell, words) => {
            complete::run(*shell, words).map_or(Ok(Outcome::Failed), |()| Ok(Outcome::Done))
        }
        Command::Man(directory) => commands::manual::pages(directory),
    };
    ended(done)
}

/// The command line, read. Left to itself, clap has colours on a dumb terminal where `CI` is set.
fn typed() -> Result<Typed, clap::Error> {
    let colours = if top::screen::is_dumb() { ColorChoice::Never } else { ColorChoice::Auto };
    let mut command = with_any_bytes(Typed::command().color(colours));
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Typed::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Lets every text on the command line have bytes that are not UTF-8. They become U+FFFD, as they do in the names of files
/// and processes that such a text is compared with.
fn with_any_bytes(command: clap::Command) -> clap::Command {
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    let of_arg = |arg: clap::Arg| match arg.get_value_parser().type_id() == ValueParser::string().type_id() {
        true => arg.value_parser(OsStringValueParser::new().map(lossy)),
        false => arg,
    };
    command.mut_args(of_arg).mut_subcommands(with_any_bytes)
}

/// Shows a long help by a pager. Other texts of clap's are printed by clap, which then ends the program.
fn help_or_exit(error: &clap::Error) -> ! {
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = error.render();
    let text = if has_colours { text.ansi().to_string() } else { text.to_string() };
    if error.kind() == clap::error::ErrorKind::DisplayHelp && pager::show(text.as_bytes()) {
        std::process::exit(0);
    }
    error.exit()
}

fn ended(done: Result<Outcome, Failure>) -> ExitCode {
    match done {
        Ok(outcome) => outcome.code(),
        Err(failure) => failure.code(),
    }
}
