//! `list` and `--dry-run`: what would be probed, and how.

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
    show(&builder, args.timed, &args.sink)
}

/// Prints the plan of a session.
pub(crate) fn show(builder: &Builder, timed: bool, sink: &Sink) -> Result<Outcome, Failure> {
    let listing = builder.list(timed)?;
    let mut output = Output::open(sink, false)?;
    output.print(&if sink.json { json::list(&listing.listed) } else { list::text(&listing.listed) })?;
    if !sink.quiet {
        listing.notices.iter().for_each(|notice| print_line(&format!("trapline: {notice}")));
        if !sink.json {
            print_line(&list::totals(&listing.listed));
        }
    }
    Ok(Outcome::Done)
}
