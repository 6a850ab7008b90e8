//! Processes that are not probed although a probe means something in them, or because they could not be
//! looked at.
//!
//! In: a process, and what went wrong. Out: an [`Unprobed`], which reports show with its reason. Does not:
//! decide what goes on without probes; the session does.

use crate::error::Error;
use crate::report::Unprobed;

impl Unprobed {
    /// The process with this pid. Its name comes from the kernel, and is empty once the process is gone.
    pub(crate) fn new(pid: u32, reason: impl Into<String>) -> Self {
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned();
        Self { pid, name, reason: reason.into() }
    }
    /// Notice about it.
    pub(crate) fn line(&self) -> String {
        let Self { pid, name, reason } = self;
        let name = if name.is_empty() { "a process" } else { name };
        format!("{name} ({pid}) is not probed: {reason}")
    }
}

/// Why a session that follows programs has probed nothing; becomes the text of an [`Error::NoMatch`].
pub(crate) fn nothing_had(texts: &[&str], unprobed: &[Unprobed]) -> String {
    let texts = texts.join(", ");
    match unprobed {
        [] => format!("no program that was run has {texts}"),
        [first, ..] => format!(
            "no program that could be looked at has {texts}, and {} could not; for example {}",
            unprobed.len(),
            first.line()
        ),
    }
}

/// Adds advice to an error where nothing matched: it may come later. `launched`: a command was started for
/// it.
pub(crate) fn with_follow(error: Error, launched: bool) -> Error {
    const LATER: &str = "-f waits for programs and libraries that come later";
    match error {
        Error::NoMatch { mut misses } => {
            misses.push(match launched {
                true => format!("the command was not run; {LATER}"),
                false => LATER.to_owned(),
            });
            Error::NoMatch { misses }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{Unprobed, nothing_had};

    #[test]
    fn what_could_not_be_looked_at_is_not_said_to_lack_it() {
        assert_eq!(nothing_had(&["a:f", "b:g"], &[]), "no program that was run has a:f, b:g");
        let one = Unprobed { pid: 7, name: "x".to_owned(), reason: "it runs a 32-bit program".to_owned() };
        let text = nothing_had(&["a:f"], &[one.clone(), one]);
        assert!(text.starts_with("no program that could be looked at has a:f, and 2 could not"), "{text}");
        assert!(text.ends_with("x (7) is not probed: it runs a 32-bit program"), "{text}");
    }
}
