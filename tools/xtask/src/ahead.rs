//! What later steps will need, built while tests run: those wait more than they compute.
//!
//! In: cargo commands that build and run nothing. Out: nothing; what fails to build fails again in its own step, and says why there.
//! They are as nice as can be, so that tests hardly notice, and each builds into a folder of its own, so that no test and no build waits
//! for them. A step that comes before its build is done waits for cargo's lock on that folder; so they are not left to idle processors
//! alone, which on a busy machine never come.

use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// Runs them one after the other, beside what the caller goes on to do.
pub(crate) fn build(commands: Vec<Command>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for command in commands {
            if let Err(error) = nice(&command).stdout(Stdio::null()).stderr(Stdio::null()).status() {
                println!("nothing is built ahead: {error}");
            }
        }
    })
}

/// The same command, behind all others.
fn nice(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
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
    use super::{Command, build, nice};

    #[test]
    fn what_runs_is_what_was_asked_for() {
        let mut asked = Command::new("cargo");
        asked.args(["test", "--no-run"]).env("ONE", "1").env_remove("TWO");
        let nice = nice(&asked);
        let words: Vec<_> = nice.get_args().collect();
        assert_eq!(words, ["-n", "19", "cargo", "test", "--no-run"]);
        assert_eq!(nice.get_envs().collect::<Vec<_>>(), asked.get_envs().collect::<Vec<_>>());
    }

    #[test]
    fn it_runs_behind_all_others() {
        let file = std::env::temp_dir().join(format!("trapline-ahead-{}", std::process::id()));
        let mut asked = Command::new("sh");
        asked.args(["-c", "nice > \"$SAID\""]).env("SAID", &file);
        build(vec![asked]).join().expect("run");
        let said = std::fs::read_to_string(&file).expect("said");
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(said.trim(), "19");
    }
}
