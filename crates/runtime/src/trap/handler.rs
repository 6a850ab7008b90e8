//! The handler of SIGTRAP: a hit on the trap path.
//!
//! In: a trap instruction (`int3`, `brk`) that was executed. Out: consumers called, the displaced instruction done, the thread behind it; or the signal given
//! to whom it belongs. Invariants: TRAP-1 a signal that is not ours ends as it would have without us; TRAP-2 no lock, no
//! allocation, no panic, no C library, and loops bounded by what the program does; TRAP-3 a trap is ours only if [`Traps`](super::Traps) has its address.
//! Does not: find probes or pin them ([`hit`](super::Traps::hit) does, and is where a hit begins and ends), or save vector state (the kernel did).
//!
//! # A trap, step by step
//!
//! | step | what |
//! |---|---|
//! | T1 | not a trap that was executed (sent, a single step, a breakpoint register): the program's |
//! | T2 | a guard has the address: go on at the matching place. Where a patch is one word, there is none ([`GUARDS`]) |
//! | T3 | a probe has it: consumers run ([`hit`](super::Traps::hit)). What is mapped there is changing: back to the trap |
//! | T4 | a consumer moved the instruction pointer: go on there |
//! | T5 | simulate, or go on at the copy. What nearly every function begins with or ends in was [done](Answer::Done) behind T3 already |
//! | T6 | nobody has it: see below |
//!
//! T6, against a writer that publishes (table, then code) and takes out (code, then table) probes while a thread is between its trap and T3:
//! - *the thread was already sent on* (a helper moved it, then died before it could take the signal back): its instruction pointer is
//!   in code of ours; it goes on there.
//! - *there is no trap*: it was taken out behind the trap. The thread goes back to the instruction, which is whole again.
//! - *there is one, and a second look finds it*: it was put there between the first look and the code. A hit.
//! - *there is one, and a place inside a window became a site, or the other way round, between the looks for them*: the second look asks for both
//!   again, and is believed only if no guard was led meanwhile ([`turns`](super::Traps::turns)). Otherwise back to the trap.
//! - *there is one, and nobody has it*: the program's own. To mistake ours for that, the probe must have been taken out and put in
//!   again between the second look and the second reading of the code, and taking out waits for this very handler's grace.
//! - *a trap of a kind that we do not write*: the program's.

use core::mem::MaybeUninit;

use super::chain::Delivered;
use super::fault::{again, deliver};
use super::install::{Block, block};
use super::{Answer, Stands, Step};
use crate::native::access::{quick, simulated};
use crate::native::breakpoint::{GUARDS, executed, stands};
use crate::native::context::{ControlWords, State};
use crate::native::{Context, Info, Op};

/// # Safety
/// Called by the kernel.
pub(super) unsafe extern "C" fn on_trap(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: installed with SA_SIGINFO: both are this signal's own.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    let Some(block) = block() else { return };
    if let Some(trap) = executed(info, context) {
        // SAFETY: T1 holds, so the context is the state of this thread, which executed a trap there.
        match unsafe { serve(block, context, trap) } {
            Served::Done => return,
            Served::Foreign => {}
        }
    }
    // SAFETY: the kernel's own structures.
    unsafe { deliver(block, signal, info, context) };
}

/// Whether the trap was ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Served {
    Done,
    Foreign,
}

/// T2 to T6.
///
/// # Safety
/// `context` is the state of this thread, which executed the trap at `trap`.
#[inline]
unsafe fn serve(block: &Block, context: &mut Context, trap: u64) -> Served {
    let mut state = State::at(context, trap);
    if GUARDS && let Some(to) = block.traps.guard(trap) {
        state.context().set_pc(to);
        return Served::Done;
    }
    // SAFETY: the caller's.
    unsafe {
        match hit(block, &mut state, trap) {
            Answer::Done => state.keep(),
            Answer::Hit(step) => proceed(block, &mut state, trap, step),
            Answer::Again => state.context().set_pc(trap),
            Answer::Nobody => return unknown(block, state.context(), trap),
        }
    }
    Served::Done
}

/// T3. Consumers run with the thread's own control words, as they do behind a jump; vector registers are whatever the kernel left there.
///
/// # Safety
/// As [`serve`].
#[inline]
unsafe fn hit<'a>(block: &'a Block, state: &mut State<'_>, trap: u64) -> Answer<'a> {
    // SAFETY: the caller's.
    unsafe {
        let words = ControlWords::unusual(state.context());
        words.into_iter().for_each(ControlWords::load);
        let answer = block.traps.hit(trap, state.regs());
        if words.is_some() && answer == Answer::Nobody {
            ControlWords::reset();
        }
        answer
    }
}

/// T4 and T5.
///
/// # Safety
/// As [`serve`]; `state` is what consumers left.
#[inline(always)]
unsafe fn proceed(block: &Block, state: &mut State<'_>, trap: u64, step: &Step) {
    match step {
        _ if state.regs().ip() != trap => state.keep(),
        Step::At(copy) => {
            state.regs().set_ip(*copy);
            state.keep();
        }
        Step::Simulate(op) => {
            if !quick(op, state) {
                // SAFETY: the caller's.
                unsafe { by_hand(block, state, op) }
            }
        }
    }
}

/// Simulates what is not done [at once](quick), or was tried and faulted. If memory faults, the program is given its signal at the instruction, and the
/// instruction is done again if the program's handler comes back to it. Apart, so that the usual ways keep what they have in registers.
///
/// # Safety
/// As [`proceed`].
#[inline(never)]
unsafe fn by_hand(block: &Block, state: &mut State<'_>, op: &Op) {
    loop {
        let trap = state.regs().ip();
        let mut record = MaybeUninit::uninit();
        let faulted = simulated(op, state, &mut record);
        state.keep();
        let Some(faulted) = faulted else { return };
        let context = state.context();
        faulted.describe(context);
        let (signal, info) = (faulted.info.signal, &mut faulted.info);
        // SAFETY: the caller's; the signal is one that this thread's own instruction raised.
        let delivered = unsafe { deliver(block, signal, info, context) };
        if delivered == Delivered::Dying
            || context.pc() != trap
            || again(signal, info, context) == Delivered::Dying
        {
            return;
        }
        state.read();
    }
}

/// T6.
///
/// # Safety
/// As [`serve`].
#[cold]
unsafe fn unknown(block: &Block, context: &mut Context, trap: u64) -> Served {
    let pc = context.pc();
    if block.traps.is_generated(pc) || block.original(pc).is_some() {
        return Served::Done;
    }
    let standing = stands(trap);
    if standing == Stands::Theirs {
        return Served::Foreign;
    }
    if standing == Stands::Trap {
        let mut state = State::at(context, trap);
        let turns = block.traps.turns();
        if GUARDS && let Some(to) = block.traps.guard(trap) {
            state.context().set_pc(to);
            return Served::Done;
        }
        // SAFETY: the caller's.
        unsafe {
            match hit(block, &mut state, trap) {
                Answer::Hit(step) => {
                    proceed(block, &mut state, trap, step);
                    return Served::Done;
                }
                Answer::Done => {
                    state.keep();
                    return Served::Done;
                }
                Answer::Again => {
                    state.context().set_pc(trap);
                    return Served::Done;
                }
                Answer::Nobody => {}
            }
        }
        if stands(trap) == Stands::Trap && block.traps.turns() == turns {
            return Served::Foreign;
        }
    }
    context.set_pc(trap);
    Served::Done
}
