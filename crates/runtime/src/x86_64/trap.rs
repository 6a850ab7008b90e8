//! The handler of SIGTRAP: a hit on the trap path.
//!
//! In: an int3 that was executed. Out: consumers called, the displaced instruction done, the thread behind it; or the signal given
//! to whom it belongs. Invariants: TRAP-1 a signal that is not ours ends as it would have without us; TRAP-2 no lock, no
//! allocation, no panic, no C library, and loops bounded by what the program does; TRAP-3 a trap is ours only if [`Traps`] has its address.
//! Does not: find probes or pin them ([`Traps::hit`] does, and is where a hit begins and ends), or save vector state (the kernel did).
//!
//! # A trap, step by step
//!
//! | step | what |
//! |---|---|
//! | T1 | not an int3 that was executed (sent, a single step, a breakpoint register): the program's |
//! | T2 | a guard has the address: go on at the matching place |
//! | T3 | a probe has it: consumers run ([`Traps::hit`]). What is mapped there is changing: back to the trap |
//! | T4 | a consumer moved the instruction pointer: go on there |
//! | T5 | simulate, or go on at the copy |
//! | T6 | nobody has it: see below |
//!
//! T6, against a writer that publishes (table, then byte) and takes out (byte, then table) probes while a thread is between its int3 and T3:
//! - *the thread was already sent on* (a helper moved it, then died before it could take the signal back): its instruction pointer is
//!   in code of ours; it goes on there.
//! - *the byte is no int3*: it was taken out behind the trap. The thread goes back to the instruction, which is whole again.
//! - *the byte is one, and a second look finds it*: it was put there between the first look and the byte. A hit.
//! - *the byte is one, and nobody has it*: the program's own. To mistake ours for that, the probe must have been taken out and put in
//!   again between the second look and the second reading of the byte, and taking out waits for this very handler's grace.
//! - `CD 03`, the long form: its second byte is no int3, and the instruction before it is not ours. The program's.

use core::mem::MaybeUninit;

use trapline_insn::x86_64::Regs;
use trapline_insn::x86_64::simulate::{Memory, Op, Size, simulate};

use super::access::Own;
use super::chain::Delivered;
use super::context::{Context, Info, SI_KERNEL};
use super::fault::{again, deliver};
use super::install::{Block, block};

/// What becomes of the instruction that a trap displaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It is simulated.
    Simulate(Op),
    /// Its copy runs, at this address.
    At(u64),
}

/// Whose a trap is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Ours: the hit is over but for its instruction.
    Hit(Step),
    /// What is mapped there was changing. The thread goes back to the trap.
    Again,
    /// Not ours, as far as is known.
    Nobody,
}

/// Who knows our traps. Asked by handlers: neither locks nor allocates nor panics.
pub trait Traps: Sync {
    /// If a site of ours is at `addr`: a hit. Its consumers run, and may change `regs`, whose `rip` is `addr`. Otherwise nothing is
    /// done.
    ///
    /// # Safety
    /// `regs` is the state of the calling thread at the site.
    unsafe fn hit(&self, addr: u64, regs: &mut Regs) -> Answer;

    /// If `addr` is a place inside a patched window: where the thread goes on.
    fn guard(&self, addr: u64) -> Option<u64> {
        let _ = addr;
        None
    }

    /// Whether `pc` is in generated code that a thread can have been moved to.
    fn is_generated(&self, pc: u64) -> bool {
        let _ = pc;
        false
    }
}

/// `int3`.
const INT3: u64 = 0xCC;
/// The exception of a breakpoint.
const BREAKPOINT: u64 = 3;

/// # Safety
/// Called by the kernel.
pub(super) unsafe extern "C" fn on_trap(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: installed with SA_SIGINFO: both are this signal's own.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    let Some(block) = block() else { return };
    if info.code == SI_KERNEL && context.exception == BREAKPOINT {
        // SAFETY: T1 holds, so the context is the state of this thread behind an int3 that it executed.
        match unsafe { serve(block, context) } {
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
/// `context` is the state of this thread behind an int3.
#[inline]
unsafe fn serve(block: &Block, context: &mut Context) -> Served {
    let mut regs = context.regs();
    regs.rip = regs.rip.wrapping_sub(1);
    let trap = regs.rip;
    if let Some(to) = block.traps.guard(trap) {
        context.set_rip(to);
        return Served::Done;
    }
    // SAFETY: the caller's.
    unsafe {
        match block.traps.hit(trap, &mut regs) {
            Answer::Hit(step) => proceed(block, context, &mut regs, trap, step),
            Answer::Again => context.set_rip(trap),
            Answer::Nobody => return unknown(block, context, trap),
        }
    }
    Served::Done
}

/// T4 and T5.
///
/// # Safety
/// As [`serve`]; `regs` is what consumers left.
#[inline]
unsafe fn proceed(block: &Block, context: &mut Context, regs: &mut Regs, trap: u64, step: Step) {
    match step {
        _ if regs.rip != trap => context.set_regs(regs),
        Step::At(copy) => {
            regs.rip = copy;
            context.set_regs(regs);
        }
        // SAFETY: the caller's.
        Step::Simulate(op) => unsafe { by_hand(block, context, regs, &op) },
    }
}

/// Simulates. If memory faults, the program is given its signal at the instruction, and the instruction is done again if the
/// program's handler comes back to it.
///
/// # Safety
/// As [`proceed`].
#[inline]
unsafe fn by_hand(block: &Block, context: &mut Context, regs: &mut Regs, op: &Op) {
    loop {
        let trap = regs.rip;
        let mut record = MaybeUninit::uninit();
        let mut memory = Own::new(&mut record);
        let result = simulate(op, regs, &mut memory);
        context.set_regs(regs);
        let (Err(_), Some(faulted)) = (result, memory.faulted()) else { return };
        faulted.describe(context);
        let (signal, info) = (faulted.info.signal, &mut faulted.info);
        // SAFETY: the caller's; the signal is one that this thread's own instruction raised.
        let delivered = unsafe { deliver(block, signal, info, context) };
        if delivered == Delivered::Dying
            || context.rip() != trap
            || again(signal, info, context) == Delivered::Dying
        {
            return;
        }
        context.read(regs);
    }
}

/// T6.
///
/// # Safety
/// As [`serve`].
#[cold]
unsafe fn unknown(block: &Block, context: &mut Context, trap: u64) -> Served {
    let pc = context.rip();
    if block.traps.is_generated(pc) || block.copies.original(pc).is_some() {
        return Served::Done;
    }
    let byte = |addr: u64| Own::new(&mut MaybeUninit::uninit()).load(addr, Size::Byte).ok();
    if byte(trap) == Some(BREAKPOINT) && byte(trap.wrapping_sub(1)) == Some(0xCD) {
        return Served::Foreign;
    }
    if byte(trap) == Some(INT3) {
        let mut regs = context.regs();
        regs.rip = trap;
        // SAFETY: the caller's.
        unsafe {
            match block.traps.hit(trap, &mut regs) {
                Answer::Hit(step) => {
                    proceed(block, context, &mut regs, trap, step);
                    return Served::Done;
                }
                Answer::Again => {
                    context.set_rip(trap);
                    return Served::Done;
                }
                Answer::Nobody => {}
            }
        }
        if byte(trap) == Some(INT3) {
            return Served::Foreign;
        }
    }
    context.set_rip(trap);
    Served::Done
}
