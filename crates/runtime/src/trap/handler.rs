//! The handler of SIGTRAP: a hit on the trap path.
//!
//! In: a trap instruction (`int3`, `brk`) that was executed. Out: consumers called, the displaced instruction
//! carried out, the thread behind it; or the signal delivered to the program. Invariants: TRAP-1 a signal
//! that is not ours ends as it would have without us. TRAP-2 no lock, no allocation, no panic, no C library,
//! and loops bounded by what the program does. TRAP-3: a trap is ours only if [`Traps`](super::Traps) has its
//! address.
//! Does not: find probes or pin them ([`hit`](super::Traps::hit) does, and a hit begins and ends there), or
//! save vector state (the kernel did).
//!
//! # A trap, step by step
//!
//! | step | what |
//! |---|---|
//! | T1 | not a trap that was executed (sent, a single step, a breakpoint register): the program's |
//! | T2 | the address is a guard: go on at the matching place. Where a patch is one word, there are no guards ([`GUARDS`]) |
//! | T3 | a probe is there: consumers run ([`hit`](super::Traps::hit)). If the mapping there is changing: back to the trap |
//! | T4 | a consumer moved the instruction pointer: go on there |
//! | T5 | simulate, or go on at the copy. |
//! | | Instructions that nearly every function begins with or ends in are [done](Answer::Done) after T3 already |
//! | T6 | no guard and no probe: see below |
//!
//! T6. Meanwhile a writer may publish probes (table, then code) and remove them (code, then table) while a
//! thread is between its trap and T3:
//! - *the thread was already moved on* (a helper moved it, then died before it could take back the signal):
//!   its instruction pointer is in our code; it goes on there.
//! - *there is no trap*: it was removed after the thread trapped. The thread goes back to the instruction,
//!   which is whole again.
//! - *there is one, and a second lookup finds it*: it was placed between the first lookup and reading the
//!   code. A hit.
//! - *there is one, and an interior boundary became a site, or the other way round, between the lookups for
//!   them*: the second lookup looks for both again. Its result counts only if no guard was changed meanwhile
//!   ([`turns`](super::Traps::turns)). Otherwise back to the trap.
//! - *there is one, and neither lookup finds it*: the program's own. To mistake ours for that, the probe must
//!   have been removed and added again between the second lookup and the second reading of the code. But
//!   removing waits for the grace period of this very handler.
//! - *a trap of a kind that we do not write*: the program's.

use core::mem::MaybeUninit;

use super::block::{Block, block};
use super::chain::Delivered;
use super::fault::{again, deliver};
use super::traps::{Answer, Stands, Step};
use crate::native::access::{quick, simulated};
use crate::native::breakpoint::{GUARDS, executed, stands};
use crate::native::context::{ControlWords, State};
use crate::native::{Context, Info, Op};

/// Address of the function that the kernel calls for a trap. Code that walks a stack recognizes the trap by
/// it.
#[must_use]
pub fn handler_address() -> u64 {
    on_trap as *const () as u64
}

/// # Safety
/// Called by the kernel as the handler of a signal.
pub(super) unsafe extern "C" fn on_trap(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: installed with SA_SIGINFO, so both belong to this signal.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    let Some(block) = block() else { return };
    if let Some(trap) = executed(info, context) {
        // SAFETY: T1 holds, so the context is the state of this thread, which executed a trap there.
        match unsafe { serve(block, context, trap) } {
            Served::Done => return,
            Served::Foreign => {}
        }
    }
    // SAFETY: these are the kernel's own structures.
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
    // SAFETY: the caller promises it.
    unsafe {
        match hit(block, &mut state, trap) {
            Answer::Done => state.keep(),
            Answer::Hit(step) => proceed(block, &mut state, trap, step),
            Answer::Again => state.context().set_pc(trap),
            Answer::NotOurs => return unknown(block, state.context(), trap),
        }
    }
    Served::Done
}

/// T3. Consumers run with the thread's own control words, as they do after a jump; vector registers are as
/// the kernel left them.
///
/// # Safety
/// As [`serve`].
#[inline]
unsafe fn hit<'a>(block: &'a Block, state: &mut State<'_>, trap: u64) -> Answer<'a> {
    // SAFETY: the caller promises it.
    unsafe {
        let words = ControlWords::unusual(state.context());
        words.into_iter().for_each(ControlWords::load);
        let answer = block.traps.hit(trap, state.regs());
        if words.is_some() && answer == Answer::NotOurs {
            ControlWords::reset();
        }
        answer
    }
}

/// T4 and T5.
///
/// # Safety
/// As for [`serve`]; `state` is as consumers left it.
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
                // SAFETY: the caller promises it.
                unsafe { by_hand(block, state, op) }
            }
        }
    }
}

/// Simulates what is not done [at once](quick), or was tried and faulted. If an access faults, the program
/// gets its signal at the instruction. The instruction is tried again if the program's handler returns to it.
/// Separate, so that the fast paths keep their values in registers.
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
        // SAFETY: the caller promises it; this thread's own instruction raised the signal.
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
        // SAFETY: the caller promises it.
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
                Answer::NotOurs => {}
            }
        }
        if stands(trap) == Stands::Trap && block.traps.turns() == turns {
            return Served::Foreign;
        }
    }
    context.set_pc(trap);
    Served::Done
}
