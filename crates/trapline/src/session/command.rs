//! A command that a session launched.
//!
//! In: a started command. Out: its exit status. Invariant: a command that must not run unprobed is killed
//! when its [`KillOnDrop`] is dropped. Does not: hold the command at its first instruction;
//! `trapline_tracee` does.

use std::process::ExitStatus;

use trapline_tracee::Launched;

/// A command that was launched ([`Target::Launch`](crate::Target::Launch)). At a session's end it runs on, no
/// longer traced; wait for it with [`status`](Self::status).
#[derive(Debug)]
pub struct Running {
    launched: Launched,
    status: Option<ExitStatus>,
}

impl Running {
    pub(crate) const fn new(launched: Launched) -> Self {
        Self { launched, status: None }
    }
    /// Exit status of the command; `None` while it runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.status = self.status.or_else(|| self.launched.try_wait().ok().flatten());
        self.status
    }
}

/// A launched command that is killed when this is dropped, so it does not run if it must not run unprobed.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Option<Launched>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(launched) = &mut self.0 {
            launched.kill();
        }
    }
}
