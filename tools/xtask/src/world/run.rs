//! One program: each of its jobs, bare and under each verb.
//!
//! In: a program, verbs, the command. Out: lines of the report. Does not: choose programs, or decide what a difference is.

use std::path::Path;

use anyhow::Result;

use super::list::Job;
use super::programs::{Program, file_name};
use super::report::Report;
use super::sandbox::{self, Ran, Scratch};
use super::{compare, compare::Measure};

/// Verbs that patch code, and what each is asked for.
pub(super) const VERBS: [&str; 5] = ["count", "lat", "trace", "graph", "stack"];

/// Runs all of its jobs. What cannot be run at all is told as a failure of the step, not as a difference.
pub(super) fn program(program: &Program, verbs: &[String], trapline: &Path, report: &Report) {
    for job in &program.jobs {
        if let Err(error) = one(program, job, verbs, trapline, report) {
            report.failed(&title(program, job), &format!("{error:#}"));
        }
    }
}

fn one(program: &Program, job: &Job, verbs: &[String], trapline: &Path, report: &Report) -> Result<()> {
    let title = title(program, job);
    let bare = [bare(program, job, 0)?, bare(program, job, 3)?];
    if let Some(ran) = bare.iter().find(|ran| ran.timed_out) {
        report.left_out(&title, &format!("bare, it does not end in {} s", ran.took.as_secs()));
        return Ok(());
    }
    if compare::measure(&bare[0].output, &bare[1].output) == Measure::Nothing {
        report.left_out(&title, "two bare runs print different things");
        return Ok(());
    }
    report.program(program);
    for verb in VERBS.iter().filter(|verb| verbs.is_empty() || verbs.iter().any(|given| given == *verb)) {
        let traced = traced(program, job, verb, trapline)?;
        let verdict = compare::judge([&bare[0], &bare[1]], &traced);
        report.run(&title, verb, &verdict, traced.took, bare[0].took);
    }
    Ok(())
}

fn bare(program: &Program, job: &Job, numbers: u32) -> Result<Ran> {
    sandbox::run(&Scratch::new()?, &words(program, job), job.input.as_deref(), numbers)
}

fn traced(program: &Program, job: &Job, verb: &str, trapline: &Path) -> Result<Ran> {
    let scratch = Scratch::new()?;
    let all = format!("{}:*", program.file.display());
    let mut words = vec![trapline.display().to_string(), verb.to_string(), "-q".into(), "-o".into()];
    words.push(scratch.beside("report.json").display().to_string());
    // What the tree is shown below: nearly all programs in C have it, and its calls are all but the start.
    words.extend((verb == "graph").then(|| format!("{}:main", program.file.display())));
    words.extend([all, "--".to_string()]);
    words.extend(self::words(program, job));
    sandbox::run(&scratch, &words, job.input.as_deref(), 1)
}

fn words(program: &Program, job: &Job) -> Vec<String> {
    std::iter::once(program.path.display().to_string()).chain(job.arguments.iter().cloned()).collect()
}

fn title(program: &Program, job: &Job) -> String {
    format!("{} ({}) {}", file_name(&program.path), program.package, job.arguments.join(" "))
}
