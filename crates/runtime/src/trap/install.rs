//! Our signal handlers: installed in front of the program's, and removed again.
//!
//! In: a [`Block`], which refers to the code that looks up our traps. Out: dispositions changed, the earlier
//! ones kept. One caller at a time, which holds a lock. Invariants: TRAP-1; SAFE-4: what is put back is what
//! was there, and only where ours is still installed.
//! Does not: stay in front of handlers that the program installs later: then the program's handler is alone,
//! and [`standing`] shows it. A probe that is reached by a trap must not outlive that.
//!
//! # Threads that block SIGTRAP
//! A trap that is executed while SIGTRAP is blocked kills the process: the kernel forces the signal, with its
//! default action (`force_sig`). C libraries block all signals while they start threads and processes. So no
//! trap may be placed where a thread that blocks SIGTRAP can come: such sites must stay on jumps.
//! [`blocks_traps`] checks a mask for whether a thread does so now. The caller reads the mask from `SigBlk`
//! in `/proc/self/task/TID/status`. It says nothing about the next moment.

use super::block::{ALL, BLOCK, Block, SAVED, Signal};
use super::chain::Saved;
use super::fault::on_fault;
use super::handler::on_trap;
use crate::native::sys::{self, SignalAction, flags};

/// A disposition that could not be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{signal:?}: rt_sigaction fails with errno {errno}")]
pub struct InstallError {
    /// The signal.
    pub signal: Signal,
    /// Error number of rt_sigaction.
    pub errno: i32,
}

fn handler(signal: Signal) -> u64 {
    match signal {
        Signal::Trap => on_trap as *const () as u64,
        _ => on_fault as *const () as u64,
    }
}

/// Installs our handlers. If they are installed already, all that changes is that they use `block` from now
/// on.
///
/// # Errors
/// The first signal that failed; what was changed before is put back.
pub fn install(block: &'static Block) -> Result<(), InstallError> {
    BLOCK.set(block);
    ALL.iter().zip(&SAVED).try_for_each(|(&signal, saved)| {
        put(signal, saved).map_err(|errno| {
            uninstall();
            InstallError { signal, errno }
        })
    })
}

/// The new action has an empty mask, and for SIGTRAP also SA_NODEFER. So a probe that a consumer hits traps
/// inside our handler, and a consumer that leaves by longjmp leaves no signal blocked. No consumer runs in
/// the handler of faults, so there the signal is blocked as the program had it. Otherwise signals that are
/// sent faster than they are handled would pile up on the stack.
fn put(signal: Signal, saved: &Saved) -> Result<(), i32> {
    let mut old = sys::action(signal as i32)?;
    while old.handler != handler(signal) {
        saved.store(&old);
        let defer = if signal == Signal::Trap { flags::NO_DEFER } else { old.flags & flags::NO_DEFER };
        let new = SignalAction {
            handler: handler(signal),
            flags: flags::SIGINFO | flags::RESTORER | defer | Saved::inherited(&old),
            restorer: sys::restorer(),
            mask: 0,
        };
        // SAFETY: our handlers and restorer are code of this crate, which is never unmapped.
        let replaced = unsafe { sys::set_action(signal as i32, &new) }?;
        if replaced == old {
            break;
        }
        // Another thread changed it meanwhile: its action is what was there before ours.
        old = replaced;
        saved.store(&old);
    }
    Ok(())
}

/// Puts back what was there before, where ours is still installed. Returns the number of signals where it was
/// not.
pub fn uninstall() -> usize {
    ALL.iter()
        .rev()
        .zip(SAVED.iter().rev())
        .filter(|&(&signal, saved)| {
            let ours = sys::action(signal as i32).is_ok_and(|now| now.handler == handler(signal));
            // SAFETY: the action that the program, or the kernel, had there.
            !(ours && unsafe { sys::set_action(signal as i32, &saved.load()) }.is_ok())
        })
        .count()
}

/// Whether our handlers are installed for every signal.
#[must_use]
pub fn standing() -> bool {
    ALL.into_iter().all(stands)
}

/// Whether our handler is installed for this signal.
#[must_use]
pub fn stands(signal: Signal) -> bool {
    sys::action(signal as i32).is_ok_and(|now| now.handler == handler(signal))
}

/// Whether a thread with this mask of blocked signals (bit `n - 1` is signal `n`) would die of a trap.
#[must_use]
pub const fn blocks_traps(mask: u64) -> bool {
    mask >> (Signal::Trap as u32 - 1) & 1 == 1
}
