//! `status` and `detach`: what is patched in a process, and removing it after a tracer died.

use serde::Serialize;
use trapline::cleanup::{DetachReport, SegmentState, SegmentStatus, clean_up, patched};

use super::{Failure, Outcome};
use crate::args::command::Pids;
use crate::output::Output;
use crate::report::json::{SCHEMA, line};
use crate::report::number::{bytes, plural};

#[derive(Serialize)]
struct StatusRow<'a> {
    r#type: &'static str,
    schema: u32,
    pid: u32,
    state: &'static str,
    version: u64,
    tracer: u32,
    tracer_alive: bool,
    tracer_comm: Option<&'a str>,
    owner: u32,
    sites: u32,
    in_place: u32,
    semaphores: u32,
    guard_hits: u64,
    mapped_bytes: u64,
}

#[derive(Serialize)]
struct DetachRow {
    r#type: &'static str,
    schema: u32,
    pid: u32,
    sites: u32,
    already: u32,
    left: usize,
    actions: u32,
    semaphores: u32,
    returns: u32,
    left_mapped_bytes: u64,
}

/// Runs `status`.
pub(crate) fn status(args: &Pids) -> Result<Outcome, Failure> {
    let mut output = Output::open(&args.sink, false)?;
    let mut text = String::new();
    let looked = args.pids.iter().try_for_each(|&pid| {
        let segments = patched(pid)?;
        match args.sink.json {
            true => text.extend(segments.iter().map(|segment| status_json(pid, segment))),
            false => text.push_str(&status_text(pid, &segments)),
        }
        Ok(())
    });
    output.page(&text, args.paged && !args.sink.json)?;
    looked.map(|()| Outcome::Done)
}

const fn state_word(state: Option<SegmentState>) -> &'static str {
    match state {
        Some(SegmentState::Building) => "building",
        Some(SegmentState::Armed) => "armed",
        Some(SegmentState::Removing) => "removing",
        Some(SegmentState::Removed) => "removed",
        None => "unknown",
    }
}

fn status_json(pid: u32, segment: &SegmentStatus) -> String {
    line(&StatusRow {
        r#type: "status",
        schema: SCHEMA,
        pid,
        state: state_word(segment.state),
        version: segment.version,
        tracer: segment.tracer,
        tracer_alive: segment.tracer_comm.is_some(),
        tracer_comm: segment.tracer_comm.as_deref(),
        owner: segment.owner,
        sites: segment.sites,
        in_place: segment.in_place,
        semaphores: segment.semaphores,
        guard_hits: segment.guard_hits,
        mapped_bytes: segment.mapped,
    })
}

fn status_text(pid: u32, segments: &[SegmentStatus]) -> String {
    if segments.is_empty() {
        return format!("process {pid}: no probes of ours\n");
    }
    let one = |segment: &SegmentStatus| {
        let tracer = match (&segment.tracer_comm, segment.state) {
            (Some(comm), _) => format!("trapline {} ({comm}), which is running", segment.tracer),
            (None, Some(SegmentState::Removed)) => format!("trapline {}, which has detached", segment.tracer),
            (None, _) => {
                format!("trapline {}, which has died: clean up with trapline detach -p {pid}", segment.tracer)
            }
        };
        let inherited =
            if segment.owner == pid { String::new() } else { format!(", inherited from {}", segment.owner) };
        format!(
            "process {pid}: {} by {tracer}{inherited}; {} of {} in place, {}, {}, {} mapped\n",
            state_word(segment.state),
            segment.in_place,
            plural(segment.sites.into(), "site", "sites"),
            plural(segment.semaphores.into(), "semaphore", "semaphores"),
            plural(segment.guard_hits, "guard trap", "guard traps"),
            bytes(segment.mapped)
        )
    };
    segments.iter().map(one).collect()
}

/// Runs `detach`.
pub(crate) fn detach(args: &Pids) -> Result<Outcome, Failure> {
    let mut output = Output::open(&args.sink, false)?;
    let mut outcome = Outcome::Done;
    for &pid in &args.pids {
        let report = clean_up(pid)?;
        if !report.untouched.is_empty() || report.restored.iter().any(|one| one.barred.is_some()) {
            outcome = Outcome::Failed;
        }
        output.print(&if args.sink.json { detach_json(&report) } else { detach_text(pid, &report) })?;
    }
    Ok(outcome)
}

fn detach_json(report: &DetachReport) -> String {
    let row = |one: &trapline::cleanup::Restored| {
        line(&DetachRow {
            r#type: "detach",
            schema: SCHEMA,
            pid: one.pid,
            sites: one.sites,
            already: one.already,
            left: one.left.len(),
            actions: one.actions,
            semaphores: one.semaphores,
            returns: one.returns,
            left_mapped_bytes: one.stays_mapped,
        })
    };
    report.restored.iter().map(row).collect()
}

fn detach_text(pid: u32, report: &DetachReport) -> String {
    if report.restored.is_empty() && report.untouched.is_empty() {
        return format!("process {pid}: nothing to clean up\n");
    }
    let mut out = String::new();
    for one in &report.restored {
        out.push_str(&format!(
            "process {}: {} restored, {} already were, {} and {} put back; {} stay mapped\n",
            one.pid,
            plural(one.sites.into(), "site", "sites"),
            one.already,
            plural(one.actions.into(), "signal action", "signal actions"),
            plural(one.semaphores.into(), "semaphore", "semaphores"),
            bytes(one.stays_mapped)
        ));
        if one.returns > 0 {
            let returns = plural(one.returns.into(), "return address", "return addresses");
            out.push_str(&format!("  {returns} of running calls put back\n"));
        }
        if let Some(why) = &one.barred {
            out.push_str(&format!(
                "  no calls could be made: {why}; its code is as it was, signal actions stay\n"
            ));
        }
        // If another patcher changed all of them, one address is enough to show what is there.
        if let Some(first) = one.left.first() {
            let more = match one.left.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            out.push_str(&format!("  {first}{more}\n"));
        }
    }
    for one in &report.untouched {
        out.push_str(&format!("process {}: not cleaned up: {}\n", one.pid, one.why));
    }
    out
}
