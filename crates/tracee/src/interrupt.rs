//! Waiting for the signals that end a session.
//!
//! Input: nothing. Output: the signal that came. Invariants: TGT-8 from [`Interrupts::new`] on, none of these
//! signals ends the tracer before it could detach. Does not: decide what a signal means.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::sys::signals;

/// A signal that asks the tracer to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// Ctrl-C.
    Int,
    /// `kill`.
    Term,
    /// The terminal is gone.
    Hangup,
    /// SIGUSR1, which ends nothing; only [`Interrupts::with_user`] reports it.
    User,
}

impl Interrupt {
    /// Whether a signal that ends a session waits to be taken. False where no [`Interrupts`] were made.
    #[must_use]
    pub fn is_pending() -> bool {
        signals::is_end_pending()
    }
}

/// SIGINT, SIGTERM and SIGHUP, blocked and waited for. Must be made before any other thread is started.
#[derive(Debug)]
pub struct Interrupts {
    fd: OwnedFd,
}

impl Interrupts {
    /// Blocks the signals.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: signals::open(&signals::ENDING)? })
    }
    /// Blocks SIGUSR1 too, and reports it as [`Interrupt::User`].
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn with_user() -> io::Result<Self> {
        let [int, term, hangup] = signals::ENDING;
        Ok(Self { fd: signals::open(&[int, term, hangup, libc::SIGUSR1])? })
    }
    /// Waits at most `at_most` for one of them.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> Option<Interrupt> {
        self.wait_beside(&[], at_most)
    }
    /// Waits likewise, and also until one of these descriptors is readable.
    #[must_use]
    pub fn wait_beside(&self, others: &[i32], at_most: Duration) -> Option<Interrupt> {
        match signals::next(&self.fd, others, at_most).ok()? {
            libc::SIGINT => Some(Interrupt::Int),
            libc::SIGTERM => Some(Interrupt::Term),
            libc::SIGHUP => Some(Interrupt::Hangup),
            libc::SIGUSR1 => Some(Interrupt::User),
            _ => None,
        }
    }
}
