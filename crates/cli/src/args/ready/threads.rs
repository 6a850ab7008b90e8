//! Checks that the threads that `--tid` names exist.
//!
//! In: what was typed; a function that returns whether a process has a thread. Out: the first thread that
//! none of the processes has. Processes that are not known yet (a command, names, children that are followed)
//! are not checked. Neither are processes that do not exist, since attaching reports them. Does not: choose
//! calls (see `filters`).

use super::error::UsageError;
use crate::args::typed::{TypedTarget, Verb};

/// Whether a process (the first) has a thread (the second); `None` if there is no such process.
pub(crate) type HasThread<'a> = &'a dyn Fn(u32, u32) -> Option<bool>;

/// Looks for the thread in /proc.
pub(crate) fn has_thread(pid: u32, tid: u32) -> Option<bool> {
    let is_there = |path: String| std::path::Path::new(&path).exists();
    is_there(format!("/proc/{pid}/task")).then(|| is_there(format!("/proc/{pid}/task/{tid}")))
}

/// # Errors
/// Names a thread that does not exist, since waiting for it would be in vain.
pub(crate) fn are_there(verb: &Verb, has: HasThread<'_>) -> Result<(), UsageError> {
    let (target, tids) = match verb {
        Verb::Trace(typed) => (&typed.common.target, &typed.filter.tids),
        Verb::Hist(typed) => (&typed.common.target, &typed.filter.tids),
        Verb::Stack(typed) => (&typed.common.target, &typed.filter.tids),
        _ => return Ok(()),
    };
    let TypedTarget { pids, names, command, follow, words, .. } = target;
    if pids.is_empty() || !names.is_empty() || command.is_some() || *follow || !words.is_empty() {
        return Ok(());
    }
    let nowhere = |&&tid: &&u32| pids.iter().all(|&pid| has(pid, tid) == Some(false));
    match tids.iter().find(nowhere) {
        Some(&tid) => Err(UsageError::NoThread { tid, pid: pids[0] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::are_there;
    use crate::args::typed::Typed;

    /// Process 7 has threads 7 and 8; process 9 does not exist.
    fn says(words: &str) -> Option<String> {
        let has = |pid, tid| (pid != 9).then_some(pid == 7 && (tid == 7 || tid == 8));
        let verb = Typed::parse_from(words.split(' ')).verb;
        are_there(&verb, &has).err().map(|error| error.to_string())
    }

    #[test]
    fn a_thread_of_no_process_is_named() {
        for (verb, what) in [("trace", "f"), ("stack", "f"), ("hist", "arg0 f")] {
            let wrong = says(&format!("trapline {verb} -p 7 --tid 8 --tid 6 {what}"));
            assert_eq!(
                wrong.as_deref(),
                Some("--tid 6: process 7 has no such thread; /proc/7/task has those of now")
            );
            assert_eq!(says(&format!("trapline {verb} -p 7 --tid 8 {what}")), None);
            // One of the processes has the thread, which is enough.
            assert_eq!(says(&format!("trapline {verb} -p 5 -p 7 --tid 8 {what}")), None);
        }
    }

    #[test]
    fn what_is_not_known_yet_may_have_it() {
        for words in
            ["-p 7 -f --tid 6 f", "-n x --tid 6 f", "-c x --tid 6 f", "-p 9 --tid 6 f", "--tid 6 f -- x"]
        {
            assert_eq!(says(&format!("trapline trace {words}")), None, "{words}");
        }
    }
}
