//! The handler of faults: SIGSEGV, SIGBUS, SIGILL, SIGFPE.
//!
//! In: a signal. Out: one of four.
//! - A simulated instruction's access faulted: the simulation gets the fault (`access`).
//! - A thread is inside a patched window: it goes on at the matching place in the displaced code (guard).
//! - A copy faulted: the program gets the signal at the original instruction. If its handler returns there
//!   (for example after mapping the page), the copy goes on: one hit, one execution.
//! - Anything else is the program's.
//!
//! Invariants: TRAP-1; TRAP-2: no lock, no allocation, no panic, no C library.
//!
//! # Signals that are sent
//! If one of these signals is sent and arrives while a thread is in a copy, the program sees it at the
//! original, as it does a fault. Handlers of other signals are called through signal wrappers, which do the
//! same (`x86_64::signal_wrappers`). Deferring signals, as the kernel does for its own copies, would take two
//! system calls a hit.

use super::block::{Block, block, saved};
use super::chain::{Delivered, die};
use crate::native::{Context, Info, access, sys};

/// # Safety
/// Called by the kernel as the handler of a signal.
pub(super) unsafe extern "C" fn on_fault(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: installed with SA_SIGINFO, so both belong to this signal.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    // SAFETY: these are the structures of a forced signal.
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
    // SAFETY: these are the kernel's own structures.
    unsafe { deliver(block, signal, info, context) };
}

/// Delivers a signal to the program, at the original instruction if the thread is in a copy.
///
/// # Safety
/// As for [`super::chain::Saved::deliver`].
pub(super) unsafe fn deliver(
    block: &Block,
    signal: i32,
    info: &mut Info,
    context: &mut Context,
) -> Delivered {
    let Some(saved) = saved(signal) else { return Delivered::Handled };
    as_original(block, signal, info, context, |info, context| {
        // SAFETY: the caller promises it.
        unsafe { saved.deliver(signal, info, context) }
    })
}

/// The program's handler returned to an instruction that we will carry out again. If the handler made the
/// default action the disposition, so that the next fault would end the process, this fault ends it, at the
/// original instruction.
pub(super) fn again(signal: i32, info: &Info, context: &mut Context) -> Delivered {
    let is_default = sys::action(signal).is_ok_and(|now| now.handler == sys::DEFAULT);
    if info.is_forced() && is_default {
        die(signal, info, context);
        return Delivered::Dying;
    }
    Delivered::Handled
}

/// Calls `see` with a state in which the program counter is in no copy.
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
    // In SIGILL, SIGFPE and single steps, siginfo contains the instruction's address.
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
