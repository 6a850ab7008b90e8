//! `list` and `--dry-run`: what would be probed, and how.

use trapline::listing::Listing;
use trapline::{Builder, Session};

use super::{Failure, Outcome};
use crate::args::command::List;
use crate::args::sink::Sink;
use crate::output::{Output, print_line};
use crate::report::{json, list};

/// Runs `list`.
pub(crate) fn run(args: &List) -> Result<Outcome, Failure> {
    let builder = Session::builder()
        .target(args.target.clone())
        .probes(args.probes.iter().cloned())
        .strict(args.strict)
        .faults_are_fatal(args.faults_are_fatal)
        .kernel_uprobes(args.kernel_uprobes)
        .returns(args.returns);
    let listing = if args.verbose { builder.list_declared(args.timed) } else { builder.list(args.timed) };
    print(&listing?, args.verbose, &args.sink)
}

/// Prints the plan of a session.
pub(crate) fn show(builder: &Builder, timed: bool, sink: &Sink) -> Result<Outcome, Failure> {
    print(&builder.list(timed)?, false, sink)
}

fn print(listing: &Listing, verbose: bool, sink: &Sink) -> Result<Outcome, Failure> {
    let text = if verbose { list::declared } else { list::text };
    let mut output = Output::open(sink, false)?;
    output.print(&if sink.json { json::list(&listing.listed) } else { text(&listing.listed) })?;
    if !sink.quiet {
        listing.notices.iter().for_each(|notice| print_line(&format!("trapline: {notice}")));
        if !sink.json {
            print_line(&list::totals(&listing.listed));
        }
    }
    Ok(Outcome::Done)
}
