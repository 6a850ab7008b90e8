//! What runs beside the tests, which wait more than they compute: builds that later steps need, and steps that only
//! compute.
//!
//! In: cargo commands that build and run nothing, steps with their words, how nice they are. Out: each step's lines and outcome,
//! when it is asked for. What fails to build fails again in its own step, and says why there. Beside tests all are as
//! nice as can be, so that tests hardly notice. Builds have folders of their own; steps wait for cargo's lock where a test step builds, and
//! tests never build. They are not left to idle processors alone, which on a busy machine never come.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow};

use crate::outcome::Outcome;

/// What a step printed, and whether it ended well.
type Ran = Result<(String, bool)>;

/// Work that goes on beside the caller's.
#[derive(Debug)]
pub(crate) struct Ahead(JoinHandle<BTreeMap<&'static str, Ran>>);

impl Ahead {
    /// Runs the builds one after the other, then the steps, so much nicer than this process.
    pub(crate) fn start(builds: Vec<Command>, steps: &'static [&'static str], niceness: u32) -> Self {
        Self(std::thread::spawn(move || {
            for command in builds {
                if let Err(error) =
                    nice(&command, niceness).stdout(Stdio::null()).stderr(Stdio::null()).status()
                {
                    println!("nothing is built ahead: {error}");
                }
            }
            steps.iter().map(|&name| (name, step(name, niceness))).collect()
        }))
    }

    /// Waits for all. For each step what it printed and came to.
    pub(crate) fn finish(self) -> Result<Vec<(&'static str, String, Outcome)>> {
        let ran = self.0.join().map_err(|_| anyhow!("what runs ahead panicked"))?;
        let read = |(name, ran): (_, Ran)| {
            let (text, ok) = ran.unwrap_or_else(|error| (format!("{error:#}\n"), false));
            let outcome = outcome(&text).unwrap_or_else(|| Outcome::single(ok));
            (name, text, if ok || outcome.failed > 0 { outcome } else { Outcome::single(false) })
        };
        Ok(ran.into_iter().map(read).collect())
    }
}

/// A step of this program, as a process of its own.
fn step(name: &str, niceness: u32) -> Ran {
    // Not its path: a build may have put another file there since.
    let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
    command.args(name.split(' '));
    let (mut reader, writer) = std::io::pipe().context("a pipe")?;
    let mut nice = nice(&command, niceness);
    nice.stdin(Stdio::null()).stdout(writer.try_clone().context("a pipe")?).stderr(writer);
    let mut child = nice.spawn().context("nice")?;
    // It holds the pipe's other end.
    drop(nice);
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut text).context("output")?;
    Ok((String::from_utf8_lossy(&text).into_owned(), child.wait().context("nice")?.success()))
}

/// What the closing lines of a step say; see [`Outcome::closing_line`].
fn outcome(text: &str) -> Option<Outcome> {
    let closing = text.lines().next_back()?;
    let number = |what: &str| -> Option<u64> {
        let part = closing.split(", ").find(|part| part.contains(what))?;
        part.split(' ').next()?.parse().ok()
    };
    let all =
        |prefix: &str| text.lines().filter_map(|line| line.strip_prefix(prefix)).map(str::to_owned).collect();
    let mut outcome = Outcome {
        passed: number(" passed")?,
        failed: number(" failed")?,
        skipped: all("skipped: "),
        unsteady: all("UNSTEADY, failed and then passed alone: "),
        failures: all("failed: "),
    };
    let skipped = number(" skipped")? as usize;
    // Its own lines may begin like that, too: the last ones are the step's.
    outcome.skipped = outcome.skipped.split_off(outcome.skipped.len().checked_sub(skipped)?);
    Some(outcome)
}

/// The same command, so much nicer.
fn nice(command: &Command, niceness: u32) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", &niceness.to_string()]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

#[cfg(test)]
mod tests {
    use super::{Ahead, Command, Outcome, nice, outcome, step};

    #[test]
    fn what_runs_is_what_was_asked_for() {
        let mut asked = Command::new("cargo");
        asked.args(["test", "--no-run"]).env("ONE", "1").env_remove("TWO");
        let nice = nice(&asked, 19);
        let words: Vec<_> = nice.get_args().collect();
        assert_eq!(words, ["-n", "19", "cargo", "test", "--no-run"]);
        assert_eq!(nice.get_envs().collect::<Vec<_>>(), asked.get_envs().collect::<Vec<_>>());
    }

    #[test]
    fn it_runs_behind_all_others() {
        let file = std::env::temp_dir().join(format!("trapline-ahead-{}", std::process::id()));
        let mut asked = Command::new("sh");
        asked.args(["-c", "nice > \"$PRINTED\""]).env("PRINTED", &file);
        assert!(Ahead::start(vec![asked], &[], 19).finish().expect("run").is_empty());
        let text = std::fs::read_to_string(&file).expect("written");
        std::fs::remove_file(&file).expect("removed");
        let own = Command::new("nice").output().expect("the niceness of this test").stdout;
        let own: i32 = String::from_utf8_lossy(&own).trim().parse().expect("a number");
        assert_eq!(text.trim(), (own + 19).min(19).to_string());
    }

    #[test]
    fn a_step_is_this_program_with_another_word() {
        // This program is the test runner, which lists its tests.
        let (text, ok) = step("--list", 0).expect("it runs");
        assert!(ok && text.contains("a_step_is_this_program_with_another_word"), "{text}");
    }

    #[test]
    fn closing_lines_are_read_as_they_are_written() {
        let written = Outcome {
            passed: 7,
            failed: 1,
            skipped: vec!["a: why".into()],
            failures: vec!["b of c".into()],
            unsteady: Vec::new(),
        };
        let text = format!(
            "skipped: a line of its own\nskipped: a: why\nfailed: b of c\n{}\n",
            written.closing_line()
        );
        assert_eq!(outcome(&text), Some(written));
        assert_eq!(outcome("error: no such thing\n"), None);
        assert_eq!(outcome(""), None);
    }
}
