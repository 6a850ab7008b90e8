//! What later steps will need, built while tests run: those wait more than they compute.
//!
//! In: cargo commands that build and run nothing. Out: nothing; what fails to build fails again in its own step, and says why there.
//! They get only the time of processors that nobody else wants (SCHED_IDLE), and each builds into a folder of its own, so that no test
//! and no build waits for them. A step that comes before its build is done waits for cargo's lock on that folder.

use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// Runs them one after the other, beside what the caller goes on to do.
pub(crate) fn build(commands: Vec<Command>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for command in commands {
            if let Err(error) = idle(&command).stdout(Stdio::null()).stderr(Stdio::null()).status() {
                println!("nothing is built ahead: {error}");
            }
        }
    })
}

/// The same command, for processors that are idle.
fn idle(command: &Command) -> Command {
    let mut idle = Command::new("chrt");
    idle.args(["--idle", "0"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::{Command, build, idle};

    #[test]
    fn what_runs_is_what_was_asked_for() {
        let mut asked = Command::new("cargo");
        asked.args(["test", "--no-run"]).env("ONE", "1").env_remove("TWO");
        let idle = idle(&asked);
        let words: Vec<_> = idle.get_args().collect();
        assert_eq!(words, ["--idle", "0", "cargo", "test", "--no-run"]);
        assert_eq!(idle.get_envs().collect::<Vec<_>>(), asked.get_envs().collect::<Vec<_>>());
    }

    #[test]
    fn it_runs_for_idle_processors_alone() {
        let file = std::env::temp_dir().join(format!("trapline-ahead-{}", std::process::id()));
        let mut asked = Command::new("sh");
        asked.args(["-c", "chrt -p $$ > \"$SAID\""]).env("SAID", &file);
        build(vec![asked]).join().expect("run");
        let said = std::fs::read_to_string(&file).expect("said");
        std::fs::remove_file(&file).expect("removed");
        assert!(said.contains("SCHED_IDLE"), "{said}");
    }
}
