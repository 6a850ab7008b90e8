//! `demo`: counts and times a sample program of our own, and compares the cost of a hit with the kernel's
//! uprobe on the same function.

use std::path::Path;
use std::time::Duration;

use trapline::system::kernel::UprobeMulti;
use trapline::{Builder, Interrupts, Session};

use super::run::follow::{TICK, Turns, follow};
use super::run::interrupts;
use super::run::schedule::{Event, Schedule};
use super::{Failure, Outcome};
use crate::args::command::{Demo, HistogramStyle};
use crate::demo::{Sample, SampleRun};
use crate::output::{Output, OutputError, print_line};
use crate::report::{count, lat, summary};

/// Prints the heading of a part.
fn title(output: &mut Output, text: &str) -> Result<(), Failure> {
    Ok(output.print(&format!("\n$ {text}\n"))?)
}

/// Runs `demo`.
pub(crate) fn run(args: &Demo) -> Result<Outcome, Failure> {
    let interrupts = interrupts()?;
    let sample = Sample::new(args.keep).map_err(Failure::Other)?;
    let mut output = Output::Stdout;
    let serving = sample.run(false).map_err(Failure::Other)?;
    let pid = serving.pid();
    let probe = |function: &str| format!("{}:{function}", sample.program().display());

    title(&mut output, &format!("trapline count -p {pid} 'sample:*'"))?;
    let builder = Session::builder().pid(pid).probe(&probe("*"))?;
    let finished = during(builder.count()?, args.duration, &interrupts)?;
    for report in &finished.reports {
        output.print(&count::text(report, None, false))?;
    }
    output.print(&summary::text(&finished.summary))?;

    title(&mut output, &format!("trapline lat -F -p {pid} lookup commit"))?;
    let builder = Session::builder().pid(pid).probe(&probe("lookup"))?.probe(&probe("commit"))?;
    let finished = during(builder.latency()?, args.duration, &interrupts)?;
    for report in &finished.reports {
        output.print(&lat::text(report, true, &HistogramStyle::default()))?;
    }
    drop(serving);

    let mut measuring = sample.run(true).map_err(Failure::Other)?;
    let builder = Session::builder().pid(measuring.pid()).probe(&probe("hot"))?;
    let text = costs(&mut measuring, builder, &sample.program())?;
    output.print(&text)?;
    if args.keep {
        print_line(&format!("the sample program is {}", sample.program().display()));
    }
    Ok(Outcome::Done)
}

/// A session that only runs.
struct Idle<'a> {
    session: &'a mut Session,
    interrupts: &'a Interrupts,
}

impl Turns for Idle<'_> {
    fn turn(&mut self, at_most: Duration) -> Result<Event, OutputError> {
        if self.session.wait(self.interrupts, at_most).is_some() {
            return Ok(Event::Interrupted);
        }
        Ok(if self.session.poll() { Event::Quiet } else { Event::TargetEnded })
    }
    fn report(&mut self) -> Result<(), OutputError> {
        Ok(())
    }
    fn interval(&self) -> Option<Duration> {
        None
    }
}

/// Keeps a session running for `duration`, or until Ctrl-C.
fn during(
    mut session: Session,
    duration: Duration,
    interrupts: &Interrupts,
) -> Result<trapline::Finished, OutputError> {
    follow(Schedule::new(TICK, Some(duration)), &mut Idle { session: &mut session, interrupts })?;
    Ok(session.detach())
}

/// What a hit adds to a call of `hot`, with our probe and with the kernel's, in one run of one process.
fn costs(run: &mut SampleRun, builder: Builder, program: &Path) -> Result<String, Failure> {
    let ended = || Failure::Other("the sample program ended".to_owned());
    let bare = run.measured().ok_or_else(ended)?;
    let session = builder.clone().count()?;
    let ours = run.measured().ok_or_else(ended)? - bare;
    let finished = session.detach();
    let timed = builder.latency()?;
    let timing = run.measured().ok_or_else(ended)? - bare;
    drop(timed);
    let offset =
        finished.reports.iter().flat_map(|report| &report.counts).map(|count| count.site.offset).next();
    let kernel = offset.map(|offset| kernel_cost(run, program, offset, bare));

    let mut text = format!("\ncost of a hit, hot (a bare call of the function takes {bare:.1} ns)\n");
    text.push_str(&format!("  trapline count   {ours:>8.1} ns\n  trapline lat     {timing:>8.1} ns\n"));
    text.push_str(&match kernel {
        Some(Ok(cost)) => format!(
            "  kernel uprobe    {cost:>8.1} ns, counting in BPF: {:.0} times trapline count\n  \
             (where the kernel single-steps slowly, as in some virtual machines, it costs many times what bare metal does)\n",
            cost / ours.max(0.1)
        ),
        Some(Err(why)) => format!("  kernel uprobe    not measured: {why}\n"),
        None => String::new(),
    });
    Ok(text)
}

fn kernel_cost(run: &mut SampleRun, program: &Path, offset: u64, bare: f64) -> Result<f64, String> {
    let link = UprobeMulti::attach(program, &[offset.into()], Some(run.pid()), false)
        .map_err(|error| error.to_string())?;
    let with = run.measured().ok_or("the sample program ended")?;
    drop(link);
    Ok(with - bare)
}
