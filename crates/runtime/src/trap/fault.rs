//! The handler of faults: SIGSEGV, SIGBUS, SIGILL, SIGFPE.
//!
//! In: a signal. Out: one of four.
//! - A simulated instruction's access faulted: the simulation is told (`access`).
//! - A thread stands inside a patched window: it is sent to the matching place in the displaced code (guard).
//! - A copy faulted: the program gets the signal at the original instruction. If its handler returns there (having mapped the page,
//!   say), the copy goes on: one hit, one execution.
//! - Anything else is the program's.
//!
//! Invariants: TRAP-1; TRAP-2 no lock, no allocation, no panic, no C library.
//!
//! # Signals that are sent
//! One of these that arrives while a thread is in a copy is shown at the original, as a fault is. Handlers of other signals are called through stand-ins,
//! which do the same (`x86_64::stand_ins`). Deferring signals as the kernel does for its own copies would take two system calls a hit.

use super::chain::{Delivered, die};
use super::install::{Block, block, saved};
use crate::native::{Context, Info, access, sys};

/// # Safety
/// Called by the kernel.
pub(super) unsafe extern "C" fn on_fault(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: installed with SA_SIGINFO: both are this signal's own.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    // SAFETY: a forced signal's own structures.
    if info.is_forced() && unsafe { access::recover(info, context) } {
        return;
    }
    let Some(block) = block() else { return };
    if info.is_forced()
        && let Some(to) = block.traps.guard(context.pc())
    {
        context.set_pc(to);
        return;
    }
    // SAFETY: as above.
    unsafe { deliver(block, signal, info, context) };
}

/// Gives the program a signal, at the original instruction if the thread is in a copy.
///
/// # Safety
/// As [`super::chain::Saved::deliver`].
pub(super) unsafe fn deliver(
    block: &Block,
    signal: i32,
    info: &mut Info,
    context: &mut Context,
) -> Delivered {
    let Some(saved) = saved(signal) else { return Delivered::Handled };
    as_original(block, signal, info, context, |info, context| {
        // SAFETY: the caller's.
        unsafe { saved.deliver(signal, info, context) }
    })
}

/// The program's handler came back to an instruction that we are to do again. If it made the default the disposition, so that the
/// next fault would end the process, that one ends it, at the original instruction.
pub(super) fn again(signal: i32, info: &Info, context: &mut Context) -> Delivered {
    let is_default = sys::action(signal).is_ok_and(|now| now.handler == sys::DEFAULT);
    if info.is_forced() && is_default {
        die(signal, info, context);
        return Delivered::Dying;
    }
    Delivered::Handled
}

/// Shows `see` a state that knows nothing of copies.
fn as_original(
    block: &Block,
    signal: i32,
    info: &mut Info,
    context: &mut Context,
    see: impl FnOnce(&mut Info, &mut Context) -> Delivered,
) -> Delivered {
    let pc = context.pc();
    let Some(original) = block.original(pc) else { return see(info, context) };
    context.set_pc(original);
    // SIGILL, SIGFPE and single steps name the instruction.
    if info.is_forced() && info.addr == pc {
        info.addr = original;
    }
    let mut delivered = see(info, context);
    if delivered == Delivered::Handled && context.pc() == original {
        delivered = again(signal, info, context);
        if delivered == Delivered::Handled {
            context.set_pc(pc);
        }
    }
    delivered
}
