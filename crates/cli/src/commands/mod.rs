//! The verbs: each takes its ready arguments, runs a session, and returns an exit status.

mod calls;
pub(crate) mod count;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod first;
pub(crate) mod graph;
pub(crate) mod hist;
pub(crate) mod lat;
pub(crate) mod list;
pub(crate) mod manual;
pub(crate) mod patched;
mod reader_aggregation;
pub(crate) mod record;
pub(crate) mod recorded;
pub(crate) mod recording;
mod run;
pub(crate) mod script;
pub(crate) mod stack;
mod tables;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod watch;

use std::process::{ExitCode, ExitStatus};

use trapline::watch::WatchError;

use crate::args::error::UsageError;
use crate::output::{OutputError, print_line};
use crate::serve::outlets::OutletError;

/// How a run ended, apart from errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Exit status 0.
    Done,
    /// Exit status 1; the reason has been printed already.
    Failed,
    /// The launched command's own exit status.
    Command(ExitStatus),
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Wrong usage that only shows when the system is looked at. Exit status 2.
    #[error(transparent)]
    Usage(trapline::Error),
    /// Wrong usage that only shows when a file is looked at. Exit status 2.
    #[error(transparent)]
    Words(UsageError),
    /// Nothing could be probed. Exit status 3.
    #[error(transparent)]
    Nothing(trapline::Error),
    /// Any other error of the session. Exit status 1.
    #[error(transparent)]
    Session(trapline::Error),
    /// Our own output failed. Exit status 1.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The port could not be taken, or the collector not be reached. Exit status 1.
    #[error(transparent)]
    Outlet(#[from] OutletError),
    /// An error of one verb alone. Exit status 1.
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
    /// The exit status as a shell shows it: 128 + n for a command that signal n ended.
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
    /// Prints what went wrong, and returns the exit status.
    pub(crate) fn code(&self) -> ExitCode {
        if let Self::Output(OutputError::Gone) = self {
            return ExitCode::SUCCESS;
        }
        print_line(&format!("trapline: {self}"));
        ExitCode::from(match self {
            Self::Usage(_) | Self::Words(_) => 2,
            Self::Nothing(_) => 3,
            Self::Session(_) | Self::Output(_) | Self::Outlet(_) | Self::Other(_) => 1,
        })
    }
}
