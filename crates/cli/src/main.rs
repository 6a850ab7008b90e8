//! The `trapline` command: typed words, ready arguments, a verb, an exit status.
//!
//! In: the command line. Out: reports on standard output (or standard error, or `-o`), and messages on
//! standard error. The exit status is 0 for done, 1 for failed, 2 for usage, 3 if nothing could be probed, or
//! a launched command's own. Does not: know how tracing works.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod demo;
mod output;
mod report;
mod serve;
mod top;

use std::process::ExitCode;

use clap::Parser;

use args::prototype::look;
use args::ready::{Ready, ready};
use args::threads::{are_there, has_thread};
use args::typed::Typed;

fn main() -> ExitCode {
    let verb = Typed::parse().verb;
    let ready = match are_there(&verb, &has_thread).and_then(|()| ready(verb, &look)) {
        Ok(ready) => ready,
        Err(error) => {
            output::print_line(&format!("trapline: {error}"));
            return ExitCode::from(2);
        }
    };
    let done = match &ready {
        Ready::Count(args) => commands::count::run(args),
        Ready::Lat(args) => commands::lat::run(args),
        Ready::Hist(args) => commands::hist::run(args),
        Ready::Graph(args) => commands::graph::run(args),
        Ready::Calls(args) => commands::trace::run(args),
        Ready::Recording(args) => commands::recording::run(args),
        Ready::Stack(args) => commands::stack::run(args),
        Ready::Top(args) => commands::top::run(args),
        Ready::Watch(args) => commands::watch::run(args),
        Ready::List(args) => commands::list::run(args),
        Ready::Status(args) => commands::patched::status(args),
        Ready::Detach(args) => commands::patched::detach(args),
        Ready::Demo(args) => commands::demo::run(args),
    };
    match done {
        Ok(outcome) => outcome.code(),
        Err(failure) => failure.code(),
    }
}
