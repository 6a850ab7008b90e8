//! Errors that stop a session. Each text says what was tried, why it failed, and what to do. What stops a
//! single probe only is a [`Refused`] or a notice.

use std::io;

pub use trapline_image::SpecError;
pub use trapline_patch::PatchError;
pub use trapline_tracee::TargetError;
use trapline_watch::WatchError;

use crate::filter::Undecided;
use crate::report::{Refused, Unprobed};

/// Why a session cannot start or go on. Show its text: it says what was tried, why it failed, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A process cannot be traced: it is gone, or the right to trace it is missing.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The batch of patches failed as a whole.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// A probe's text cannot be parsed.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No process has the name.
    #[error("no process is named {name}{}; give its pid with -p, or start it with -c", nearest(.near))]
    NoProcessNamed {
        /// The name asked for.
        name: String,
        /// Names that are similar.
        near: Vec<String>,
    },
    /// No target was given, and the probe names no file that would identify one.
    #[error(
        "probe `{probe}` names no file and no process is given; write FILE:FUNCTION, or use -p, -n or -c"
    )]
    NoTarget {
        /// The probe.
        probe: String,
    },
    /// The probe's file was not found.
    #[error("no file `{file}` for probe `{probe}`: {why}; give its full path")]
    NoFile {
        /// The file's name as typed.
        file: String,
        /// The probe.
        probe: String,
        /// What was tried.
        why: String,
    },
    /// No process maps the file.
    #[error("no process that you may trace maps {file}; start one, or give it with -p, -n or -c")]
    NotMapped {
        /// The file.
        file: String,
    },
    /// No probe found a function.
    #[error("nothing to probe: {}", .misses.join("; "))]
    NoMatch {
        /// For each probe: what was not found, and similar names.
        misses: Vec<String>,
    },
    /// All functions that probes mean are left out ([`Builder::leave_out`](crate::Builder::leave_out)).
    #[error("nothing to probe: {}; leave out less, or name other functions", .left_out.join("; "))]
    LeftOut {
        /// For each probe: how many functions, and why.
        left_out: Vec<String>,
    },
    /// All that was found was refused.
    #[error("nothing could be probed: {matched} matched, all refused; for example {example}")]
    AllRefused {
        /// Number of places found.
        matched: u64,
        /// One probe and the reason for its refusal.
        example: String,
        /// All refusals.
        refused: Vec<Refused>,
    },
    /// A filter that neither the target nor the reader could decide.
    #[error("the filter of {probe} cannot decide: {why}")]
    Filter {
        /// The probe.
        probe: String,
        /// Why.
        why: Undecided,
    },
    /// Threads of this processor's stubs cannot wait.
    #[error(
        "on this processor a program does not wait for a full buffer: record without --lossless, with a larger --buffer"
    )]
    NoWaiting,
    /// A command could not be started.
    #[error("cannot start {command}: {source}")]
    Launch {
        /// First word of the command.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// An error of watchpoints.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// No variable to watch was found.
    #[error("nothing to watch: {}", .misses.join("; "))]
    NoPlace {
        /// For each of them: what was not found, and similar names.
        misses: Vec<String>,
    },
    /// A request that the stubs do not support.
    #[error("{what} is not built into this version's probes: {why}")]
    Missing {
        /// The request.
        what: &'static str,
        /// What support would take.
        why: &'static str,
    },
}

/// Advice where nothing matched.
const LATER: &str = "--wait waits for libraries that come later, -f for programs too";

impl Error {
    /// Whether the error means that the process has ended.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        match self {
            Self::Target(error) => error.is_gone(),
            Self::Patch(error) => error.is_gone(),
            _ => false,
        }
    }
    /// Adds advice where nothing matched: it may come later. `launched`: a command was started for it.
    pub(crate) fn with_follow(self, launched: bool) -> Self {
        match self {
            Self::NoMatch { mut misses } => {
                misses.push(match launched {
                    true => format!("the command was not run; {LATER}"),
                    false => LATER.to_owned(),
                });
                Self::NoMatch { misses }
            }
            other => other,
        }
    }
    /// Takes the advice back, for a command in which `-f` means something else.
    #[must_use]
    pub fn without_advice(self) -> Self {
        match self {
            Self::NoMatch { misses } => {
                let kept =
                    misses.iter().map(|miss| miss.trim_end_matches(LATER).trim_end_matches("; ").to_owned());
                Self::NoMatch { misses: kept.filter(|miss| !miss.is_empty()).collect() }
            }
            other => other,
        }
    }
    /// Whether the error means that the probes were understood, and nothing could be probed.
    #[must_use]
    pub const fn is_nothing_probed(&self) -> bool {
        matches!(
            self,
            Self::NoMatch { .. } | Self::LeftOut { .. } | Self::AllRefused { .. } | Self::NoPlace { .. }
        )
    }
}

/// `; did you mean a, b?` or nothing.
pub(crate) fn nearest(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(", ")) }
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

#[cfg(test)]
mod tests {
    use super::{Error, Unprobed, nothing_had};

    #[test]
    fn advice_can_be_taken_back() {
        for (launched, left) in [
            (true, vec!["no f".to_owned(), "the command was not run".to_owned()]),
            (false, vec!["no f".to_owned()]),
        ] {
            let error = Error::NoMatch { misses: vec!["no f".to_owned()] }.with_follow(launched);
            assert!(error.to_string().contains("--wait waits"), "{error}");
            assert!(matches!(error.without_advice(), Error::NoMatch { misses } if misses == left));
        }
    }

    #[test]
    fn what_could_not_be_looked_at_is_not_said_to_lack_it() {
        assert_eq!(nothing_had(&["a:f", "b:g"], &[]), "no program that was run has a:f, b:g");
        let one = Unprobed { pid: 7, name: "x".to_owned(), reason: "it runs a 32-bit program".to_owned() };
        let text = nothing_had(&["a:f"], &[one.clone(), one]);
        assert!(text.starts_with("no program that could be looked at has a:f, and 2 could not"), "{text}");
        assert!(text.ends_with("x (7) is not probed: it runs a 32-bit program"), "{text}");
    }
}
