//! One batch of patches into one process: steps I1 to I11 of `protocol`.
//!
//! In: a process and a request. Out: a segment with its patches in place, and a report. An error before the
//! first site is written leaves nothing mapped and no action changed.
//! Does not: choose tactics, read counters.

use std::time::{Duration, Instant};

use trapline_plan::{Action, PlanError};
use trapline_record::RemoteAddr;
use trapline_record::control::{State, at, fact};
use trapline_tracee::{Batch, BatchOptions, BatchReport, Interrupt, Process, RemoteOptions};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::ask::{ask, must_ask};
use crate::install::map::{map, unmap};
use crate::install::prepared::{Prepared, PreparedSite};
use crate::install::publish::publish;
use crate::install::survey::Survey;
use crate::install::work::Work;
use crate::memory::find::{check_free, find_segments, left_behind};
use crate::memory::segment::Segment;
use crate::remove::free::free;
use crate::report::{AttachReport, Memory, Placed, Refused};
use crate::request::Request;
use crate::returns::armed::write_hints;
use crate::returns::unwinder::register;
use crate::space::remote::Seizure;
use crate::why::Why;

const OPTIONS: BatchOptions = BatchOptions { hold_children: true };

/// How often a batch begins again because the program has mapped memory where it was to go.
const AGAIN: usize = 4;

/// Puts patches into a process, in a further segment. The process is not seized while the plan is made. If the program
/// maps memory meanwhile where the batch was to go, the batch begins again.
pub(crate) fn add(
    batches: &mut Batches,
    process: &Process,
    request: &Request<'_>,
) -> Result<AttachReport, PatchError> {
    let start = Instant::now();
    let mut report = again(|| add_once(batches, process, request))?;
    report.timings.total = start.elapsed();
    Ok(report)
}

/// Repeats what left nothing behind in a process that had mapped something there.
fn again(mut add: impl FnMut() -> Result<AttachReport, PatchError>) -> Result<AttachReport, PatchError> {
    let first = add();
    (1..AGAIN).fold(first, |last, _| match last {
        Err(PatchError::Target(error)) if error.is_mapped_already() => add(),
        other => other,
    })
}

fn add_once(
    batches: &mut Batches,
    process: &Process,
    request: &Request<'_>,
) -> Result<AttachReport, PatchError> {
    let idle = &mut || {
        // Between two looks at which threads block signals.
        std::thread::sleep(Duration::from_micros(200));
        Ok(())
    };
    let mut work = Work::look(batches, process, request, idle)?;
    if must_ask(batches, request) {
        let clock = Instant::now();
        Batch::run(process, OPTIONS, |batch| {
            let result = ask(batches, batch, request, &work.remote);
            work.report.batch = batch.report();
            result
        })??;
        work.report.timings.first_stop = clock.elapsed();
    }
    work.note_threads(batches, request, process.pid())?;
    let mut first = work.prepare(batches, process, request);
    if is_full(&first, &work.report)
        && Batch::run(process, OPTIONS, |batch| make_room(batches, batch, &work.remote))??
    {
        work = Work::look(batches, process, request, idle)?;
        work.note_threads(batches, request, process.pid())?;
        first = work.prepare(batches, process, request);
    }
    if work.is_unsure(batches, request, &first) {
        work = Work::look(batches, process, request, idle)?;
        work.note_undelivered(batches, request);
        first = work.prepare(batches, process, request);
    }
    let prepared = first?;
    if request.options.obeys_signals && Interrupt::is_pending() {
        return Err(PatchError::Interrupted { pid: process.pid() });
    }
    if !prepared.sites.is_empty() {
        let clock = Instant::now();
        Batch::run(process, OPTIONS, |batch| {
            work.report.timings.seize = clock.elapsed();
            // Only one tracer can hold the process: another one that came between the look and now is
            // found here.
            check_free(process.pid(), &find_segments(process)?, &batches.memfds(), false)?;
            let result = install(batches, batch, prepared, request, &mut work);
            work.report.batch = sum(&work.report.batch, &batch.report());
            result
        })??;
    }
    Ok(work.report)
}

/// The same inside an existing seizure, which may hold forked children.
pub(crate) fn add_in(
    batches: &mut Batches,
    batch: &mut Batch<'_>,
    request: &Request<'_>,
) -> Result<AttachReport, PatchError> {
    let start = Instant::now();
    let mut report = again(|| add_in_once(batches, batch, request))?;
    report.timings.total = start.elapsed();
    Ok(report)
}

fn add_in_once(
    batches: &mut Batches,
    batch: &mut Batch<'_>,
    request: &Request<'_>,
) -> Result<AttachReport, PatchError> {
    let clock = Instant::now();
    let process = batch.process();
    let mut work = look_in(batches, batch, request)?;
    if must_ask(batches, request) {
        ask(batches, batch, request, &work.remote)?;
        work.report.timings.first_stop = clock.elapsed();
    }
    work.note_threads(batches, request, process.pid())?;
    let mut first = work.prepare(batches, process, request);
    if is_full(&first, &work.report) && make_room(batches, batch, &work.remote)? {
        work = look_in(batches, batch, request)?;
        work.note_threads(batches, request, process.pid())?;
        first = work.prepare(batches, process, request);
    }
    if work.is_unsure(batches, request, &first) {
        work = look_in(batches, batch, request)?;
        work.note_undelivered(batches, request);
        first = work.prepare(batches, process, request);
    }
    let prepared = first?;
    if !prepared.sites.is_empty() {
        install(batches, batch, prepared, request, &mut work)?;
    }
    work.report.batch = batch.report();
    Ok(work.report)
}

/// [`Work::look`] in a seizure.
fn look_in(batches: &Batches, batch: &mut Batch<'_>, request: &Request<'_>) -> Result<Work, PatchError> {
    Work::look(batches, batch.process(), request, &mut || {
        batch.serve(&|addr| batches.resume(addr))?;
        Ok(())
    })
}

/// Unmaps what earlier sessions had to leave behind, if it is proven to be unused. Returns whether that
/// freed anything.
fn make_room(batches: &Batches, batch: &mut Batch<'_>, remote: &RemoteOptions) -> Result<bool, PatchError> {
    let found = left_behind(batch.process(), &batches.memfds())?;
    Ok(!found.is_empty()
        && free(batch, &found, Seizure { guard: &|addr| batches.resume(addr), remote })?.unmapped > 0)
}

/// Step H0 of `hold`.
fn note_reliance(batches: &mut Batches, prepared: &Prepared, request: &Request<'_>, survey: &Survey) {
    let holds = |site: &PreparedSite| {
        let module = request.modules.get(site.module as usize);
        let request = module.and_then(|module| module.requests.get(site.patch.request as usize));
        request.is_some_and(|request| request.action.is_for_us())
    };
    let serves = |is_it: fn(Action) -> bool| {
        (0u32..).zip(request.modules).any(|(module, of)| {
            let mut wanted = (0u32..).zip(of.requests).filter(|(_, one)| is_it(one.action));
            wanted.any(|(index, _)| prepared.serves(module, index))
        })
    };
    let any = serves(Action::is_hold);
    batches.holds_loads |= serves(Action::holds_loads);
    let only = prepared.sites.iter().filter(|site| holds(site));
    batches.facts.hold_at(any, only.map(|site| site.patch.addr.0));
    let delivers = survey.traits.faults_delivered;
    batches.delivers |= delivers;
    let faults = (delivers || !survey.traits.has_fault_handler) && !request.options.faults_are_fatal;
    let faults = faults && prepared.sites.iter().any(|site| site.patch.faults && !holds(site));
    let by_call = request.options.by_thread || request.is_recorded() || request.asks_for_thread();
    let calls = request.makes_calls() || by_call && batches.threads.ask_by_call();
    let traps = batches.installed.is_some_and(|ours| ours.trap().is_some() || ours.illegal().is_some());
    let relied = [
        (request.is_timed(), fact::CLOCK),
        (calls, fact::FILTER),
        (faults, fact::FAULTS),
        (traps, fact::TRAPS),
    ];
    batches.facts.rely(relied.iter().filter(|(relies, _)| *relies).fold(0, |all, (_, fact)| all | fact));
    batches.say_closed();
}

/// Steps I5 to I10.
fn install(
    batches: &mut Batches,
    batch: &mut Batch<'_>,
    prepared: Prepared,
    request: &Request<'_>,
    work: &mut Work,
) -> Result<(), PatchError> {
    let Work { survey, remote, report } = work;
    let clock = Instant::now();
    let mut segment = map(batches, batch, &prepared, survey, remote)?;
    if request.options.waits.is_some() {
        segment.begin_waiting();
    }
    report.timings.second_stop = clock.elapsed();
    report.mapped = segment.mapped();
    report.code = prepared.plans.iter().map(|p| p.bytes.len() as u64).sum();
    report.memory = Memory { sites: report.code + segment.tables(), per_cpu: segment.per_cpu() };

    let clock = Instant::now();
    if let Err(error) = fill(batches, batch, &segment, &prepared, request) {
        unmap(batches, batch, remote, &segment);
        return Err(error);
    }
    batches.redirect_guards(&segment);
    // The handler must know the new guards before any of them can be hit.
    if let Some(last) = batches.segments.last() {
        last.view().set(at::NEXT_SEGMENT, segment.control.0);
    }
    segment.set_state(State::Armed);
    segment.paid = segment.resident();
    batches.may_grow = batches.may_grow.into_iter().chain(prepared.room.may_grow).min();
    batches.push(segment);
    note_reliance(batches, &prepared, request, survey);
    report.timings.fill = clock.elapsed();

    let clock = Instant::now();
    let shares = prepared.shares.clone();
    publish(batches, batch, prepared, survey, remote, report)?;
    settle_shares(request, &shares, report);
    report.timings.publish = clock.elapsed();
    Ok(())
}

/// Steps I6 and I6a.
fn fill(
    batches: &Batches,
    batch: &mut Batch<'_>,
    segment: &Segment,
    prepared: &Prepared,
    request: &Request<'_>,
) -> Result<(), PatchError> {
    segment.fill(&prepared.plans, request.options.alone)?;
    segment.pay(&prepared.room.paid)?;
    let Some((made, code)) = &prepared.trampolines else { return Ok(()) };
    segment.write_code(RemoteAddr(made.trampolines.code), code)?;
    write_hints(batch.process(), &made.trampolines)?;
    Ok(register(batch, segment, request.unwinders, request.own_code, &|addr| batches.resume(addr))?)
}

/// There is no room, or not enough for all.
fn is_full(prepared: &Result<Prepared, PatchError>, report: &AttachReport) -> bool {
    let no_room = |refused: &Refused| matches!(&refused.why, Why::Plan(why) if why.kind() == "no-room");
    matches!(prepared, Err(PatchError::Plan { source: PlanError::NoSpace { .. }, .. }))
        || report.refused.iter().any(no_room)
}

/// A request that shares a site gets the result of the request that the site is named after.
fn settle_shares(request: &Request<'_>, shares: &[(u32, u32, u32)], report: &mut AttachReport) {
    for &(module, owner, asked) in shares {
        let other = request.modules.get(module as usize).and_then(|m| m.requests.get(asked as usize));
        let Some(probe) = other.map(|other| other.probe) else { continue };
        if report.placed.iter().any(|placed| placed.probe == probe) {
            continue;
        }
        let mine = |(of, index)| of == module && index == owner;
        if let Some(placed) = report.placed.iter().find(|p| mine((p.module, p.request))).copied() {
            report.placed.push(Placed { probe, request: asked, ..placed });
        } else if let Some(refused) = report.refused.iter().find(|r| mine((r.module, r.request))).cloned() {
            report.refused.push(Refused { probe, request: asked, ..refused });
        }
    }
}

/// The reports of two seizures, added up.
fn sum(a: &BatchReport, b: &BatchReport) -> BatchReport {
    BatchReport {
        guards: a.guards + b.guards,
        dispositions_restored: a.dispositions_restored + b.dispositions_restored,
        signals: a.signals + b.signals,
        threads: a.threads.max(b.threads),
        interrupted_syscalls: a.interrupted_syscalls + b.interrupted_syscalls,
        restarted_timeouts: a.restarted_timeouts + b.restarted_timeouts,
        longest_stop: a.longest_stop.max(b.longest_stop),
        remote_stop: a.remote_stop + b.remote_stop,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use trapline_tracee::TargetError;

    use super::{AGAIN, again};
    use crate::error::PatchError;
    use crate::report::AttachReport;

    fn failed(call: &'static str, number: i32) -> PatchError {
        let source = Error::from_raw_os_error(number);
        PatchError::Target(TargetError::RemoteCall { pid: 1, call, source, hint: String::new() })
    }

    #[test]
    fn a_batch_begins_again_only_where_the_program_has_mapped_something() {
        for (error, expected) in
            [(("mmap", libc::EEXIST), AGAIN), (("mmap", libc::ENOMEM), 1), (("munmap", libc::EEXIST), 1)]
        {
            let mut tries = 0;
            let result = again(|| {
                tries += 1;
                Err(failed(error.0, error.1))
            });
            assert!(result.is_err() && tries == expected, "{error:?}: {tries}");
        }
        let mut tries = 0;
        let result = again(|| {
            tries += 1;
            if tries < 3 { Err(failed("mmap", libc::EEXIST)) } else { Ok(AttachReport::default()) }
        });
        assert!(result.is_ok() && tries == 3, "{tries}");
    }
}
