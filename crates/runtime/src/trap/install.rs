//! Our handlers, put in front of the program's and taken away again.
//!
//! In: a [`Block`], which says who knows our traps. Out: dispositions changed, the earlier ones kept. One at a time: the caller's lock.
//! Invariants: TRAP-1; SAFE-4 what is put back is what was there, and only where ours still stands.
//! Does not: stand in front of what the program installs later: then its handler is alone, and [`standing`] tells. A probe that is
//! reached by a trap must not outlive that.
//!
//! # Threads that block SIGTRAP
//! A trap that is executed while SIGTRAP is blocked kills the process: the kernel forces the signal, with its default action
//! (`force_sig`). C libraries block all signals while they start threads and processes. So no trap may be put where a thread can come that
//! blocks it: keep such sites on jumps. Whether one does now, [`blocks_traps`] says of a mask, which `/proc/self/task/TID/status` shows as `SigBlk`
//! and the caller reads. It says nothing about the next moment.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

use super::Traps;
use super::chain::Saved;
use super::copies::Copies;
use super::fault::on_fault;
use super::handler::on_trap;
use crate::native::sys::{self, Action, flags};

/// What handlers know. It stays: a handler may still run when nothing is installed any more.
pub struct Block {
    /// Who knows our traps.
    pub traps: &'static dyn Traps,
    /// Copies that threads may be in.
    pub copies: Copies,
}

impl Block {
    /// If `pc` is in a copy: where the thread would be without it.
    pub(crate) fn original(&self, pc: u64) -> Option<u64> {
        self.copies.original(pc).or_else(|| self.traps.original(pc))
    }
}

impl core::fmt::Debug for Block {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Block").field("copies", &self.copies).finish_non_exhaustive()
    }
}

/// Signals that handlers of ours may stand in front of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Signal {
    /// Traps, and guards that are traps.
    Trap = 5,
    /// Guards that are no instruction; copies that are none here.
    Ill = 4,
    /// Copies that divide by zero.
    Fpe = 8,
    /// Copies and simulated instructions that access memory.
    Segv = 11,
    /// The same.
    Bus = 7,
}

/// In the order in which they are installed: whoever handles traps can handle the faults of what it does.
pub(crate) const ALL: [Signal; 5] = [Signal::Segv, Signal::Bus, Signal::Fpe, Signal::Ill, Signal::Trap];

static BLOCK: AtomicPtr<Block> = AtomicPtr::new(ptr::null_mut());
static SAVED: [Saved; ALL.len()] = [const { Saved::new() }; ALL.len()];

/// A disposition that could not be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{signal:?}: rt_sigaction fails with errno {errno}")]
pub struct InstallError {
    /// Of this signal.
    pub signal: Signal,
    /// Why.
    pub errno: i32,
}

pub(crate) fn block() -> Option<&'static Block> {
    // SAFETY: null, or from `install`, which is given 'static ones. Acquire: what it holds is visible.
    unsafe { BLOCK.load(Acquire).as_ref() }
}

pub(super) fn saved(signal: i32) -> Option<&'static Saved> {
    ALL.iter().zip(&SAVED).find_map(|(of, saved)| (*of as i32 == signal).then_some(saved))
}

fn handler(signal: Signal) -> u64 {
    match signal {
        Signal::Trap => on_trap as *const () as u64,
        _ => on_fault as *const () as u64,
    }
}

/// Puts our handlers in front. Where they stand already, nothing happens but that `block` is theirs from now on.
///
/// # Errors
/// The first that failed; what was changed before is put back.
pub fn install(block: &'static Block) -> Result<(), InstallError> {
    BLOCK.store(ptr::from_ref(block).cast_mut(), Release);
    ALL.iter().zip(&SAVED).try_for_each(|(&signal, saved)| {
        put(signal, saved).map_err(|errno| {
            uninstall();
            InstallError { signal, errno }
        })
    })
}

/// An empty mask; for SIGTRAP also SA_NODEFER: a probe that a consumer hits traps inside our handler, and one that leaves by longjmp takes no
/// blocked signal with it. No consumer runs in the handler of faults, so there the signal is blocked as the program had it: signals that are sent
/// faster than they are handled would pile up on the stack.
fn put(signal: Signal, saved: &Saved) -> Result<(), i32> {
    let mut old = sys::action(signal as i32)?;
    while old.handler != handler(signal) {
        saved.store(&old);
        let defer = if signal == Signal::Trap { flags::NO_DEFER } else { old.flags & flags::NO_DEFER };
        let new = Action {
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
        // Another thread changed it meanwhile: what it put there is what was there before us.
        old = replaced;
        saved.store(&old);
    }
    Ok(())
}

/// Puts back what was there before, where ours still stands. The number of signals where it did not.
pub fn uninstall() -> usize {
    ALL.iter()
        .rev()
        .zip(SAVED.iter().rev())
        .filter(|&(&signal, saved)| {
            let ours = sys::action(signal as i32).is_ok_and(|now| now.handler == handler(signal));
            // SAFETY: what the program, or the kernel, had there.
            !(ours && unsafe { sys::set_action(signal as i32, &saved.load()) }.is_ok())
        })
        .count()
}

/// Whether our handlers stand in front of every signal.
#[must_use]
pub fn standing() -> bool {
    ALL.into_iter().all(stands)
}

/// Whether our handler stands in front of this one.
#[must_use]
pub fn stands(signal: Signal) -> bool {
    sys::action(signal as i32).is_ok_and(|now| now.handler == handler(signal))
}

/// Whether a thread with this mask of blocked signals (bit `n - 1` is signal `n`) would die of a trap.
#[must_use]
pub const fn blocks_traps(mask: u64) -> bool {
    mask >> (Signal::Trap as u32 - 1) & 1 == 1
}
