//! One program: each of its jobs, bare and under each verb.
//!
//! In: a program, a setting, verbs, the command. Out: lines of the report. Does not: choose programs, or decide what a
//! difference is.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::list::Job;
use super::programs::{Program, file_name};
use super::report::Report;
use super::sandbox::{self, PATIENCE, Ran, Scratch, TRACED_PATIENCE};
use super::setting::{SETTINGS, Setting};
use super::{compare, compare::Measure, compare::Verdict};

/// Verbs that patch code, and what each is asked for.
pub(super) const VERBS: [&str; 5] = ["count", "lat", "trace", "graph", "stack"];

/// Runs all of its jobs. What cannot be run at all is reported as a failure of the step, not as a difference.
pub(super) fn program(
    program: &Program,
    setting: &Setting,
    verbs: &[String],
    trapline: &Path,
    report: &Report,
) {
    let beside = match setting.begin(&program.file, None, trapline) {
        Ok(beside) => beside,
        Err(error) => return report.left_out(&file_name(&program.path), &format!("{error:#}")),
    };
    for job in &program.jobs {
        if let Err(error) = one(program, job, setting, verbs, trapline, report) {
            report.failed(&title(program, job, setting), &format!("{error:#}"));
        }
    }
    drop(beside);
}

/// How often a program runs bare once more, a second apart, before a difference is held against the tracer.
const BARE_AGAIN: u32 = 4;

/// Words before a program that change which of its processes comes first: one processor for all, and a tracer that
/// stops each at every call of the system, and changes nothing. `xinit` prints one of two texts, depending on that.
const SCHEDULES: [&[&str]; 2] = [&["taskset", "-c", "0"], &["strace", "-f", "-o", "/dev/null"]];

fn one(
    program: &Program,
    job: &Job,
    setting: &Setting,
    verbs: &[String],
    trapline: &Path,
    report: &Report,
) -> Result<()> {
    let title = title(program, job, setting);
    let bare = |numbers| bare(program, job, setting, &[], numbers);
    let runs = [bare(0)?, bare(3)?];
    if let Some(ran) = runs.iter().find(|ran| ran.timed_out) {
        report.left_out(&title, &format!("bare, it does not end in {} s", ran.took.as_secs()));
        return Ok(());
    }
    if compare::measure(&runs[0].output, &runs[1].output) == Measure::Nothing {
        report.left_out(&title, "two bare runs print different things");
        return Ok(());
    }
    report.program(program);
    for verb in VERBS.iter().filter(|verb| verbs.is_empty() || verbs.iter().any(|given| given == *verb)) {
        let traced = traced(program, job, setting, verb, trapline)?;
        let mut verdict = compare::judge([&runs[0], &runs[1]], &traced);
        for _ in 0..BARE_AGAIN {
            if !matches!(verdict, Verdict::Differs(_)) {
                break;
            }
            // What differs from one second to the next, or from one schedule to the next, is not held against it: two
            // bare runs may lie in the same second, or be scheduled alike.
            std::thread::sleep(Duration::from_millis(1100));
            verdict = compare::judge([&runs[0], &bare(5)?], &traced);
        }
        for words in SCHEDULES {
            if matches!(verdict, Verdict::Differs(_)) {
                let runs = [0, 3].map(|numbers| self::bare(program, job, setting, words, numbers));
                let [first, second] = runs;
                let scheduled = compare::judge([&first?, &second?], &traced);
                verdict = if matches!(scheduled, Verdict::Differs(_)) { verdict } else { scheduled };
            }
        }
        report.run(&title, verb, &verdict, traced.took, runs[0].took);
    }
    Ok(())
}

/// Runs without us, with `words` before the program.
fn bare(program: &Program, job: &Job, setting: &Setting, words: &[&str], numbers: u32) -> Result<Ran> {
    let before = [setting.around, &sandbox::PARENT, words].concat();
    let words = [owned(&before), started(program, job, setting)].concat();
    sandbox::run(&Scratch::new()?, &words, job.input.as_deref(), numbers, PATIENCE)
}

fn traced(program: &Program, job: &Job, setting: &Setting, verb: &str, trapline: &Path) -> Result<Ran> {
    let scratch = Scratch::new()?;
    let all = format!("{}:*", program.file.display());
    let mut words = owned(setting.around);
    words.extend([trapline.display().to_string(), verb.to_string(), "-q".into(), "-o".into()]);
    words.push(scratch.beside("report.json").display().to_string());
    // What the tree is shown below: nearly all programs in C have it, and its calls are all but the start.
    words.extend((verb == "graph").then(|| format!("{}:main", program.file.display())));
    words.push(all);
    // It is a child of what is started, or the same process after an exec.
    words.extend((!setting.inside.is_empty()).then(|| "-f".to_string()));
    words.push("--".to_string());
    words.extend(started(program, job, setting));
    sandbox::run(&scratch, &words, job.input.as_deref(), 1, TRACED_PATIENCE)
}

/// The program with its arguments, and what starts it.
fn started(program: &Program, job: &Job, setting: &Setting) -> Vec<String> {
    [owned(setting.inside), vec![program.path.display().to_string()], job.arguments.clone()].concat()
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn title(program: &Program, job: &Job, setting: &Setting) -> String {
    let named = format!("{} ({}) {}", file_name(&program.path), program.package, job.arguments.join(" "));
    if setting.name == SETTINGS[0].name { named } else { format!("{named} [{}]", setting.name) }
}
