//! `--trigger`, in uftrace's words: what happens at calls of a function when a recording is shown.
//!
//! In: typed words. Out: [`Trigger`]s, and functions that are also of `--filter` or `--notrace`; or what is wrong. Does not: know
//! which functions a recording has.

use super::error::UsageError;
use super::selection::functions;
use crate::args::command::record::{Trigger, Triggers};

/// Reads them.
pub(crate) fn triggers(typed: &[String]) -> Result<Triggers, UsageError> {
    let mut triggers = Triggers::default();
    for text in typed {
        let wrong = |why: String| UsageError::Trigger { text: text.clone(), why };
        let (name, actions) = text
            .rsplit_once('@')
            .ok_or_else(|| wrong("write FUNC@ACTION, such as store@backtrace".to_owned()))?;
        let function = functions("--trigger", &[name.to_owned()])?.remove(0);
        let mut one = Trigger { function: function.clone(), depth: None, shows: None, backtrace: false };
        for action in actions.split(',').map(str::trim) {
            match action.split_once('=') {
                Some(("depth", levels)) => {
                    let levels = levels.parse().ok().filter(|levels| *levels > 0);
                    one.depth =
                        Some(levels.ok_or_else(|| wrong(format!("`{action}`: write a number from 1 on")))?);
                }
                None if matches!(action, "trace_on" | "trace-on") => one.shows = Some(true),
                None if matches!(action, "trace_off" | "trace-off") => one.shows = Some(false),
                None if action == "backtrace" => one.backtrace = true,
                None if action == "filter" => triggers.only.push(function.clone()),
                None if action == "notrace" => triggers.without.push(function.clone()),
                _ => return Err(wrong(refused(action))),
            }
        }
        triggers.all.push(one);
    }
    Ok(triggers)
}

/// Why an action is refused.
fn refused(action: &str) -> String {
    let name = action.split_once('=').map_or(action, |(name, _)| name);
    let why = match name {
        "read" => {
            "counters of the processor, memory and time of the process must be read while it runs, by a system call at each call: trapline run has scripts for that"
        }
        "time" => "calls that took less are left out of all functions alike: -t TIME",
        "size" => "functions are left out by size while recording: record --size-filter BYTES",
        "auto-args" | "arg" | "retval" => "values are recorded, or they are not: record -a, or a signature",
        "color" | "recover" | "finish" | "hide" => "there is no such thing here",
        _ => {
            return format!(
                "`{name}` is no action: trace_on, trace_off, depth=N, backtrace, filter, notrace"
            );
        }
    };
    format!("`{name}`: {why}")
}

#[cfg(test)]
mod tests {
    use super::triggers;

    #[test]
    fn triggers_have_uftraces_words() {
        let texts = ["odd@depth=2,backtrace", "tree@trace-off", "again@trace_on,filter", "x@notrace"];
        let read = triggers(&texts.map(str::to_owned)).expect("four");
        let all: Vec<_> =
            read.all.iter().map(|one| (&*one.function.text, one.depth, one.shows, one.backtrace)).collect();
        assert_eq!(
            all,
            [
                ("odd", Some(2), None, true),
                ("tree", None, Some(false), false),
                ("again", None, Some(true), false),
                ("x", None, None, false)
            ]
        );
        assert_eq!((&*read.only[0].text, &*read.without[0].text), ("again", "x"));
        for (text, says) in [
            ("odd", "write FUNC@ACTION"),
            ("odd@depth=0", "from 1 on"),
            ("odd@read=pmu-cycle", "while it runs"),
            ("odd@time=1us", "-t TIME"),
            ("odd@jump", "is no action"),
            ("usdt:a:b@backtrace", "--trigger"),
        ] {
            let error = triggers(&[text.to_owned()]).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
