//! What the runs came to, as they come.
//!
//! In: verdicts, from several threads. Out: a line for each difference on standard output, a line for each run in the
//! log, and the sums. Does not: judge.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::compare::{Measure, Verdict};
use super::programs::{Found, Program};
use crate::outcome::Outcome;

/// Collects; shared by all lanes.
#[derive(Debug)]
pub(super) struct Report(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    programs: BTreeSet<std::path::PathBuf>,
    runs: u64,
    loosely: u64,
    differ: Vec<String>,
    failed: Vec<String>,
    /// Programs that are never run and jobs that cannot be compared, with the reason.
    left_out: Vec<String>,
    /// Packages that are not installed.
    absent: usize,
    refused: u64,
    /// How often each reason was given, without numbers and names in it.
    reasons: BTreeMap<String, u64>,
    log: Option<File>,
}

impl Report {
    /// `log` gets a line for each run. What packages lack is a skip if `all` of the list was asked for; an even part
    /// goes without it.
    pub(super) fn new(log: Option<&Path>, found: &Found, all: bool) -> Result<Self> {
        let log =
            log.map(|path| File::create(path).with_context(|| path.display().to_string())).transpose()?;
        let (left_out, absent) = (found.left_out.clone(), if all { found.absent.len() } else { 0 });
        Ok(Self(Mutex::new(Sums { log, left_out, absent, ..Sums::default() })))
    }

    /// Counts the program, once.
    pub(super) fn program(&self, program: &Program) {
        self.with(|sums| sums.programs.insert(program.file.clone()));
    }

    /// A job that is not compared, with the reason.
    pub(super) fn left_out(&self, title: &str, why: &str) {
        self.with(|sums| sums.left_out.push(format!("{title}: {why}")));
    }

    /// The sandbox itself failed.
    pub(super) fn failed(&self, title: &str, why: &str) {
        println!("FAILED {title}: {why}");
        self.with(|sums| sums.failed.push(format!("world: {title}: {why}")));
    }

    /// A traced run.
    pub(super) fn run(&self, title: &str, verb: &str, verdict: &Verdict, took: Duration, bare: Duration) {
        let (word, more) = match verdict {
            Verdict::Same(measure) => ("same", format!("{measure:?}")),
            Verdict::Refused(why) => ("refused", why.clone()),
            Verdict::Differs(why) => ("DIFFERS", why.clone()),
        };
        if matches!(verdict, Verdict::Differs(_)) {
            println!("DIFFERS under {verb}: {title}: {more}");
        }
        self.with(|sums| {
            sums.runs += 1;
            match verdict {
                Verdict::Same(measure) => sums.loosely += u64::from(*measure != Measure::Exact),
                Verdict::Refused(why) => {
                    sums.refused += 1;
                    *sums.reasons.entry(general(why)).or_default() += 1;
                }
                Verdict::Differs(why) => sums.differ.push(format!("world: {title} under {verb}: {why}")),
            }
            if let Some(log) = &mut sums.log {
                let (took, bare) = (took.as_millis(), bare.as_millis());
                writeln!(log, "{word}\t{verb}\t{took} ms\t{bare} ms bare\t{title}\t{more}").ok();
            }
        });
    }

    /// Prints the sums, and gives them as a step's outcome. Each run is a check that passed or failed.
    pub(super) fn finish(self, took: Duration) -> Outcome {
        let sums = self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (reason, count) in &sums.reasons {
            println!("refused {count:6} times: {reason}");
        }
        println!("{} runs were compared without numbers or order, as bare runs differ there", sums.loosely);
        println!(
            "{} programs, {} runs, {} differ, {} refused; {} jobs or programs left out; {:.0} s",
            sums.programs.len(),
            sums.runs,
            sums.differ.len(),
            sums.refused,
            sums.left_out.len(),
            took.as_secs_f64(),
        );
        for line in &sums.left_out {
            println!("left out: {line}");
        }
        let skipped = (sums.absent > 0)
            .then(|| format!("world: {} packages of the list are not installed", sums.absent));
        let failures = [sums.differ, sums.failed].concat();
        let failed = failures.len() as u64;
        Outcome {
            passed: sums.runs.saturating_sub(failed),
            failed,
            failures,
            skipped: skipped.into_iter().collect(),
            ..Outcome::default()
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Sums) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// The reason without what is particular: numbers and paths.
fn general(why: &str) -> String {
    let word = |word: &str| match word {
        word if word.contains('/') => "PATH".to_string(),
        word if word.bytes().any(|byte| byte.is_ascii_digit()) => "N".to_string(),
        word => word.to_string(),
    };
    why.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn reasons_are_counted_without_their_particulars() {
        assert_eq!(
            general("trapline: /usr/bin/x: no room of 0x10 bytes"),
            "trapline: PATH no room of N bytes"
        );
    }
}
