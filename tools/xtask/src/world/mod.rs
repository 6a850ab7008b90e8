//! Programs that are not ours, run bare and traced: what they print and how they end must be the same.
//!
//! In: a list of packages (`tools/xtask/world/packages.txt`), what to run them under, and where ([`setting`]). Out: a
//! line for each difference, a report of all runs, and one closing line: `N programs, N runs, N differ, N refused`. Any
//! difference fails the step. Does not: judge counts or durations; other tests do that beside the kernel's own probes.
//!
//! Each run has namespaces of its own for processes, network and mounts. It may write to a scratch folder only, and
//! everything that it started ends with it. Steps for one job of one program:
//! 1. It runs bare twice, under different process numbers.
//! 2. What differs between those two runs is not compared ([`compare`]).
//! 3. It runs under each verb, with all of its functions probed from its start.
//! 4. After a difference it runs bare again, up to four times, a second apart, and is judged each time. A clock in what
//!    it prints is no difference, nor is the order in which its threads print. If it still differs, it runs bare under
//!    other schedules, and is judged by these alone: some programs print what their child or they come to first.

mod compare;
mod list;
mod programs;
mod report;
mod run;
mod sandbox;
mod services;
mod setting;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::outcome::Outcome;
use list::LISTS;
use programs::Program;
use report::Report;
use setting::Setting;

/// What the command line asked for.
#[derive(Debug, Default)]
struct Request {
    /// Stop beginning new programs after this time; programs are then taken evenly from the whole list.
    limit: Option<Duration>,
    /// Packages may be installed, not only used where they are.
    install: bool,
    /// Programs of these packages alone; all if there are none.
    packages: Vec<String>,
    /// Verbs to run under; all if there are none.
    verbs: Vec<String>,
    /// Where they run; alone if none is named.
    settings: Vec<&'static Setting>,
    /// Where each run's line goes.
    log: Option<PathBuf>,
    /// Programs that run at the same time.
    lanes: usize,
    /// Attach so often to services instead; names of packages are names of services then.
    services: Option<u64>,
}

/// Runs the step.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let request = parse(args)?;
    if let Some(cycles) = request.services {
        let trapline = trapline()?;
        let mut total = Outcome::default();
        for setting in &request.settings {
            total.add(services::run(cycles, &request.packages, setting, &trapline));
        }
        return Ok(total);
    }
    let text = std::fs::read_to_string(Path::new(LISTS).join("packages.txt")).context("list of packages")?;
    let mut packages = list::parse(&text)?;
    if !request.packages.is_empty() {
        packages.retain(|package| request.packages.contains(&package.name));
    }
    if request.install {
        list::install(&packages);
    }
    let trapline = trapline()?;
    let found = programs::of(&packages);
    let mut programs = found.programs.clone();
    if let Some(limit) = request.limit {
        println!("{} programs are here; as many as fit into {} s are run", programs.len(), limit.as_secs());
        programs = list::evenly(programs);
    }
    let report = Report::new(request.log.as_deref(), &found, request.limit.is_none())?;
    let begun = Instant::now();
    run_all(&programs, &request, &trapline, &report, || {
        request.limit.is_some_and(|limit| begun.elapsed() > limit)
    });
    Ok(report.finish(begun.elapsed()))
}

/// Hands the programs to as many threads as asked for. Each takes the next one until `over`.
fn run_all(
    programs: &[Program],
    request: &Request,
    trapline: &Path,
    report: &Report,
    over: impl Fn() -> bool + Sync,
) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..request.lanes {
            scope.spawn(|| {
                while !over() {
                    // The index alone is shared; programs are read-only.
                    let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(program) = programs.get(index) else { break };
                    for setting in &request.settings {
                        run::program(program, setting, &request.verbs, trapline, report);
                    }
                }
            });
        }
    });
}

/// The command as `cargo build --release` leaves it.
fn trapline() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let path = target.join("release/trapline");
    path.canonicalize().with_context(|| format!("{}: build it with `cargo build --release`", path.display()))
}

fn parse(args: &[String]) -> Result<Request> {
    let mut request = Request { lanes: 2, ..Request::default() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("`{arg}` needs a value"));
        match arg.as_str() {
            "--seconds" => request.limit = Some(Duration::from_secs(value()?.parse().context("--seconds")?)),
            "--lanes" => request.lanes = value()?.parse().context("--lanes")?,
            "--package" => request.packages.push(value()?.clone()),
            "--under" => request.verbs.push(value()?.clone()),
            "--in" => request.settings.push(setting::named(value()?)?),
            "--log" => request.log = Some(PathBuf::from(value()?)),
            "--services" => request.services = Some(value()?.parse().context("--services")?),
            "--install" => request.install = true,
            _ => bail!(
                "`{arg}` is not known; there are --seconds N, --lanes N, --package NAME, --under VERB, --in SETTING, --log FILE, --install, --services CYCLES"
            ),
        }
    }
    if request.settings.is_empty() {
        request.settings.push(&setting::SETTINGS[0]);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn arguments_are_read_and_unknown_ones_are_refused() {
        let args = |text: &str| text.split_whitespace().map(ToString::to_string).collect::<Vec<_>>();
        let request = parse(&args("--seconds 5 --package a --package b --under lat --install --in user"))
            .expect("a request");
        assert_eq!(request.limit.map(|limit| limit.as_secs()), Some(5));
        assert_eq!(request.packages, ["a", "b"]);
        assert_eq!(request.verbs, ["lat"]);
        assert_eq!(request.settings.iter().map(|setting| setting.name).collect::<Vec<_>>(), ["user"]);
        assert!(request.install && request.lanes == 2);
        assert!(parse(&args("--seconds")).is_err() && parse(&args("--what")).is_err());
        assert!(parse(&args("--in submarine")).is_err());
        assert_eq!(parse(&[]).expect("a request").settings.len(), 1);
    }
}
