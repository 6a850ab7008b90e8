//! What stops a session. Each error says what was tried, why it failed, what to do; what stops one probe only is a
//! [`Refused`](crate::Refused) or a notice.

use std::io;

use trapline_image::SpecError;
use trapline_patch::PatchError;
use trapline_target::TargetError;

use crate::filter::Undecided;

/// Why a session cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A process, or the right to touch it.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The batch of patches as a whole.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// A probe that cannot be read.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No process has the name.
    #[error("no process is named {name}{}; give its pid with -p, or start it with -c", nearest(.near))]
    NoProcessNamed {
        /// The name asked for.
        name: String,
        /// Names like it.
        near: Vec<String>,
    },
    /// Without a target, only a file tells which processes are meant.
    #[error(
        "probe `{probe}` names no file and no process is given; write FILE:FUNCTION, or use -p, -n or -c"
    )]
    NoTarget {
        /// The probe.
        probe: String,
    },
    /// No such file.
    #[error("no file `{file}` for probe `{probe}`: {why}; give its full path")]
    NoFile {
        /// As asked for.
        file: String,
        /// The probe.
        probe: String,
        /// What was tried.
        why: String,
    },
    /// No process maps the file.
    #[error("no process that you may trace maps {file}; start one, or give it with -p, -n or -c")]
    NobodyMaps {
        /// The file.
        file: String,
    },
    /// No probe found a function.
    #[error("nothing to probe: {}", .misses.join("; "))]
    NoMatch {
        /// For each probe, what was not found and what is like it.
        misses: Vec<String>,
    },
    /// All that was found was refused.
    #[error("nothing could be probed: {matched} matched, all refused; for example {example}")]
    AllRefused {
        /// Places found.
        matched: u64,
        /// One probe and its reason.
        example: String,
        /// All of them.
        refused: Vec<crate::Refused>,
    },
    /// A filter that would not be decided.
    #[error("the filter of {probe} cannot decide: {why}")]
    Filter {
        /// The probe.
        probe: String,
        /// Why.
        why: Undecided,
    },
    /// A command that cannot be started.
    #[error("cannot start {command}: {source}")]
    Launch {
        /// Its first word.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// Watchpoints.
    #[error(transparent)]
    Watch(#[from] trapline_watch::WatchError),
    /// No place to watch was found.
    #[error("nothing to watch: {}", .misses.join("; "))]
    NoPlace {
        /// For each place, what was not found and what is like it.
        misses: Vec<String>,
    },
    /// What the stubs cannot do.
    #[error("{what} is not built into this version's probes: {why}")]
    Missing {
        /// The wish.
        what: &'static str,
        /// What it would take.
        why: &'static str,
    },
}

impl Error {
    /// Whether it means that the process is no more.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        match self {
            Self::Target(error) => error.is_gone(),
            Self::Patch(error) => error.is_gone(),
            _ => false,
        }
    }
    /// Whether it means that all was understood and nothing could be probed.
    #[must_use]
    pub const fn is_nothing_probed(&self) -> bool {
        matches!(self, Self::NoMatch { .. } | Self::AllRefused { .. } | Self::NoPlace { .. })
    }
}

/// `; did you mean a, b?` or nothing.
pub(crate) fn nearest(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(", ")) }
}
