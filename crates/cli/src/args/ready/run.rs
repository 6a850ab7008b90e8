//! What the tracing verbs have in common, checked and converted.
//!
//! In: typed options. Out: [`Run`], [`Ends`], [`Target`], or what is wrong. Does not: look at any process or
//! file.

use std::ffi::OsString;
use std::time::Duration;

use trapline::probes::{Pattern, ProbeKind};
use trapline::{Among, ProbeSpec, Returns, Target};

use super::error::UsageError;
use super::units;
use super::words::split_words;
use crate::args::command::{Ends, Run};
use crate::args::sink::Sink;
use crate::args::typed::{Common, TypedAmong, TypedEnds, TypedReturns, TypedTarget};
use crate::report::format::Format;

/// Why options that choose among all processes stand alone.
pub(super) const CHOOSES: &str =
    "--cgroup, --container, --uid and --tree choose among all processes; leave out -p, -n and the command";

/// A run, for a verb that writes text and the formats in `offered`.
pub(super) fn run(texts: &[String], typed: Common, offered: &[Format]) -> Result<Run, UsageError> {
    let sink = Sink::new(typed.json, typed.output, typed.quiet, offered)?;
    let interval = typed.interval.as_deref().map(|text| positive("--interval", text)).transpose()?;
    Ok(Run {
        probes: probes(texts)?,
        follow: typed.target.follow,
        wait: typed.target.wait,
        target: target(typed.target)?,
        interval: interval.or(sink.interval()),
        duration: typed.duration.as_deref().map(|text| positive("--duration", text)).transpose()?,
        timestamps: typed.timestamps,
        dry_run: typed.patching.dry_run,
        strict: typed.patching.strict,
        faults_are_fatal: typed.patching.faults_are_fatal,
        kernel_uprobes: typed.kernel_uprobes,
        sink,
        serve: None,
        otlp: None,
    })
}

/// Checks and converts the options about the ends of calls.
pub(super) fn ends(typed: &TypedEnds) -> Result<Ends, UsageError> {
    let (returns, maxactive) = (typed.ret.map(TypedReturns::ready).unwrap_or_default(), typed.maxactive);
    if let Some(calls) = maxactive.filter(|calls| !(1..=Returns::MOST_ACTIVE).contains(calls)) {
        return Err(UsageError::MaxActive(calls));
    }
    if maxactive.is_some() && returns == Returns::Exits {
        return Err(UsageError::MaxActiveByExits);
    }
    Ok(Ends { returns, maxactive })
}

/// The processes to trace.
pub(super) fn target(typed: TypedTarget) -> Result<Target, UsageError> {
    let running = !typed.pids.is_empty() || !typed.names.is_empty();
    let among = among(typed.among)?;
    if !among.is_all() && (running || typed.command.is_some() || !typed.words.is_empty()) {
        return Err(UsageError::Conflict(CHOOSES));
    }
    let words = match typed.command {
        Some(command) => Some(split_words(&command)?.into_iter().map(OsString::from).collect::<Vec<_>>()),
        None if typed.words.is_empty() => None,
        None => Some(typed.words),
    };
    match words {
        Some(_) if running => Err(UsageError::Conflict(
            "a command to launch cannot be combined with -p or -n; trace the running ones in a second trapline",
        )),
        Some(words) if words.is_empty() => Err(UsageError::EmptyCommand),
        Some(words) => Ok(Target::Launch(words)),
        None if running => Ok(Target::Running { pids: typed.pids, names: typed.names }),
        None if typed.all || !among.is_all() => Ok(Target::All(among)),
        None => Ok(Target::Any),
    }
}

/// Which of all processes are meant.
pub(super) fn among(typed: TypedAmong) -> Result<Among, UsageError> {
    let mut among = Among::default();
    for folder in typed.groups {
        among = among.group(&folder)?;
    }
    for given in typed.containers {
        among = container(among, &given)?;
    }
    for user in typed.users {
        among = among.user(uid(&user).ok_or(UsageError::NoUser(user))?);
    }
    for pid in typed.roots {
        among = among.below(pid)?;
    }
    Ok(among)
}

/// Adds a container by its id, or all that have a name.
fn container(among: Among, given: &str) -> Result<Among, UsageError> {
    if let Ok(among) = among.clone().container(given) {
        return Ok(among);
    }
    let ids = trapline::containers::ids_of(given)?;
    Ok(ids.iter().try_fold(among, |among, id| among.container(id))?)
}

/// The id of a user, given as a number, or by a name of /etc/passwd.
fn uid(user: &str) -> Option<u32> {
    let named = || {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let id = |line: &str| line.split(':').nth(2)?.parse().ok();
        users.lines().find(|line| line.split(':').next() == Some(user)).and_then(id)
    };
    user.parse().ok().or_else(named)
}

/// Parses each probe.
pub(super) fn probes(texts: &[String]) -> Result<Vec<ProbeSpec>, UsageError> {
    let parse = |text: &String| text.parse().map_err(|why| UsageError::Probe { text: text.clone(), why });
    texts.iter().map(parse).collect()
}

/// A time that is greater than zero.
pub(super) fn positive(option: &'static str, text: &str) -> Result<Duration, UsageError> {
    units::positive(text).map_err(|why| UsageError::Unit { option, why })
}

/// Whether the probe is at the entry of a function.
pub(super) fn is_function(probe: &ProbeSpec) -> bool {
    let inside = matches!(&probe.func, Pattern::Exact(exact) if exact.offset > 0);
    probe.kind == ProbeKind::Entry && !inside
}
