//! `list` and `--dry-run`: what would be probed, and how.

use trapline::listing::Listing;
use trapline::{Builder, Session};

use super::{Failure, Outcome};
use crate::args::command::List;
use crate::args::sink::Sink;
use crate::output::{Output, print_line};
use crate::progress::ProgressLine;
use crate::report::{list, list_json};

/// Runs `list`.
pub(crate) fn run(args: &List) -> Result<Outcome, Failure> {
    let line = ProgressLine::begin(args.sink.quiet);
    let builder = line
        .of(Session::builder())
        .target(args.target.clone())
        .probes(args.probes.iter().cloned())
        .strict(args.strict)
        .faults_are_fatal(args.faults_are_fatal)
        .kernel_uprobes(args.kernel_uprobes)
        .returns(args.returns);
    let listing = if args.verbose { builder.list_declared(args.timed) } else { builder.list(args.timed) };
    drop(line);
    print(&listing?, args.verbose, args.paged, &args.sink)
}

/// Prints the plan of a session.
pub(crate) fn show(builder: &Builder, timed: bool, sink: &Sink) -> Result<Outcome, Failure> {
    let line = ProgressLine::begin(sink.quiet);
    let listing = line.of(builder.clone()).list(timed);
    drop(line);
    print(&listing?, false, false, sink)
}

fn print(listing: &Listing, verbose: bool, paged: bool, sink: &Sink) -> Result<Outcome, Failure> {
    let text = if verbose { list::declared } else { list::text };
    let mut output = Output::open(sink, false)?;
    let columns = output.size().map(|(_, columns)| columns);
    let shown = if sink.json { list_json::list(&listing.listed) } else { text(&listing.listed, columns) };
    output.page(&shown, paged && !sink.json)?;
    if !sink.quiet {
        listing.notices.iter().for_each(|notice| print_line(&format!("trapline: {notice}")));
        if !sink.json {
            print_line(&list::totals(&listing.listed));
        }
    }
    Ok(Outcome::Done)
}
