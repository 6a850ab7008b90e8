//! Spare descriptors: what was begun in a target can be undone when no other descriptor is left.
//!
//! In: a short use of descriptors. Out: its result. Invariant: TGT-20 a process is patched only after the
//! spares were opened. Does not: give descriptors to keep.
//!
//! | step | what |
//! |---|---|
//! | S1 | [`keep`] opens spares. If it cannot, nothing is begun |
//! | S2 | a use under [`with`] finds no descriptor: one spare is closed, and the use is repeated |
//! | S3 | after the use, spares are opened again as far as descriptors are free |
//!
//! Interleavings:
//!
//! - *Another thread takes the number between the closing of a spare and the repeated use*: the next spare is closed.
//!   Only uses that keep their descriptor can use spares up. They end with an error when there are none left.
//! - *More threads use spares than there are*: those without one get the kernel's error, as if there were no spares.
//! - *A child is started meanwhile*: spares are closed at its exec.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use crate::sys::fd;

/// Number of spares: for the session, the follower, and some threads that hold programs at their starts.
const SPARES: usize = 8;

/// Open spares; `None` until they are wanted.
static SPARE: Mutex<Option<Vec<OwnedFd>>> = Mutex::new(None);

/// S1.
///
/// # Errors
/// When there are not as many descriptors.
pub(crate) fn keep() -> io::Result<()> {
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let open = spare.get_or_insert_default();
    while open.len() < SPARES {
        open.push(fd::event()?);
    }
    Ok(())
}

/// S2 and S3: a use that closes all that it opens.
///
/// # Errors
/// Those of the use.
pub(crate) fn with<T>(mut used: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match used() {
            Err(error) if is_short(&error) && lend() => {}
            done => {
                refill();
                return done;
            }
        }
    }
}

/// Whether no descriptor was left, for this process or for all.
fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Closes a spare; false if there is none.
fn lend() -> bool {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(Vec::pop).is_some()
}

fn refill() {
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(open) = spare.as_mut() else { return };
    while open.len() < SPARES
        && let Ok(one) = fd::event()
    {
        open.push(one);
    }
}
