//! Tests that failed, run once more with nothing beside them.
//!
//! In: the command that ran them, and what it came to. Out: the same, with those that pass alone called *unsteady*: by
//! name, with their output when they failed, never silently. Few are let through ([`MOST`]): beyond that, and where a
//! test binary died, the failures stand. An unsteady test is a defect, of the test or of what it tests; what this
//! spares is that a machine that others keep busy hides all else that was found.

use std::process::Command;

use crate::outcome::Outcome;

/// How many may be unsteady in one step.
const MOST: usize = 3;

/// The command that runs these alone; none if the failures stand as they are.
pub(crate) fn alone(command: &Command, outcome: &Outcome, names: &[String]) -> Option<Command> {
    let each_is_named = outcome.failed == names.len() as u64;
    if names.is_empty() || names.len() > MOST || !each_is_named {
        return None;
    }
    let mut again = Command::new(command.get_program());
    again.args(command.get_args().take_while(|arg| *arg != "--"));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    again.args(["--", "--test-threads=1", "--show-output", "--exact"]).args(names);
    Some(again)
}

/// What both runs came to. All that failed must pass now: half of them would say nothing of the rest.
pub(crate) fn judge(first: Outcome, second: &Outcome) -> Outcome {
    let ran = second.passed >= first.failed && second.failed == 0;
    if !ran {
        return first;
    }
    Outcome {
        passed: first.passed + first.failed,
        failed: 0,
        failures: Vec::new(),
        unsteady: first.failures,
        ..first
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, alone, judge};
    use crate::outcome::Outcome;
    use std::process::Command;

    fn failed(count: usize) -> (Outcome, Vec<String>) {
        let names: Vec<String> = (0..count).map(|n| format!("t{n}")).collect();
        let failures = names.clone();
        (Outcome { passed: 5, failed: count as u64, failures, ..Outcome::default() }, names)
    }

    #[test]
    fn few_are_run_again_and_no_binary_that_died() {
        let mut command = Command::new("cargo");
        command.args(["test", "-p", "a", "--", "--show-output", "--skip", "b"]).env("X", "1").env_remove("Y");
        let (outcome, names) = failed(2);
        let again = alone(&command, &outcome, &names).expect("two are few");
        let args: Vec<_> = again.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        assert_eq!(args.join(" "), "test -p a -- --test-threads=1 --show-output --exact t0 t1");
        assert_eq!(again.get_envs().count(), 2);
        let (many, names) = failed(MOST + 1);
        assert!(alone(&command, &many, &names).is_none());
        let (died, names) = failed(2);
        assert!(alone(&command, &died, &names[..1]).is_none(), "one binary came to no closing line");
        assert!(alone(&command, &Outcome::default(), &[]).is_none());
    }

    #[test]
    fn a_test_that_passes_alone_is_unsteady_and_named() {
        let (first, names) = failed(2);
        let both = Outcome { passed: 2, ..Outcome::default() };
        let now = judge(first.clone(), &both);
        assert_eq!((now.passed, now.failed, now.unsteady), (7, 0, names));
        for second in [Outcome { passed: 1, failed: 1, ..Outcome::default() }, Outcome::default()] {
            assert_eq!(judge(first.clone(), &second), first, "it failed again, or was not found");
        }
    }
}
