//! The verbs: each takes its ready arguments, runs a session, and gives an exit status.

pub(crate) mod calls;
pub(crate) mod count;
pub(crate) mod demo;
pub(crate) mod graph;
mod here;
pub(crate) mod hist;
pub(crate) mod lat;
pub(crate) mod list;
pub(crate) mod patched;
pub(crate) mod recording;
pub(crate) mod stack;
mod stage;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod watch;

use std::process::{ExitCode, ExitStatus};

use trapline::watch::WatchError;

use crate::args::error::UsageError;
use crate::output::{OutputError, say};
use crate::serve::outlets::OutletError;

/// How a run ended, apart from errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// 0
    Done,
    /// 1: said already why.
    Failed,
    /// The launched command's own.
    Command(ExitStatus),
}

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Usage that only a look at the system tells from right: 2.
    #[error(transparent)]
    Usage(trapline::Error),
    /// Usage that only a look at a file tells from right: 2.
    #[error(transparent)]
    Words(UsageError),
    /// Nothing could be probed: 3.
    #[error(transparent)]
    Nothing(trapline::Error),
    /// Anything else: 1.
    #[error(transparent)]
    Session(trapline::Error),
    /// Our own output: 1.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// No port, or no collector: 1.
    #[error(transparent)]
    Outlet(#[from] OutletError),
    /// The demo's own troubles: 1.
    #[error("{0}")]
    Other(String),
}

impl From<trapline::Error> for Failure {
    fn from(error: trapline::Error) -> Self {
        match error {
            trapline::Error::NoTarget { .. } => Self::Usage(error),
            trapline::Error::Watch(WatchError::Range { .. } | WatchError::Twice { .. }) => Self::Usage(error),
            error if error.is_nothing_probed() => Self::Nothing(error),
            error => Self::Session(error),
        }
    }
}

impl Outcome {
    /// As the shell sees it: 128 + n for a command that signal n ended.
    pub(crate) fn code(self) -> ExitCode {
        use std::os::unix::process::ExitStatusExt;
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::Failed => ExitCode::from(1),
            Self::Command(status) => {
                let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
                ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
            }
        }
    }
}

impl Failure {
    /// Says what went wrong, and gives the exit status.
    pub(crate) fn code(&self) -> ExitCode {
        if let Self::Output(OutputError::Gone) = self {
            return ExitCode::SUCCESS;
        }
        say(&format!("trapline: {self}"));
        ExitCode::from(match self {
            Self::Usage(_) | Self::Words(_) => 2,
            Self::Nothing(_) => 3,
            Self::Session(_) | Self::Output(_) | Self::Outlet(_) | Self::Other(_) => 1,
        })
    }
}
